"""Florence-2 and SAM 2, the real classes with random weights, for the grounding benchmark.

The output of random weights cannot be parsed, so `generate` is steered to an answer in the real
format, with a box for each noun phrase, in as many steps as a trained model would take.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    LogitsProcessor,
    PreTrainedTokenizerFast,
)

from pipeline.grounding.noun_phrases import noun_phrases
from pipeline.grounding.segmenters.prompted import PromptedSegmenter
from pipeline.grounding.segmenters.sam2 import Sam2Settings

SMALL_SIZE = 256
"""Edge of the small models' inputs, in pixels; Florence-2's is 768, SAM 2's 1024."""


class Steered(LogitsProcessor):
    """Force every row of a batch to generate its own answer."""

    def __init__(self, answers: list[list[int]], end: int) -> None:
        self.answers, self.end = answers, end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step, beams = input_ids.shape[1] - 1, len(input_ids) // len(self.answers)
        tokens = [ids[step] if step < len(ids) else self.end for ids in self.answers]
        rows = torch.tensor(tokens, device=scores.device).repeat_interleave(beams)
        scores[torch.arange(len(rows)), rows] += 1000.0
        return scores


class SteeredFlorence(Florence2ForConditionalGeneration):
    """Florence-2 with random weights, whose answers have a trained model's format."""

    answers: dict[str, list[int]]
    read_prompt: Any

    def generate(self, *args: Any, **inputs: Any) -> Any:
        prompts = self.read_prompt(inputs["input_ids"], skip_special_tokens=True)
        answers = [self.answers[prompt.split(": ", 1)[1].strip()] for prompt in prompts]
        end = self.config.text_config.eos_token_id
        return super().generate(*args, **inputs, logits_processor=[Steered(answers, end)])


def florence(texts: list[str], full: bool) -> tuple[SteeredFlorence, Florence2Processor]:
    """Florence-2-large with its published configuration, or a very small one."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.add_tokens([f"<loc_{i}>" for i in range(1000)])
    size = 768 if full else SMALL_SIZE
    images = CLIPImageProcessor(
        size={"height": size, "width": size},
        do_center_crop=False,
        image_seq_length=(size // 32) ** 2 + 1,
    )
    parsing = {"phrase_grounding": {"banned_grounding_tokens": []}, "pure_text": {}}
    processor = Florence2Processor(images, tokenizer, post_processor_config=parsing)
    wide = {"embed_dim": [256, 512, 1024, 2048], "num_heads": [8, 16, 32, 64]}
    narrow = {"embed_dim": [16, 32, 64, 128], "num_heads": [1, 2, 4, 8], "depths": [1, 1, 1, 1]}
    vision = wide if full else narrow
    layers, width = (12, 1024) if full else (2, 64)
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = Florence2Config(
        vision_config={**vision, "num_groups": vision["num_heads"], "projection_dim": width},
        text_config={
            "model_type": "bart",
            "vocab_size": 51_289 if full else len(tokenizer),
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": width // 64,
            "decoder_attention_heads": width // 64,
            "encoder_ffn_dim": 4 * width,
            "decoder_ffn_dim": 4 * width,
            "max_position_embeddings": 4096 if full else 1024,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
            **tokens,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        **tokens,
    )
    torch.manual_seed(0)
    model = SteeredFlorence(config).eval()
    model.answers = {text: answer(text, tokenizer) for text in texts}
    model.read_prompt = processor.batch_decode
    return model, processor


def answer(caption: str, tokenizer: Any) -> list[int]:
    """Token ids of an answer: each noun phrase and a box derived from its position."""
    written = "<s>"
    for place, span in enumerate(noun_phrases(caption)):
        left, top = 40 + 97 * place % 500, 30 + 61 * place % 500
        box = "".join(f"<loc_{edge}>" for edge in (left, top, left + 400, top + 350))
        written += caption[slice(*span)] + box
    return tokenizer(written + "</s>", add_special_tokens=False)["input_ids"]


def segmenter(full: bool, folder: Path, device: torch.device, precision: str) -> PromptedSegmenter:
    """SAM 2.1 with random weights: hiera-large, or hiera-tiny made even smaller."""
    model = "sam2.1-hiera-large"
    if not full:
        published = files("sam2") / "configs/sam2.1/sam2.1_hiera_t.yaml"
        settings: Any = OmegaConf.load(str(published))
        settings.model.image_size = SMALL_SIZE
        trunk = settings.model.image_encoder.trunk
        trunk.embed_dim, trunk.stages, trunk.global_att_blocks = 16, [1, 2, 2, 1], [4]
        settings.model.image_encoder.neck.backbone_channel_list = [128, 64, 32, 16]
        model = str(folder / "small.yaml")
        OmegaConf.save(settings, model)
    return Sam2Settings(model=model, weights="random:0").build(device, precision)
