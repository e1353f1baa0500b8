"""Which frozen model, from params.yaml or a command: its family, architecture and weights."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator

from pipeline.encoders.preprocessing import Deviation, Interpolation, Mean
from sightline.cache.feature_kind import Encoders
from sightline.errors import SightlineError
from sightline.identity import Elsewhere, MayBePath, Outside
from sightline.optional_imports import require
from sightline.pooling import Pooling
from sightline.settings import FamilySettings, Registry, explain, listed

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.encoder import ImageEncoder, ImageFileEncoder, TextEncoder


WEIGHTS_FORMS = (
    "pretrained:TAG (published weights), file:PATH (safetensors, or a state dict that "
    "torch.save wrote) or random:SEED"
)


OPEN_CLIP_FILE = "open_clip_config.json"
"""The model config in a folder that open_clip writes for the hub."""


@dataclass(frozen=True)
class WeightsSpec:
    """Parsed ``weights``: `value` is the tag or revision, the path, or the seed."""

    kind: Literal["pretrained", "file", "random"]
    value: str

    @property
    def seed(self) -> int:
        """The seed of ``random:SEED``; 0 where weights are loaded over those drawn."""
        return int(self.value) if self.kind == "random" else 0

    @property
    def revision(self) -> str:
        """The revision of ``pretrained:REVISION``; empty otherwise."""
        return self.value if self.kind == "pretrained" else ""


def parse_weights(weights: str) -> WeightsSpec:
    """Parse ``weights``; ValueError lists the valid forms.

    A bare ``pretrained`` is allowed here: it suffices for a folder or a hub name.
    """
    kind, _, value = weights.partition(":")
    if kind == "pretrained":
        return WeightsSpec("pretrained", value)
    if kind == "file" and value:
        return WeightsSpec("file", value)
    if kind == "random" and re.fullmatch(r"[0-9]{1,18}", value):
        return WeightsSpec("random", value)
    raise ValueError(f"{weights!r} are not valid weights; write {WEIGHTS_FORMS}")


def _known_form(weights: str) -> str:
    parse_weights(weights)
    return weights


Weights = Annotated[str, AfterValidator(_known_form)]
"""``pretrained:TAG``, ``file:PATH`` or ``random:SEED``, as a user writes it."""


def require_weights(path: Path) -> None:
    """Refuse a weights file that is not there."""
    if not path.is_file():
        raise SightlineError(f"{path}: no such weights file; check the path after 'file:'")


class EncoderConfig(FamilySettings):
    """One frozen encoder; a family is a subclass with its parameters.

    A subclass overrides `build_image`, `build_text` or both, with heavy imports inside: checking a
    configuration does not need torch.

    Attributes:
        needs_device: whether it computes on a device of this machine.
        family: name in the registry.
        model: name within the family.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
    """

    needs_device: ClassVar[bool] = True
    families: ClassVar[Registry] = Registry(
        "encoder family",
        "sightline.encoders",
        {
            "torchvision": "pipeline.encoders.config:TorchvisionConfig",
            "open_clip": "pipeline.encoders.config:OpenClipConfig",
            "transformers": "pipeline.encoders.config:TransformersConfig",
            "timm": "pipeline.encoders.config:TimmConfig",
        },
    )

    family: str
    model: Annotated[str, MayBePath()] = Field(min_length=1)
    weights: Annotated[Weights, MayBePath("file:")]

    @property
    def weights_spec(self) -> WeightsSpec:
        """`weights`, parsed."""
        return parse_weights(self.weights)

    def require_files(self) -> None:
        if self.weights_spec.kind == "file":
            require_weights(Path(self.weights_spec.value))

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder | ImageFileEncoder:
        """The frozen image encoder that this describes, ready on `device`.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """
        raise self._does_not_encode("images", "build_image")

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        """The frozen text encoder that this describes, ready on `device`.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """
        raise self._does_not_encode("texts", "build_text")

    def _does_not_encode(self, inputs: str, method: str) -> SightlineError:
        families: list[str] = []
        for name in self.families:
            with suppress(SightlineError):  # one that cannot be imported is not suggested
                family = self.families.subclass(name, EncoderConfig)
                if getattr(family, method) is not getattr(EncoderConfig, method):
                    families.append(name)
        return SightlineError(
            f"family {self.family!r} ({self.model}) does not encode {inputs}; "
            f"families that do: {', '.join(families)}"
        )


_Pixels = Annotated[int, Field(ge=1, le=4096)]
_OF_MODEL = Elsewhere("the name of the model, and the digest of its weights")
_OF_INPUT = Elsewhere("the preprocessing")
_COMPUTED = Outside("how the model is run: part of the plan, and recorded with each shard")


class _OwnConfig(EncoderConfig):
    """Of the families of Sightline, whose models say in their records what they are."""

    model: Annotated[str, _OF_MODEL] = Field(min_length=1)
    weights: Annotated[Weights, _OF_MODEL]


class _ImageConfig(_OwnConfig):
    """What models of images share.

    Attributes:
        interpolation, mean, std: override the published values.
        compile: run the model with ``torch.compile``.
    """

    interpolation: Annotated[Interpolation | None, _OF_INPUT] = None
    mean: Annotated[Mean | None, _OF_INPUT] = None
    std: Annotated[Deviation | None, _OF_INPUT] = None
    compile: Annotated[bool, _COMPUTED] = False


class TorchvisionConfig(_ImageConfig):
    """ResNets: images.

    Attributes:
        resize, crop: in pixels: shorter side, and side of the centre crop.
    """

    family: Literal["torchvision"]
    resize: Annotated[_Pixels | None, _OF_INPUT] = None
    crop: Annotated[_Pixels | None, _OF_INPUT] = None

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        from pipeline.encoders import torchvision_resnet

        return torchvision_resnet.build_image(self, device, precision)


class OpenClipConfig(_ImageConfig):
    """Both towers of a CLIP: images and texts.

    Attributes:
        model: an open_clip name, a model config (JSON), an open_clip folder or ``hf-hub:NAME``
            (weights: ``pretrained``).
        channels_last: the memory layout of images and convolutions, for towers made of these
            (ResNets are always run so).
    """

    family: Literal["open_clip"]
    channels_last: Annotated[bool, _COMPUTED] = False

    @property
    def file(self) -> Path | None:
        """The JSON of a model config; None for a name or a folder."""
        return Path(self.model) if self.model.endswith(".json") else None

    def require_files(self) -> None:
        if self.file and not self.file.is_file():
            raise SightlineError(
                f"{self.model}: no such file; expected the JSON of an open_clip model config"
            )
        super().require_files()

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        from pipeline.encoders import open_clip_towers

        return open_clip_towers.build_image(self, device, precision)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        from pipeline.encoders import open_clip_towers

        return open_clip_towers.build_text(self, device, precision)


class TransformersConfig(_OwnConfig):
    """A Hugging Face model: a teacher of texts, a vision model, or both towers of a CLIP or SigLIP.

    Attributes:
        model: a folder or a hub name.
        weights: ``pretrained`` alone uses the folder's content or the hub's main branch, and
            ``pretrained:REVISION`` one revision of a hub name.
        pooling: of a teacher by default that of its sentence-transformers folder, else ``cls``,
            the raw last layer at [CLS]; ``lasttoken`` is for decoders. Of images by default
            ``pooler``, the model's own.
        max_length: in tokens; default: the encoder's own.
        prompt: text before every text of a teacher, such as an instruction.
        prompt_name: the same by its name in config_sentence_transformers.json.
        compile: run the model with ``torch.compile``, once for each padded length.
    """

    family: Literal["transformers"]
    pooling: Annotated[Pooling | None, _OF_INPUT] = None
    max_length: Annotated[Annotated[int, Field(ge=2)] | None, _OF_INPUT] = None
    prompt: Annotated[str | None, _OF_INPUT] = None
    prompt_name: Annotated[str | None, _OF_INPUT] = None
    compile: Annotated[bool, _COMPUTED] = False

    def require_files(self) -> None:
        from sightline.pretrained import Pretrained

        Pretrained(self.model, self.weights_spec.revision)
        super().require_files()

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        from pipeline.encoders import transformers_vision

        return transformers_vision.build_image(self, device, precision)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        from pipeline.encoders import transformers_text, transformers_vision
        from sightline.pretrained import Pretrained

        settings = Pretrained(self.model, self.weights_spec.revision).config()
        towers = transformers_vision.has_two_towers(settings)
        module = transformers_vision if towers else transformers_text
        return module.build_text(self, device, precision)


class TimmConfig(_ImageConfig):
    """A backbone of timm, up to its classifier: images.

    Attributes:
        model: timm's name of it, without a tag, such as ``efficientnet_b0``.
        weights: ``pretrained:TAG`` is one of timm's own tags; a file has timm's own names.
        channels_last: the memory layout of images and convolutions, for models made of these.
    """

    family: Literal["timm"]
    channels_last: Annotated[bool, _COMPUTED] = False

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
        from pipeline.encoders import timm_backbones

        return timm_backbones.build_image(self, device, precision)


RESNETS = ("resnet18", "resnet50", "resnet101", "resnet152")


def encoder_class(name: str, kind: Encoders = "image") -> type[EncoderConfig]:
    """The configuration's class of the encoder called ``name``, as for `named_encoder`."""
    return EncoderConfig.families.subclass(_family_and_model(name, kind)[0], EncoderConfig)


def named_encoder(
    name: str, weights: str, kind: Encoders = "image", **parameters: Any
) -> EncoderConfig:
    """The configuration of an encoder given by `name` on a command line.

    Args:
        name: ``FAMILY:MODEL`` of any family; or, for images, a ResNet, an open_clip model or the
            path of a model config (JSON) or a folder of open_clip; for texts all but a ResNet; for
            a teacher a folder or a hub name.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
        parameters: of its family, such as ``pooling`` and ``max_length`` of a teacher, or
            ``compile``.

    Raises:
        SightlineError: unknown name (lists the available ones and suggests the nearest), invalid
            weights, or an option that does not apply to this encoder.
    """
    family, model = _family_and_model(name, kind)
    if taken := [each for each in ("family", "model") if each in parameters]:
        raise SightlineError(f"{name}: its name says {' and '.join(taken)} already; leave it out")
    try:
        return EncoderConfig.model_validate(
            {"family": family, "model": model, "weights": weights, **parameters}
        )
    except ValidationError as error:
        raise SightlineError(f"{name}: {'; '.join(explain(error))}") from error


def _family_and_model(name: str, kind: Encoders) -> tuple[str, str]:
    family, colon, model = name.partition(":")
    if colon and family in EncoderConfig.families:
        return family, model
    if kind == "teacher":
        return "transformers", name
    if name in RESNETS and kind == "image":
        return "torchvision", name
    if name.endswith(".json") or name.startswith("hf-hub:"):
        return "open_clip", name
    if Path(name.removeprefix("local-dir:"), OPEN_CLIP_FILE).is_file():
        return "open_clip", name
    models: list[str] = require("open_clip", "this encoder").list_models()
    if name.replace("/", "-") in models:
        return "open_clip", name
    names = [*(RESNETS if kind == "image" else ()), *models]
    lowered = {model.lower(): model for model in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    guess = f" (did you mean {lowered[near[0]]}?)" if near else ""
    resnets = f"torchvision: {', '.join(RESNETS)}; " if kind == "image" else ""
    of_open_clip = listed(name, models, "open_clip.list_models() in Python")
    raise SightlineError(
        f"unknown {kind} encoder {name!r}{guess}. Available: {resnets}"
        f"open_clip: {of_open_clip}; or the path of an open_clip model config (JSON) or of "
        f"a folder with {OPEN_CLIP_FILE}, or FAMILY:MODEL with a family of "
        f"{', '.join(EncoderConfig.families)}"
    )
