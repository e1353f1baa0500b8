"""open_clip models: loading, the image tower with its own preprocessing, and the text tower."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.encoders.config import OpenClipConfig
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.tokenizers import tokenizer_sha256
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.devices import check_precision
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.loading import from_hub, quiet, reaching

_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode", "fill_color")


@dataclass(frozen=True)
class ClipModel:
    """Both towers on the CPU, and their configuration.

    Attributes:
        model: open_clip's module.
        architecture: the model config: ``embed_dim``, ``vision_cfg``, ``text_cfg``.
        image_preprocessing: ``size``, ``mean``, ``std``, ``interpolation``, ``resize_mode``,
            ``fill_color`` of the model and its weights.
        folder: folder of a config file; None for a library name.
    """

    model: nn.Module
    identity: EncoderIdentity
    architecture: dict[str, Any]
    image_preprocessing: dict[str, Any]
    folder: Path | None

    @property
    def dim(self) -> int:
        """Width of the space that both towers project into."""
        return int(self.architecture["embed_dim"])


def load_clip(config: OpenClipConfig) -> ClipModel:
    """Build what `config` names and load its weights.

    Raises:
        SightlineError: unknown model or tag, unreadable config, weights that do not fit or are
            unavailable, or a model and weights that disagree about QuickGELU.
    """
    config.require_files()
    open_clip: Any = require("open_clip", "this encoder")
    spec = config.weights_spec
    seed = spec.seed if spec.kind == "random" else 0
    path = Path(config.model) if config.model.endswith(".json") else None
    tag = revision = ""
    downloaded = Path()
    published: dict[str, Any] = {}
    if path is None:
        name = config.model.replace("/", "-")
        architecture = open_clip.get_model_config(name)
        if architecture is None:
            raise SightlineError(
                f"unknown open_clip model {config.model!r}; give the JSON file of a model config "
                f"or one of {', '.join(open_clip.list_models())}"
            )
        preprocessing: dict[str, Any] = {}
        if spec.kind == "pretrained":
            tag, published = _published(open_clip, name, spec.value, architecture)
            with quiet(), from_hub(config.model, f"weights {tag!r}"):
                downloaded = Path(open_clip.download_pretrained(published))
        with seeded(seed), quiet(), reaching(config.model, "model configuration"):
            model = _untrained(open_clip, name)
    else:
        if spec.kind == "pretrained":
            raise SightlineError(
                f"{path}: a custom model config has no published weights; "
                "use file:PATH or random:SEED"
            )
        architecture, preprocessing = _read_config(path)
        name = f"{path.stem}@{_config_digest(architecture)}"
        with tempfile.TemporaryDirectory() as folder:
            # open_clip reads a custom config from a folder, under this fixed name.
            text = json.dumps({"model_cfg": architecture, "preprocess_cfg": preprocessing})
            (Path(folder) / "open_clip_config.json").write_text(text, encoding="utf-8")
            with seeded(seed), quiet(), reaching(config.model, "model configuration"):
                try:
                    model = _untrained(open_clip, f"local-dir:{folder}")
                except (TypeError, ValueError, RuntimeError, KeyError, AssertionError) as error:
                    raise SightlineError(
                        f"{path}: open_clip cannot build this model config "
                        f"({type(error).__name__}: {error})"
                    ) from error

    if spec.kind == "file":
        weights = Path(spec.value)
        _load(open_clip, model, read_state_dict(weights), str(weights), config.model)
    elif spec.kind == "pretrained":
        revision = str(published.get("hf_hub") or downloaded.stem).rstrip("/")
        _load(open_clip, model, read_state_dict(downloaded), f"pretrained:{tag}", config.model)

    identity = EncoderIdentity(
        name=f"open_clip/{name}",
        source=describe_source(spec, tag),
        revision=revision,
        weights_sha256=state_dict_sha256(model.state_dict()),
        untrained=spec.kind == "random",
    )
    visual: Any = model.visual
    merged = dict(visual.preprocess_cfg)
    merged |= {key: published[key] for key in _PREPROCESSING if published.get(key) is not None}
    merged |= {
        key: value
        for key in ("mean", "std", "interpolation")
        if (value := getattr(config, key)) is not None
    }
    return ClipModel(model, identity, architecture, merged, path.parent if path else None)


def _untrained(open_clip: Any, name: str) -> nn.Module:
    """The architecture `name` with weights drawn from the current random state."""
    return open_clip.create_model(
        name,
        load_weights=False,
        pretrained_image=False,
        pretrained_text=False,
        precision="fp32",
        device="cpu",
    ).eval()


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(model config, preprocessing config) of a JSON file: open_clip's flat or nested layout."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SightlineError(f"{path}: not readable as JSON ({error})") from error
    content = content if isinstance(content, dict) else {}
    architecture = content.get("model_cfg", content)
    preprocessing = content.get("preprocess_cfg", {})
    needed = ("embed_dim", "vision_cfg", "text_cfg")
    missing = [name for name in needed if name not in architecture]
    if missing:
        raise SightlineError(
            f"{path}: not an open_clip model config, {', '.join(missing)} missing; "
            f"expected {', '.join(needed)} and, where wanted, preprocess_cfg"
        )
    return {k: v for k, v in architecture.items() if k != "preprocess_cfg"}, preprocessing


def _config_digest(architecture: Mapping[str, Any]) -> str:
    """Twelve-digit hex digest of the architecture: weights do not reveal heads or activations."""
    return digest(architecture)[:12]


def _published(
    open_clip: Any, name: str, tag: str, architecture: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """(tag, the library's record of it) for published weights of the model `name`."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    record = open_clip.get_pretrained_cfg(name, tag)
    if not record:
        there = ", ".join(tags) or "none; use file:PATH or random:SEED"
        found = f"has no weights {tag!r}" if tag else "needs the tag of its weights"
        raise SightlineError(f"{name} {found}; published tags: {there}")
    if bool(record.get("quick_gelu")) != bool(architecture.get("quick_gelu")):
        # open_clip only warns and uses the wrong activation; the features would be wrong.
        twin = f"{name}-quickgelu" if record.get("quick_gelu") else name.removesuffix("-quickgelu")
        raise SightlineError(
            f"weights {tag!r} of {name} were trained with "
            f"{'QuickGELU' if record.get('quick_gelu') else 'GELU'}; use model {twin!r} with them"
        )
    return tag, dict(record)


def _load(
    open_clip: Any, model: nn.Module, state: Mapping[str, Tensor], source: str, name: str
) -> None:
    """Load `state`, accepting the two older layouts that open_clip itself still reads."""
    tensors = dict(state)
    if "positional_embedding" in tensors and not hasattr(model, "positional_embedding"):
        tensors = open_clip.model.convert_to_custom_text_state_dict(tensors)
    # Not trained and not used: the buffer of position numbers that old text towers saved.
    tensors.pop("text.transformer.embeddings.position_ids", None)
    expected = model.state_dict()
    for key in ("logit_scale", "logit_bias"):
        # A scalar, saved with shape [] by some trainers and [1] by others.
        if key in tensors and key in expected and tensors[key].numel() == expected[key].numel():
            tensors[key] = tensors[key].reshape(expected[key].shape)
    load_exactly(model, tensors, source, name)


_TEXT_MODULES = ("text", "text_decoder", "transformer", "token_embedding", "ln_final")


class ClipImageEncoder:
    """Images → projected CLIP features, not normalised. Build it with `build_image`."""

    def __init__(
        self, clip: ClipModel, config: OpenClipConfig, device: torch.device, precision: str
    ) -> None:
        self.preprocessing: ImagePreprocessing = preprocessing_of(clip)
        self.dim: int = clip.dim
        for name in _TEXT_MODULES:
            if isinstance(getattr(clip.model, name, None), torch.nn.Module):
                delattr(clip.model, name)
        self._frozen = FrozenModel(
            clip.model,
            device,
            precision,
            channels_last=config.channels_last,
            compiled=config.compile,
        )
        self.device = device
        self.identity: EncoderIdentity = self._frozen.identity(clip.identity)

    def encode(self, images: Tensor) -> Tensor:
        """float32 [n, 3, h, w] → float32 [n, dim] on `device`."""
        frozen = self._frozen
        # CoCa's towers normalise by default, which cannot be undone.
        rows: Tensor = frozen(frozen.model.encode_image, frozen.images(images), normalize=False)
        return rows.float()


def build_image(config: OpenClipConfig, device: torch.device, precision: str) -> ClipImageEncoder:
    """The image tower that `config` names, on `device`."""
    return ClipImageEncoder(load_clip(config), config, device, check_precision(precision))


def preprocessing_of(clip: ClipModel) -> ImagePreprocessing:
    """open_clip's evaluation transform for this model and these weights, on uint8 tensors."""
    cfg = clip.image_preprocessing
    size = cfg["size"]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    interpolation, mode = cfg["interpolation"], cfg["resize_mode"]
    if interpolation == "random":  # open_clip's name for "any"; it evaluates with bicubic
        interpolation = "bicubic"
    if interpolation not in ("bilinear", "bicubic"):
        raise SightlineError(
            f"{clip.identity.name}: interpolation {interpolation!r} in its preprocess_cfg; "
            "expected bilinear or bicubic"
        )
    if mode not in ("shortest", "longest", "squash"):
        raise SightlineError(
            f"{clip.identity.name}: resize_mode {mode!r} in its preprocess_cfg; "
            "expected shortest, longest or squash"
        )
    return ImagePreprocessing(
        resize=(height, width),
        crop=(height, width),
        interpolation=interpolation,
        mean=_triple(cfg["mean"]),
        std=_triple(cfg["std"]),
        resize_mode=mode,
        fill=int(cfg.get("fill_color", 0)),
    )


def _triple(value: Any) -> tuple[float, float, float]:
    values = [float(value)] * 3 if isinstance(value, int | float) else [float(v) for v in value]
    return values[0], values[1], values[2]


DEFAULT_CONTEXT_LENGTH = 77
"""Default tokens per text (CLIP's), if a model config gives none."""


class ClipTextEncoder:
    """Texts → projected CLIP features, not normalised. Build it with `build_text`."""

    def __init__(
        self, clip: ClipModel, config: OpenClipConfig, device: torch.device, precision: str
    ) -> None:
        text = clip.architecture["text_cfg"]
        self.dim: int = clip.dim
        self._context_length = int(text.get("context_length", DEFAULT_CONTEXT_LENGTH))
        self._tokenizer = _tokenizer(clip, self._context_length)
        for name in ("visual", "text_decoder"):
            if hasattr(clip.model, name):
                delattr(clip.model, name)
        self._frozen = FrozenModel(clip.model, device, precision, compiled=config.compile)
        self.identity: EncoderIdentity = self._frozen.identity(clip.identity)
        self.preprocessing: dict[str, object] = {
            "tokenizer": type(self._tokenizer).__name__,
            "tokenizer_sha256": _tokenizer_sha256(self._tokenizer),
            "tokenizer_options": dict(text.get("tokenizer_kwargs", {})),
            "context_length": self._context_length,
            "pooling": "the model's own: text projection",
        }

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The context length for every text: the tower accepts only that length."""
        return [self._context_length] * len(texts)

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """float32 [n, dim] on the CPU. Truncates longer texts to the context length, as CLIP does.

        Raises:
            ValueError: `length` is not the context length.
        """
        if length != self._context_length:
            raise ValueError(f"length is {length}; this tower takes {self._context_length} only")
        tokens = self._tokenizer(list(texts))  # int64 [n, context length]
        frozen = self._frozen
        batch = tokens.to(frozen.device, non_blocking=True)
        return frozen(frozen.model.encode_text, batch, normalize=False).float().cpu()


def build_text(config: OpenClipConfig, device: torch.device, precision: str) -> ClipTextEncoder:
    """The text tower that `config` names, on `device`."""
    return ClipTextEncoder(load_clip(config), config, device, check_precision(precision))


def _tokenizer(clip: ClipModel, context_length: int) -> Any:
    """The tokenizer that the model config specifies.

    Raises:
        SightlineError: it is on an unreachable hub, or has more tokens than the tower.
    """
    open_clip: Any = require("open_clip", "this encoder")
    text = clip.architecture["text_cfg"]
    options = dict(text.get("tokenizer_kwargs", {}))
    name = text.get("hf_tokenizer_name")
    if name:
        here = clip.folder is not None and (clip.folder / name).is_dir()
        if here:
            name = str(clip.folder / name)
        fetching = reaching if here else from_hub
        with fetching(clip.identity.name, f"tokenizer {name!r}"), quiet():
            tokenizer = open_clip.tokenizer.HFTokenizer(
                name,
                context_length=context_length,
                tokenizer_mode=text.get("tokenizer_mode"),
                **options,
            )
        size = len(tokenizer.tokenizer)
    else:
        tokenizer = open_clip.SimpleTokenizer(context_length=context_length, **options)
        size = tokenizer.vocab_size
    room = int(text.get("vocab_size", size))
    if not text.get("hf_model_name") and size > room:
        raise SightlineError(
            f"{clip.identity.name}: its tokenizer has {size} tokens and its text tower only "
            f"{room}; set text_cfg.vocab_size to {size}"
        )
    return tokenizer


def _tokenizer_sha256(tokenizer: Any) -> str:
    """Digest (hex) of the vocabulary, merges and rules of either kind of tokenizer."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is not None:
        return tokenizer_sha256(inner)
    merges = sorted(tokenizer.bpe_ranks.items(), key=lambda item: item[1])
    rules = [sorted(tokenizer.encoder.items()), merges, tokenizer.pat.pattern]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
