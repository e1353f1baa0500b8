"""Grounding photographs: our stage beside the one-image-at-a-time loop of the public scripts.

    python bench/grounding.py                                   # small models, any machine
    python bench/grounding.py --full --precision bf16           # full size, for a GPU

Both sides run the same Florence-2 and the same SAM 2 (true classes and configurations, random
weights) on the same photographs and captions and find the same boxes. The loop is that of
Grounded-SAM-2's `grounded_sam2_florence2_image_demo.py`: open an image with Pillow, one caption
through processor and `generate` (3 beams), `set_image`, `predict` for its boxes. It writes nothing.
Ours is `pipeline.grounding.run.ground`: it checks every file's digest, decodes ahead, batches,
matches spans, applies rules, and writes the records durably. The two take turns, a round each.

Random weights answer nothing that could be parsed, so each `generate` is steered to an answer of
the true form, with a box for each noun phrase: as many steps as a trained model would take.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    LogitsProcessor,
    PreTrainedTokenizerFast,
)

from pipeline.cache import key_of_file
from pipeline.cache.records import read_phrases
from pipeline.encoders.device import computing
from pipeline.grounding.base import Caption
from pipeline.grounding.chunker import FunctionWordChunker
from pipeline.grounding.config import Florence2Settings, Rules
from pipeline.grounding.florence2 import TASK, Florence2Grounder
from pipeline.grounding.model import LoadedModel
from pipeline.grounding.run import ground
from pipeline.grounding.segmenters import sam2
from pipeline.grounding.segmenters.config import Sam2Settings
from pipeline.grounding.segmenters.prompted import PromptedSegmenter
from pipeline.grounding.units import Unit
from pipeline.grounding.worker import GroundSettings

PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "flickr8k"
TARGET = 8.0
BEAMS, MAX_LENGTH = 3, 1024
SMALL_SIZE = 256
"""Edge of the small models' inputs, in pixels; Florence-2's is 768, SAM 2's 1024."""


class Steered(LogitsProcessor):
    """Makes every row of a batch write its own answer, and no other."""

    def __init__(self, answers: list[list[int]], end: int) -> None:
        self.answers, self.end = answers, end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step, beams = input_ids.shape[1] - 1, len(input_ids) // len(self.answers)
        tokens = [ids[step] if step < len(ids) else self.end for ids in self.answers]
        rows = torch.tensor(tokens, device=scores.device).repeat_interleave(beams)
        scores[torch.arange(len(rows)), rows] += 1000.0
        return scores


class SteeredFlorence(Florence2ForConditionalGeneration):
    """Florence-2 of random weights, whose answers have the form of a trained one's."""

    answers: dict[str, list[int]]
    read_prompt: Any

    def generate(self, *args: Any, **inputs: Any) -> Any:
        prompts = self.read_prompt(inputs["input_ids"], skip_special_tokens=True)
        answers = [self.answers[prompt.split(": ", 1)[1].strip()] for prompt in prompts]
        end = self.config.text_config.eos_token_id
        return super().generate(*args, **inputs, logits_processor=[Steered(answers, end)])


def photographs(count: int) -> list[Unit]:
    """Images, each with its longest caption; none where they are not at hand."""
    folder, captions = PHOTOGRAPHS / "images_full", PHOTOGRAPHS / "Flickr8k.token.txt"
    if not captions.is_file():
        return []
    longest: dict[str, str] = {}
    for line in captions.read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition("\t")
        name = name.partition("#")[0]
        longest[name] = max(longest.get(name, ""), text.strip(), key=len)
    units = []
    for path in sorted(folder.glob("*.jpg"))[:count]:
        with Image.open(path) as image:
            width, height = image.size
        key = key_of_file(path)
        units.append(Unit(path, key, height, width, [Caption(path.name, key, longest[path.name])]))
    return units


def florence(texts: list[str], full: bool) -> tuple[SteeredFlorence, Florence2Processor]:
    """Florence-2-large by its published configuration, or one of a thousandth of its weights."""
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
    """Token ids of an answer: each noun phrase and a box that follows from its place."""
    written = "<s>"
    for place, span in enumerate(FunctionWordChunker().spans(caption)):
        left, top = 40 + 97 * place % 500, 30 + 61 * place % 500
        box = "".join(f"<loc_{edge}>" for edge in (left, top, left + 400, top + 350))
        written += caption[slice(*span)] + box
    return tokenizer(written + "</s>", add_special_tokens=False)["input_ids"]


def segmenter(full: bool, folder: Path, device: torch.device, precision: str) -> PromptedSegmenter:
    """SAM 2.1: hiera-large, or hiera-tiny made smaller still; drawn at random."""
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
    return sam2.build(Sam2Settings(model=model, weights="random:0"), device, precision)


def plain_loop(
    units: list[Unit], model: Any, processor: Any, predictor: Any, device: torch.device
) -> int:
    """One image after the other, as the public script does; returns the number of masks."""
    count = 0
    for unit in units:
        image = Image.open(unit.path).convert("RGB")
        prompt = TASK + unit.captions[0].text
        inputs = processor(text=prompt, images=image, return_tensors="pt").to(device)
        ids = model.generate(
            **inputs,
            max_new_tokens=MAX_LENGTH,
            early_stopping=False,
            do_sample=False,
            num_beams=BEAMS,
        )
        text = processor.batch_decode(ids, skip_special_tokens=False)[0]
        size = (image.width, image.height)
        boxes = processor.post_process_generation(text, task=TASK, image_size=size)[TASK]["bboxes"]
        if boxes:
            predictor.set_image(np.array(image))
            masks, _, _ = predictor.predict(box=np.array(boxes), multimask_output=False)
            count += len(masks) if masks.ndim == 4 else 1
    return count


class Timed:
    """A grounder or segmenter that counts the seconds of its calls and keeps what they gave."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name = inner, inner.name
        self.clear()

    def clear(self) -> None:
        self.seconds, self.results = 0.0, []

    def describe(self) -> dict[str, object]:
        return self.inner.describe()

    def ground(self, *args: Any) -> Any:
        return self._count(self.inner.ground, args)

    def segment(self, *args: Any) -> Any:
        return self._count(self.inner.segment, args)

    def _count(self, call: Any, args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        self.seconds += time.perf_counter() - start
        self.results.append(result)
        return result


class Replayed:
    """Gives again what a `Timed` kept, in the same order: what is left is the stage itself."""

    def __init__(self, timed: Timed) -> None:
        self.name, self.describe = timed.name, timed.describe
        self._results = iter(timed.results)

    def ground(self, *args: Any) -> Any:
        return next(self._results)

    segment = ground


def main() -> None:
    """Measure and print the rates and their ratio."""
    parser = argparse.ArgumentParser(description="Grounding, in images a second.")
    parser.add_argument("--full", action="store_true", help="Florence-2-large, hiera-large")
    parser.add_argument("--images", type=int, default=48, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each side")
    parser.add_argument("--batch", type=int, default=16, help="images of a batch of ours")
    parser.add_argument("--workers", type=int, default=2, help="decoding threads of ours")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    units = photographs(options.images)
    if not units:
        print(f"skipped: no photographs in {PHOTOGRAPHS}")
        return
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    device = torch.device(options.device)
    texts = [unit.captions[0].text for unit in units]
    model, processor = florence(texts, options.full)
    settings = Florence2Settings(family="florence2", model="bench", beams=BEAMS)
    loaded = LoadedModel(model, processor, {"model": "bench"})
    grounder = Timed(Florence2Grounder(settings, loaded, device, options.precision))
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as scratch, computing(device, "fp32"):
        masker = segmenter(options.full, Path(scratch), device, options.precision)
        predictor = SAM2ImagePredictor(masker._backend._model)  # pyright: ignore
        edge = predictor.model.image_size  # fixed for 1,024 there
        predictor._bb_feat_sizes = [(edge // n, edge // n) for n in (4, 8, 16)]
        timed = Timed(masker)
        how = GroundSettings(options.batch, options.workers, max_failed=0, device=str(device))
        rules = Rules(duplicate_iou=None)
        for turn in range(options.rounds + 1):  # the first warms up
            start = time.perf_counter()
            with computing(device, options.precision):
                masks = plain_loop(units, model, processor, predictor, device)
            middle = time.perf_counter()
            grounder.clear()
            timed.clear()
            out = Path(scratch) / f"out-{turn}"
            summary = ground(units, grounder, timed, rules, out, how)
            end = time.perf_counter()
            found = read_phrases(out).num_rows
            empty = summary.counts["dropped"].get("empty_mask", 0)
            assert found + empty == masks, "the two sides must find the same boxes"
            if turn:
                seconds["plain"].append(middle - start)
                seconds["ours"].append(end - middle)
        start = time.perf_counter()
        ground(units, Replayed(grounder), Replayed(timed), rules, Path(scratch) / "replayed", how)
        alone = time.perf_counter() - start
    size = "full size" if options.full else "small"
    print(f"{device}, {torch.get_num_threads()} threads, {options.precision}, models {size}")
    print(f"{len(units)} photographs, {masks} boxes, median of {options.rounds} rounds")
    rates = {side: len(units) / statistics.median(some) for side, some in seconds.items()}
    for side, rate in rates.items():
        print(f"{side:<8}{rate:>9.2f} images/s")
    print(f"ratio   {rates['ours'] / rates['plain']:>9.2f}   (target on a GPU: {TARGET:g})")
    share = [each.seconds / seconds["ours"][-1] for each in (grounder, timed)]
    print(f"of our wall time, grounder {share[0]:.0%}, segmenter {share[1]:.0%} (they overlap)")
    print(f"without the models {len(units) / alone:.0f} images/s: decoding, rules, masks, writing")


if __name__ == "__main__":
    main()
