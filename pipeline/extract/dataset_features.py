"""Features of a data set, a folder or a file, in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.datasets.prepared import PreparedDataset
from pipeline.encoders.config import EncoderConfig
from pipeline.extract.cutouts import CutoutRules
from pipeline.extract.encode_missing import ExtractSettings
from pipeline.extract.feature_inputs import FeatureInputs, images_of, objects_of, texts_of
from sightline.cache import FeatureSet
from sightline.cache.record import Kind
from sightline.errors import SightlineError


def extract_features(
    data: PreparedDataset | Path | str,
    encoder: EncoderConfig,
    out: Path | str,
    kind: Kind = "image",
    *,
    phrases: Path | None = None,
    rules: CutoutRules | None = None,
    device: str = "auto",
    settings: ExtractSettings = ExtractSettings(),  # noqa: B008  (frozen)
) -> FeatureSet:
    """Make ``out`` hold one row for every image, object or caption of ``data``, and open it.

    Rows that are there already are kept; after a kill, the same call resumes.

    Args:
        data: a prepared data set; or a folder of images; or for texts a file, one a line.
        kind: ``image``; ``object`` (cut-outs); ``text`` or ``teacher`` (captions).
        phrases: for objects: the records of a grounding, or a phrases manifest.
        rules: how objects become inputs; None: the defaults.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        settings: batch size, precision, storage type and so on; its device and inputs are set here.

    Raises:
        SightlineError: the encoder cannot be built, the images are missing, too many rows failed,
            or as `pipeline.extract.encode_missing.extract_images`.
    """
    from sightline.devices import check_precision

    inputs, read = _inputs(data, encoder, kind, phrases, rules or CutoutRules())
    how = replace(
        settings,
        precision=check_precision(settings.precision),
        device=device,
        inputs=(*settings.inputs, *read),
    )
    inputs.encode(Path(out), how)
    return FeatureSet.open(out)


def _inputs(
    data: PreparedDataset | Path | str,
    encoder: EncoderConfig,
    kind: Kind,
    phrases: Path | None,
    rules: CutoutRules,
) -> tuple[FeatureInputs, list[Path]]:
    """What is encoded, and the files and folders that it is read from."""
    texts = kind in ("text", "teacher")
    if not isinstance(data, PreparedDataset):
        path = Path(data)
        if kind == "object":
            raise SightlineError(f"{path}: features of objects need a prepared data set")
        return texts_of(encoder, path, kind) if texts else images_of(encoder, path, None), [path]
    if texts:
        return texts_of(encoder, data.captions_manifest, kind), [data.folder]
    root, images = data.require_images(), data.images_manifest
    if kind == "image":
        return images_of(encoder, images, root), [data.folder, root]
    if phrases is None:
        raise SightlineError("features of objects need `phrases`: the records of a grounding")
    return objects_of(encoder, phrases, images, root, rules), [data.folder, root, phrases]
