"""`prepare` of scenes: its files, their agreement, and the same bytes twice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from tiny_scenes import TINY

from pipeline.datasets.kinds import prepare, source_type
from pipeline.datasets.scenes import build
from pipeline.datasets.scenes.draw import box_of
from pipeline.datasets.scenes.student import HEADS, new_bert
from pipeline.encoders.config import parse_weights
from pipeline.encoders.weights import identity_of
from sightline.cache.keys import key_of_text
from sightline.cache.manifest import CAPTIONS, IMAGES, PHRASES, SENTENCES, read_manifest
from sightline.cache.rle import CROP_RULE, cutout_key, decode_mask

DRAW = """
import sys
from pathlib import Path
from tiny_scenes import TINY
from pipeline.datasets.kinds import prepare, source_type
for out in sys.argv[1:]:
    prepare("scenes", source_type("scenes").model_validate(TINY), Path(out))
"""


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The same scenes twice, by a process of their own: training them forks it."""
    outs = [tmp_path_factory.mktemp("scenes") / name for name in ("one", "again")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DRAW, *outs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return outs


@pytest.fixture(scope="module")
def scenes(drawn):
    return drawn[0]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(drawn, tmp_path, monkeypatch):
    one, again = map(digests, drawn)
    assert one == again
    monkeypatch.setattr("pipeline.datasets.scenes.build.write_models", lambda *arguments: None)
    source = source_type("scenes").model_validate({**TINY, "seed": 1})
    prepare("scenes", source, tmp_path / "other")
    other = digests(tmp_path / "other")
    assert {name for name in one if not name.startswith(("encoders/", "student/"))} == {*other}
    assert one["images/000000.png"] != other["images/000000.png"]
    weights = [new_bert(layers=1, hidden=32, seed=seed).pooler.dense.weight for seed in (0, 1)]
    assert not weights[0].equal(weights[1])


def test_manifests_agree_with_the_pictures(scenes):
    images = read_manifest(scenes / "images.parquet", IMAGES).to_pylist()
    captions = read_manifest(scenes / "captions.parquet", CAPTIONS).to_pylist()
    assert len(captions) == 5 * len(images) == 5 * 24
    assert {row["split"] for row in images} == {"train", "dev", "test"}
    for row in images:
        data = (scenes / "images" / row["path"]).read_bytes()
        assert hashlib.sha256(data).digest() == row["key"]
        with Image.open(scenes / "images" / row["path"]) as picture:
            assert (picture.mode, picture.size) == ("RGB", (row["width"], row["height"]))
    texts = {}
    for row in captions:
        texts.setdefault(row["image_id"], set()).add(row["text"])
    assert all(len(own) == 5 for own in texts.values())


def test_phrases_agree_with_captions_and_masks(scenes):
    captions = read_manifest(scenes / "captions.parquet", CAPTIONS).to_pylist()
    texts = {key_of_text(row["text"]): row["text"] for row in captions}
    for row in read_manifest(scenes / "phrases.parquet", PHRASES).to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        mask = decode_mask(**row["mask"])
        assert row["box"] == box_of(mask)
        mask_code = row["mask"]["size"], row["mask"]["counts"]
        assert row["cutout_key"] == cutout_key(row["image_key"], *mask_code, CROP_RULE)


def test_no_sentence_is_in_two_similarity_sets_or_in_a_caption(scenes):
    seen = set(read_manifest(scenes / "captions.parquet", CAPTIONS)["text"].to_pylist())
    for split in ("train", "dev", "test"):
        header, *lines = (scenes / "similarity" / f"{split}.tsv").read_text("utf-8").splitlines()
        assert header == "score\tsentence1\tsentence2"
        own = {text for line in lines for text in line.split("\t")[1:]}
        assert len(lines) == 11
        assert not own & seen
        seen |= own
    assert read_manifest(scenes / "sentences.parquet", SENTENCES).num_rows == 10


def test_the_encoders_load_with_their_declared_identity(scenes):
    import open_clip
    import torch
    import torchvision
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    folder = scenes / "encoders"
    resnet = torchvision.models.resnet18()
    resnet.load_state_dict(load_file(folder / "resnet.safetensors"))
    assert json.loads((folder / "resnet.json").read_text()) == {"resize": 64, "crop": 64}
    open_clip.add_model_config(folder / "clip.json")
    clip = open_clip.create_model("clip", pretrained=str(folder / "clip.safetensors"))
    tokens = open_clip.get_tokenizer("clip")(["a wug"])
    assert clip.encode_text(tokens).shape == clip.encode_image(torch.rand(1, 3, 64, 64)).shape
    for place in ("encoders/teacher", "student"):
        tokenizer = AutoTokenizer.from_pretrained(scenes / place)
        encoded = tokenizer("A blicket, stranger", return_tensors="pt")
        assert tokenizer.unk_token_id not in encoded["input_ids"]
        model = AutoModel.from_pretrained(scenes / place)
        assert model(**encoded).last_hidden_state.shape[-1] % HEADS == 0
    for name, what in (("resnet", "labels"), ("clip", "captions")):
        spec = parse_weights(f"file:{folder / name}.safetensors")
        source = identity_of(resnet, name, spec).source
        assert source.startswith(
            f"file:{name}.safetensors (trained on the {what} of scenes, seed 0,"
        )
    notes = {p.parent.name: json.loads(p.read_text()) for p in scenes.rglob("*provenance.json")}
    assert notes["student"]["source"] == "random weights, seed 0"
    assert notes["teacher"]["source"] == (
        "trained on the similarity pairs of scenes, seed 0, 1 steps"
    )


def test_nothing_names_a_folder_of_this_machine(scenes):
    for path in scenes.rglob("*.json"):
        assert str(scenes.parent) not in path.read_text("utf-8")


def test_plain_sentences_are_of_things_of_the_training_images(monkeypatch):
    splits, describe = [], build.describe

    def noted(scene, random):
        splits.append(scene.split)
        return describe(scene, random)

    monkeypatch.setattr(build, "describe", noted)
    build._sentences(source_type("scenes").model_validate({**TINY, "sentences": 50}))
    assert splits == ["train"] * 50
