"""The task of nearest neighbours against plain loops, and its section on the page of a report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captioned import write_captioned
from planted_world import Folder, World, cosines, make_world

from pipeline.grounding.gallery.thumbnails import thumbnails
from sightline.errors import SightlineError
from train.evaluate.found_neighbours import ModelNeighbours, Photographs
from train.evaluate.score_run import evaluate_model
from train.feature_use import FeatureUse
from train.report.compare import compare_results
from train.report.comparison_page import page_of
from train.report.neighbours_page import neighbours_in
from train.report.results import RunResult, load_result, save_result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def scored(world: World, **settings: Any) -> tuple[Any, ModelNeighbours]:
    found = world.folder.task("neighbours", **settings).score(world.model)  # pyright: ignore[reportArgumentType]
    return found, found.neighbours["neighbours"]


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
    _, shown = scored(world, sample=2, k=23)
    assert shown.pictures is not None
    names = list(world.pixels)
    pixels = np.array([world.pixels[name] for name in names])
    import torch

    with torch.no_grad():
        images = world.model.image_head(torch.tensor(pixels)).numpy()
        for query, answers in zip(shown.queries, shown.pictures.neighbours, strict=True):
            sentence = world.model.sentence_head(torch.tensor(world.model.embeddings[query]))
            order = np.argsort(-cosines(sentence.numpy()[None], images)[0])
            assert [each.images[0] for each in answers] == [names[i] for i in order]
    world.model.no_heads = "it has no heads"
    _, without = scored(world, sample=2)
    assert without.pictures is not None
    assert without.pictures.reason == "it has no heads"
    assert without.captions.neighbours
    _, captions_only = scored(world, sample=2, features=None)
    assert captions_only.pictures is None


def test_queries_are_those_of_a_file_and_then_a_sample(world, tmp_path):
    file = tmp_path / "queries.txt"
    file.write_text("4 says 1\nnot a caption\n")
    world.model.embeddings["not a caption"] = np.ones(4, dtype=np.float32)
    _, shown = scored(world, queries=file, sample=0)
    assert shown.queries == ("4 says 1", "not a caption")
    assert shown.images == (("04",), ())
    first = world.folder.task("neighbours", queries=file)
    file.write_text("4 says 1\n")
    second = world.folder.task("neighbours", queries=file)
    assert second.records != first.records  # so results are made again
    assert second.evaluated_on == first.evaluated_on  # and their scores may be compared
    captions_only = world.folder.task("neighbours", queries=file, features=None)
    assert captions_only.records != second.records
    other = Folder(tmp_path / "other", {**world.folder.images, "00": ["another caption"]})
    assert other.task("neighbours").evaluated_on != first.evaluated_on
    with pytest.raises(SightlineError, match="sample is 0 and there is no file of queries"):
        world.folder.task("neighbours", sample=0)
    (warning,) = world.folder.task("neighbours", photographs=tmp_path / "no").warnings
    assert f"{tmp_path / 'no'} is not a folder here" in warning
    assert not world.folder.task("neighbours", photographs=tmp_path).warnings
    with pytest.raises(SightlineError, match="no caption is of the split 'dev', found 'test', 't"):
        world.folder.task("neighbours", split="dev")


def test_what_cannot_be_scored_says_why(world, tmp_path):
    alone = Folder(tmp_path / "alone", {"a": ["0 says 0"], "b": ["1 says 1"]})
    found: Any = alone.task("neighbours", features=None).score(world.model)  # pyright: ignore[reportArgumentType]
    assert found.scores == {"T2T R@1": None}
    assert found.reasons == {"T2T R@1": "no image has two different captions in this split"}
    assert found.neighbours["neighbours"].captions.neighbours
    world.model.embeddings["4 says 1"] *= np.nan
    found, shown = scored(world, sample=50)
    assert "zero or not finite" in found.reasons["T2T R@1"]
    assert "zero or not finite" in str(shown.captions.reason)
    world.model.fingerprint = "f" * 64
    with pytest.raises(SightlineError, match="planted needs it: `sightline stage image-features"):
        scored(world)


def result_of(found: ModelNeighbours, run: str, seed: int = 0) -> RunResult:
    return RunResult(
        run=run, objective="x", seed=seed, scores={"A": 1.0}, neighbours={"neighbours": found}
    )


def test_a_result_keeps_what_was_found(world, tmp_path):
    evaluation = world.folder.task("neighbours", sample=2, photographs=tmp_path)
    world.model.folder = None  # pyright: ignore[reportAttributeAccessIssue]
    world.model.pooling = None  # pyright: ignore[reportAttributeAccessIssue]
    world.model.at_last_step = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    result = evaluate_model(world.model, evaluation)  # pyright: ignore[reportArgumentType]
    save_result(result, tmp_path / "a.json")
    assert load_result(tmp_path / "a.json") == result
    body = (tmp_path / "a.json").read_text()
    damaged = re.sub(r'"queries": \[\s*"[^"]*",', '"queries": [', body)
    assert damaged != body
    (tmp_path / "a.json").write_text(damaged)
    with pytest.raises(SightlineError, match=r"neighbours.*not of 1 queries"):
        load_result(tmp_path / "a.json")


@pytest.fixture
def photographed(tmp_path: Path) -> Path:
    return write_captioned(tmp_path / "set")


def found_in(folder: Path, **changes: Any) -> ModelNeighbours:
    from planted_world import Model

    from train.evaluate.caption_pool import read_pool
    from train.evaluate.find_neighbours import find_captions

    pool = read_pool(folder / "captions.parquet")
    random = np.random.default_rng(len(changes))
    model = Model({text: random.standard_normal(4) for text in pool.texts})
    query = "a big red dog sits"
    captions = find_captions(model, [query], pool, 2)  # pyright: ignore[reportArgumentType]
    values = {
        "queries": (query,),
        "images": (pool.images_of(query),),
        "pool": "7 captions",
        "k": 2,
        "captions": captions,
        "photographs": Photographs(folder / "images.parquet", folder / "images"),
    }
    return ModelNeighbours(**{**values, **changes})


def page(results: list[RunResult]) -> str:
    comparison = compare_results(results, None, (), ())
    return page_of(comparison, "t", "g", neighbours_in(results, thumbnails))


def test_the_page_of_a_report_shows_runs_side_by_side(photographed):
    one, two = found_in(photographed), found_in(photographed)
    other = found_in(photographed, queries=("another",))
    results = [result_of(two, "b", 1), result_of(one, "b", 0), result_of(two, "a", 1)]
    shown = page([*results, result_of(other, "c", 1)])
    assert shown.count('<section id="neighbours">') == 1
    section = shown.split('<section id="neighbours">')[1].split("</section>")[0]
    assert section.count('<div data-run="b">') == section.count('<div data-run="a">') == 1
    assert 'data-run="c"' not in section.split("Nearest captions")[1]
    assert "Left out, as they were asked something else: c." in section
    assert "Each run with seed 0 or 1, its lowest." in section
    assert shown.count('url("data:image/png') == len(set(re.findall(r"of-neighbours-\d+", section)))
    assert "untrained" not in section
    digests = {"weights_sha256": "a" * 64, "fingerprint": "f" * 64}
    use = FeatureUse(
        name="x/image/y", encoder="y", source="random:0", dim=1, rows=1, untrained=True, **digests
    )
    warned = page(
        [result_of(one, "a"), result_of(one, "b").model_copy(update={"features": (use,)})]
    )
    section = warned.split('<section id="neighbours">')[1].split("</section>")[0]
    assert "b: untrained weights." in section
    assert "a: untrained weights." not in section
    assert "neighbours" not in page([RunResult(run="a", objective="x", seed=0, scores={"A": 1.0})])


def test_photographs_that_are_not_here_are_left_out(photographed):
    results = [result_of(found_in(photographed), "a")]
    assert 'url("data:' in page(results)
    (photographed / "images").rename(photographed / "elsewhere")
    shown = page(results)
    assert 'url("data:' not in shown
    assert f"Photographs are not shown: {photographed / 'images'} is not on this machine." in shown
