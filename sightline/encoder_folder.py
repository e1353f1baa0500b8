"""Reading a frozen or finished encoder: a Hugging Face or a sentence-transformers folder.

Nothing is unpickled and no code of the folder is run: safetensors only, no remote code.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from transformers import (
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from sightline.errors import SightlineError
from sightline.hub import use_cache_where_silent
from sightline.names import Pooling

# A tokenizer without a limit of its own says 1e30; no position table is longer than this.
_NO_LIMIT = 1_000_000
_POSITIONS_FROM_PADDING = {
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "longformer",
    "data2vec-text",
}

UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError),
    *(SafetensorError, StrictDataclassError, pickle.UnpicklingError),
)
"""What transformers raises for files that are not those of an encoder."""

_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Recipe:
    """What a sentence-transformers folder says about making an embedding.

    `pooling` is None for a plain Hugging Face folder, which does not say. `max_length` is in
    tokens, special tokens included; None leaves it to the tokenizer and the model.
    """

    pooling: Pooling | None = None
    normalize: bool = False
    max_length: int | None = None
    do_lower_case: bool = False
    subfolder: str = ""


def read_recipe(source: str | Path, *, bare: bool = False) -> Recipe:
    """The recipe of a folder or hub name; an empty `Recipe` for a plain Hugging Face folder.

    Args:
        bare: the caller brings its own pooling, so only the encoder's settings (maximum length,
            lower-casing, sub-folder) are read and the modules after it are left out.

    Raises:
        SightlineError: the folder pools in a way, or adds a module or a default prompt, that
            Sightline does not have; leaving it out would silently change the embeddings.
    """
    modules = _read_json(source, "modules.json")
    if modules is None:
        return Recipe()
    pooling: Pooling | None = None
    normalize = False
    subfolder = ""
    for module in modules:
        kind = str(module["type"]).rsplit(".", 1)[-1]
        if kind == "Transformer":
            subfolder = str(module["path"])
        elif bare:
            continue
        elif kind == "Pooling":
            name = f"{module['path']}/config.json"
            pooling = _read_pooling(source, name, _read_json(source, name) or {})
        elif kind == "Normalize":
            normalize = True
        elif kind != "Dropout":
            raise SightlineError(
                f"{source}: modules.json lists a {kind} module, which Sightline does not apply; "
                "give a pooling (cls or mean) to use the encoder without the modules after it"
            )
    if not bare:
        prompt = (_read_json(source, "config_sentence_transformers.json") or {}).get(
            "default_prompt_name"
        )
        if prompt:
            raise SightlineError(
                f"{source}: config_sentence_transformers.json puts the prompt {prompt!r} before "
                "every sentence, which Sightline does not; give a pooling to use it without"
            )
    settings = _read_json(source, _join(subfolder, "sentence_bert_config.json")) or {}
    return Recipe(
        pooling=pooling,
        normalize=normalize,
        max_length=settings.get("max_seq_length"),
        do_lower_case=bool(settings.get("do_lower_case", False)),
        subfolder=subfolder,
    )


def load_model(source: str | Path, recipe: Recipe) -> PreTrainedModel:
    """The encoder in float32 on the CPU, in eval mode.

    A checkpoint without pooler weights (a masked language model's) loses its pooler, so that no
    pooler of random weights is ever used.

    Raises:
        SightlineError: nothing can be loaded from `source`, there are no safetensors, or weights
            of the encoder are missing from the file.
    """
    _check_local(source, recipe)
    _check_hub(source)
    try:
        loaded: Any = AutoModel.from_pretrained(
            str(source),
            subfolder=recipe.subfolder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise _cannot_load(source, error) from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    strangers = [key for key in missing if "pooler." not in key]
    if strangers:
        raise SightlineError(
            f"{source}: the weights file lacks {len(strangers)} of the encoder's tensors "
            f"(first: {strangers[0]}); they would be random. Check that config.json and the "
            "safetensors file belong together"
        )
    if missing:
        model.pooler = None
    return model.eval()


def load_tokenizer(source: str | Path, recipe: Recipe) -> PreTrainedTokenizerBase:
    """The tokenizer, lower-casing where the folder's sentence_bert_config.json asks for it.

    Raises:
        SightlineError: nothing can be loaded from `source`, or its tokenizer knows no word.
    """
    _check_hub(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), subfolder=recipe.subfolder, trust_remote_code=False
        )
    except UNREADABLE as error:
        raise _cannot_load(source, error) from error
    if not knows_words(tokenizer):
        raise SightlineError(f"{source}: {NO_WORDS}")
    if recipe.do_lower_case:
        backend = tokenizer.backend_tokenizer
        # Lower-casing twice changes nothing, so an uncased tokenizer is safe here.
        backend.normalizer = NormalizerSequence(
            [Lowercase()] if backend.normalizer is None else [Lowercase(), backend.normalizer]
        )
    return tokenizer


NO_WORDS = (
    "its tokenizer knows no word, only special tokens, for its vocabulary is missing; expected "
    "tokenizer.json, or vocab.txt (BERT), or vocab.json and merges.txt (RoBERTa); save the "
    "tokenizer beside the model"
)


def knows_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether there is more to the vocabulary than special tokens.

    transformers makes up a tokenizer for a folder without one, and all its words are unknown.
    """
    return len(tokenizer) > len(set(tokenizer.all_special_tokens))


def own_max_length(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, recipe: Recipe | None = None
) -> int:
    """The longest input of an encoder in tokens, special tokens included; never the training 32.

    sentence_bert_config.json's `max_seq_length` where there is one; else the smaller of the
    tokenizer's `model_max_length` and the number of usable `positions`.
    """
    if recipe is not None and recipe.max_length is not None:
        return int(recipe.max_length)
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < _NO_LIMIT else []
    usable = positions(config)
    if usable is not None:
        limits.append(usable)
    if not limits:
        raise SightlineError(
            f"the maximum length of this {config.model_type} encoder is not known: neither "
            "tokenizer_config.json (model_max_length) nor config.json "
            "(max_position_embeddings) gives it; add one of them"
        )
    return min(limits)


def positions(config: PretrainedConfig) -> int | None:
    """Tokens that an encoder has position embeddings for; None where its config does not say.

    RoBERTa-like models number their positions from `pad_token_id + 1`, so 514 hold 512 tokens.
    """
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int) or found <= 0:
        return None
    from_padding = config.model_type in _POSITIONS_FROM_PADDING
    return found - (int(config.pad_token_id or 0) + 1 if from_padding else 0)


def files_of(folder: Path) -> list[Path]:
    """The files of an encoder's folder that decide what it computes: weights and configuration."""
    return sorted(file for file in folder.rglob("*") if file.suffix in (".safetensors", ".json"))


def _read_pooling(source: str | Path, name: str, config: dict[str, Any]) -> Pooling:
    found = config.get("pooling_mode")
    if found is None:
        found = [mode for key, mode in _LEGACY_POOLING.items() if config.get(key)] or ["mean"]
    modes = [found] if isinstance(found, str) else list(found)
    if modes == ["cls"]:
        return "cls"
    if modes == ["mean"]:
        return "mean"
    raise SightlineError(
        f"{source}: {name} pools by {' + '.join(map(str, modes))}; Sightline reads cls or mean "
        "from such a folder. Give a pooling to use the encoder with another"
    )


def _read_json(source: str | Path, name: str) -> Any:
    """A JSON file of the folder or hub repository, or None where it has no such file."""
    _check_hub(source)
    try:
        path = cached_file(
            str(source),
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except (OSError, ValueError) as error:
        raise _cannot_load(source, error) from error
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise SightlineError(f"{path}: not valid JSON ({error}); restore the file") from error


def _check_local(source: str | Path, recipe: Recipe) -> None:
    folder = Path(source) / recipe.subfolder
    if not Path(source).is_dir():
        return
    if not (folder / "config.json").is_file():
        raise SightlineError(
            f"{folder}: no config.json here, so this is not an encoder; expected a Hugging Face "
            "or sentence-transformers folder (config.json, model.safetensors, tokenizer files)"
        )
    if not any(folder.glob("*.safetensors")):
        raise SightlineError(
            f"{folder}: no *.safetensors file here; Sightline does not unpickle weights. Convert "
            "them with model.save_pretrained(folder) of transformers"
        )


def _check_hub(source: str | Path) -> None:
    if not Path(source).is_dir():
        use_cache_where_silent()


def _cannot_load(source: str | Path, error: Exception) -> SightlineError:
    if Path(source).is_dir():
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(lines[:2]).rstrip(". ") or type(error).__name__
        return SightlineError(
            f"{source}: this folder could not be read as an encoder ({said}); expected "
            "config.json, model.safetensors and the tokenizer's files of one model"
        )
    return SightlineError(
        f"{source}: there is no such folder, and no model of that name is in the Hugging Face "
        "cache or could be fetched from the hub (is the name right, is the hub reachable?); "
        "give the path of a local model folder, or download the model once while online"
    )


def _join(subfolder: str, name: str) -> str:
    return f"{subfolder}/{name}" if subfolder else name
