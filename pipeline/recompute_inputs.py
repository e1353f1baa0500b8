"""What the rows of a feature set were made of: an encoder and its inputs, to encode them again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import graph
from pipeline.cache import CAPTIONS, CacheError, FeatureSet, read_manifest
from pipeline.cache.keys import keys_of_texts

if TYPE_CHECKING:
    from pipeline.extract.cutouts import CutoutRules


@dataclass(frozen=True)
class Origin:
    """What the rows of a set came from, as far as a user says it.

    Attributes:
        inputs: a folder or manifest of images, or a file of texts; not all keys need be there.
            Of objects the images manifest. None: the inputs and the encoder of params.yaml.
        root: folder that a manifest's paths are relative to.
        phrases: of objects the phrases manifest, or the records of a grounding.
        encoder, weights: in place of those that the record names.
        params: the parameter file.
    """

    inputs: Path | None = None
    root: Path | None = None
    phrases: Path | None = None
    encoder: str | None = None
    weights: str | None = None
    params: Path = Path("params.yaml")


@dataclass(frozen=True)
class Making:
    """How to make rows of a set again.

    Attributes:
        config: of the encoder.
        rules: what objects look like to the encoder; None but for objects.
        inputs: key → image entry, cut-out entry or text.
    """

    config: Any
    rules: CutoutRules | None
    inputs: dict[bytes, Any]


def find_making(folder: Path, features: FeatureSet, origin: Origin) -> Making:
    """Encoder and inputs of the set in ``folder``, from params.yaml or as the user names them.

    Raises:
        SightlineError: the inputs are not known, or not there; says what to give.
    """
    if origin.inputs is None and origin.phrases is None:
        return _of_graph(folder, features.record.spec.kind, origin.params)
    return Making(
        _encoder_of_record(folder, features, origin),
        _rules_of_record(folder, features),
        _named_inputs(folder, features.record.spec.kind, origin),
    )


def options(kind: str) -> str:
    """The options that name the inputs of a kind of set."""
    return (
        "--phrases, --inputs (the images manifest) and --root" if kind == "object" else "--inputs"
    )


def _of_graph(folder: Path, kind: str, params_file: Path) -> Making:
    from pipeline.extract.inputs import entries_of_manifest, objects_of_phrases
    from pipeline.params import load_params

    try:
        dataset, _, name = folder.resolve().relative_to(graph.FEATURES.resolve()).parts
    except ValueError:
        raise CacheError(
            f"{folder}: not in {graph.FEATURES}/<dataset>/<kind>/<encoder>, so its inputs "
            f"are not known; name them with {options(kind)}"
        ) from None
    params = load_params(params_file)
    _, source = params.source(dataset)
    manifests = graph.dataset_folder(dataset)
    images, root = manifests / "images.parquet", graph.image_root(dataset, source)
    match kind:
        case "object":
            objects = objects_of_phrases(params.phrases, images, root)
            config, rules = params.encoder("image", name), params.extract.cutouts
            return Making(config, rules, {entry.key: entry for entry in objects})
        case "image":
            entries = entries_of_manifest(images, root)
            config = params.encoder("image", name)
            return Making(config, None, {entry.key: entry for entry in entries})
    texts = read_manifest(manifests / "captions.parquet", CAPTIONS)["text"].to_pylist()
    return Making(
        params.encoder("text" if kind == "text" else "teacher", name), None, _keyed(texts)
    )


def _named_inputs(folder: Path, kind: str, origin: Origin) -> dict[bytes, Any]:
    """The inputs that the user names, by key."""
    from pipeline.extract.inputs import image_entries_of, objects_of_phrases, texts_in

    phrases, inputs, root = origin.phrases, origin.inputs, origin.root
    if kind == "object":
        if phrases is None or inputs is None or root is None:
            raise CacheError(f"{folder}: its rows are objects; give all of {options(kind)}")
        return {entry.key: entry for entry in objects_of_phrases(phrases, inputs, root)}
    if phrases is not None or inputs is None:
        raise CacheError(f"{folder}: its rows are of kind {kind}; give --inputs and no --phrases")
    if kind == "image":
        return {entry.key: entry for entry in image_entries_of(inputs, root)}
    return _keyed(texts_in(inputs))


def _keyed(texts: list[str]) -> dict[bytes, str]:
    return {row.tobytes(): text for row, text in zip(keys_of_texts(texts), texts, strict=True)}


def _encoder_of_record(folder: Path, features: FeatureSet, origin: Origin) -> Any:
    """The encoder that the record names, as far as it can."""
    from pipeline.encoders.build_encoder import named_encoder

    spec = features.record.spec
    source = origin.weights or spec.encoder.source.split(" (")[0]
    if source.startswith("file:") and origin.weights is None:
        raise CacheError(
            f"{folder}: its weights come from a file, {source[5:]}; "
            "name it with --weights file:PATH"
        )
    kind = spec.kind if spec.kind != "object" else "image"
    if kind != "teacher" and "@" in spec.encoder.name and origin.encoder is None:
        raise CacheError(
            f"{folder}: its encoder, {spec.encoder.name}, was made from a model config of one's "
            "own; name that file with --encoder"
        )
    pooling = spec.preprocessing.get("pooling") if kind == "teacher" else None
    name = origin.encoder or spec.encoder.name.partition("/")[2]
    return named_encoder(name, source, kind, pooling=pooling)


def _rules_of_record(folder: Path, features: FeatureSet) -> CutoutRules | None:
    """What the record says that objects look like to the encoder."""
    from pydantic import ValidationError

    from pipeline.extract.cutouts import CutoutRules

    spec = features.record.spec
    if spec.kind != "object":
        return None
    said = {name: spec.preprocessing.get(name) for name in CutoutRules.model_fields}
    try:
        return CutoutRules.model_validate(said)
    except ValidationError as error:
        raise CacheError(
            f"{folder}: its preprocessing says {str(said)[:200]}, which are no rules of cut-outs; "
            "it was not made by this version of Sightline"
        ) from error
