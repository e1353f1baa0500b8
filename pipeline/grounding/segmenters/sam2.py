"""The segmenter `sam2`: SAM 2 with Meta's code, any of its configurations."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pipeline.encoders.config import Weights, parse_weights
from pipeline.encoders.weights import identity_of, load_exactly, read_state_dict, seeded
from pipeline.grounding.segmenters.prompted import PromptedSegmenter
from pipeline.grounding.settings import DESCRIBED, SegmenterSettings
from sightline.cache.keys import key_of_file
from sightline.devices import check_precision
from sightline.distribution import DISTRIBUTION
from sightline.errors import SightlineError
from sightline.models.pretrained import quiet, reaching

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.grounding.segmenters.prompted import Features

INSTALL = f"SAM2_BUILD_CUDA=0 pip install --no-build-isolation '{DISTRIBUTION}[grounding]'"

_FAMILIES = ("sam2", "sam2.1")
_SIZES = {"tiny": "t", "small": "s", "base-plus": "b+", "large": "l"}
MODELS = tuple(f"{family}-hiera-{size}" for family in _FAMILIES for size in _SIZES)
"""The models that Meta published."""

# Defaults of `build_sam2`: a single mask that is unstable under a threshold shift is replaced by
# the best of three. Checkpoints were published with these settings.
_DECODER = {
    "dynamic_multimask_via_stability": True,
    "dynamic_multimask_stability_delta": 0.05,
    "dynamic_multimask_stability_thresh": 0.98,
}

_CLASSES = tuple(
    f"sam2.modeling.{name}"
    for name in (
        "backbones.hieradet.Hiera",
        "backbones.image_encoder.FpnNeck",
        "backbones.image_encoder.ImageEncoder",
        "memory_attention.MemoryAttention",
        "memory_attention.MemoryAttentionLayer",
        "memory_encoder.CXBlock",
        "memory_encoder.Fuser",
        "memory_encoder.MaskDownSampler",
        "memory_encoder.MemoryEncoder",
        "position_encoding.PositionEmbeddingSine",
        "sam.transformer.RoPEAttention",
        "sam2_base.SAM2Base",
    )
)
"""The classes that Meta's configurations name: all that a configuration may."""


class Sam2Settings(SegmenterSettings):
    """SAM 2 with Meta's code, the sam2 package.

    Attributes:
        model: ``sam2-hiera-{tiny,small,base-plus,large}``, the same with ``sam2.1``, or the path of
            a configuration (YAML) of that package.
        weights: ``pretrained``, ``pretrained:REVISION``, ``file:PATH`` or ``random:SEED``.
    """

    family: Literal["sam2"] = "sam2"
    model: Annotated[str, DESCRIBED] = Field(default="sam2.1-hiera-large", min_length=1)
    weights: Annotated[Weights, DESCRIBED] = "pretrained"

    def build(self, device: torch.device, precision: str) -> PromptedSegmenter:
        """SAM 2 as they describe it, on ``device``.

        Raises:
            SightlineError: sam2 is not installed, there is no such model, or its weights are
                unavailable or belong to a different model.
        """
        check_precision(precision)
        package = _sam2()
        path = _configuration(self.model, package)
        spec = parse_weights(self.weights)
        with quiet(), seeded(spec.seed):
            model = _instantiate(path)
        if spec.kind == "file":
            load_exactly(model, read_state_dict(Path(spec.value)), spec.value, self.model)
        elif spec.kind == "pretrained":
            file = _published(self.model, spec.value)
            load_exactly(model, read_state_dict(file), f"{self.model}'s checkpoint", self.model)
        record = identity_of(model, Path(self.model).name, spec)
        identity = {
            "model": record.name,
            "configuration_sha256": key_of_file(path).hex(),
            **record.model_dump(exclude={"name", "revision"}),
        }
        size = int(model.image_size)
        return Sam2Segmenter(model.eval().to(device), size, identity, device, precision)


class Sam2Segmenter(PromptedSegmenter):
    """A `SAM2Base` of the sam2 package."""

    name = "sam2"

    def encode(self, pixels: Tensor) -> Features:
        maps = self.model.forward_image(pixels)["backbone_fpn"]
        maps = list(maps[-self.model.num_feature_levels :])
        if self.model.directly_add_no_mem_embed:
            maps[-1] = maps[-1] + self.model.no_mem_embed.reshape(1, -1, 1, 1)
        return maps

    def decode(self, features: Features, boxes: Tensor) -> Tensor:
        import torch

        corners = boxes.reshape(-1, 2, 2)
        labels = torch.tensor([[2, 3]], dtype=torch.int32, device=boxes.device)
        sparse, dense = self.model.sam_prompt_encoder(
            points=(corners, labels.expand(len(boxes), 2)), boxes=None, masks=None
        )
        masks, *_ = self.model.sam_mask_decoder(
            image_embeddings=features[-1],
            image_pe=self.model.sam_prompt_encoder.get_dense_pe(),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=False,
            repeat_image=False,  # the features already have one row per box
            high_res_features=features[:-1] or None,
        )
        return masks[:, 0]


def _sam2() -> ModuleType:
    try:
        return importlib.import_module("sam2")
    except ModuleNotFoundError as error:
        if error.name not in ("sam2", "hydra", "omegaconf"):
            raise
        raise SightlineError(
            f"{error.name} is not installed, but the segmenter sam2 needs it; run: {INSTALL}\n"
            "(or use the segmenter sam2-hf, which needs nothing else)"
        ) from error


def _configuration(model: str, package: ModuleType) -> Path:
    """The YAML of a published model, or the file at the path ``model``."""
    if model in MODELS:
        family, _, size = model.partition("-hiera-")
        folder = Path(package.__path__[0]) / "configs" / family
        return folder / f"{family}_hiera_{_SIZES[size]}.yaml"
    path = Path(model)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    raise SightlineError(
        f"{model}: no such sam2 model; use {', '.join(MODELS)}, or the path of a "
        "configuration (YAML)"
    )


def _instantiate(path: Path) -> Any:
    """The model that a configuration describes, of `_CLASSES` and plain values alone.

    hydra, which builds it in Meta's code, would import and call whatever a ``_target_`` names.
    """
    from omegaconf import OmegaConf

    try:
        settings: Any = OmegaConf.to_container(OmegaConf.load(path), throw_on_missing=True)
        if "defaults" in settings:
            raise SightlineError(
                f"{path}: its `defaults` name other files, which are not read; write the whole "
                "model into this one"
            )
        description = settings["model"]
        extra = description.get("sam_mask_decoder_extra_args") or {}
        description["sam_mask_decoder_extra_args"] = {**extra, **_DECODER}
        model = _built(description, path)
        _try(model)
    except SightlineError:
        raise
    except Exception as error:  # whatever values a class of sam2 was given, they are the file's
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SightlineError(f"{path}: not a sam2 configuration ({first})") from error
    return model


def _try(model: Any) -> None:
    """A pass without numbers: parts that do not fit fail here, not at the first image."""
    import torch

    with torch.no_grad():
        size, device = int(model.image_size), torch.device("meta")
        parts = Sam2Segmenter(copy.deepcopy(model).eval().to(device), size, {}, device, "fp32")
        maps = parts.encode(torch.empty(1, 3, size, size, device=device))
        parts.decode(maps, torch.empty(1, 4, device=device))


def _built(value: Any, path: Path) -> Any:
    """A part of a configuration, with its own parts."""
    if isinstance(value, list):
        return [_built(item, path) for item in value]
    if isinstance(value, str) and "${" in value:
        raise SightlineError(f"{path}: {value!r} refers to another value; write that value itself")
    if not isinstance(value, dict):
        return value
    if value.get("weights_path") is not None:
        raise SightlineError(
            f"{path}: `weights_path` reads a second file of weights; remove it, and write "
            "weights: file:PATH for the whole model"
        )
    arguments = {key: _built(item, path) for key, item in value.items() if key != "_target_"}
    if "_target_" not in value:
        return arguments
    target = value["_target_"]
    if target not in _CLASSES:
        raise SightlineError(
            f"{path}: names {target}; building a class runs its code, so a configuration may only "
            f"name those of Meta's own: {', '.join(_CLASSES)}"
        )
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)(**arguments)


def _published(model: str, revision: str) -> Path:
    """Meta's checkpoint, from the hub or its cache."""
    if model not in MODELS:
        raise SightlineError(
            f"{model}: a custom configuration has no published weights; "
            "write weights: file:PATH or random:SEED"
        )
    from huggingface_hub import hf_hub_download

    name = model.replace("-", "_") + ".pt"
    with reaching(model, "weights"), quiet():
        return Path(hf_hub_download(f"facebook/{model}", name, revision=revision or None))
