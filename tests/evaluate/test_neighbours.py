"""Neighbours as `sightline look neighbours` finds and shows them, and on the page of a report."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from captioned import CAPTIONS_OF, HOSTILE, write_captioned
from command_line import sightline, unboxed
from made_results import made_result
from PIL import Image
from small_inputs import CLIP, write_clip
from tiny_encoder import make_encoder

from pipeline.encoders.names import named_encoder
from pipeline.grounding.page_pictures import photographs
from sightline.cache import IMAGES, FeatureSet, key_of_file, write_manifest
from sightline.errors import SightlineError
from sightline.html_pages import Thumbnail
from train.evaluate.models import NamedModel, name_models
from train.evaluate.pools import read_images, read_pool, read_queries
from train.evaluate.ranking import unit_rows
from train.evaluate.results import Hits, ModelNeighbours, Neighbour, TaskResult
from train.records import FeatureUse
from train.report.comparison import compare_results
from train.report.comparison import document_of as report_of
from train.report.formats import terminal_text
from train.report.neighbour_tables import cosine_texts, document_of, neighbours_in
from train.report.page import to_page

QUERY = "a photograph of a dog on a beach"
SET, FEATURES = ("--data", "set"), ("--features", "features/image")
MODELS = ("--model", "small", "--model", "broad=wide", *SET)
ENCODER = ("--encoder", "clip.json", "--weights", "random:0")
WIDE = ("--encoder", "wide.json", "--weights", "random:0")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A captioned set, two encoders of sentences, and the features of a tiny CLIP."""
    folder = tmp_path_factory.mktemp("look")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_captioned(Path("set"))
        model, tokenizer = make_encoder()
        wide = type(model)(type(model.config)(**{**model.config.to_dict(), "hidden_size": 32}))
        for name, encoder in (("small", model), ("wide", wide)):
            encoder.save_pretrained(name)
            tokenizer.save_pretrained(name)
        write_clip(folder)
        Path("wide.json").write_text(json.dumps({**CLIP, "embed_dim": 16}))
        images = ("--data", "set/images", "--workers", 0)
        assert sightline("extract", "image", *images, *ENCODER, "--out", "features/image") == 0
        assert sightline("extract", "text", *SET, "--out", "features/text", *ENCODER) == 0
    return folder


@pytest.fixture
def look(made, said, monkeypatch):
    monkeypatch.chdir(made)
    return partial(said, "look", "neighbours", "--device", "cpu")


@pytest.fixture
def by_models(look):
    return partial(look, "--pooling", "mean", *MODELS)


@pytest.fixture
def by_clip(look):
    return partial(look, *SET, *FEATURES, *ENCODER)


def test_a_pool_has_each_text_once_with_all_its_images(made):
    captions = made / "set/captions.parquet"
    pool = read_pool(captions)
    assert list(pool.texts) == list(dict.fromkeys(t for own in CAPTIONS_OF.values() for t in own))
    shared = "a dog sits near the tree"
    assert pool.images_of(shared) == ("a.png", "c.png")
    assert pool.ids[pool.row_of[shared]] == ("a.png#1", "c.png#1")
    assert pool.images_of("not a caption") == ()
    drawn = pool.sample(2, seed=1)
    assert drawn == pool.sample(2, seed=1)
    assert len({tuple(pool.sample(2, seed=seed)) for seed in range(9)}) > 1
    assert read_pool(captions, "test").texts == (HOSTILE, "the round house")


def test_queries_come_from_the_command_and_a_file(tmp_path):
    file = tmp_path / "q.txt"
    file.write_text("two\n\n one \nthree\n")
    assert read_queries([" one", "zero"], file) == ["one", "zero", "two", "three"]
    with pytest.raises(SightlineError, match="a query is empty"):
        read_queries([" "], None)
    file.write_text("\n")
    with pytest.raises(SightlineError, match=r"q\.txt: contains no sentence"):
        read_queries([], file)
    file.unlink()
    with pytest.raises(SightlineError, match="no such file; expected one sentence per line"):
        read_queries([], file)
    table = tmp_path / "q.csv"
    table.write_text("sent0,sent1\na,b\n")
    with pytest.raises(SightlineError, match=r"a table \(columns 'sent0', 'sent1'\); expected one"):
        read_queries([], table)


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


def test_the_captions_drawn_are_of_different_photographs(made):
    pool = read_pool(made / "set/captions.parquet")
    for seed in range(20):
        drawn = pool.sample(99, seed)
        images = [image for text in drawn for image in pool.images_of(text)]
        assert len(set(images)) == len(images)
        assert drawn == sorted(drawn, key=pool.row_of.get)
        left = set(pool.texts) - set(drawn)  # each has a photograph of one that was drawn
        assert all(set(pool.images_of(text)) & set(images) for text in left)


@pytest.mark.parametrize(
    ("cosines", "texts"),
    [
        ((0.5, 0.25), ["0.500", "0.250"]),
        ((0.98765, 0.98761, -0.00001), ["0.9877", "0.9876", "0.0000"]),
        ((-0.0001,), ["0.000"]),
        ((0.5, 0.5), ["0.500", "0.500"]),
        ((0.123456789, 0.123456788), ["0.123456789", "0.123456788"]),
        ((), []),
    ],
)
def test_cosines_have_the_decimals_that_tell_them_apart(cosines, texts):
    nearest = [Neighbour("a dog", (), ("a.png",), cosine, False) for cosine in cosines]
    assert cosine_texts(nearest) == texts


def invented(second="two"):
    """What two models find for two queries, the first of which is a caption."""
    one = Neighbour(HOSTILE, ("a#0",), ("a.png",), 0.75, False)
    captions = Hits(((one, Neighbour("a dog", ("a#0",), ("a.png",), 0.625, True)), (one,)))
    pictures = Hits(((Neighbour("", (), ("b <i>.png",), 0.5, False),),) * 2)
    question = (HOSTILE, "a dog"), (("a.png",), ()), "3 captions", 2
    return {
        "one": ModelNeighbours(*question, captions, Hits(reason="it has no heads")),
        second: ModelNeighbours(*question, captions, pictures),
    }


def test_models_stand_side_by_side_if_there_is_room():
    document = document_of(invented(), "t", {})
    wide, narrow = (terminal_text(document.tables, document.lines, width) for width in (90, 50))
    assert re.search(r"one +two", wide)
    assert not re.search(r"one +two", narrow)
    for text in (wide, narrow):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "0.625 • a dog" in text
        flat = " ".join(text.split())
        assert "one, images: it has no heads." in flat


def test_a_page_escapes_everything_and_loads_nothing():
    pictures = {
        "a.png": Thumbnail("data:image/png;base64,AAAA"),
        "b <i>.png": Thumbnail(problem="b <i>.png: no such file"),
    }
    page = to_page(document_of(invented("<two>"), "<h1>title", {}, pictures))
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
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    assert f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in page
    plain = to_page(document_of(invented(), "t", {}))
    assert 'class="picture ' not in plain
    assert "background-image" not in plain


def answers_of(out, what):
    """Model → its neighbours of the only query."""
    models = json.loads(out)["models"]
    return {name: found[what]["neighbours"][0] for name, found in models.items()}


def test_the_command_compares_models_of_different_widths(by_models):
    query = "a big red dog sits"
    code, out, _ = by_models(query, "--k", 99, "--json")
    assert code == 0
    assert {tuple(m["images"][0]) for m in json.loads(out)["models"].values()} == {("a.png",)}
    found = answers_of(out, "captions")
    assert list(found) == ["small", "broad"]
    others = {text for own in CAPTIONS_OF.values() for text in own} - {query}
    for answers in found.values():
        assert sorted(each["text"] for each in answers) == sorted(others)
        own = [each["text"] for each in answers if each["own"]]
        assert own == ["a dog sits near the tree"]
    assert found["small"] != found["broad"]


def test_the_page_shows_pictures_and_problems_in_the_same_bytes_again(
    by_models, tmp_path, monkeypatch
):
    out, page = tmp_path / "n.html", ("--k", 99, "--sample", 3, "--out", tmp_path / "n.html")
    assert by_models("a dog", *page)[0] == 0
    before = out.read_bytes()
    assert before.count(b'url("data:image/png') == 4
    assert by_models("a dog", *page)[0] == 0
    assert out.read_bytes() == before
    folder = write_captioned(tmp_path / "set")
    (folder / "images/b.png").unlink()
    manifest = folder / "images.parquet"
    write_manifest(manifest, pq.read_table(manifest).slice(1), IMAGES)
    assert by_models("a dog", *page, "--data", folder)[0] == 0
    shown = out.read_text()
    assert shown.count('url("data:image/png') == 2
    assert "b.png: no such file" in shown
    assert "a.png: not in images.parquet" in shown


def test_a_text_finds_the_images_nearest_by_the_two_towers(by_clip, tmp_path):
    code, out, err = by_clip(QUERY, "--k", 3, "--json")
    assert (code, err) == (0, "")
    ((name, found),) = json.loads(out)["models"].items()
    assert name == "clip.json, random:0"
    assert found["captions"] is None
    assert found["pool"] == "4 images of set"
    tower = named_encoder("clip.json", "random:0", "text").build_text(torch.device("cpu"), "fp32")
    (text,) = unit_rows(tower.encode([QUERY], tower.lengths([QUERY])[0]).numpy())
    keys = [key_of_file(Path("set/images") / name) for name in CAPTIONS_OF]
    images = unit_rows(FeatureSet.open(Path("features/image")).take(keys))
    cosines = dict(zip(CAPTIONS_OF, images @ text, strict=True))
    (answers,) = found["pictures"]["neighbours"]
    nearest = sorted(cosines, key=lambda name: -cosines[name])
    assert [answer["images"][0] for answer in answers] == nearest[:3]
    assert [answer["cosine"] for answer in answers] == pytest.approx(
        [cosines[name] for name in nearest[:3]], abs=1e-6
    )
    assert all(answer["text"] in CAPTIONS_OF[answer["images"][0]] for answer in answers)
    page = tmp_path / "page.html"
    code, out, _ = by_clip(QUERY, "a dog sits", "--k", 1, "--out", page)
    assert f"{cosines[nearest[0]]:.3f} {nearest[0]}: " in " ".join(out.split())
    assert "nearest captions" not in out
    shown = page.read_text()
    assert "Nearest captions" not in shown
    assert "Nearest images" in shown
    assert 'url("data:image/png;base64,' in shown
    assert by_clip(QUERY, "--out", page, "--no-photographs")[0] == 0
    assert "data:image" not in page.read_text()


def test_a_caption_marks_its_own_image_and_a_split_is_searched_alone(by_clip):
    (answers,) = answers_of(by_clip("a small blue house", "--json")[1], "pictures").values()
    assert [answer["images"] for answer in answers if answer["own"]] == [["c.png"]]
    out = by_clip(QUERY, "--split", "test", "--json")[1]
    (answers,) = answers_of(out, "pictures").values()
    assert len(answers) == 1
    assert "1 images of set, split 'test'" in out


def test_random_weights_are_said(by_clip):
    _, out, _ = by_clip(QUERY)
    assert "clip.json, random:0: untrained weights." in out


def test_imported_features_are_searched_with_a_note(by_clip, look, said, tmp_path):
    files, theirs = tmp_path / "files", tmp_path / "theirs"
    for words in (
        ("export", "features/image", "--format", "npy", "--out", files),
        ("import", files, "--kind", "image", "--out", theirs),
    ):
        assert said("cache", *words)[0] == 0
    imported = (*SET, "--features", theirs)
    _, own, _ = by_clip(QUERY, "--json")
    code, out, _ = look(QUERY, *imported, *ENCODER, "--json")
    assert code == 0
    assert answers_of(out, "pictures") == answers_of(own, "pictures")
    assert "theirs is imported, not checked: nothing says that clip.json" in out
    code, _, err = look(QUERY, *imported, *WIDE)
    assert code == 1
    assert "theirs: rows of 8 numbers, but wide.json gives 16" in err


ASKED, FROZEN, CLIP_JSON = (QUERY, *MODELS), (QUERY, *SET, *FEATURES), ("--encoder", "clip.json")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (MODELS, 2, "give a sentence, --queries FILE or --sample N"),
        ((QUERY, *SET), 2, "--model"),
        ((QUERY, "--model", "small"), 2, "Missing option '--data'"),
        ((*ASKED, "--split", "x"), 1, "no caption in the split 'x'; found"),
        ((QUERY, "--model", "small", "--data", "no"), 1, "no: no prepared data set here"),
        ((*ASKED, "--model", "small"), 1, "two models are called 'small'"),
        ((*ASKED, "--pooling", "cls", "--to-images"), 1, "can find images (small: it is not a tr"),
        ((*FROZEN, *CLIP_JSON, "--weights", "random:1"), 1, "image: made by open_clip/clip@"),
        ((*FROZEN, *WIDE), 1, "not by open_clip/wide@"),
        ((*FROZEN, "--features", "features/text", *ENCODER), 1, "text, expected kind image"),
        ((*FROZEN, "--features", "features/no", *ENCODER), 1, "features/no: "),
        ((QUERY, *SET, *ENCODER), 2, "--encoder: needs --features SET and --weights"),
        ((*FROZEN, *CLIP_JSON), 2, "--encoder: needs --features SET and --weights"),
        ((*FROZEN, "--weights", "random:0"), 2, "--weights: give it with --encoder"),
        ((*FROZEN, *ENCODER, "--to-images"), 2, "--encoder: a frozen encoder needs no --model"),
        ((*FROZEN, "--encoder", "ViT-B-3", "--weights", "random:0"), 1, "did you mean ViT-B-32"),
    ],
)
def test_a_mistake_gets_one_clear_error(look, words, code, message):
    found, out, err = look(*words)
    assert (found, out) == (code, "")
    assert message in unboxed(err)


def test_any_number_of_texts_is_encoded_in_batches(made, monkeypatch):
    monkeypatch.chdir(made)
    tower = named_encoder("clip.json", "random:0", "text").build_text(torch.device("cpu"), "fp32")
    texts = [f"{'very ' * n}red" for n in range(3)]
    rows = tower.encode_all(texts * 3, batch_size=2)
    one_by_one = torch.cat([tower.encode([text], *tower.lengths([text])) for text in texts * 3])
    np.testing.assert_allclose(rows, one_by_one.numpy(), atol=1e-6)


@pytest.fixture
def photographed(tmp_path):
    return write_captioned(tmp_path / "set")


def found_in(folder, query="a dog"):
    """All photographs of ``folder`` as neighbours of one query."""
    images = read_images(folder / "images.parquet")
    near = tuple(Neighbour("a cat", ("x#0",), (image,), 0.5, False) for image in images.ids)
    keys = {image: key.hex() for image, key in zip(images.ids, images.keys, strict=True)}
    return ModelNeighbours((query,), ((),), "4 captions", 4, Hits((near,)), keys=keys)


def result_of(found, run, seed=0, **more):
    return made_result(run, seed, tasks={"neighbours": TaskResult(neighbours=found)}, **more)


def page(results, folder=None):
    """With the photographs of ``folder``."""

    def made(task, image_ids, keys):
        return photographs(folder / "images.parquet", folder / "images", image_ids, keys)

    comparison = compare_results(results, None, (), ())
    included = neighbours_in(results, made if folder else None)
    return to_page(report_of(comparison, "t", included, page=True))


def test_the_page_of_a_report_shows_runs_side_by_side(photographed):
    found, other = found_in(photographed), found_in(photographed, "another")
    digests = {"weights_sha256": "a" * 64, "fingerprint": "f" * 64}
    random = {"name": "x/image/y", "encoder": "y", "source": "random:0", "untrained": True}
    use = FeatureUse(dim=1, rows=1, **random, **digests)
    results = [result_of(found, *run) for run in (("b", 1), ("b", 0))]
    results += [result_of(found, "a", 1, features=(use,)), result_of(other, "c", 1)]
    shown = page(results, photographed)
    (section,) = re.findall(r'(?s)<section id="neighbours">.*?</section>', shown)
    assert section.count('<div data-run="b">') == section.count('<div data-run="a">') == 1
    assert 'data-run="c"' not in section.split("Nearest captions")[1]
    assert "Left out, as they were asked something else: c." in section
    assert "Each run with seed 0 or 1, its lowest." in section
    assert "a: untrained features." in section
    assert "b: untrained features." not in section
    classes = set(re.findall(r"of-[0-9a-f]{16}", section))
    assert shown.count('url("data:image/png') == len(classes) == 4
    assert "neighbours" not in page([made_result("a", scores={"A": 1.0})])


def test_photographs_that_are_not_here_or_others_now_are_left_out(photographed, monkeypatch):
    results = [result_of(found_in(photographed), "a")]
    assert 'url("data:' not in page(results)
    # the manifest and the file belong to each other, but not to the result
    Image.new("RGB", (60, 40), "black").save(photographed / "images/a.png")
    manifest = photographed / "images.parquet"
    every = pq.read_table(manifest).to_pylist()
    every[0]["key"] = key_of_file(photographed / "images/a.png")
    write_manifest(manifest, pa.Table.from_pylist(every, IMAGES), IMAGES)
    shown = page(results, photographed)
    assert shown.count('url("data:') == 3
    assert "bytes there now differ from those" in shown
    (photographed / "images").rename(photographed / "elsewhere")
    shown = page(results, photographed)
    assert 'url("data:' not in shown
    assert f"Photographs are not shown: {photographed / 'images'}: not found from here." in shown
    (photographed / "elsewhere").rename(photographed / "images")
    monkeypatch.setitem(sys.modules, "PIL", None)
    shown = page(results, photographed)
    assert 'url("data:' not in shown
    assert "Photographs are not shown: PIL is not installed" in shown
    assert shown.count("sightline-encoders[extract]") == 1


def test_tasks_with_similar_names_have_their_own_sections_and_pictures(photographed):
    found = TaskResult(neighbours=found_in(photographed))
    shown = page([made_result("a", tasks=dict.fromkeys(("x_y", "x-y"), found))], photographed)
    addresses = re.findall(r'<section id="(neighbours-[^"]*)">', shown)
    assert len(set(addresses)) == 2
    assert shown.count('url("data:') == 4  # as in a page with one of them
