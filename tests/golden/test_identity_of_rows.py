"""Every setting of an encoder and of a grounding is in the fingerprint, unless it is declared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
from golden_world import ANNOTATED, PHRASES_FILE, World, encoder_cases, grounding_cases
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tiny_grounders import save_dino, save_sam3
from tiny_models import clip_config
from transformers import MMGroundingDinoConfig, MMGroundingDinoForObjectDetection

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.encoder import TextEncoder, service_identity
from pipeline.extract.encode_missing import extract_job
from pipeline.extract.inputs import inputs_of
from pipeline.extract.settings import CutoutRules, ExtractSettings
from pipeline.grounding import ground
from pipeline.grounding.grounding_settings import GroundingSettings, Rules
from pipeline.grounding.settings import GrounderSettings, SegmenterSettings
from pipeline.machine import Machine
from sightline.identity import Outside, declared

CHOSEN = {"family"}
"""The field that chooses a class."""
MACHINE = Machine(devices=("cpu",), workers=0)


def fields_of(model: type) -> set[str]:
    return model.model_fields.keys() - CHOSEN  # pyright: ignore[reportAttributeAccessIssue]


def is_outside(model: type, field: str) -> bool:
    return isinstance(declared(model).get(field), Outside)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    """The golden world with its models, of which no set is made but the annotated objects."""
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    torch.set_num_threads(1)
    made = World(tmp_path_factory.mktemp("settings") / "world")
    made.ground(ANNOTATED, grounding_cases(made.models, made.boxes)[ANNOTATED])
    made.add_models()
    return made


@pytest.fixture(scope="module")
def models(world) -> Path:
    """Its models and a few more, and in `other` those with other weights."""
    folder = world.models
    (folder / "florence").rename(folder / "florence2")
    (folder / "dino").rename(folder / "grounding-dino")
    mm = MMGroundingDinoConfig, MMGroundingDinoForObjectDetection
    save_dino(folder / "mm-grounding-dino", *mm)
    save_sam3(folder / "sam3")
    caption = world.data.captions["text"][0].as_py()
    box = {"image": "00.png", "caption": caption, "phrase": caption.split()[1], "box": [1, 1, 9, 9]}
    (folder / "boxes.jsonl").write_text(json.dumps(box) + "\n")
    words = Transformer(str(folder / "teacher"))
    teacher = SentenceTransformer(
        modules=[words, Pooling(32, pooling_mode="cls")], prompts={"query": "query: "}, device="cpu"
    )
    teacher.save_pretrained(str(folder / "teacher"))
    shutil.copytree(folder, world.root / "other")
    (world.root / "other").rename(folder / "other")
    for file in (folder / "other").rglob("*.safetensors"):
        state = load_file(file)
        save_file({name: part * 2 for name, part in state.items()}, file, {"format": "pt"})
    clip_config(folder / "other", quick_gelu=True)
    yaml, sigmoid = (folder / "tiny.yaml").read_text(), "iou_prediction_use_sigmoid: "
    (folder / "other/tiny.yaml").write_text(yaml.replace(f"{sigmoid}true", f"{sigmoid}false"))
    return folder


# ---- encoders -----------------------------------------------------------------------------------


def encoders(models: Path) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Family → kind, an encoder, and another value for each of its fields."""
    cases, other = encoder_cases(models), models / "other"
    clip, bert = cases["clip, image"][1], cases["teacher"][1]
    resnet = {"family": "torchvision", "model": "resnet18", "weights": "random:0"}
    backbone = {"family": "timm", "model": "test_vit", "weights": "random:0"}
    pixels = {"mean": [0.1, 0.2, 0.3], "std": [0.3, 0.2, 0.1], "interpolation": "bicubic"}
    pixels |= {"compile": True}
    of_resnet = {"model": "resnet50", "weights": f"file:{models}/resnet.safetensors"}
    of_resnet |= {"resize": 80, "crop": 48}
    of_clip = {"model": str(other / "clip.json"), "weights": f"file:{other}/clip.safetensors"}
    of_clip |= {"channels_last": True}
    of_bert = {"model": str(other / "teacher"), "weights": "random:3", "pooling": "mean"}
    of_bert |= {"max_length": 8, "prompt": "a photograph of ", "prompt_name": "query"}
    of_backbone = {"model": "test_resnet", "weights": "random:1", "channels_last": True}
    of_backbone |= {"interpolation": "bilinear"}
    return {
        "torchvision": ("image", resnet, {**pixels, **of_resnet}),
        "open_clip": ("image", clip, {**pixels, **of_clip}),
        "transformers": ("teacher", bert, {**of_bert, "compile": True}),
        "timm": ("image", backbone, {**pixels, **of_backbone}),
    }


def fingerprint_of(world, kind: str, encoder: dict[str, Any], **settings: Any) -> str:
    """Of a feature set, without making it."""
    phrases = world.root / "grounding" / ANNOTATED if kind == "object" else None
    inputs = inputs_of(kind, world.data, phrases=phrases)
    config, out = EncoderConfig.model_validate(encoder), world.root / "unmade"
    return extract_job(inputs, config, out, ExtractSettings(**settings), MACHINE).spec.fingerprint


@pytest.mark.parametrize("family", [*EncoderConfig.families.built_in])
def test_every_setting_of_an_encoder_is_in_the_fingerprint_or_declared(world, models, family):
    kind, encoder, others = encoders(models)[family]
    model = EncoderConfig.families.subclass(family, EncoderConfig)
    assert others.keys() == fields_of(model), "give the new field another value here"
    before = fingerprint_of(world, kind, encoder)
    for field, value in others.items():
        changed = fingerprint_of(world, kind, {**encoder, field: value})
        assert (changed == before) == is_outside(model, field), field


def test_every_setting_of_an_extraction_is_in_the_fingerprint_or_declared(world, models):
    kind, encoder, _ = encoders(models)["open_clip"]
    others = {"precision": "bf16", "dtype": "float32", "batch_size": 8, "max_failed": 0.5}
    rules = {"margin": 0.3, "background": "white"}
    assert {*others, "cutouts"} == fields_of(ExtractSettings)
    assert rules.keys() == fields_of(CutoutRules)
    before = fingerprint_of(world, kind, encoder)
    for field, value in others.items():
        changed = fingerprint_of(world, kind, encoder, **{field: value})
        assert (changed == before) == is_outside(ExtractSettings, field), field
    before = fingerprint_of(world, "object", encoder)
    for field, value in rules.items():
        assert fingerprint_of(world, "object", encoder, cutouts={field: value}) != before, field


@pytest.mark.parametrize("name", ["resnet, image", "clip, image", "teacher"])
def test_a_copy_of_a_model_elsewhere_is_the_same_model(world, models, tmp_path, name):
    kind, encoder, _ = encoder_cases(models)[name]
    copy = shutil.copytree(models, tmp_path / "copy")
    copied = {key: text.replace(str(models), str(copy)) for key, text in encoder.items()}
    assert copied != encoder
    assert fingerprint_of(world, kind, copied) == fingerprint_of(world, kind, encoder)


# ---- groundings ---------------------------------------------------------------------------------


def grounders(models: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Family → a grounder, and another value for each of its fields."""
    other = models / "other"
    named = {family: {"family": family, "model": str(models / family)} for family in OF_MODELS}
    others = {family: {"model": str(other / family), "weights": "random:1"} for family in OF_MODELS}
    thresholds = {"box_threshold": 0.1, "text_threshold": 0.2}
    return {
        "florence2": (
            {**named["florence2"], "max_length": 24},
            {**others["florence2"], "beams": 2, "max_length": 20},
        ),
        "sam3": (named["sam3"], {**others["sam3"], "threshold": 0.1, "mask_threshold": 0.2}),
        **{name: (named[name], {**others[name], **thresholds}) for name in OF_MODELS[2:]},
        "annotations": (
            {"family": "annotations", "path": str(models / "boxes.jsonl")},
            {"path": str(PHRASES_FILE), "box_format": "xywh", "strict": True},
        ),
    }


OF_MODELS = ("florence2", "sam3", "grounding-dino", "mm-grounding-dino")


def segmenters(models: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Family → a segmenter, and another value for each of its fields."""
    sam2 = {"model": str(models / "tiny.yaml"), "weights": f"file:{models / 'sam2.safetensors'}"}
    other = models / "other"
    return {
        "box": ({"family": "box"}, {}),
        "annotations": ({"family": "annotations"}, {}),
        "sam2": (
            {"family": "sam2", **sam2},
            {"model": str(other / "tiny.yaml"), "weights": f"file:{other}/sam2.safetensors"},
        ),
        "sam2-hf": (
            {"family": "sam2-hf", "model": str(models / "sam2-hf")},
            {"model": str(other / "sam2-hf"), "weights": "random:1"},
        ),
    }


class Described(Exception):
    """Carries what a grounding would be named by."""


@pytest.fixture
def grounding_of(world, monkeypatch):
    """The fingerprint of a grounding, without making it."""

    def stop(job, *args, **options):
        raise Described(job.spec.fingerprint)

    monkeypatch.setattr(ground, "run", stop)

    def fingerprint(grounding: dict[str, Any], **settings: Any) -> str:
        checked = GroundingSettings.model_validate({"captions": "all", **grounding})
        settings_of_rows, out = ExtractSettings(**settings), world.root / "unmade"
        with pytest.raises(Described) as described:
            ground.ground_dataset(world.data, checked, out, None, settings_of_rows, MACHINE)
        return str(described.value)

    return fingerprint


BOX = {"family": "box"}


@pytest.mark.parametrize("family", [*GrounderSettings.families.built_in])
def test_every_setting_of_a_grounder_is_in_the_fingerprint(models, grounding_of, family):
    grounder, others = grounders(models)[family]
    model = GrounderSettings.families.subclass(family, GrounderSettings)
    assert others.keys() == fields_of(model), "give the new field another value here"
    before = grounding_of({"grounder": grounder, "segmenter": BOX})
    for field, value in others.items():
        changed = grounding_of({"grounder": {**grounder, field: value}, "segmenter": BOX})
        assert (changed == before) == is_outside(model, field), field
    if grounder["family"] in OF_MODELS:
        precise = grounding_of({"grounder": grounder, "segmenter": BOX}, precision="bf16")
        assert precise != before


@pytest.mark.parametrize("family", [*SegmenterSettings.families.built_in])
def test_every_setting_of_a_segmenter_is_in_the_fingerprint(models, grounding_of, family):
    segmenter, others = segmenters(models)[family]
    model = SegmenterSettings.families.subclass(family, SegmenterSettings)
    assert others.keys() == fields_of(model), "give the new field another value here"
    drawn = {"family": "annotations", "path": str(PHRASES_FILE)}
    before = grounding_of({"grounder": drawn, "segmenter": segmenter})
    for field, value in others.items():
        changed = grounding_of({"grounder": drawn, "segmenter": {**segmenter, field: value}})
        assert (changed == before) == is_outside(model, field), field


def test_every_rule_of_a_grounding_is_in_the_fingerprint_or_declared(models, grounding_of):
    drawn = {"family": "annotations", "path": str(PHRASES_FILE)}
    rules = {"boxes": "union", "min_score": 0.1, "min_area": 2.0, "max_share": 0.9}
    rules |= {"duplicate_iou": None, "max_pairs": 3}
    assert rules.keys() == fields_of(Rules)
    before = grounding_of({"grounder": drawn, "segmenter": BOX})
    for field, value in rules.items():
        rule = {"rules": {field: value}}
        assert grounding_of({"grounder": drawn, "segmenter": BOX, **rule}) != before, field
    others = {"batch_size": 2, "block_images": 3, "cutouts": False}
    for field, value in others.items():
        assert grounding_of({"grounder": drawn, "segmenter": BOX, field: value}) == before, field
        assert is_outside(GroundingSettings, field)
    named = {"grounder", "segmenter", "rules", "captions"}  # the keys of the rows hold captions
    assert {*others, *named} == fields_of(GroundingSettings)


# ---- of other packages --------------------------------------------------------------------------


class OwnEncoder(EncoderConfig):
    """Says nothing of its settings itself."""

    gamma: float = 1.0
    words: Path | None = None
    url: Annotated[str, Outside("where it answers")] = "here"

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        identity = service_identity("own/one", "1")
        lengths, encode = (lambda texts: [1] * len(texts)), (lambda texts, length: None)
        return TextEncoder(identity, 3, {}, lengths, encode)  # pyright: ignore[reportArgumentType]


class OwnGrounder(GrounderSettings):
    """Says nothing of its settings itself."""

    gamma: float = 1.0
    url: Annotated[str, Outside("where it answers")] = "here"

    def build(self, device: torch.device, precision: str) -> Any:
        names = {"name": "own", "describe": dict, "ground": lambda images, captions: []}
        return SimpleNamespace(**names)


@pytest.fixture
def own(monkeypatch):
    """Both registered; `__module__` is that of this file, so of no package of ours."""
    for base, kind in ((EncoderConfig, OwnEncoder), (GrounderSettings, OwnGrounder)):
        places = {**base.families.places, "own": f"{__name__}:{kind.__name__}"}
        monkeypatch.setattr(base.families, "places", places)


def test_the_settings_and_version_of_a_packages_encoder_are_in_its_fingerprint(
    world, own, tmp_path, monkeypatch
):
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    for file, text in ((here, "a"), (there, "a"), (other, "b")):
        file.write_text(text)

    def fingerprint(**fields: Any) -> str:
        encoder = {"family": "own", "model": "a", "weights": "random:0", **fields}
        return fingerprint_of(world, "text", {"words": str(here), **encoder})

    before = fingerprint()
    for field, value in {"gamma": 3, "model": "b", "weights": "random:1"}.items():
        assert fingerprint(**{field: value}) != before, field
    assert fingerprint(url="there") == fingerprint(words=str(there)) == before
    assert fingerprint(words=str(other)) != before
    weights = [fingerprint(weights=f"file:{file}") for file in (here, there, other)]
    assert weights[0] == weights[1] != weights[2]
    monkeypatch.setattr(OwnEncoder, "version", "2", raising=False)
    assert fingerprint() != before


def test_the_settings_and_version_of_a_packages_grounder_are_in_its_fingerprint(
    own, grounding_of, monkeypatch
):
    def fingerprint(precision: str = "fp32", **fields: Any) -> str:
        grounder = {"family": "own", **fields}
        return grounding_of({"grounder": grounder, "segmenter": BOX}, precision=precision)

    before = fingerprint()
    assert fingerprint(url="there") == before
    assert fingerprint(gamma=3) != before
    assert fingerprint(precision="bf16") != before
    monkeypatch.setattr(OwnGrounder, "version", "2", raising=False)
    assert fingerprint() != before
