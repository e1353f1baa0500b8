"""The inputs of a feature set of any kind, and how to encode them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.extract.encode_missing import (
    ExtractSettings,
    extract_images,
    extract_objects,
    extract_texts,
)
from pipeline.extract.inputs import image_entries_of, objects_of_phrases, texts_in
from pipeline.extract.runner import Invocation, SetSummary
from sightline.cache import keys_of_texts
from sightline.cache.commit import refuse_other_kinds, set_output
from sightline.cache.record import Kind

if TYPE_CHECKING:
    from pipeline.encoders.config import EncoderConfig
    from pipeline.extract.cutouts import CutoutRules


@dataclass(frozen=True)
class FeatureInputs:
    """An encoder and its inputs.

    Attributes:
        kind: kind of the feature set.
        config: configuration of the encoder.
        entries: images, objects or texts.
        rules: preprocessing of objects; None for other kinds.
        root: base folder of a manifest's image paths.
    """

    kind: Kind
    config: EncoderConfig
    entries: Sequence[Any]
    rules: CutoutRules | None = None
    root: Path | None = None

    def by_key(self) -> dict[bytes, Any]:
        """Every entry by the key of its row."""
        if self.kind in ("image", "object"):
            return {entry.key: entry for entry in self.entries}
        keys = keys_of_texts(list(self.entries))
        return {key.tobytes(): text for key, text in zip(keys, self.entries, strict=True)}

    def encode(self, out: Path, settings: ExtractSettings) -> SetSummary:
        """Build the encoder on ``settings.device`` and compute what the feature set ``out`` lacks.

        Raises:
            SightlineError: the device is not available, the encoder cannot be built; or as
                `extract_images`.
        """
        refuse_other_kinds(out, self.kind)
        set_output(out, settings.inputs, str(settings.worker or "")).check_place()
        self.config.require_files()
        from sightline.devices import pick_device

        device = pick_device(settings.device)
        settings = replace(settings, device=str(device))
        if self.kind in ("text", "teacher"):
            texts = self.config.build_text(device, settings.precision)
            return extract_texts(self.entries, texts, out, settings, self.kind)
        images = self.config.build_image(device, settings.precision)
        if self.rules is None:
            return extract_images(self.entries, images, out, settings)
        return extract_objects(self.entries, images, self.rules, out, settings)


def encode(
    inputs: Callable[[], FeatureInputs], out: Path, settings: ExtractSettings, how: Invocation
) -> SetSummary:
    """Read the inputs and encode them as ``how`` says, on its device.

    Raises:
        SightlineError: as `FeatureInputs.encode`, or an input is missing.
    """
    device = how.device or settings.device
    return inputs().encode(out, replace(settings, **{**vars(how), "device": device}))


def images_of(config: EncoderConfig, images: Path, root: Path | None) -> FeatureInputs:
    """The images of a folder or manifest; as `image_entries_of`."""
    return FeatureInputs("image", config, image_entries_of(images, root), root=root)


def objects_of(
    config: EncoderConfig, phrases: Path, images: Path, root: Path, rules: CutoutRules
) -> FeatureInputs:
    """The objects of a phrases manifest; as `objects_of_phrases`."""
    return FeatureInputs("object", config, objects_of_phrases(phrases, images, root), rules, root)


def texts_of(config: EncoderConfig, texts: Path, kind: Kind) -> FeatureInputs:
    """The texts of a file; as `texts_in`."""
    return FeatureInputs(kind, config, texts_in(texts))
