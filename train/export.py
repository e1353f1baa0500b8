"""The result of a run: a sentence-transformers folder, its card, and the heads beside it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.devices import float32_products
from sightline.errors import SightlineError
from train.student import merged

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

    from sightline.models.sentence_transformers_folder import Recipe
    from train.embed import Embedder

HEADS_FILE = "heads.safetensors"
MODEL_FOLDER = "model"
EXPORTED_FILES = (
    *("README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("added_tokens.json", "chat_template.jinja"),
)
"""What an export may write into its folder."""
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How every version of sentence-transformers reads a pooling: a flag for each."""
PROBES = (
    "A dog runs on the beach.",
    "TWO CHILDREN play in The Snow",
    "Straße, naïve café – 两只狗在雪地里玩",
    "a",
    "a black and white dog jumps over the old stone wall near the water . " * 200,
)
"""Sentences that an export must embed as the trained model does: capitals, other scripts, one word,
and one that is longer than any encoder takes, in one batch."""
_TOLERANCE = 1e-5  # of a row's norm


def export_model(
    folder: Path,
    trained: Embedder,
    card: str,
    recipe: Recipe,
    pooler: nn.Module | None = None,
) -> None:
    """Fill the new folder ``folder``: safetensors, sentence-transformers' files, and README.md.

    Args:
        trained: the maximum length is the encoder's own, never that of training (METHODS §8), and
            every file that has a place for it says the same.
        recipe: of the student; its named prompts and its similarity go out.
        pooler: of the encoder that training began with, which goes out as it came in.
    """
    encoder: Any = merged(trained.model)
    folder.mkdir(parents=True, exist_ok=True)
    without, title = getattr(encoder, "pooler", None), encoder.config._name_or_path
    try:
        encoder.config._name_or_path = ""  # a path of this machine
        if pooler is not None:
            encoder.pooler = pooler.to(encoder.device)
        encoder.save_pretrained(folder)
    finally:
        encoder.config._name_or_path = title
        if pooler is not None:
            encoder.pooler = without
    _save_tokenizer(folder, trained.tokenizer, trained.max_length)
    for name, content in _settings(trained, recipe).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card, encoding="utf-8")


def _save_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Write the tokenizer as every reader should use it: whole, padding on the right.

    tokenizer.json keeps the length of the last call, which readers without transformers follow.
    A class of transformers may build another tokenizer from its own rules, without a normaliser
    that was added, such as lower-casing: then the folder names the class that has none.
    """
    from transformers import AutoTokenizer

    from sightline.models.sentence_transformers_folder import tokenizer_sha256

    exported: Any = copy.deepcopy(tokenizer)
    exported.model_max_length = max_length
    exported.padding_side = "right"
    for name in ("max_length", "name_or_path"):
        exported.init_kwargs.pop(name, None)
    backend = getattr(exported, "backend_tokenizer", None)
    if backend is not None and exported.pad_token_id is not None:
        backend.enable_truncation(max_length)
        backend.enable_padding(pad_id=exported.pad_token_id, pad_token=exported.pad_token)
    exported.save_pretrained(folder)
    if tokenizer_sha256(AutoTokenizer.from_pretrained(folder.absolute())) != tokenizer_sha256(
        exported
    ):
        file = folder / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["model_input_names"] = exported.model_input_names
        file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_export(folder: Path, trained: Embedder) -> None:
    """Load an export as its users will, and compare its embeddings with the trained model's.

    By sentence-transformers where it is installed, else by transformers and modules.json; on the
    CPU in float32.
    """
    import torch

    from train.embed import Embedder

    encoder = trained.model
    if encoder.device.type != "cpu" or encoder.dtype != torch.float32:
        encoder = copy.deepcopy(encoder).to("cpu", torch.float32)  # pyright: ignore
    arguments = trained.pooling, trained.max_length
    options = {"prompt": trained.prompt, "normalize": trained.normalize}
    ours = Embedder(encoder, trained.tokenizer, *arguments, **options)
    expected = ours.encode(PROBES)
    if find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        loaded = SentenceTransformer(str(folder.absolute()), device="cpu")
        with float32_products(tf32=False):  # whatever this process has set
            theirs = loaded.encode(list(PROBES), batch_size=len(PROBES), show_progress_bar=False)
    else:
        theirs = Embedder.load(folder, device="cpu").encode(PROBES)
    norms = np.maximum(np.linalg.norm(expected, axis=1), np.finfo(np.float32).tiny)
    off = np.linalg.norm(np.asarray(theirs) - expected, axis=1) / norms
    worst = int(np.argmax(off))  # NaN counts as the largest
    if not off[worst] <= _TOLERANCE:
        raise SightlineError(
            f"the exported model's embedding of {PROBES[worst][:40]!r} differs from the trained "
            f"model's (relative error {off[worst]:.1e}), so its users would not get the scores of "
            "this run. "
            "Look at the student's tokenizer_config.json and sentence_bert_config.json; the "
            "checkpoint is kept, and the same command exports it again"
        )


def _settings(trained: Embedder, recipe: Recipe) -> dict[str, Any]:
    """The JSON files of a sentence-transformers folder, in the form that every version reads.

    Its own writer names classes of the installed version, which earlier versions do not have.
    """
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Normalize", "2_Normalize")] if trained.normalize else []
    prompts = dict(recipe.prompts)
    if trained.prompt and trained.prompt not in prompts.values():
        prompts["trained"] = trained.prompt
    default = (name for name, text in prompts.items() if text and text == trained.prompt)
    return {
        "modules.json": [
            {
                "idx": index,
                "name": str(index),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for index, (kind, path) in enumerate(modules)
        ],
        "sentence_bert_config.json": {
            "max_seq_length": trained.max_length,
            "do_lower_case": False,
        },
        "1_Pooling/config.json": {
            "word_embedding_dimension": trained.dim,
            **{name: pooling == trained.pooling for name, pooling in _MODES.items()},
        },
        "config_sentence_transformers.json": {
            "prompts": prompts,
            "default_prompt_name": next(default, None),
            "similarity_fn_name": recipe.similarity,
        },
    }


def export_heads(path: Path, heads: nn.ModuleDict) -> None:
    """Write the trained heads (names as in the objective: `grounding.0.weight` …)."""
    from safetensors.torch import save_file

    save_file(on_the_host(heads.state_dict()), path)


def on_the_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` as safetensors take them."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
