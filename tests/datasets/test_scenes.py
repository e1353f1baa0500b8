"""Scenes: the images show what the captions say, and only the images connect the synonyms.

And their `prepare`: its files, their agreement, and the same bytes twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packed import rows
from PIL import Image
from tiny_scenes import TINY

from pipeline.datasets.prepare import prepare
from pipeline.datasets.scenes import ScenesSource, build, encoders
from pipeline.datasets.scenes.captions import (
    Description,
    Mention,
    describe,
    graded_pairs,
    similarity,
    write,
)
from pipeline.datasets.scenes.encoders import HEADS, new_bert, wordpieces
from pipeline.datasets.scenes.scene import (
    Placed,
    Scene,
    Thing,
    box_of,
    draw,
    random_scene,
    relation,
    stream,
)
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES, RELATIONS, RGB, WEIGHTS
from pipeline.encoders.config import parse_weights
from pipeline.encoders.weights import identity_of
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.keys import key_of_text
from sightline.cache.rle import decode_mask

ALL = frozenset(Thing._fields)
RED_DISC = Thing("post", "red", "big", "plain")
BLUE_BAR = Thing("bar", "blue", "small", "striped")
COLOURS = {word: list(RGB[v.name]) for v in ATTRIBUTES["colour"] for word in v.words}
SYNONYMS = [value.words for values in (*ATTRIBUTES.values(), RELATIONS) for value in values]
seeds = st.integers(0, 10**6)


def told(*things, where=None, said=ALL):
    return Description(tuple(Mention(thing, said) for thing in things), where)


@given(seeds)
def test_masks_are_the_things_and_nothing_else(seed):
    scene = random_scene(stream(seed))
    pixels, masks = draw(scene, 64)
    assert sum(mask.astype(int) for mask in masks).max() == 1  # things never overlap
    ground = (pixels == scene.ground).all(axis=2)
    assert (ground == ~np.any(masks, axis=0)).all()
    for placed, mask in zip(scene.things, masks, strict=True):
        found = {tuple(colour) for colour in pixels[mask].tolist()}
        assert RGB[placed.thing.colour] in found
        assert len(found) == (1 if placed.thing.texture == "plain" else 2)
        x0, y0, x1, y1 = (int(edge) for edge in box_of(mask))
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 20


@given(seeds)
def test_spans_hold_the_words_of_their_thing_and_no_text_two_words_for_one_value(seed):
    random = stream(seed)
    scene = random_scene(random)
    description, order = describe(scene, random)
    caption = write(description, random)
    for mention, span, i in zip(description.mentions, caption.spans, order, strict=True):
        assert mention.thing == scene.things[i].thing
        phrase = caption.text[slice(*span)].split()
        assert phrase[0] == "a"
        assert len(phrase) == 1 + len(mention.said)
        for attribute in mention.said:
            value = getattr(mention.thing, attribute)
            words = next(v.words for v in ATTRIBUTES[attribute] if v.name == value)
            assert set(words) & set(phrase)
    words = caption.text.split()
    assert all(sum(word in words for word in synonyms) <= 1 for synonyms in SYNONYMS)


def test_every_word_belongs_to_one_value_only():
    words = [word for synonyms in SYNONYMS for word in synonyms]
    assert len(words) == len(set(words))
    assert all(len(synonyms) >= 2 for synonyms in SYNONYMS)


def test_synonyms_are_chosen_evenly_and_independently():
    random = stream(1)
    texts = [write(told(RED_DISC), random).text.split() for _ in range(400)]
    shape = np.array(["wug" in text for text in texts])
    colour = np.array(["vorn" in text for text in texts])
    assert 150 < shape.sum() < 250
    assert 60 < (shape & colour).sum() < 140


def test_every_caption_fits_the_student():
    pieces = wordpieces()
    random = stream(2)
    for _ in range(2000):
        words = write(describe(random_scene(random), random)[0], random).text.split()
        assert len(words) + 2 <= 32
        assert all(word in pieces for word in words)


def test_similarity_follows_the_meaning_and_not_the_words():
    pair = told(RED_DISC, BLUE_BAR, where="left")
    assert similarity(pair, pair) == pytest.approx(5)
    assert similarity(pair, pair.turned()) == pytest.approx(5)
    assert similarity(pair, told(RED_DISC, BLUE_BAR, where="right")) == pytest.approx(4.5)
    green, sizeless = told(RED_DISC._replace(colour="green")), told(RED_DISC, said=ALL - {"size"})
    assert similarity(told(RED_DISC), green) == pytest.approx(5 * (1 - WEIGHTS["colour"]))
    assert similarity(told(RED_DISC), told(BLUE_BAR)) == 0
    other = told(BLUE_BAR._replace(colour="green"), RED_DISC, BLUE_BAR, where="left")
    assert similarity(pair, other) == pytest.approx(5 * (0.9 * 2 / 3 + 0.1 / 2))
    assert similarity(told(RED_DISC), sizeless) == pytest.approx(5 * (1 - WEIGHTS["size"] / 2))


@given(seeds)
def test_similarity_is_symmetric_and_within_bounds(seed):
    random = stream(seed)
    one, other = (describe(random_scene(random), random)[0] for _ in range(2))
    assert similarity(one, other) == pytest.approx(similarity(other, one))
    assert 0 <= similarity(one, other) <= 5
    assert similarity(one, one) == pytest.approx(5)


def test_pairs_are_balanced_and_word_overlap_is_uninformative():
    pairs = graded_pairs(600, "dev", stream(3), set())
    scores = np.array([pair.score for pair in pairs])
    assert np.histogram(scores, bins=5, range=(0, 5))[0].min() > 80
    content = {word for synonyms in SYNONYMS for word in synonyms}
    for pair in pairs:
        assert not set(pair.sentence1.split()) & set(pair.sentence2.split()) & content
    overlap = [
        len(set(a.split()) & set(b.split())) / len(set(a.split()) | set(b.split()))
        for _, a, b in pairs
    ]
    ranks = [np.argsort(np.argsort(values)) for values in (overlap, scores)]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.15


def test_a_relation_is_along_the_longer_way():
    here, there = Placed(RED_DISC, 0.2, 0.2, 0.1), Placed(BLUE_BAR, 0.8, 0.3, 0.1)
    assert relation(here, there) == "left"
    assert relation(there, here) == "right"
    assert relation(Placed(RED_DISC, 0.8, 0.9, 0.1), there) == "below"
    assert relation(there, Placed(RED_DISC, 0.8, 0.9, 0.1)) == "above"


def test_the_same_things_are_in_the_same_split_regardless_of_place():
    scene = random_scene(stream(4))
    moved = Scene(tuple(placed._replace(x=0.5) for placed in reversed(scene.things)), 40)
    assert moved.split == scene.split
    assert random_scene(stream(5), "test").split == "test"


DRAW = """
import sys
from pathlib import Path
from tiny_scenes import TINY
from pipeline.datasets.prepare import prepare
from pipeline.datasets.scenes import ScenesSource
for out in sys.argv[1:]:
    prepare(ScenesSource.model_validate(TINY), Path(out))
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
    source = ScenesSource.model_validate({**TINY, "seed": 1})
    prepare(source, tmp_path / "other")
    other = digests(tmp_path / "other")
    assert {name for name in one if not name.startswith(("encoders/", "student/"))} == {*other}
    assert one["images/000000.png"] != other["images/000000.png"]
    weights = [new_bert(layers=1, hidden=32, seed=seed).pooler.dense.weight for seed in (0, 1)]
    assert not weights[0].equal(weights[1])


def test_manifests_agree_with_the_pictures(scenes):
    images, captions = rows(scenes), rows(scenes, "captions")
    assert len(captions) == 5 * len(images) == 5 * 24
    assert {row["split"] for row in images} == {"train", "dev", "test"}
    for row in images:
        data = (scenes / "images" / row["path"]).read_bytes()
        assert hashlib.sha256(data).digest() == row["key"]
        with Image.open(scenes / "images" / row["path"]) as picture:
            assert (picture.mode, picture.size) == ("RGB", (row["width"], row["height"]))
    assert len({(row["image_id"], row["text"]) for row in captions}) == len(captions)


def test_phrases_agree_with_captions_and_masks(scenes):
    texts = {key_of_text(row["text"]): row["text"] for row in rows(scenes, "captions")}
    files = {row["key"]: scenes / "images" / row["path"] for row in rows(scenes)}
    for row in rows(scenes, "phrases"):
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        mask = decode_mask(**row["mask"])
        (colour,) = (COLOURS[word] for word in row["phrase"].split() if word in COLOURS)
        assert colour in np.array(Image.open(files[row["image_key"]]))[mask].tolist()
        assert row["box"] == box_of(mask)
        mask_code = row["mask"]["size"], row["mask"]["counts"]
        assert row["cutout_key"] == cutout_key(row["image_key"], *mask_code, CROP_RULE)


def test_no_sentence_is_in_two_similarity_sets_or_in_a_caption(scenes):
    seen = {row["text"] for row in rows(scenes, "captions")}
    for split in ("train", "dev", "test"):
        header, *lines = (scenes / "similarity" / f"{split}.tsv").read_text("utf-8").splitlines()
        assert header == "score\tsentence1\tsentence2"
        own = {text for line in lines for text in line.split("\t")[1:]}
        assert len(lines) == 11
        assert not own & seen
        seen |= own
    assert len(rows(scenes, "sentences")) == 10


def test_the_encoders_load_with_their_declared_identity(scenes):
    assert {path.stat().st_mode & 0o777 for path in scenes.rglob("*.safetensors")} == {0o644}
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
        trained = f"file:{name}.safetensors (trained on the {what} of scenes, seed 0,"
        assert identity_of(resnet, name, spec).source.startswith(trained)
    notes = {p.parent.name: json.loads(p.read_text()) for p in scenes.rglob("*provenance.json")}
    assert notes["student"]["source"] == "random weights, seed 0"
    trained = "trained on the similarity pairs of scenes, seed 0, 1 steps"
    assert notes["teacher"]["source"] == trained


def test_no_batch_has_one_row_since_one_has_no_negatives():
    assert [len(rows) for rows in encoders._batches(5, 2, 4, 0)] == [2, 2, 2, 2]


def test_nothing_names_a_folder_of_this_machine(scenes):
    for path in scenes.rglob("*.json"):
        assert str(scenes.parent) not in path.read_text("utf-8")


def test_plain_sentences_are_of_things_of_the_training_images(monkeypatch):
    splits, describe = [], build.describe

    def noted(scene, random):
        splits.append(scene.split)
        return describe(scene, random)

    monkeypatch.setattr(build, "describe", noted)
    build._sentences(ScenesSource.model_validate({**TINY, "sentences": 50}))
    assert splits == ["train"] * 50
