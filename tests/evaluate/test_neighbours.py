"""Nearest neighbours against plain loops; `sightline look neighbours`, its page and its errors."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from captioned import CAPTIONS_OF, HOSTILE, write_captioned
from planted_world import Model
from tiny_encoder import make_encoder

from sightline.errors import SightlineError
from sightline.html_pages import Thumbnail
from train.evaluate import vectors as module
from train.evaluate.models import NamedModel, name_models
from train.evaluate.neighbours import find_captions
from train.evaluate.pools import CaptionPool, read_pool, read_queries
from train.evaluate.results import Found, ModelNeighbours, Neighbour
from train.evaluate.vectors import nearest
from train.report.neighbours import Models, Thumbnails, document_of
from train.report.page import to_page
from train.report.render import terminal_text

RANDOM = np.random.default_rng(3)


def plain(query, candidates, k, skip=None):
    """Rows by descending cosine, the earlier of two equal ones first."""
    cosines = [
        round(float(query @ c / np.linalg.norm(query) / np.linalg.norm(c)), 9) for c in candidates
    ]
    rows = sorted((i for i in range(len(candidates)) if i != skip), key=lambda i: (-cosines[i], i))
    return rows[:k], [cosines[i] for i in rows[:k]]


@pytest.mark.parametrize("k", [1, 3, 40])
def test_neighbours_are_those_of_plain_loops_whatever_the_chunks(monkeypatch, k):
    queries = RANDOM.standard_normal((7, 5))
    candidates = np.concatenate([RANDOM.standard_normal((20, 5)), 3 * queries[:2]])
    left_out = {0: 20, 3: 4}
    for held, chunk in ((1 << 23, 4096), (30, 3), (1, 1)):
        monkeypatch.setattr(module, "_HELD", held)
        monkeypatch.setattr(module, "_CHUNK", chunk)
        found = nearest(queries, candidates, k, left_out)
        assert not found.constant
        for i, query in enumerate(queries):
            rows, cosines = plain(query, candidates, k, left_out.get(i))
            assert found.rows[i].tolist() == rows
            assert found.cosines[i] == pytest.approx(cosines, abs=1e-12)
    assert len(found.rows[1]) == min(k, 22)
    assert len(found.rows[0]) == min(k, 21)  # one is left out


def test_equal_cosines_keep_the_order_of_the_candidates():
    one, two = np.array([[1.0, 2.0, 3.0]]), np.array([[-1.0, 1.0, 0.5]])
    candidates = np.concatenate([two, one * 7, one / 3, two * 2, one]).astype(np.float32)
    assert nearest(one, candidates, 5).rows[0].tolist() == [1, 2, 4, 0, 3]


def test_constant_embeddings_are_reported():
    found = nearest(np.ones((2, 3)), np.full((4, 3), 0.2), 3)
    assert found.constant
    assert found.rows[1].tolist() == [0, 1, 2]
    assert not nearest(np.ones((1, 3)), np.ones((1, 3)), 3).constant  # one candidate is no tie


@pytest.mark.parametrize(
    ("queries", "candidates", "message"),
    [
        (np.ones((1, 3)), np.ones((2, 4)), r"in one space; found \(1, 3\) and \(2, 4\)"),
        (np.ones((1, 3)), np.ones((0, 3)), "nothing to find neighbours among"),
        (np.zeros((1, 3)), np.ones((2, 3)), r"zero or not finite \(query 0 is"),
        (np.ones((1, 2)), np.array([[1, 1], [np.nan, 1]]), r"zero or not finite \(candidate 1 is"),
    ],
)
def test_what_has_no_neighbours_is_refused(queries, candidates, message):
    with pytest.raises(SightlineError, match=message):
        nearest(queries, candidates, 2)


def test_a_pool_has_each_text_once_with_all_its_images(tmp_path):
    pool = read_pool(write_captioned(tmp_path / "set") / "captions.parquet")
    assert list(pool.texts) == list(dict.fromkeys(t for own in CAPTIONS_OF.values() for t in own))
    shared = "a dog sits near the tree"
    assert pool.images_of(shared) == ("a.png", "c.png")
    assert pool.ids[pool.row_of[shared]] == ("a.png#1", "c.png#1")
    assert pool.images_of("not a caption") == ()
    drawn = pool.sample(4, seed=1)
    assert drawn == pool.sample(4, seed=1) != pool.sample(4, seed=2)
    assert pool.sample(99, seed=1) == list(pool.texts)
    part = read_pool(tmp_path / "set/captions.parquet", "test")
    assert part.texts == (HOSTILE, "the round house")


def test_queries_come_from_the_command_and_a_file(tmp_path):
    file = tmp_path / "q.txt"
    file.write_text("two\n\n one \nthree\n")
    (tmp_path / "empty.txt").touch()
    assert read_queries([" one", "zero"], file) == ["one", "zero", "two", "three"]
    for given, path, message in (
        ([" "], None, "a query is empty"),
        ([], tmp_path / "no.txt", "no such file; expected one sentence per line"),
        ([], tmp_path / "empty.txt", "contains no sentence"),
    ):
        with pytest.raises(SightlineError, match=message):
            read_queries(given, path)


def test_names_of_models(tmp_path):
    folder = tmp_path / "x=y"
    folder.mkdir()
    assert name_models(["a", "b=hub/c", str(folder)]) == [
        NamedModel("a", "a", "a"),
        NamedModel("b", "hub/c", "b"),
        NamedModel(str(folder), str(folder), str(folder)),
    ]
    for empty in ("", "=a", "a="):
        with pytest.raises(SightlineError, match="expected MODEL or NAME=MODEL"):
            name_models([empty])
    for twice in (["a", "a"], ["x=a", "x=b"]):
        with pytest.raises(SightlineError, match=r"two models are called .*NAME=PATH"):
            name_models(twice)


def invented(models=("one", "two"), texts=(HOSTILE, "a dog")) -> Models:
    """Two queries, the first of which is a caption."""
    rows = tuple(
        Neighbour(text, ("a#0",), ("a.png",), 0.75 - i / 8, i == 1) for i, text in enumerate(texts)
    )
    found = Found((rows, rows[:1]))
    pictures = {
        "one": Found(reason="it has no heads"),
        **{m: Found(((Neighbour("", (), ("b <i>.png",), 0.5, False),),) * 2) for m in models[1:]},
    }
    queries, images = (HOSTILE, "a dog"), (("a.png",), ())
    return {
        model: ModelNeighbours(queries, images, "3 captions", 2, found, pictures[model])
        for model in models
    }


def printed(models: Models, width: int) -> str:
    document = document_of(models, "t")
    return terminal_text(document.grids, document.lines, width)


def page_of(models: Models, title: str, thumbnails: Thumbnails | None = None) -> str:
    return to_page(document_of(models, title, thumbnails))


def test_models_stand_side_by_side_if_there_is_room():
    wide, narrow = printed(invented(), 90), printed(invented(), 50)
    assert re.search(r"one +two", wide)
    assert not re.search(r"one +two", narrow)
    for text in (wide, narrow):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "0.625 • a dog" in text
        flat = " ".join(text.split())
        assert "the nearest is of the query's own image" in flat
        assert "0 of 1" in flat
        assert "one, images: it has no heads." in flat


def test_a_page_escapes_everything_and_loads_nothing():
    pictures = {
        "a.png": Thumbnail("data:image/png;base64,AAAA"),
        "b <i>.png": Thumbnail(problem="b <i>.png: no such file"),
    }
    page = page_of(invented(("one", "<two>")), "<h1>title", pictures)
    assert page.count("<script") == 1  # that of the page
    assert "<i>" not in page
    assert "<two>" not in page
    assert "49" not in re.sub(r"\d*\.49|sha256-[^']*", "", page)  # {{ 7 * 7 }} stays text
    assert page.count("data:image/png;base64,AAAA") == 1  # however often it is shown
    (of,) = set(re.findall(r"\.picture\.(of-[0-9a-f]+) ", page))
    assert page.count(f'class="picture {of}"') == 7
    assert "b &lt;i&gt;.png: no such file" in page
    assert not re.search(r'(src|href)=|url\("(?!data:)|@import', page)
    assert "default-src 'none'" in page
    assert page == page_of(invented(("one", "<two>")), "<h1>title", pictures)


def test_a_page_without_pictures_has_none():
    page = page_of(invented(), "t")
    assert 'class="picture ' not in page
    assert "background-image" not in page


def test_the_style_is_the_one_that_the_policy_allows():
    import base64
    import hashlib

    page = page_of(invented(), "t", None)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page


def test_the_querys_own_image_is_shown_first():
    texts, images = ("shared", "mine"), (("a", "c"), ("c",))
    pool = CaptionPool(texts, (("a#0", "c#0"), ("c#1",)), images, {"shared": 0, "mine": 1})
    model = Model(dict.fromkeys(texts, np.ones(2)))
    ((shared,),) = find_captions(model, ["mine"], pool, 2).neighbours  # pyright: ignore
    assert (shared.images, shared.own) == (("c", "a"), True)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Two encoders of different widths beside a captioned set."""
    monkeypatch.chdir(tmp_path)
    write_captioned(Path("set"))
    for part in make_encoder():
        part.save_pretrained("small")
    model, tokenizer = make_encoder()
    from transformers import BertConfig, BertModel

    wide = BertModel(BertConfig(**{**model.config.to_dict(), "hidden_size": 32}))
    for part in (wide, tokenizer):
        part.save_pretrained("wide")
    return tmp_path


@pytest.fixture
def sightline(said):
    return partial(said, "look", "neighbours", "--pooling", "mean", "--device", "cpu")


MODELS = ("--model", "small", "--model", "broad=wide", "--data", "set")


def test_the_command_compares_models_of_different_widths(place, sightline):
    query = "a big red dog sits"
    code, out, _ = sightline(query, *MODELS, "--k", 99, "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found["models"]) == ["small", "broad"]
    for asked in found["models"].values():
        assert asked["queries"] == [query]
        assert asked["images"] == [["a.png"]]
        (answers,) = asked["captions"]["neighbours"]
        # every distinct caption but the query itself
        assert sorted(each["text"] for each in answers) == sorted(
            {text for own in CAPTIONS_OF.values() for text in own} - {query}
        )
        cosines = [each["cosine"] for each in answers]
        assert cosines == sorted(cosines, reverse=True)
        own = [each["text"] for each in answers if each["own"]]
        assert own == ["a dog sits near the tree"]
    assert len({json.dumps(asked["captions"]) for asked in found["models"].values()}) == 2


def test_the_page_shows_pictures_and_problems_and_is_replaced(place, sightline):
    Path("set/images/b.png").unlink()
    words = ("a dog", "--sample", 3, *MODELS, "--out", "n.html")
    assert sightline(*words)[0] == 0
    page = Path("n.html").read_bytes()
    assert page.count(b'url("data:image/png') == 3
    assert b"b.png: no such file" in page
    assert sightline(*words)[0] == 0  # replaces its own page, with the same bytes
    assert Path("n.html").read_bytes() == page
    Path("n.html").write_text("mine")
    code, _, err = sightline(*words)
    assert code == 1
    assert "was not written by this command" in err
    assert Path("n.html").read_text() == "mine"


def test_an_image_that_the_manifest_lacks_is_reported(place, sightline):
    import pyarrow.parquet as pq

    from sightline.cache import IMAGES, write_manifest

    table = pq.read_table("set/images.parquet")
    write_manifest(Path("set/images.parquet"), table.slice(1), IMAGES)
    assert sightline("a dog", *MODELS, "--k", 99, "--out", "n.html")[0] == 0
    assert "a.png: not in images.parquet" in Path("n.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("a", "--data", "set"), 2, "--model"),
        (("a", "--model", "small"), 2, "Missing option '--data'"),
        (MODELS, 2, "give a sentence, --queries FILE or --sample N"),
        (
            ("a", *MODELS, "--split", "x"),
            1,
            "no caption in the split 'x'; found",
        ),
        (("a", "--model", "small", "--data", "no"), 1, "no: no prepared data set here"),
        (("a", *MODELS, "--model", "small"), 1, "two models are called 'small'"),
        (
            ("a", *MODELS, "--to-images"),
            1,
            "no model can find images (small: it is not a training run of Sightline",
        ),
        (("a", *MODELS, "--out", "set/captions.parquet"), 1, "is also an input"),
    ],
)
def test_a_mistake_gets_one_clear_error(place, sightline, words, code, message):
    found, _, err = sightline(*words)
    assert found == code
    assert message in " ".join(err.replace("│", " ").split())
