"""Models of a few thousand weights, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "red", "runs", "sits"]

CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
    "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "interpolation": "bilinear"},
}


def clip_config(folder: Path, **changes: object) -> str:
    """Path of the JSON of a tiny CLIP."""
    path = folder / "clip.json"
    path.write_text(json.dumps({**CLIP, **changes}))
    return str(path)


def bert_folder(folder: Path, *, pooler: bool = True, positions: int = 40) -> Path:
    """A folder with a two-layer BERT, random weights in safetensors, and its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=positions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        BertModel(config, add_pooling_layer=pooler).save_pretrained(folder)
    return folder
