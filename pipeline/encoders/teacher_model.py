"""Loading a Hugging Face encoder with exactly the weights that were asked for."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from pipeline.encoders.base import EncoderError, EncoderIdentity
from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.libraries import reaching
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.hub import use_cache_where_silent
from sightline.library_noise import quiet

MASKED_ATTENTION = "sightline_masked_sdpa"
_SENTENCE_CONFIG = "sentence_bert_config.json"
_EXPECTED = "expected config.json, a tokenizer and model.safetensors"


@dataclass(frozen=True)
class TeacherModel:
    """An encoder on the CPU, and what belongs to it.

    Attributes:
        positions: tokens that its position embeddings allow; None if it does not say.
        sentence_config: content of ``sentence_bert_config.json`` where there is one; it holds
            the maximum length that a published sentence encoder is evaluated with. Not looked
            for where the user gives a maximum length.
    """

    model: nn.Module
    tokenizer: Any
    identity: EncoderIdentity
    positions: int | None
    sentence_config: str | None


def load_teacher(config: EncoderConfig, pooling: str) -> TeacherModel:
    """Load configuration, tokenizer and weights; nothing that a repository ships as code is run.

    Raises:
        EncoderError: no such folder and the hub cannot be reached; not an encoder; a tokenizer
            without words; weights that are missing, incomplete or of another shape; pooling
            ``pooler`` without a pooler.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from sightline.encoder_folder import NO_WORDS, knows_words, positions

    spec = config.weights_spec
    folder = Path(config.model) if Path(config.model).is_dir() else None
    revision = spec.value if spec.kind == "pretrained" else ""
    if folder is not None and revision:
        raise EncoderError(
            f"{config.model}: a folder has no revision {revision!r}; write weights: pretrained"
        )
    if folder is None and (config.model.startswith((".", "/", "~")) or "\\" in config.model):
        raise EncoderError(f"{config.model}: no such folder; name a folder or a hub model")
    where: dict[str, Any] = {"trust_remote_code": False}
    if revision:
        where["revision"] = revision

    with quiet():
        with loading(config.model, folder, "configuration"):
            settings = AutoConfig.from_pretrained(config.model, **where)
        if getattr(settings, "is_encoder_decoder", False) or not hasattr(settings, "hidden_size"):
            raise EncoderError(
                f"{config.model}: a {settings.model_type!r} model is no text encoder; "
                "name an encoder (BERT, RoBERTa, MPNet, …)"
            )
        with loading(config.model, folder, "tokenizer"):
            tokenizer: Any = AutoTokenizer.from_pretrained(config.model, **where)
        if not knows_words(tokenizer):
            raise EncoderError(f"{config.model}: {NO_WORDS}")
        if spec.kind == "pretrained":
            with loading(config.model, folder, "weights"):
                model, report = AutoModel.from_pretrained(
                    config.model,
                    config=settings,
                    dtype=torch.float32,
                    output_loading_info=True,
                    **where,
                )
            _complete(model, report, config.model, pooling)
        else:
            seed = spec.seed if spec.kind == "random" else 0
            with seeded(seed), loading(config.model, folder, "configuration"):
                model = AutoModel.from_config(settings, dtype=torch.float32)
    _fit_pooler(model, config.model, pooling)
    if spec.kind == "file":
        path = Path(spec.value)
        state = _encoder_part(model, read_state_dict(path), pooling)
        load_exactly(model, state, str(path), config.model)
    _always_mask(model)

    commit = str(getattr(settings, "_commit_hash", None) or "")
    identity = EncoderIdentity(
        name=f"transformers/{folder.resolve().name if folder else config.model}",
        source=describe_source(spec, folder=folder if spec.kind == "pretrained" else None),
        revision=commit if spec.kind == "pretrained" else "",
        weights_sha256=state_dict_sha256(model.state_dict()),
        untrained=spec.kind == "random",
    )
    sentence_config = None
    if config.max_length is None:
        with reaching(config.model, f"{_SENTENCE_CONFIG} (or give max_length)"):
            sentence_config = _sentence_config(config.model, folder, revision, commit)
    return TeacherModel(model, tokenizer, identity, positions(settings), sentence_config)


@contextmanager
def loading(model: str, folder: Path | None, what: str) -> Iterator[None]:
    """Turn what transformers says of a model that it cannot load into one EncoderError."""
    from huggingface_hub.errors import HFValidationError

    from sightline.encoder_folder import UNREADABLE

    if folder is None:
        use_cache_where_silent()
    with reaching(model, what) if folder is None else nullcontext():
        try:
            yield
        except HFValidationError as error:
            raise EncoderError(
                f"{model}: no such folder here, and no name that a hub could know"
            ) from error
        except (OSError, SafetensorError) as error:
            if folder is None and isinstance(error, OSError):
                raise
            raise EncoderError(
                f"{model}: no usable {what} in this folder ({_first_line(error)}); {_EXPECTED}"
            ) from error
        except pickle.UnpicklingError as error:
            raise EncoderError(
                f"{model}: its {what} are a pickle that would run code, which Sightline never "
                "does; name a folder with safetensors"
            ) from error
        except UNREADABLE as error:
            if "trust_remote_code" in str(error):
                raise EncoderError(
                    f"{model}: it needs code from its own repository, which Sightline never "
                    "runs; name an encoder that transformers knows by itself"
                ) from error
            raise EncoderError(
                f"{model}: transformers cannot read its {what} ({_first_line(error)}); {_EXPECTED}"
            ) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]).rstrip(". ") if lines else type(error).__name__


def _complete(model: nn.Module, report: Mapping[str, Any], name: str, pooling: str) -> None:
    """Refuse a checkpoint that leaves a part of the encoder at random values."""
    missing = sorted(
        key
        for key in report.get("missing_keys", ())
        if pooling == "pooler" or not key.startswith("pooler.")
    )
    unlike = sorted(str(entry) for entry in report.get("mismatched_keys", ()))
    if missing or unlike:
        shown = ", ".join((missing + unlike)[:3])
        hint = (
            "; it was saved without a pooler: use cls, mean or first_last_mean"
            if missing and all(key.startswith("pooler.") for key in missing) and not unlike
            else "; name weights that were made for this model"
        )
        raise EncoderError(
            f"{name}: its weights lack {len(missing)} tensors of the encoder and "
            f"{len(unlike)} have another shape ({shown}){hint}"
        )


def _fit_pooler(model: Any, name: str, pooling: str) -> None:
    """Drop a pooler that is not used, so that it neither costs time nor enters the digest."""
    has_pooler = isinstance(getattr(model, "pooler", None), nn.Module)
    if pooling == "pooler" and not has_pooler:
        raise EncoderError(
            f"{name}: a {model.config.model_type!r} model has no pooler; "
            "use cls, mean or first_last_mean"
        )
    if pooling != "pooler" and has_pooler:
        model.pooler = None


def _encoder_part(model: Any, state: dict[str, Tensor], pooling: str) -> dict[str, Tensor]:
    """The encoder's own tensors of a state dict that may hold a pooler or a head as well."""
    prefix = f"{model.base_model_prefix}."
    if any(name.startswith(prefix) for name in state):
        state = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
    return {
        name: tensor
        for name, tensor in state.items()
        if (pooling == "pooler" or not name.startswith("pooler."))
        # A buffer that early versions of transformers saved; nothing that was learned.
        and not name.endswith("embeddings.position_ids")
    }


def _always_mask(model: Any) -> None:
    """Give attention its mask even in a batch without padding.

    transformers leaves the mask out when no text of a batch is padded, and another kernel then
    computes the batch: on a GPU a text's row would depend on its companions.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation != "sdpa":
        return

    def masked(*args: Any, **options: Any) -> Tensor | None:
        return sdpa_mask(*args, **{**options, "allow_is_bidirectional_skip": False})

    AttentionInterface.register(MASKED_ATTENTION, sdpa_attention_forward)
    AttentionMaskInterface.register(MASKED_ATTENTION, masked)
    model.set_attn_implementation(MASKED_ATTENTION)


def _sentence_config(model: str, folder: Path | None, revision: str, commit: str) -> str | None:
    """sentence-transformers' own file in a folder or on the hub; None where there is none."""
    if folder is not None:
        path = folder / _SENTENCE_CONFIG
        return path.read_text(encoding="utf-8") if path.is_file() else None
    from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    at = commit or revision or None
    try:
        path = Path(hf_hub_download(model, _SENTENCE_CONFIG, revision=at))
    except LocalEntryNotFoundError:
        # Offline. Only a cache that knows that the hub has no such file may stand for "none".
        if try_to_load_from_cache(model, _SENTENCE_CONFIG, revision=at) is _CACHED_NO_EXIST:
            return None
        raise
    except EntryNotFoundError:
        return None
    return path.read_text(encoding="utf-8")
