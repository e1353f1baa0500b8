"""A free text finds images by a frozen encoder's cached features, without a trained run."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from captioned import CAPTIONS_OF, write_captioned
from command_line import sightline as run

from pipeline.encoders.config import named_encoder
from sightline.cache import FeatureSet, key_of_file
from train.evaluate.vectors import unit_rows

CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
QUERY = "a photograph of a dog on a beach"
ENCODER = ("--encoder", "clip.json", "--weights", "random:0")
WORDS = ("--data", "set", "--features", "features/image")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A captioned set, and the features of a tiny CLIP and of others."""
    folder = tmp_path_factory.mktemp("search")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_captioned(Path("set"))
        Path("clip.json").write_text(json.dumps(CLIP))
        Path("wide.json").write_text(json.dumps({**CLIP, "embed_dim": 16}))
        images = ("--data", "set/images", "--workers", 0)
        assert run("extract", "image", *images, *ENCODER, "--out", "features/image") == 0
        texts = ("--data", "set", "--out", "features/text")
        assert run("extract", "text", *texts, *ENCODER) == 0
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def look(said):
    return partial(said, "look", "neighbours", "--device", "cpu")


def expected() -> dict[str, float]:
    """Image → its cosine with the query, by the towers themselves."""
    tower = named_encoder("clip.json", "random:0", "text").build_text(torch.device("cpu"), "fp32")
    text = unit_rows(tower.encode([QUERY], tower.lengths([QUERY])[0]).numpy())[0]
    features = FeatureSet.open(Path("features/image"))
    keys = [key_of_file(Path("set/images") / name) for name in CAPTIONS_OF]
    return dict(zip(CAPTIONS_OF, unit_rows(features.take(keys)) @ text, strict=True))


def test_the_nearest_images_are_those_of_the_two_towers(place, look):
    code, out, err = look(QUERY, *WORDS, *ENCODER, "--k", 3, "--json")
    assert (code, err) == (0, "")
    ((name, found),) = json.loads(out)["models"].items()
    assert name == "clip.json, random:0"
    assert found["captions"] is None
    assert found["pool"] == "4 images of set"
    (answers,) = found["pictures"]["neighbours"]
    cosines = expected()
    names = [answer["images"][0] for answer in answers]
    assert names == sorted(cosines, key=lambda name: -cosines[name])[:3]
    assert [answer["cosine"] for answer in answers] == pytest.approx(
        [cosines[name] for name in names], abs=1e-6
    )
    assert all(answer["text"] in CAPTIONS_OF[answer["images"][0]] for answer in answers)


def test_the_grid_and_the_page_name_and_show_them(place, look):
    code, out, _ = look(QUERY, "a dog sits", *WORDS, *ENCODER, "--k", 1, "--out", "page.html")
    assert code == 0
    best = max(expected(), key=lambda name: expected()[name])
    assert f"{max(expected().values()):.3f} {best}: " in " ".join(out.split())
    assert "nearest captions" not in out
    page = Path("page.html").read_text()
    assert "Nearest captions" not in page
    assert "Nearest images" in page
    assert 'url("data:image/png;base64,' in page
    assert look(QUERY, *WORDS, *ENCODER, "--out", "page.html", "--no-photographs")[0] == 0
    assert "data:image" not in Path("page.html").read_text()


def test_a_caption_marks_its_own_image(place, look):
    _, out, _ = look("a small blue house", *WORDS, *ENCODER, "--k", 4, "--json")
    (found,) = json.loads(out)["models"].values()
    (answers,) = found["pictures"]["neighbours"]
    assert [answer["images"] for answer in answers if answer["own"]] == [["c.png"]]


def test_a_split_is_searched_alone(place, look):
    _, out, _ = look(QUERY, *WORDS, *ENCODER, "--split", "test", "--json")
    (found,) = json.loads(out)["models"].values()
    assert found["pool"] == "1 images of set, split 'test'"
    assert len(found["pictures"]["neighbours"][0]) == 1


def test_imported_features_are_searched_with_a_note(place, look, said):
    export = ("export", "features/image", "--format", "npy", "--out", "theirs")
    for words in (export, ("import", "theirs", "--kind", "image", "--out", "features/theirs")):
        assert said("cache", *words)[0] == 0
    _, out, _ = look(QUERY, *WORDS, *ENCODER, "--json")
    (own,) = json.loads(out)["models"].values()
    theirs = ("--data", "set", "--features", "features/theirs")
    code, out, _ = look(QUERY, *theirs, *ENCODER, "--json")
    (found,) = json.loads(out)["models"].values()
    assert code == 0
    assert found["pictures"]["neighbours"] == own["pictures"]["neighbours"]
    assert "features/theirs is imported, not checked: nothing says that clip.json" in out
    code, _, err = look(QUERY, *theirs, "--encoder", "wide.json", "--weights", "random:0")
    assert code == 1
    assert "features/theirs: rows of 24 numbers, but wide.json gives 16" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            (*WORDS, "--encoder", "clip.json", "--weights", "random:1"),
            1,
            "features/image: made by open_clip/clip@",
        ),
        (
            (*WORDS, "--encoder", "wide.json", "--weights", "random:0"),
            1,
            "not by open_clip/wide@",
        ),
        (
            ("--data", "set", "--features", "features/text", *ENCODER),
            1,
            "features/text: features of kind text, expected kind image",
        ),
        (("--data", "set", "--features", "features/no", *ENCODER), 1, "features/no: "),
        (("--data", "set", *ENCODER), 2, "--encoder: needs --features SET and --weights"),
        ((*WORDS, "--encoder", "clip.json"), 2, "--encoder: needs --features SET and --weights"),
        ((*WORDS, "--weights", "random:0"), 2, "--weights: give it with --encoder"),
        ((*WORDS, *ENCODER, "--to-images"), 2, "--encoder: a frozen encoder needs no --model"),
        ((*WORDS, "--encoder", "ViT-B-3", "--weights", "random:0"), 1, "did you mean ViT-B-32"),
    ],
)
def test_a_mistake_gets_one_clear_error(place, look, words, code, message):
    found, out, err = look(QUERY, *words)
    assert (found, out) == (code, "")
    assert message in " ".join(err.replace("│", " ").split())


def test_any_number_of_texts_is_encoded_in_batches(place):
    tower = named_encoder("clip.json", "random:0", "text").build_text(torch.device("cpu"), "fp32")
    texts = [f"{'very ' * n}red" for n in range(7)]
    rows = tower.encode_all(texts, batch_size=3)
    assert rows.shape == (7, 24)
    one_by_one = [
        tower.encode([text], length)
        for text, length in zip(texts, tower.lengths(texts), strict=True)
    ]
    np.testing.assert_allclose(rows, torch.cat(one_by_one).numpy(), atol=1e-6)
