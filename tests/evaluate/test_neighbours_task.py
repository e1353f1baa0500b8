"""The task of nearest neighbours against plain loops, and its section on the page of a report."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from captioned import write_captioned
from made_results import made_result
from PIL import Image
from planted_world import Folder, Model, World, cosines, make_world

from pipeline.grounding.pictures import photographs
from sightline.cache import IMAGES, key_of_bytes, read_manifest, write_manifest
from sightline.errors import SightlineError
from train.evaluate.evaluation import evaluate_model
from train.evaluate.neighbours import find_captions
from train.evaluate.pools import CaptionPool, read_images, read_pool
from train.evaluate.results import ModelNeighbours, RunResult, TaskResult, load_result, save_result
from train.records import FeatureUse
from train.report.comparison import compare_results
from train.report.neighbours import neighbours_in
from train.report.page import to_page
from train.report.sections import document_of


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def scored(world: World, **settings: Any) -> tuple[Any, ModelNeighbours]:
    evaluation = world.folder.task("neighbours", **settings)
    found = evaluation.score(world.model)["neighbours"]  # pyright: ignore[reportArgumentType]
    assert found.neighbours is not None
    return found, found.neighbours


def nearest_texts(world: World, text: str) -> list[str]:
    """All other captions of the split, by descending cosine."""
    texts = [each for each in world.folder.captions if each != text]
    rows = np.array([world.model.embeddings[each] for each in texts], dtype=np.float64)
    own = np.array([world.model.embeddings[text]], dtype=np.float64)
    return [texts[i] for i in np.argsort(-cosines(own, rows)[0])]


def test_captions_and_their_recall_equal_plain_rankings(world):
    found, shown = scored(world, sample=4, k=3)
    image_of = {text: name for name, texts in world.folder.images.items() for text in texts}
    assert len(shown.queries) == 4
    assert set(shown.queries) <= set(world.folder.captions)
    for query, images, answers in zip(
        shown.queries, shown.images, shown.captions.neighbours, strict=True
    ):
        assert images == (image_of[query],)
        assert [each.text for each in answers] == nearest_texts(world, query)[:3]
        assert [each.own for each in answers] == [image_of[e.text] == images[0] for e in answers]
    firsts = {text: nearest_texts(world, text)[0] for text in world.folder.captions}
    expected = 100 * np.mean([image_of[a] == image_of[b] for a, b in firsts.items()])
    assert found.scores == {"T2T R@1": pytest.approx(expected)}
    assert 5 < expected < 95  # neither perfect nor random


def test_images_are_those_of_the_heads_and_only_if_asked_for(world):
    import torch

    _, shown = scored(world, sample=2, k=23)
    names = list(world.pixels)
    with torch.no_grad():
        images = world.model.image_head(torch.tensor(np.array(list(world.pixels.values())))).numpy()
        for query, answers in zip(shown.queries, shown.pictures.neighbours, strict=True):
            sentence = world.model.sentence_head(torch.tensor(world.model.embeddings[query]))
            order = np.argsort(-cosines(sentence.numpy()[None], images)[0])
            assert [each.images[0] for each in answers] == [names[i] for i in order]
    world.model.no_heads = "it has no heads"
    _, without = scored(world, sample=2)
    assert without.pictures.reason == "it has no heads"
    assert without.captions.neighbours
    assert scored(world, sample=2, features=None)[1].pictures is None


def test_queries_are_the_given_sentences_and_then_a_sample(world, tmp_path):
    given = ["4 says 1", "not a caption"]
    world.model.embeddings["not a caption"] = np.ones(4, dtype=np.float32)
    _, shown = scored(world, sentences=given, sample=0)
    assert shown.queries == tuple(given)
    assert shown.images == (("04",), ())
    task = partial(world.folder.task, "neighbours")
    first, second = task(sentences=given), task(sentences="4 says 1")
    assert second.measured != first.measured  # so results are made again
    assert second.evaluated_on == first.evaluated_on  # and their scores may be compared
    assert task(sentences="4 says 1", features=None).measured != second.measured
    other = Folder(tmp_path / "other", {**world.folder.images, "00": ["another caption"]})
    assert other.task("neighbours").evaluated_on != first.evaluated_on
    other = Folder(tmp_path / "image", world.folder.images, same_bytes={"00": "changed"})
    assert other.task("neighbours").measured != task().measured
    assert other.task("neighbours").evaluated_on == task().evaluated_on
    with pytest.raises(SightlineError, match="sample is 0 and there are no sentences"):
        task(sample=0)
    with pytest.raises(SightlineError, match=r"no caption in the split 'dev'; found 'test' \(\d+"):
        task(split="dev")


def recall_of(folder: Folder, rows: dict[str, list[float]]) -> float | None:
    model: Any = Model({text: np.array(row) for text, row in rows.items()})
    found = folder.task("neighbours", features=None).score(model)["neighbours"]
    return found.scores["T2T R@1"]


def test_a_shared_caption_is_of_each_of_its_images_and_a_lone_one_is_not_counted(tmp_path):
    images = {"a": ["one", "both"], "b": ["two", "both"], "c": ["alone"]}
    rows = {"one": [1, 0], "both": [1, 2], "two": [0, 1], "alone": [-1, 0]}
    # nearest: one → both, both → two (of its second image), two → both; alone has no other caption
    folder = Folder(tmp_path, images)
    assert recall_of(folder, rows) == 100
    rows["alone"] = [1, 0.01]  # now the nearest to "one"
    assert recall_of(folder, rows) == pytest.approx(200 / 3)


def test_a_tie_is_a_miss(tmp_path):
    folder = Folder(tmp_path, {"a": ["a0", "a1"], "b": ["b0", "b1"]})
    assert recall_of(folder, {text: [1, 1] for text in ("a0", "a1", "b0", "b1")}) == 0
    rows = {"a0": [1, 0], "a1": [1, 0], "b0": [0, 1], "b1": [1, 0]}
    assert recall_of(folder, rows) == 0  # b1 is as near to a0 as a1, and a0 as near to b1
    assert recall_of(folder, rows | {"b1": [0.1, 1]}) == 100


def test_the_querys_own_image_is_shown_first():
    texts, images = ("shared", "mine"), (("a", "c"), ("c",))
    pool = CaptionPool(texts, (("a#0", "c#0"), ("c#1",)), images)
    model: Any = Model(dict.fromkeys(texts, np.ones(2)))
    ((shared,),) = find_captions(model, ["mine"], pool, 2).neighbours
    assert (shared.images, shared.own) == (("c", "a"), True)


def test_images_that_failed_are_left_out_and_mentioned(tmp_path):
    found, shown = scored(make_world(tmp_path, failed=("03", "11")), sample=2, k=50)
    (note,) = found.notes
    assert "leave out 2 of 23 images" in note
    assert {len(each) for each in shown.pictures.neighbours} == {21}
    nothing = make_world(tmp_path / "nothing", failed=tuple(f"{i:02d}" for i in range(23)))
    found, shown = scored(nothing)
    assert "all 23 images failed" in str(shown.pictures.reason)
    assert found.scores["T2T R@1"] is not None


def test_images_are_those_of_the_captions_whatever_their_own_split(world):
    file = world.folder.root / "data/images.parquet"
    table = read_manifest(file, IMAGES)
    unsplit = table.set_column(
        table.schema.get_field_index("split"), "split", pa.array([""] * len(table))
    )
    write_manifest(file, unsplit.cast(IMAGES), IMAGES)
    assert len(scored(world, sample=1, k=50)[1].pictures.neighbours[0]) == 23
    write_manifest(file, table.slice(1), IMAGES)
    with pytest.raises(
        SightlineError, match="1 images of the captions are not in it, such as '00'"
    ):
        scored(world)


def test_what_cannot_be_scored_says_why(world, tmp_path):
    alone = Folder(tmp_path / "alone", {"a": ["0 says 0"], "b": ["1 says 1"]})
    found: Any = alone.task("neighbours", features=None).score(world.model)["neighbours"]  # pyright: ignore[reportArgumentType]
    assert found.scores == {"T2T R@1": None}
    assert found.reasons == {"T2T R@1": "no image has two different captions in this split"}
    assert found.neighbours.captions.neighbours
    world.model.embeddings["nothing"] = np.zeros(4)
    found, shown = scored(world, sentences="nothing")
    assert found.scores["T2T R@1"] is not None  # whatever is asked
    assert "zero or not finite (query 0" in str(shown.captions.reason)
    world.model.embeddings["4 says 1"] *= np.nan
    found, shown = scored(world, sample=50)
    assert "zero or not finite" in found.reasons["T2T R@1"]
    assert "zero or not finite" in str(shown.captions.reason)
    world.model.fingerprint = "f" * 64
    with pytest.raises(SightlineError, match="planted needs it: `sightline stage image-features"):
        scored(world)


def test_a_result_keeps_what_was_found(world, tmp_path):
    evaluation = world.folder.task("neighbours", sample=2)
    result = evaluate_model(world.model, evaluation)  # pyright: ignore[reportArgumentType]
    file = save_result(result, tmp_path / "a.json")
    assert load_result(file) == result
    kept = result.tasks["neighbours"].neighbours.keys
    assert kept
    assert all(bytes.fromhex(key) == Folder.key(image) for image, key in kept.items())
    body = file.read_text()
    damaged = re.sub(r'"queries": \[\s*"[^"]*",', '"queries": [', body)
    assert damaged != body
    file.write_text(damaged)
    with pytest.raises(SightlineError, match=r"neighbours.*not of 1 queries"):
        load_result(file)


@pytest.fixture
def photographed(tmp_path: Path) -> Path:
    return write_captioned(tmp_path / "set")


def found_in(folder: Path, query: str = "a big red dog sits") -> ModelNeighbours:
    pool, images = read_pool(folder / "captions.parquet"), read_images(folder / "images.parquet")
    random = np.random.default_rng(0)
    model: Any = Model({text: random.standard_normal(4) for text in (*pool.texts, query)})
    captions = find_captions(model, [query], pool, 2)
    keys = {image: key.hex() for image, key in zip(images.ids, images.keys, strict=True)}
    own = (pool.images_of(query),)
    return ModelNeighbours((query,), own, "7 captions", 2, captions, keys=keys)


def result_of(found: ModelNeighbours, run: str, seed: int = 0, **more: Any) -> RunResult:
    return made_result(run, seed, tasks={"neighbours": TaskResult(neighbours=found)}, **more)


def page(results: list[RunResult], folder: Path | None = None) -> str:
    """With the photographs of ``folder``."""

    def made(task: str, image_ids: Any, keys: Any) -> Any:
        assert folder is not None
        return photographs(folder / "images.parquet", folder / "images", image_ids, keys)

    comparison = compare_results(results, None, (), ())
    included = neighbours_in(results, made if folder else None)
    return to_page(document_of(comparison, "t", included, charts={}))


def section_of(page: str) -> str:
    assert page.count('<section id="neighbours">') == 1
    return page.split('<section id="neighbours">')[1].split("</section>")[0]


def test_the_page_of_a_report_shows_runs_side_by_side(photographed):
    found, other = found_in(photographed), found_in(photographed, "another")
    results = [result_of(found, *run) for run in (("b", 1), ("b", 0), ("a", 1))]
    shown = page([*results, result_of(other, "c", 1)], photographed)
    section = section_of(shown)
    assert section.count('<div data-run="b">') == section.count('<div data-run="a">') == 1
    assert 'data-run="c"' not in section.split("Nearest captions")[1]
    assert "Left out, as they were asked something else: c." in section
    assert "Each run with seed 0 or 1, its lowest." in section
    classes = set(re.findall(r"of-[0-9a-f]{16}", section))
    assert shown.count('url("data:image/png') == len(classes) > 1
    assert "untrained" not in section
    digests = {"weights_sha256": "a" * 64, "fingerprint": "f" * 64}
    use = FeatureUse(
        name="x/image/y", encoder="y", source="random:0", dim=1, rows=1, untrained=True, **digests
    )
    warned = section_of(page([result_of(found, "a"), result_of(found, "b", features=(use,))]))
    assert "b: untrained weights." in warned
    assert "a: untrained weights." not in warned
    assert "neighbours" not in page([made_result("a", scores={"A": 1.0})])


def test_photographs_that_are_not_here_or_others_now_are_left_out(photographed, monkeypatch):
    results = [result_of(found_in(photographed), "a")]
    before = page(results, photographed).count('url("data:')
    assert before > 1
    assert 'url("data:' not in page(results)
    # the manifest and the file belong to each other, but not to the result
    Image.new("RGB", (60, 40), "black").save(photographed / "images/a.png")
    manifest, key = photographed / "images.parquet", (photographed / "images/a.png").read_bytes()
    every = read_manifest(manifest, IMAGES).to_pylist()
    every[0]["key"] = key_of_bytes(key)
    write_manifest(manifest, pa.Table.from_pylist(every, IMAGES), IMAGES)
    shown = page(results, photographed)
    assert shown.count('url("data:') == before - 1
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
    assert shown.count("sightline[extract]") == 1


def test_tasks_with_similar_names_have_their_own_sections_and_pictures(photographed):
    found = found_in(photographed)
    both = made_result("a", tasks=dict.fromkeys(("x_y", "x-y"), TaskResult(neighbours=found)))
    shown = page([both], photographed)
    addresses = re.findall(r'<section id="(neighbours-[^"]*)">', shown)
    assert len(set(addresses)) == 2
    alone = page([result_of(found, "a")], photographed)
    assert shown.count('url("data:') == alone.count('url("data:') > 1
