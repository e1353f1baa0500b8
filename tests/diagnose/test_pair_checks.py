"""Cosines, ranks and the filter of pairs against brute force, and `sightline look features`."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_params import demo_params_text
from diagnosed_world import CAPTIONS_EACH, look, poison, write_set

from sightline.cache import FeatureSet, key_of_text, keys_of_texts
from sightline.errors import SightlineError
from train.batch import Batch, TokenRows
from train.diagnose.diagnosis import diagnose
from train.diagnose.diagnosis_document import findings
from train.diagnose.settings import DiagnosisSettings
from train.evaluate.retrieval import evaluate_retrieval
from train.objectives.kdmcse import KDMCSE
from train.schedule import Schedule


def test_cosines_equal_brute_force(world, diagnosis):
    images, texts, image_of = world.units()
    cosines = texts @ images.T
    own = cosines[np.arange(len(texts)), image_of]
    found = diagnosis["cross"]["cosines"]
    assert found["matched"]["mean"] == pytest.approx(own.mean(), abs=1e-6)
    assert found["matched"]["count"] == len(texts)
    # one caption of each image: a sample of the others' mean
    other = cosines[image_of[:, None] != np.arange(len(images))]
    assert found["mismatched"]["count"] == len(images) * (len(images) - 1)
    assert found["mismatched"]["mean"] == pytest.approx(other.mean(), abs=0.05)
    assert other.min() - 1e-6 <= found["mismatched"]["quantiles"]["0"]
    assert found["mismatched"]["quantiles"]["100"] <= other.max() + 1e-6
    shares = [each["matched"] for each in removals_of(diagnosis, "image") if not each["configured"]]
    assert shares == pytest.approx([(own >= 0.2).mean(), (own >= 0.6).mean()])

    same = image_of[:, None] == image_of[None, :]
    above = np.triu(np.ones_like(same), k=1)
    assert diagnosis["captions"]["matched"]["count"] == len(images) * CAPTIONS_EACH
    own = (texts @ texts.T)[same & above]
    assert diagnosis["captions"]["matched"]["mean"] == pytest.approx(own.mean(), abs=1e-6)
    removals = removals_of(diagnosis, "teacher_text")
    shares = [each["matched"] for each in removals if not each["configured"]]
    assert shares == pytest.approx([(own >= 0.2).mean(), (own >= 0.6).mean()])


def term(diagnosis, name):
    (found,) = (each for each in diagnosis["filters"] if each["term"] == name)
    return found


def removals_of(diagnosis, name):
    return term(diagnosis, name)["removals"]


def test_separation_is_the_share_of_ordered_pairs(world):
    settings = DiagnosisSettings(batches=1, sample=len(world.image_keys))
    found = diagnose([world.text_set], world.captions_manifest, world.images_manifest, settings)
    _, texts, image_of = world.units()
    _, image_of = np.unique([world.image_keys[n] for n in image_of], return_inverse=True)
    cosines = np.round(texts @ texts.T, 6)
    same = image_of[:, None] == image_of[None, :]
    own = cosines[same & np.triu(np.ones_like(same), k=1)]
    # the captions drawn, one of each image, are those whose cosines are the mismatched ones
    draw = np.random.default_rng([0, 5])
    one = np.array([draw.choice(np.flatnonzero(image_of == n)) for n in range(image_of.max() + 1)])
    others = cosines[np.ix_(one, one)][np.triu_indices(len(one), k=1)]
    above = (own[:, None] > others).mean() + (own[:, None] == others).mean() / 2
    assert found["captions"]["separation"] == pytest.approx(above, abs=1e-4)


def test_ranks_equal_brute_force(world, diagnosis):
    found = diagnosis["cross"]
    images, texts, image_of = world.units()
    best, worst = [], []
    for number, image in enumerate(images):
        scores = texts @ image
        ranks = (scores >= scores[:, None]).sum(axis=1)[image_of == number]
        best.append(ranks.min())
        worst.append(ranks.max())
    for ranks, expected in ((found["best_caption"], best), (found["worst_caption"], worst)):
        assert ranks["median"] == np.median(expected)
        assert ranks["within"]["5"] == pytest.approx(np.mean(np.array(expected) <= 5))
        assert (ranks["queries"], ranks["pool"]) == (len(images), len(texts))
    recalled = evaluate_retrieval(images, texts, image_of)
    for k in (1, 5, 10):
        assert 100 * found["best_caption"]["within"][str(k)] == pytest.approx(
            recalled[f"I2T R@{k}"]
        )


def test_a_sample_of_queries_searches_everything(world):
    one, same = (look(world, sample=6, seed=4)["cross"] for _ in range(2))
    assert one == same
    assert one["cosines"]["mismatched"]["count"] == 6 * 5
    assert (one["best_caption"]["queries"], one["best_caption"]["pool"]) == (6, len(world.captions))


def test_constant_features_find_nothing(own):
    for rows in (own.image_rows, own.text_rows):
        for key in rows:
            rows[key] = np.ones(12)
    cross = look(own.write())["cross"]
    assert cross["best_caption"]["within"]["1"] == 0
    assert cross["best_caption"]["median"] == len(own.captions)
    assert cross["cosines"]["separation"] == 0.5


def test_the_removed_share_is_what_the_objective_computes(world, diagnosis):
    thresholds = {"image_threshold": 0.35, "teacher_text_threshold": 0.5}
    params = KDMCSE(image="clip", text="clip", **thresholds)
    images, texts = FeatureSet.open(world.image_set), FeatureSet.open(world.text_set)
    schedule = Schedule(len(world.captions), 0, 16, 3)
    shares = {"image": [], "teacher_text": []}
    for k in range(9):
        rows = [world.captions[i] for i in schedule.rows(schedule.draw(k))]
        keys = keys_of_texts([text for _, text in rows])
        features = {
            "image-clip": torch.from_numpy(images.take([world.image_keys[n] for n, _ in rows])),
            "text-clip": torch.from_numpy(texts.take(keys)),
        }
        ids, lengths = torch.ones(len(rows), 2, dtype=torch.int64), np.full(len(rows), 2)
        blocks = {"sentences": TokenRows(ids, lengths)}
        batch = Batch(k, 3, "pairs", blocks, features, keys)
        for name, share in params.statistics(batch).items():
            shares[name.removeprefix("removed_")].append(float(share))
    for name, threshold in (("image", 0.35), ("teacher_text", 0.5)):
        removals = removals_of(diagnosis, name)
        (removal,) = [r for r in removals if r["configured"] and r["threshold"] == threshold]
        assert removal["share"] == pytest.approx(np.mean(shares[name]), abs=1e-7)
        assert removal["share"] > 0


def test_a_threshold_removes_the_negatives_at_or_above_it(world):
    diagnosis = look(world, batch_size=len(world.captions), batches=1, thresholds=[0.2, 0.6])
    _, texts, _ = world.units()
    negatives = (texts @ texts.T)[~np.eye(len(texts), dtype=bool)]
    found = term(diagnosis, "teacher_text")
    assert found["highest"] == pytest.approx(negatives.max(), abs=1e-6)
    assert [each["threshold"] for each in found["removals"]] == [0.2, 0.6]
    assert found["removals"][0]["share"] == pytest.approx((negatives >= 0.2).mean(), abs=1e-6)


def test_a_matched_pair_that_scores_the_threshold_counts(world, diagnosis):
    highest = diagnosis["captions"]["matched"]["quantiles"]["100"]
    removals = removals_of(look(world, thresholds=[highest]), "teacher_text")
    (removal,) = [each for each in removals if each["threshold"] == highest]
    assert removal["matched"] > 0


def test_texts_alone_have_the_term_of_two_captions(world, diagnosis):
    settings = DiagnosisSettings(batches=1, seed=3)
    found = diagnose([world.text_set], world.captions_manifest, world.images_manifest, settings)
    assert found["cross"] is None
    assert [each["term"] for each in found["filters"]] == ["teacher_text"]
    assert found["captions"] == diagnosis["captions"]


def test_captions_of_other_images_are_a_problem(own):
    keys = own.text_keys
    moved = [*keys[CAPTIONS_EACH:], *keys[:CAPTIONS_EACH]]
    own.text_rows = {key: own.text_rows[other] for key, other in zip(keys, moved, strict=True)}
    problems = [each.text for each in findings(look(own.write())) if each.level == "problem"]
    assert any("may not be from the same model" in text for text in problems)


def test_missing_rows_are_counted_and_left_out(own):
    for i in (0, 4):
        del own.text_rows[own.text_keys[i]]
    own.image_rows[own.image_keys[8]][0] = np.inf  # refused by the writer: a recorded failure
    own.write()
    poison(own.image_set, own.image_keys[5], np.inf)
    diagnosis = look(own)
    counts = diagnosis["pairs"]
    assert (counts["without_text"], counts["without_image"]) == (2, CAPTIONS_EACH)
    assert counts["failed"] == CAPTIONS_EACH
    assert counts["compared"] == len(own.captions) - 2 - 2 * CAPTIONS_EACH
    said = "\n".join(f"{each.level}: {each.text}" for each in findings(diagnosis))
    assert "problem: Of the training pairs, 3 are left out here for their image and 2" in said
    assert "NaN or infinity is in 1 (“005.jpg”)" in said


@pytest.mark.parametrize(
    ("sets", "manifests", "message"),
    [
        (["image", "image"], "ci", r"\(image\), .*expected one set of kind image and one of kind"),
        (["image", "teacher"], "ci", r"teacher \(teacher\), expected one set of kind image and"),
        (["image", "narrow"], "ci", "image is 12 wide and .*narrow is 5"),
        (["image", "others"], "ci", "others: holds none of the 90 training captions of .*captions"),
        (
            ["no-image", "text"],
            "ci",
            "no-image: holds none of the 90 images of the training captions",
        ),
        (["image", "text"], "ic", "captions.parquet: not a manifest of kind images"),
        (["image", "text"], "", "give --data, the data set"),
        (["image", "text", "image"], "ci", r"\(image\), .*expected one set of kind image"),
        ([""], "", "world: "),
    ],
)
def test_a_mistake_is_one_clear_error(world, tmp_path, sets, manifests, message):
    made = {
        "teacher": ("teacher", world.text_rows),
        "narrow": ("text", {key: row[:5] for key, row in world.text_rows.items()}),
        "others": ("text", {key_of_text("?"): np.ones(12)}),
        "no-image": ("image", {bytes(32): np.ones(12)}),
    }
    paths = [
        write_set(tmp_path / name, *made[name]) if name in made else world.root / name
        for name in sets
    ]
    of_kind = {"c": world.captions_manifest, "i": world.images_manifest}
    captions, images = (of_kind[kind] for kind in manifests) if manifests else (None, None)
    with pytest.raises(SightlineError, match=message):
        diagnose(paths, captions, images, DiagnosisSettings())


@pytest.fixture
def command(tmp_path, monkeypatch, said):
    """Runs `sightline look features` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(said, "look", "features")


def inputs(world):
    return [world.image_set, world.text_set, "--data", world.root]


def test_the_summary_the_json_and_the_page_hold_the_same(command, own):
    own.captions[0] = (0, "<script>alert(1)</script> & more")
    own.text_rows[own.text_keys[0]] = np.zeros(12)  # so that the page names it
    words = (*inputs(own.write()), "--threshold", 0.3, "--batch-size", 8, "--batches", 5)
    words = (*words, "--out", "page.html")
    code, out, err = command(*words, "--json")
    assert (code, err) == (0, "page.html: written\n")
    found = json.loads(out)
    assert found["schema"] == "sightline.diagnosis/4"
    assert [each["spec"]["kind"] for each in found["sets"]] == ["image", "text"]
    assert found["pairs"]["compared"] == len(own.captions) - 1
    assert found["settings"]["batch_size"] == 8
    assert {each["term"] for each in found["filters"]} == {"image", "teacher_text"}
    page = Path("page.html").read_text()
    assert page.count("<script") == 1  # that of the page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    separation = found["cross"]["cosines"]["separation"]
    assert f"{separation:.3f}" in page

    code, summary, _ = command(*words)
    assert code == 0
    for part in (
        "rows × width",
        "30 × 12",
        "median",
        "only zeros are in 1",
        "Image term: the highest cosine",
    ):
        assert part in summary
    assert re.search(r"^0\.3 ", summary, re.M)
    assert re.search(r"^0\.9 \(default\)", summary, re.M)
    assert Path("page.html").read_text() == page


def test_one_set_alone(command, world):
    code, out, _ = command(world.image_set, "--json", "--out", "page.html")
    assert code == 0
    found = json.loads(out)
    assert found["cross"] is found["pairs"] is None
    assert found["filters"] == []
    assert len(found["sets"]) == 1


def test_a_repository_provides_manifests_and_thresholds(command, world):
    shutil.copytree(world.root, "data/datasets/scenes")
    sets = [Path("data/features/scenes", kind, "clip") for kind in ("image", "text")]
    for target in sets:
        target.parent.mkdir(parents=True)
        Path("data/datasets/scenes", target.parent.name).rename(target)
    params = demo_params_text()
    for before, after in (
        ("clip, weight: 2.0}", "clip, weight: 2.0, image_threshold: 0.4, caption: longest}"),
        ("batch_size: 64\n  learning", "batch_size: 9\n  learning"),
    ):
        assert before in params
        params = params.replace(before, after)
    Path("params.yaml").write_text(params)

    def settings(*words):
        code, out, _ = command(*sets, "--batches", 2, "--json", *words)
        assert code == 0
        return json.loads(out)["settings"]

    found = settings()
    assert (found["run"], found["batch_size"], found["caption"]) == ("kdmcse", 9, "longest")
    assert found["configured"] == {"image": 0.4, "teacher_text": 0.9}
    found = settings("--batch-size", 12, "--caption", "all")
    assert (found["batch_size"], found["caption"]) == (12, "all")


def test_a_foreign_file_is_not_replaced_and_is_refused_before_any_work(command, world):
    Path("notes.html").write_text("mine")
    code, _, err = command(*inputs(world), "--out", "notes.html")
    assert code == 1
    assert "was not written by this command" in err
    assert Path("notes.html").read_text() == "mine"
    code, _, err = command(*inputs(world), "--out", world.image_set / "page.html")
    assert code == 1
    assert "is inside the input" in err
