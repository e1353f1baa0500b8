"""Kinds of features: what a row is of, how it is read and encoded; other packages may add kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

from sightline.errors import SightlineError
from sightline.plugins import expect_valid
from sightline.settings import Registry

RowOf = Literal["image", "caption", "object"]
Encoders = Literal["image", "text", "teacher"]


@dataclass(frozen=True)
class FeatureKind:
    """A kind of row of a feature set.

    It names its functions as ``module:attribute``, so that knowing a kind imports neither PyTorch
    nor the pipeline. A set of a kind whose package is absent is still listed, verified, exported
    and collected.

    Attributes:
        name: as in records and commands.
        unit: its rows, in the plural.
        row_of: which key of a pair a row has: that of its image, its caption, or an object of it.
        read: makes `pipeline.extract.inputs.FeatureInputs` of what a command names.
        encode: makes `pipeline.extract.encode_missing.Encoding` of these and an encoder.
        builder: the method of `pipeline.encoders.config.EncoderConfig` that builds the encoder.
        encoders: the section of params.yaml, below `encoders`, that such encoders are in.
        block_rows: rows that are finished together: a kill or a stop loses at most this many.
    """

    name: str
    unit: str
    row_of: RowOf
    read: str
    encode: str
    builder: str
    encoders: Encoders
    block_rows: int = 512

    def function(self, place: str) -> Any:
        """The function at ``place``, one of `read` and `encode`."""
        try:
            return resolve_name(place)
        except (ImportError, AttributeError, ValueError) as error:
            raise SightlineError(
                f"features of kind {self.name!r} need {place}, which cannot be imported ({error}); "
                "fix the package that registers this kind, or uninstall it"
            ) from error


_READ, _ENCODE = "pipeline.extract.inputs:read_", "pipeline.extract.encode_missing:encode_"
IMAGE = FeatureKind(
    "image", "images", "image", f"{_READ}images", f"{_ENCODE}images", "build_image", "image"
)
OBJECT = FeatureKind(
    "object", "objects", "object", f"{_READ}objects", f"{_ENCODE}objects", "build_image", "image"
)
TEXT = FeatureKind(
    "text", "texts", "caption", f"{_READ}texts", f"{_ENCODE}texts", "build_text", "text", 2048
)
TEACHER = FeatureKind(
    "teacher", "texts", "caption", f"{_READ}texts", f"{_ENCODE}texts", "build_text", "teacher", 2048
)

KINDS = Registry(
    "kind of features",
    "sightline.feature_kinds",
    {name: f"{__name__}:{name.upper()}" for name in ("image", "object", "text", "teacher")},
)


def feature_kind(name: str) -> FeatureKind:
    """The kind of this name.

    Raises:
        SightlineError: there is none, or its package cannot be imported.
    """
    kind = KINDS.instance(name, FeatureKind)
    if name not in KINDS.built_in:
        expect_valid(kind, FeatureKind, kind, KINDS.place(name))
        if kind.name != name:
            raise SightlineError(
                f"{KINDS.place(name)}: is registered as the kind {name!r}, but its `name` is "
                f"{kind.name!r}; fix that package"
            )
    return kind


def known_kind(name: str) -> FeatureKind | None:
    """The kind of this name; None if its package is absent."""
    try:
        return feature_kind(name)
    except SightlineError:
        return None


def is_of_texts(name: str) -> bool:
    """Whether rows of this kind are known to be of texts."""
    kind = known_kind(name)
    return kind is not None and kind.row_of == "caption"
