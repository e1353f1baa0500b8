"""Grounders of the true classes, tiny and random, and what they ground."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    BertTokenizer,
    CLIPImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    PreTrainedTokenizerFast,
    Sam2VideoVideoProcessor,
    Sam3Config,
    Sam3ImageProcessor,
    Sam3TrackerVideoConfig,
    Sam3VideoConfig,
    Sam3VideoModel,
    Sam3VideoProcessor,
)

from pipeline.grounding.protocols import Caption
from sightline.cache import key_of_text

IMAGE_TOKENS = 5  # 2 × 2 places of a 64-pixel image, and their mean
POSITIONS = 128

TOKENS: dict[str, Any] = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
POST_PROCESSING = {
    "phrase_grounding": {"banned_grounding_tokens": ["it", "The image"]},
    "pure_text": {},
}


def florence_processor() -> Florence2Processor:
    """A byte-level tokenizer with Florence-2's special and location tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.add_tokens([f"<loc_{i}>" for i in range(1000)])
    images = CLIPImageProcessor(
        size={"height": 64, "width": 64}, do_center_crop=False, image_seq_length=IMAGE_TOKENS
    )
    assert getattr(images, "image_seq_length") == IMAGE_TOKENS  # noqa: B009
    return Florence2Processor(
        image_processor=images, tokenizer=tokenizer, post_processor_config=POST_PROCESSING
    )


def save_florence(folder: Path) -> Path:
    """A whole Florence-2 folder; its weights are large, so that answers differ."""
    processor = florence_processor()
    size = len(processor.tokenizer)
    config = Florence2Config(
        vision_config={
            "depths": [1, 1, 1, 1],
            "embed_dim": [8, 8, 16, 16],
            "num_heads": [1, 1, 2, 2],
            "num_groups": [1, 1, 2, 2],
            "window_size": 4,
            "projection_dim": 16,
        },
        text_config={
            "model_type": "bart",
            "vocab_size": size,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": POSITIONS,
            **TOKENS,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
        },
        image_token_id=processor.tokenizer.convert_tokens_to_ids("<image>"),
        **TOKENS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Florence2ForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=2.0 if "encoder_attn" in name else 0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_dino(
    folder: Path,
    config_class: Any = GroundingDinoConfig,
    model_class: Any = GroundingDinoForObjectDetection,
) -> Path:
    """A whole Grounding DINO folder; its text layers look for BERT's ids of [CLS], [SEP], . ?"""
    words = [f"[unused{i}]" for i in range(1030)]
    for i, word in {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}.items():
        words[i] = word
    words[1012], words[1029] = ".", "?"
    letters = "abcdefghijklmnopqrstuvwxyz"
    words += [*letters, *(f"##{letter}" for letter in letters), "dog", "man", "the", "red"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    tokenizer = BertTokenizer.from_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    config = config_class(
        backbone_config={
            "model_type": "swin",
            "image_size": 64,
            "embed_dim": 8,
            "depths": [1, 1, 1, 1],
            "num_heads": [1, 1, 2, 2],
            "window_size": 4,
            "out_indices": [2, 3, 4],
        },
        text_config={
            "model_type": "bert",
            "vocab_size": len(words),
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        },
        d_model=64,  # two channels for each of the 32 groups of its normalisation
        num_queries=12,
        encoder_layers=1,
        decoder_layers=2,  # its later layers share the first one's box head
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_text_len=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    model.save_pretrained(folder)
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def save_sam3(folder: Path) -> Path:
    """A whole SAM 3 folder as published, the video model's; its tokens are letters."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    letters = "abcdefghijklmnopqrstuvwxyz "
    vocabulary = {token: i for i, token in enumerate([*special, *letters])}
    backend = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    shape = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "dropout": 0.0}
    vision = {
        "model_type": "sam3_vision_model",
        "backbone_config": {
            "model_type": "sam3_vit_model",
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
            "pretrain_image_size": 28,
            "patch_size": 14,
            "window_size": 2,
            "global_attn_indexes": [1],
        },
        "fpn_hidden_size": 32,
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    }
    detector = Sam3Config(
        vision_config=vision,
        text_config={
            "model_type": "clip_text_model",
            "vocab_size": len(vocabulary),
            "hidden_size": 16,
            "intermediate_size": 32,
            "projection_dim": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 32,
            "eos_token_id": 2,
        },
        geometry_encoder_config={**shape, "num_layers": 1},
        detr_encoder_config={**shape, "num_layers": 1},
        detr_decoder_config={**shape, "num_layers": 2, "num_queries": 6},
        mask_decoder_config={"hidden_size": 32, "num_attention_heads": 2},
    )
    tracker = Sam3TrackerVideoConfig(
        vision_config=vision,
        prompt_encoder_config={"hidden_size": 32, "image_size": 56},
        mask_decoder_config={"hidden_size": 32, "mlp_dim": 32, "iou_head_hidden_dim": 32},
        memory_attention_hidden_size=32,
        memory_attention_num_layers=1,
        memory_attention_feed_forward_hidden_size=32,
        memory_encoder_hidden_size=32,
        memory_encoder_output_channels=16,
        mask_downsampler_embed_dim=32,
        memory_fuser_embed_dim=32,
        memory_fuser_intermediate_dim=32,
    )
    config = Sam3VideoConfig(detector_config=detector.to_dict(), tracker_config=tracker.to_dict())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Sam3VideoModel(config)
        torch.manual_seed(4)
        for name, parameter in model.detector_model.named_parameters():
            if parameter.ndim > 1 and "position" not in name:
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    size = {"height": 56, "width": 56}
    videos = Sam2VideoVideoProcessor(image_mean=[0.5] * 3, image_std=[0.5] * 3, size=size)
    Sam3VideoProcessor(Sam3ImageProcessor(size=size), videos, tokenizer).save_pretrained(folder)
    return folder


def pictures(*sizes: tuple[int, int]) -> list[Tensor]:
    """uint8 [3, h, w] of noise, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes
    ]


def captions_of(texts: Sequence[str]) -> list[Caption]:
    """A caption for each text, each with a separate image."""
    return [Caption(str(i), key_of_text(f"image {i}"), text) for i, text in enumerate(texts)]
