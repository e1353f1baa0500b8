"""The tasks that read images, retrieval and nearest neighbours, against plain rankings."""

from __future__ import annotations

import itertools
import re
import shutil
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from planted_world import Folder, Model, World, cosines, make_world

from sightline import cache
from sightline.cache import IMAGES, CacheError, key_of_text, read_manifest, write_manifest
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.neighbours import find_captions
from train.evaluate.pools import CaptionPool
from train.evaluate.results import load_result, save_result
from train.evaluate.retrieval import CHANCE, METRICS, chance, evaluate_retrieval
from train.objectives import FeatureNeed


@pytest.fixture
def world(tmp_path):
    return make_world(tmp_path)


def plain_recalls(images, captions, image_of):
    """METRICS from rows of one space, one query at a time."""
    sim, found = cosines(images, captions), {}
    for k in (1, 5, 10):
        hits = [any(image_of[c] == i for c in np.argsort(-row)[:k]) for i, row in enumerate(sim)]
        found[f"I2T R@{k}"] = 100 * np.mean(hits)
    for k in (1, 5, 10):
        hits = [image_of[c] in np.argsort(-row)[:k] for c, row in enumerate(sim.T)]
        found[f"T2I R@{k}"] = 100 * np.mean(hits)
    return found


def expected(world, images=None, captions=5):
    """METRICS of some images (None: all that are tested) by their first captions."""
    names = images or world.folder.tested
    pairs = [(i, t) for i, n in enumerate(names) for t in world.folder.images[n][:captions]]
    rows = world.projected(names, [text for _, text in pairs])
    return plain_recalls(*rows, [i for i, _ in pairs])


def test_scores_equal_plain_rankings_in_the_space_of_the_heads(world):
    found, plain = world.scores(), expected(world)
    assert found.scores == pytest.approx(plain)
    assert tuple(found.scores) == METRICS
    assert found.notes == ()
    values = list(plain.values())
    assert len(set(values)) == 6  # neither perfect nor random, so the comparison means something
    assert 5 < min(values) < max(values) < 100
    assert world.scores(captions=2).scores == pytest.approx(expected(world, captions=2))


def test_folds_are_consecutive_images_and_scores_their_mean(world):
    names = world.folder.tested
    parts = [names[:8], names[8:16], names[16:]]  # 23 images in three folds
    each = [expected(world, part) for part in parts]
    means = {metric: np.mean([part[metric] for part in each]) for metric in METRICS}
    found = world.scores(folds=3)
    assert found.scores == pytest.approx(means)
    assert found.scores["T2I R@1"] > world.scores().scores["T2I R@1"]
    assert found.references[CHANCE]["T2I R@1"] == pytest.approx(
        np.mean([100 / 8, 100 / 8, 100 / 7])
    )


def test_constant_embeddings_retrieve_nothing():
    image_of = np.repeat(np.arange(6), 2)
    found = evaluate_retrieval(np.ones((6, 3)), np.ones((12, 3)), image_of, ks=(1,))
    assert set(found.values()) == {0.0}


@pytest.mark.parametrize(
    ("images", "captions", "image_of", "message"),
    [
        (np.eye(3), np.ones((2, 3)), [0, 1], "every image to have a caption"),
        (np.eye(2), np.ones((2, 2)), [0, 1, 1], "every one of 2 captions"),
        (np.eye(2), np.ones((2, 3)), [0, 1], "in one space"),
        (np.zeros((2, 3)), np.ones((2, 3)), [0, 1], r"zero or not finite \(image 0"),
        (np.ones((2, 3)), np.zeros((2, 3)), [0, 1], r"zero or not finite \(caption 0"),
    ],
)
def test_what_cannot_be_ranked_is_refused(images, captions, image_of, message):
    with pytest.raises(SightlineError, match=message):
        evaluate_retrieval(images, captions, np.array(image_of))


@pytest.mark.parametrize("image_of", [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])
def test_chance_is_the_share_of_all_orders_that_find_a_match(image_of):
    images, captions = max(image_of) + 1, len(image_of)
    found = chance(np.array(image_of), ks=(1, 2, 10))
    for k in (1, 2, 10):
        orders = list(itertools.permutations(range(captions)))
        hits = [
            np.mean([any(image_of[c] == i for c in order[:k]) for order in orders])
            for i in range(images)
        ]
        assert found[f"I2T R@{k}"] == pytest.approx(100 * np.mean(hits))
        assert found[f"T2I R@{k}"] == pytest.approx(100 * min(k, images) / images)


def test_images_without_features_are_left_out_and_counted(tmp_path):
    world = make_world(tmp_path, failed=("03", "11"))
    found = world.scores()
    kept = [name for name in world.folder.tested if name not in ("03", "11")]
    assert found.scores == pytest.approx(expected(world, kept))
    (note,) = found.notes
    assert "leaves out 2 of 23 images" in note
    assert "image/cnn has only an error for them" in note
    assert found.references[CHANCE]["T2I R@10"] == pytest.approx(100 * 10 / 21)
    all_of_a_fold = make_world(tmp_path / "fold", failed=tuple(f"{i:02d}" for i in range(8)))
    found = all_of_a_fold.scores(folds=3)
    assert found.scores == dict.fromkeys(METRICS)
    assert found.reasons["I2T R@1"] == "no image of a fold has features"
    assert set(found.references) == {CHANCE}


def test_features_that_are_missing_or_other_and_too_many_folds_are_an_error(world, tmp_path):
    world.model.needs[1] = FeatureNeed("image", "vit", head="of-pixels")
    needed = r"(?s)features/image/vit.*planted needs it: `sightline stage image-features data vit`"
    with pytest.raises(SightlineError, match=needed):
        world.scores()
    world.model.needs[1] = FeatureNeed("image", "cnn", head="of-pixels")
    world.model.fingerprint = "f" * 64
    with pytest.raises(SightlineError, match=r"expected ffffffffffffffff: .*different weights"):
        world.scores()
    few = {Folder.key(name): row for name, row in list(world.pixels.items())[:20]}
    other = Folder(tmp_path / "few", world.folder.images)
    world.model.fingerprint = other.write("image", "cnn", few)
    with pytest.raises(CacheError, match="3 of 23"):
        other.task().score(world.model)
    with pytest.raises(SightlineError, match=r"folds is 24, but the split 'test' .* 23 images"):
        world.folder.task(folds=24)


def test_what_is_left_out_of_a_split_is_a_warning(tmp_path):
    images = {"a": ["one", "two", "three"], "b": ["four"], "c": ["five"], "d": [], "e": []}
    folder = Folder(tmp_path, images, same_bytes={"c": "b"})
    surplus, twins, uncaptioned = sorted(folder.task(captions=2).warnings)
    assert "1 captions beyond the first" in surplus
    assert "1 images have the same bytes" in twins
    assert "2 images without captions are left out" in uncaptioned
    assert folder.task("neighbours").warnings == [twins]


def test_a_model_without_a_space_for_images_has_no_scores_but_the_references(world):
    world.model.no_heads = "it is not a training run of Sightline"
    task = world.folder.task().tasks["retrieval"]
    found = Evaluation({"a/b": task}).score(world.model)["a/b"]  # a task may be called anything
    metrics = [f"a/b: {name}" for name in METRICS]
    assert found.scores == dict.fromkeys(metrics)
    assert found.reasons == dict.fromkeys(metrics, "it is not a training run of Sightline")
    assert set(found.references) == {CHANCE}
    world.model.no_heads = ""
    world.model.needs = [FeatureNeed("text", "cnn", head="of-words")]
    said = "its objective, foreign, projects no image features; runs that learned from images"
    assert world.scores().reasons["T2I R@5"].startswith(said)


def test_features_are_found_below_the_folder_by_name_and_as_the_folder_itself(world, tmp_path):
    of_graph = world.folder.root / "features"
    found = world.scores()
    (tmp_path / "beside").mkdir()
    shutil.copytree(of_graph / "image/cnn", tmp_path / "beside/cnn")
    assert world.scores(features=tmp_path / "beside") == found
    assert world.scores(features=tmp_path / "beside/cnn") == found
    (tmp_path / "beside/cnn").rename(tmp_path / "beside/its-own-name")
    assert world.scores(features=tmp_path / "beside") == found
    neighbours = world.scores("neighbours", features=of_graph)
    assert world.scores("neighbours", features=tmp_path / "beside") == neighbours
    folder = world.folder.root / "features/text/cnn"
    by_key = {Folder.key(name): row for name, row in world.pixels.items()}
    world.folder.write("text", "cnn", by_key)
    world.model.fingerprint = cache.FeatureSet.open(folder).fingerprint
    with pytest.raises(SightlineError, match=r"text/cnn: holds text features.*`features`"):
        world.scores(features=folder)


def test_the_frozen_encoder_is_scored_on_its_own_features(world):
    folder, rng = world.folder, np.random.default_rng(8)
    images = {name: rng.normal(size=7) for name in folder.tested}
    texts = {
        text: images[name] + 2 * rng.normal(size=7)
        for name in folder.tested
        for text in folder.images[name]
    }
    by_key = {Folder.key(name): row for name, row in images.items()}
    texts_by_key = {key_of_text(text): row for text, row in texts.items()}
    folder.write("image", "clip", by_key, failed=("05",))
    folder.write("text", "clip", texts_by_key)
    found = world.scores(frozen="clip")
    kept = [name for name in folder.tested if name != "05"]
    pairs = [(i, text) for i, name in enumerate(kept) for text in folder.images[name][:5]]
    one, two = np.array([images[n] for n in kept]), np.array([texts[t] for _, t in pairs])
    plain = plain_recalls(one, two, [i for i, _ in pairs])
    assert found.references["clip (frozen)"] == pytest.approx(plain)
    assert list(found.references) == ["clip (frozen)", CHANCE]
    (note,) = found.notes
    assert "leaves out 1 of 23 images" in note
    assert "image/clip" in note
    assert found.scores == pytest.approx(expected(world))
    folder.write("text", "cnn", texts_by_key)
    folder.write("image", "one", by_key)
    folder.write("text", "one", texts_by_key, weights="2")
    for frozen, message in (
        ("cnn", r"6 wide.*7 wide.*do not come from one model"),
        ("one", "do not come from one model"),
        ("resnet", "`sightline stage image-features data resnet`"),
    ):
        with pytest.raises(SightlineError, match=message):
            world.scores(frozen=frozen)


def test_a_result_is_of_the_frozen_features_that_it_read(world):
    def settings(frozen):
        return world.folder.task(frozen=frozen).measured["retrieval"].settings

    plain = settings(None)
    assert settings("one") == plain | {"frozen": "one"}  # which has no features yet
    rows = {Folder.key(name): np.ones(6, np.float32) for name in world.folder.tested}
    for kind in ("image", "text"):
        world.folder.write(kind, "one", rows)
    before, of_images = settings("one"), settings(None)
    assert of_images != plain  # a run's encoder may be any of those there
    world.folder.write("text", "one", rows, weights="2")
    assert settings("one") != before
    assert settings(None) == of_images


def test_what_is_measured_is_identified_by_captions_images_and_their_pairs(tmp_path):
    base = {"a": ["one", "two"], "b": ["three"]}
    changed = [
        Folder(tmp_path / "caption", {"a": ["one", "two"], "b": ["four"]}),
        Folder(tmp_path / "image", base, same_bytes={"a": "c"}),
        Folder(tmp_path / "pairs", {"a": ["one"], "b": ["two", "three"]}),
    ]
    same = Folder(tmp_path / "more", {**base, "c!": ["a training caption"]})
    first = Folder(tmp_path / "base", base)
    retrieval = first.task().evaluated_on["I2T R@1"]
    assert retrieval.examples == 3
    assert same.task().evaluated_on["I2T R@1"] == retrieval
    digests = {each.task().evaluated_on["I2T R@1"].sha256 for each in changed}
    assert len(digests | {retrieval.sha256}) == 4
    tasks = [folder.task("neighbours") for folder in (first, *changed[:2])]
    neighbours, of_caption, of_image = tasks
    assert of_caption.evaluated_on != neighbours.evaluated_on
    assert of_image.evaluated_on == neighbours.evaluated_on
    assert of_image.measured != neighbours.measured


def nearest_texts(world, text):
    """All other captions of the split, by descending cosine."""
    texts = [each for each in world.folder.captions if each != text]
    embeddings = world.model.embeddings
    own, others = np.array([embeddings[text]]), np.array([embeddings[each] for each in texts])
    return [texts[i] for i in np.argsort(-cosines(own, others)[0])]


def test_captions_images_and_their_recall_equal_plain_rankings(world):
    found = world.scores("neighbours", sample=4, k=23)
    shown = found.neighbours
    image_of = {text: name for name, texts in world.folder.images.items() for text in texts}
    assert len(shown.queries) == 4
    assert set(shown.queries) <= set(world.folder.captions)
    assert shown.images == tuple((image_of[query],) for query in shown.queries)
    for query, captions in zip(shown.queries, shown.captions.neighbours, strict=True):
        own = image_of[query]
        assert [each.text for each in captions] == nearest_texts(world, query)[:23]
        assert [each.own for each in captions] == [image_of[e.text] == own for e in captions]
    names = world.folder.tested
    images, sentences = world.projected(names, shown.queries)
    for sentence, pictures in zip(sentences, shown.pictures.neighbours, strict=True):
        order = np.argsort(-cosines(sentence[None], images)[0])
        assert [each.images for each in pictures] == [(names[i],) for i in order]
    firsts = {text: nearest_texts(world, text)[0] for text in world.folder.captions}
    expected = 100 * np.mean([image_of[a] == image_of[b] for a, b in firsts.items()])
    assert found.scores == {"T2T R@1": pytest.approx(expected)}
    assert 5 < expected < 95  # neither perfect nor random


def test_queries_are_the_given_sentences_and_then_a_sample(world):
    world.model.embeddings["not a caption"] = np.ones(4, dtype=np.float32)
    given = ["4 says 1", "not a caption"]
    shown = world.scores("neighbours", sentences=given, sample=1).neighbours
    assert shown.queries[:2] == tuple(given)
    assert shown.images[:2] == (("04",), ())
    assert len(shown.queries) == 3
    task = partial(world.folder.task, "neighbours")
    first, second = task(sentences=given), task(sentences="4 says 1")
    assert second.measured != first.measured  # so results are made again
    assert second.evaluated_on == first.evaluated_on  # and their scores may be compared
    assert task(sentences="4 says 1", features=None).measured != second.measured
    with pytest.raises(SightlineError, match="sample is 0 and there are no sentences"):
        task(sample=0)


def recall_of(folder, rows):
    model = Model({text: np.array(row) for text, row in rows.items()})
    return World(folder, model, {}).scores("neighbours", features=None).scores["T2T R@1"]


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
    rows = {"a0": [1, 0], "a1": [1, 0], "b0": [0, 1], "b1": [1, 0]}
    assert recall_of(folder, rows) == 0  # b1 is as near to a0 as a1, and a0 as near to b1
    assert recall_of(folder, rows | {"b1": [0.1, 1]}) == 100


def test_the_querys_own_image_is_shown_first():
    texts, images = ("shared", "mine"), (("a", "c"), ("c",))
    pool = CaptionPool(texts, (("a#0", "c#0"), ("c#1",)), images)
    model = Model(dict.fromkeys(texts, np.ones(2)))
    ((shared,),) = find_captions(model, ["mine"], pool, 2).neighbours
    assert (shared.images, shared.own) == (("c", "a"), True)


def test_images_are_those_of_the_captions_whatever_their_own_split(tmp_path):
    world = make_world(tmp_path, failed=("03", "11"))
    file = tmp_path / "data/images.parquet"
    table = read_manifest(file, IMAGES)
    unsplit = table.drop(["split"]).append_column("split", pa.array([""] * len(table)))
    write_manifest(file, unsplit.select(IMAGES.names).cast(IMAGES), IMAGES)
    found = world.scores("neighbours", sample=1, k=50)
    (pictures,) = found.neighbours.pictures.neighbours
    assert len(pictures) == 21
    (note,) = found.notes
    assert "leave out 2 of 23 images" in note
    write_manifest(file, table.slice(1), IMAGES)
    with pytest.raises(SightlineError, match="1 images of the captions are not in it, such as '00"):
        world.scores("neighbours")


def test_what_cannot_be_scored_says_why(world, tmp_path):
    alone = Folder(tmp_path / "alone", {"a": ["0 says 0"], "b": ["1 says 1"]})
    found = World(alone, world.model, {}).scores("neighbours", features=None)
    assert found.scores == {"T2T R@1": None}
    assert found.reasons == {"T2T R@1": "no image has two different captions in this split"}
    assert found.neighbours.captions.neighbours
    assert found.neighbours.pictures is None
    world.model.embeddings["nothing"] = np.zeros(4)
    found = world.scores("neighbours", sentences="nothing")
    assert found.scores["T2T R@1"] is not None  # whatever is asked
    assert "zero or not finite (query 0" in found.neighbours.captions.reason
    world.model.embeddings["4 says 1"] *= np.nan
    found = world.scores("neighbours", sentences="4 says 1")
    assert "zero or not finite" in found.reasons["T2T R@1"]
    assert "zero or not finite" in found.neighbours.pictures.reason
    world.model.fingerprint = "f" * 64
    with pytest.raises(SightlineError, match="planted needs it: `sightline stage image-features"):
        world.scores("neighbours")
    world.model.no_heads = "it has no heads"
    assert world.scores("neighbours").neighbours.pictures.reason == "it has no heads"


def test_a_result_keeps_what_was_found(world, tmp_path):
    result = evaluate_model(world.model, world.folder.task("neighbours", sample=2))
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
