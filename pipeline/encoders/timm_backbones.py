"""timm's image models up to the classifier, with timm's own sizes and normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import field_validator

from pipeline.encoders.config import COMPUTED, ImageConfig, WeightsSpec
from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import ImagePreprocessing, ResizeMode
from pipeline.encoders.weights import (
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
    unknown_tag,
)
from sightline.errors import SightlineError, first_lines
from sightline.models.pretrained import commit_of, from_hub, quiet
from sightline.optional_imports import require
from sightline.settings import nearest_choices

if TYPE_CHECKING:
    import torch
    from torch import nn

_MODES: dict[str, ResizeMode] = {"center": "shortest", "squash": "squash", "border": "longest"}
"""timm's crop modes → ours."""


class TimmConfig(ImageConfig):
    """A backbone of timm, up to its classifier: images.

    Attributes:
        model: timm's name of it, without a tag, such as ``efficientnet_b0``.
        weights: ``pretrained:TAG`` is one of timm's own tags; a file has timm's own names.
        channels_last: the memory layout of images and convolutions, for models made of these.
    """

    family: Literal["timm"]
    channels_last: Annotated[bool, COMPUTED] = False

    @field_validator("model")
    @classmethod
    def _is_a_plain_name(cls, model: str) -> str:
        if ":" in model:  # timm would take the architecture from a repository or a folder
            raise ValueError(
                f"{model!r} is not a name of timm's own models; name one, and give a checkpoint "
                "as weights file:PATH"
            )
        return model

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        """The backbone on `device`: images → what timm's classifier would see.

        That is the output of the model with ``num_classes=0``: for most models a pooled and, where
        it has one, normalised feature. Size, crop, filter, mean and standard deviation are those of
        ``timm.data.resolve_model_data_config``.

        Raises:
            SightlineError: unknown model or tag, weights that do not fit or are unavailable, a
                model that gives no row, or a transform that we do not have.
        """
        import torch

        from pipeline.encoders.frozen_model import FrozenModel

        spec = self.weights_spec
        model, revision = _model(self.model, spec)
        preprocessing = _preprocessing(model, self)
        identity = identity_of(model, f"timm/{self.model}", spec, revision)
        with torch.no_grad():
            row = model(torch.zeros(1, 3, *preprocessing.crop))
        if not isinstance(row, torch.Tensor) or row.ndim != 2:
            raise SightlineError(
                f"{self.model}: gives no single row of features for an image; choose a model of "
                "timm that pools them"
            )
        frozen = FrozenModel(
            model, device, precision, channels_last=self.channels_last, compiled=self.compile
        )
        return frozen.image_encoder(identity, row.shape[1], preprocessing)


def _timm() -> Any:
    return require("timm", "this encoder")


def _model(name: str, spec: WeightsSpec) -> tuple[Any, str]:
    """The model without its classifier, on the CPU, and the revision of published weights."""
    revision = ""
    if name not in _timm().list_models():
        raise _unknown(name)
    if spec.kind == "pretrained":
        model, revision = _published(name, spec.value)
    else:
        with seeded(spec.seed), quiet():
            model = _timm().create_model(name, pretrained=False)
    whole = set(model.state_dict())
    model.eval().reset_classifier(0)
    if spec.kind == "file":
        classifier = whole - set(model.state_dict())
        state = read_state_dict(Path(spec.value))
        trunk = {key: tensor for key, tensor in state.items() if key not in classifier}
        load_exactly(model, trunk, spec.value, name)
    return model, revision


def _unknown(name: str) -> SightlineError:
    base, _, tag = name.partition(".")
    if tag and base in _timm().list_models():
        return SightlineError(
            f"{name}: give timm's model and tag apart: the model {base!r} with weights "
            f"'pretrained:{tag}'"
        )
    models = nearest_choices(name, _timm().list_models(), "timm.list_models() in Python")
    return SightlineError(f"unknown timm model {name!r}; there are {models}")


def _published(name: str, tag: str) -> tuple[Any, str]:
    """A model with published weights, and their commit on the hub or the name of their file.

    It is made with the number of classes of its weights, for then timm loads them strictly.
    """
    tags = [entry.partition(".")[2] for entry in _timm().list_pretrained(f"{name}.*")]
    if tag not in tags:
        raise unknown_tag(name, tag, tags)
    part = f"weights {tag!r}"
    with seeded(0), quiet(), from_hub(f"timm:{name}", part):
        try:
            model = _timm().create_model(f"{name}.{tag}", pretrained=True)
        except (RuntimeError, KeyError, ValueError) as error:
            raise SightlineError(
                f"timm:{name}: its {part} do not fit ({first_lines(error)}); fetch them again, or "
                "use those that another version of timm has"
            ) from error
    return model, _revision(model.pretrained_cfg)


def _revision(published: Mapping[str, Any]) -> str:
    """The commit of weights that came from the hub; the name of a file that did not."""
    from huggingface_hub import try_to_load_from_cache

    repository = str(published.get("hf_hub_id") or "")
    file = str(published.get("hf_hub_filename") or "")
    for name in [file] if file else ["model.safetensors", "pytorch_model.bin"]:
        path = try_to_load_from_cache(repository, name) if repository else None
        if isinstance(path, str):
            return commit_of(path)
    return Path(str(published.get("url") or "")).stem


def _preprocessing(model: nn.Module, config: TimmConfig) -> ImagePreprocessing:
    """timm's evaluation transform of a model, on uint8 tensors."""
    values = _timm().data.resolve_model_data_config(model)
    height, width = values["input_size"][1:]
    mode = _MODES.get(values["crop_mode"])
    interpolation = config.interpolation or values["interpolation"]
    if mode is None or interpolation not in ("bilinear", "bicubic"):
        raise SightlineError(
            f"{config.model}: timm evaluates it with crop mode {values['crop_mode']!r} and filter "
            f"{interpolation!r}; expected {', '.join(_MODES)} and bilinear or bicubic. "
            "Choose another model"
        )
    mean, std = config.mean or tuple(values["mean"]), config.std or tuple(values["std"])
    fill = 0
    if mode == "longest":
        if len(set(mean)) > 1:
            raise SightlineError(
                f"{config.model}: timm frames its images in its mean colour {mean}, and Sightline "
                "frames them in grey alone. Choose another model"
            )
        fill = round(255 * mean[0])
    return ImagePreprocessing(
        resize=(
            math.floor(height / values["crop_pct"]),
            math.floor(width / values["crop_pct"]),
        ),
        crop=(height, width),
        interpolation=interpolation,
        mean=mean,
        std=std,
        resize_mode=mode,
        fill=fill,
    )
