"""Features of a prepared data set, in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.cache import FeatureSet
from pipeline.cache.record import Kind
from pipeline.datasets.prepared import PreparedDataset
from pipeline.encoders.encoder_config import EncoderConfig
from pipeline.extract.cutouts import CutoutRules
from pipeline.extract.encode_missing import ExtractSettings
from pipeline.extract.feature_inputs import FeatureInputs
from pipeline.extract.inputs import entries_of_manifest, objects_of_phrases
from sightline.errors import SightlineError


def extract_features(
    data: PreparedDataset,
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
        kind: ``image``; ``object`` (cut-outs); ``text`` or ``teacher`` (captions).
        phrases: for objects: the records of a grounding, or a phrases manifest.
        rules: how objects become inputs; None: the defaults.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        settings: batch size, precision, storage type and so on; its device and inputs are set here.

    Raises:
        SightlineError: the encoder cannot be built, the images are missing, too many rows failed,
            or as `pipeline.extract.encode_missing.extract_images`.
    """
    from sightline.devices import check_precision, pick_device

    where, root = pick_device(device), None
    if kind in ("text", "teacher"):
        entries = data.captions["text"].to_pylist()
    else:
        root = data.require_images()
        entries = entries_of_manifest(data.images_manifest, root)
    if kind == "object":
        if phrases is None:
            raise SightlineError(f"{out}: features of objects need `phrases`, of a grounding")
        entries = objects_of_phrases(phrases, data.images_manifest, data.require_images())
        rules = rules or CutoutRules()
    own = [path for path in (data.folder, root, phrases) if path is not None]
    how = replace(
        settings,
        precision=check_precision(settings.precision),
        device=str(where),
        inputs=(*settings.inputs, *own),
    )
    inputs = FeatureInputs(kind, encoder, entries, rules if kind == "object" else None, root)
    inputs.encode(Path(out), how, where)
    return FeatureSet.open(out)
