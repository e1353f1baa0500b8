"""Build one open_clip model from a library name or a config file, and its weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline.encoders.own_families import OpenClipConfig
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.hub import reaching, use_cache_where_silent
from sightline.silenced_libraries import quiet

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
            use_cache_where_silent()
            with quiet(), reaching(config.model, f"weights {tag!r}"):
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
