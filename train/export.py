"""The result of a run: a sentence-transformers folder, its card, and the heads beside it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.run_spec import TrainedPooling

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HEADS_FILE = "heads.safetensors"
MODEL_FOLDER = "model"
EXPORTED_FILES = (
    *("README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)
"""What an export of BERT or RoBERTa may write into its folder."""


def export_model(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooling: TrainedPooling,
    card: str,
) -> None:
    """Fill the new folder ``folder``: safetensors, modules Transformer + Pooling, and README.md.

    The maximum length is the encoder's own, never that of training (METHODS §8).
    """
    from sightline.sentence_transformers_folder import own_max_length

    max_length = own_max_length(tokenizer, encoder.config)
    folder.mkdir(parents=True, exist_ok=True)
    encoder.save_pretrained(folder)
    limited = copy.deepcopy(tokenizer)  # for readers that know nothing of sentence-transformers
    limited.model_max_length = max_length
    limited.save_pretrained(folder)
    for name, content in _settings(int(encoder.config.hidden_size), pooling, max_length).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def _settings(width: int, pooling: TrainedPooling, max_length: int) -> dict[str, Any]:
    """The JSON files of a sentence-transformers folder, in the form that every version reads.

    Its own writer names classes of the installed version, which earlier versions do not have.
    """
    modules = ((0, "Transformer", ""), (1, "Pooling", "1_Pooling"))
    return {
        "modules.json": [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, kind, path in modules
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }


def export_heads(path: Path, heads: nn.ModuleDict) -> None:
    """Write the trained heads (names as in the objective: `grounding.0.weight` …)."""
    from safetensors.torch import save_file

    save_file(on_the_host(heads), path)


def on_the_host(module: nn.Module) -> dict[str, Tensor]:
    """The weights of ``module``, as safetensors take them."""
    return {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
