"""Matched and mismatched cosines, ranks and the filter, each against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosed_world import CAPTIONS_EACH, DiagnosedWorld, poison, unit, write_set

from sightline.cache import FeatureSet, key_of_text, keys_of_texts
from sightline.errors import SightlineError
from train.batch import Batch
from train.diagnose.checks import separation
from train.diagnose.diagnosis import Diagnosis, Settings, diagnose
from train.diagnose.findings import findings
from train.diagnose.thresholds import Terms
from train.evaluate.retrieval import evaluate_retrieval
from train.objectives.kdmcse import KDMCSE, KDMCSEParams
from train.schedule import Schedule


@pytest.fixture
def world(tmp_path) -> DiagnosedWorld:
    return DiagnosedWorld.make(tmp_path / "world", noise=1.2)


def look(world: DiagnosedWorld, **settings) -> Diagnosis:
    sets = [world.text_set, world.image_set]  # the order does not matter
    return diagnose(sets, world.captions_manifest, world.images_manifest, Settings(**settings))


def test_cosines_equal_brute_force(world):
    found = look(world.write())
    images, texts, image_of = world.units()
    cosines = texts @ images.T
    own = cosines[np.arange(len(texts)), image_of]
    assert found.cross is not None
    assert found.cross.cosines.matched.mean == pytest.approx(own.mean(), abs=1e-6)
    assert found.cross.cosines.matched.count == len(texts)
    # one caption of each image: a sample of the others' mean
    other = cosines[image_of[:, None] != np.arange(len(images))]
    mismatched = found.cross.cosines.mismatched
    assert mismatched.count == len(images) * (len(images) - 1)
    assert mismatched.mean == pytest.approx(other.mean(), abs=0.05)
    assert other.min() - 1e-6 <= mismatched.least <= mismatched.greatest <= other.max() + 1e-6

    same = image_of[:, None] == image_of[None, :]
    above = np.triu(np.ones_like(same), k=1)
    between = texts @ texts.T
    assert found.captions is not None
    assert found.captions.matched.count == len(images) * CAPTIONS_EACH
    assert found.captions.matched.mean == pytest.approx(between[same & above].mean(), abs=1e-6)


def test_separation_is_the_share_of_ordered_pairs():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 9, 40).astype(float), rng.integers(0, 7, 50).astype(float)
    above = (one[:, None] > other).mean() + (one[:, None] == other).mean() / 2
    assert separation(one, other) == pytest.approx(above)


def test_ranks_equal_brute_force(world):
    found = look(world.write()).cross
    images, texts, image_of = world.units()
    best, worst = [], []
    for number, image in enumerate(images):
        scores = texts @ image
        ranks = (scores >= scores[:, None]).sum(axis=1)[image_of == number]
        best.append(ranks.min())
        worst.append(ranks.max())
    assert found is not None
    for ranks, expected in ((found.best_caption, best), (found.worst_caption, worst)):
        assert ranks.median == np.median(expected)
        assert ranks.within["5"] == pytest.approx(np.mean(np.array(expected) <= 5))
        assert (ranks.queries, ranks.pool) == (len(images), len(texts))
        assert ranks.curve[-1] == (len(texts), 1.0)
    of_image = [(images @ text >= images[own] @ text).sum() for text, own in
                zip(texts, image_of, strict=True)]  # fmt: skip
    assert found.image.median == np.median(of_image)
    recalled = evaluate_retrieval(images, texts, image_of)
    for k in (1, 5, 10):
        assert 100 * found.best_caption.within[str(k)] == pytest.approx(recalled[f"I2T R@{k}"])
        assert 100 * found.image.within[str(k)] == pytest.approx(recalled[f"T2I R@{k}"])
    assert found.best_caption.chance == pytest.approx(CAPTIONS_EACH / len(texts))


def test_a_sample_of_queries_searches_everything(world):
    one, same = (look(world.write(), sample=6, seed=4).cross for _ in range(2))
    assert one is not None
    assert one == same
    assert (one.best_caption.queries, one.best_caption.of) == (6, world.images)
    assert (one.image.queries, one.image.pool) == (6, world.images)
    assert one.best_caption.pool == len(world.captions)


def test_constant_features_find_nothing(world):
    for rows in (world.image_rows, world.text_rows):
        for key in rows:
            rows[key] = np.ones(12)
    diagnosis = look(world.write())
    assert diagnosis.cross is not None
    assert diagnosis.cross.best_caption.within["1"] == 0
    assert diagnosis.cross.best_caption.median == len(world.captions)
    assert diagnosis.cross.cosines.separation == 0.5


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_removed_share_is_what_the_objective_computes(world, variant):
    thresholds = {"image_threshold": 0.35, "teacher_text_threshold": 0.5}
    configured = Terms(0.35, 0.5, released=variant == "released")
    diagnosis = look(world.write(), batch_size=16, batches=9, seed=3, configured=configured)
    params = KDMCSEParams(image="clip", text="clip", variant=variant, **thresholds)
    objective = KDMCSE(params)
    images, texts = FeatureSet.open(world.image_set), FeatureSet.open(world.text_set)
    schedule = Schedule(len(world.captions), 0, 16, 3)
    shares = {"image": [], "teacher_text": []}
    for k in range(9):
        rows = [world.captions[i] for i in schedule.rows(schedule.draw(k))]
        keys = keys_of_texts([text for _, text in rows])
        features = {
            "image-clip": torch.from_numpy(images.take([world.image_key(n) for n, _ in rows])),
            "text-clip": torch.from_numpy(texts.take(keys)),
        }
        ids, lengths = torch.ones(len(rows), 2, dtype=torch.int64), np.full(len(rows), 2)
        batch = Batch(k, 3, "pairs", ids, lengths, features, keys, None)
        for name, share in objective.statistics(batch).items():
            shares[name.removeprefix("removed_")].append(float(share))
    found = {each.term: each for each in diagnosis.filters}
    for term, threshold in (("image", 0.35), ("teacher_text", 0.5)):
        each = found["released" if variant == "released" else term]
        (removal,) = [r for r in each.removals if r.configured and r.threshold == threshold]
        assert removal.share == pytest.approx(np.mean(shares[term]), abs=1e-7)
        assert removal.sd == pytest.approx(np.std(shares[term], ddof=1), abs=1e-7)
        assert (removal.least, removal.greatest) == (min(shares[term]), max(shares[term]))
        assert removal.share > 0


def test_thresholds_that_remove_a_share_are_quantiles(world):
    world.write()
    diagnosis = look(world, batch_size=len(world.captions), batches=1, thresholds=(0.2, 0.6))
    texts = unit(np.array([world.text_rows[key_of_text(text)] for _, text in world.captions]))
    negatives = (texts @ texts.T)[~np.eye(len(texts), dtype=bool)]
    (found,) = [each for each in diagnosis.filters if each.term == "teacher_text"]
    assert found.negatives == negatives.size
    assert found.highest == pytest.approx(negatives.max(), abs=1e-6)
    assert found.at_share["0.05"] == pytest.approx(np.quantile(negatives, 0.95), abs=1e-6)
    assert [each.threshold for each in found.removals] == [0.2, 0.6]
    assert found.removals[0].share == pytest.approx((negatives >= 0.2).mean(), abs=1e-6)
    image_of = np.array([number for number, _ in world.captions])
    same = (image_of[:, None] == image_of).sum() - len(texts)
    assert found.same_image == pytest.approx(same / negatives.size)


def test_texts_alone_have_the_term_of_two_captions(world):
    world.write()
    found = diagnose([world.text_set], world.captions_manifest, world.images_manifest, Settings())
    assert found.cross is None
    assert [each.term for each in found.filters] == ["teacher_text"]
    assert found.captions == look(world).captions


def test_captions_of_other_images_are_a_problem(world):
    texts = [key_of_text(text) for _, text in world.captions]
    moved = [world.text_rows[key] for key in texts]
    world.text_rows = dict(zip(texts, moved[CAPTIONS_EACH:] + moved[:CAPTIONS_EACH], strict=True))
    diagnosis = look(world.write())
    problems = [each.text for each in findings(diagnosis) if each.level == "problem"]
    assert any("may not be from the same model" in text for text in problems)


def test_missing_rows_are_counted_and_left_out(world):
    dropped = [key_of_text(world.captions[i][1]) for i in (0, 4)]
    for key in dropped:
        del world.text_rows[key]
    world.image_rows[world.image_key(8)][0] = np.inf  # refused by the writer: a recorded failure
    world.write()
    poison(world.image_set, world.image_key(5), np.inf)
    diagnosis = look(world)
    assert diagnosis.pairs is not None
    assert (diagnosis.pairs.without_text, diagnosis.pairs.without_image) == (2, CAPTIONS_EACH)
    assert diagnosis.pairs.failed == CAPTIONS_EACH
    assert diagnosis.pairs.compared == len(world.captions) - 2 - 2 * CAPTIONS_EACH
    problems = "\n".join(each.text for each in findings(diagnosis) if each.level == "problem")
    assert "2 of 87 training pairs" in problems
    assert "3 of 87 training pairs" in problems
    assert "“005.jpg”) contain NaN or infinity" in problems
    assert any(
        "Inputs without a row: 1 (not_finite 1)" in each.text for each in findings(diagnosis)
    )


def test_shared_captions_and_repeated_images_are_counted(world):
    world.captions[0] = (0, world.captions[-1][1])
    world.image_key = lambda number: DiagnosedWorld.image_key(world, min(number, 28))  # type: ignore[method-assign]
    diagnosis = look(world.write())
    assert diagnosis.pairs is not None
    assert diagnosis.pairs.repeated_images == 2
    assert diagnosis.pairs.shared_captions == 1
    assert diagnosis.pairs.images == 29


def test_a_threshold_that_removes_nothing_is_reported(world):
    diagnosis = look(world.write(), configured=Terms(0.9999, None))
    notices = [each.text for each in findings(diagnosis) if each.level == "notice"]
    assert any("0.9999 removes no negative" in text for text in notices)


def test_the_share_of_true_pairs_above_a_threshold_equals_brute_force(world):
    found = look(world.write(), thresholds=(0.2, 0.6))
    images, texts, image_of = world.units()
    own = (texts * images[image_of]).sum(axis=1)
    (term,) = [each for each in found.filters if each.term == "image"]
    shares = [each.matched for each in term.removals if not each.configured]
    assert shares == pytest.approx([(own >= 0.2).mean(), (own >= 0.6).mean()])


def broken(world: DiagnosedWorld, how: str) -> tuple[list, object, object]:
    """Sets and manifests with a user's mistake."""
    captions, images = world.captions_manifest, world.images_manifest
    sets = [world.image_set, world.text_set]
    other = world.root / "other"
    if how == "two image sets":
        return [sets[0], sets[0]], captions, images
    if how == "teacher":
        return [sets[0], write_set(other, "teacher", world.text_rows)], captions, images
    if how == "width":
        rows = {key: row[:5] for key, row in world.text_rows.items()}
        return [sets[0], write_set(other, "text", rows)], captions, images
    if how == "no caption":
        return (
            [sets[0], write_set(other, "text", {key_of_text("?"): np.ones(12)})],
            captions,
            images,
        )
    if how == "no image":
        return [write_set(other, "image", {bytes(32): np.ones(12)}), sets[1]], captions, images
    if how == "swapped":
        return sets, images, captions
    if how == "no manifests":
        return sets, None, None
    if how == "three":
        return [*sets, sets[0]], captions, images
    return [world.root], None, None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("two image sets", r"\(image\), .*expected one set of kind image and one of kind text"),
        ("teacher", r"other \(teacher\), expected one set of kind image and one of kind text"),
        ("width", "image is 12 wide and .*other is 5"),
        ("no caption", "other: holds none of the 90 training captions of .*captions.parquet"),
        ("no image", "other: holds none of the images"),
        ("swapped", "captions.parquet: not a manifest of kind images"),
        ("no manifests", "give --data, the data set"),
        ("three", "found 3 feature sets"),
        ("no set", "world: "),
    ],
)
def test_a_mistake_is_one_clear_error(world, how, message):
    sets, captions, images = broken(world.write(), how)
    with pytest.raises(SightlineError, match=message):
        diagnose(sets, captions, images, Settings())
