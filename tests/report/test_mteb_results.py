"""`sightline compare` with results that MTEB itself wrote, in the layout of its version 2."""

from __future__ import annotations

import json
import math

import pytest
from made_results import made_result

from sightline.errors import SightlineError
from train.evaluate.mteb import MtebTask
from train.evaluate.results import EvaluationSet, TaskResult, save_result
from train.report.comparison import compare_runs, find_run, find_runs
from train.report.mteb_results import MtebFolder

TASKS = {
    "STS12": MtebTask(type="STS", revision="a1", splits={"test": ("default",)}),
    "STS17": MtebTask(type="STS", revision="b2", splits={"test": ("en-en",)}),
    "SciDocsRR": MtebTask(type="Reranking", revision="c3", splits={"test": ("default",)}),
}


def written(root, model="an__encoder", version="2.26.24", **more):
    """MTEB's folder of a model: more splits and languages than our run below was scored on."""
    folder = root / model / "no_revision_available"
    folder.mkdir(parents=True)
    (folder / "model_meta.json").write_text(json.dumps({"name": model.replace("__", "/")}))
    scores = {
        "STS12": ("a1", {"test": {"default": 0.71}}),
        "STS17": ("b2", {"test": {"en-en": 0.83, "en-de": 0.11}, "validation": {"en-en": 0.2}}),
        "SciDocsRR": ("c3", {"test": {"default": 0.5}}),
        **more,
    }
    for name, (revision, splits) in scores.items():
        parts = {
            split: [
                {"hf_subset": subset, "main_score": value, "languages": ["eng-Latn"], "pearson": 0}
                for subset, value in subsets.items()
            ]
            for split, subsets in splits.items()
        }
        body = {"task_name": name, "dataset_revision": revision, "mteb_version": version}
        body |= {"scores": parts, "evaluation_time": 1.5, "kg_co2_emissions": None}
        (folder / f"{name}.json").write_text(json.dumps(body))
    return folder


def ours(root, **changes):
    """A run of ours, scored on MTEB's tasks and on one of our own."""
    sets = {f"MTEB {name}": about.test_set(name, 10) for name, about in TASKS.items()}
    digests = [each.sha256 for each in sets.values()]
    sets["MTEB Avg STS"] = EvaluationSet.of(20, *digests[:2])
    sets["MTEB Avg Reranking"] = EvaluationSet.of(10, *digests[2:])
    sets["MTEB Avg"] = EvaluationSet.of(30, *digests)
    tasks = {name: about.model_dump(mode="json") for name, about in TASKS.items()}
    of_mteb = TaskResult(
        task="mteb",
        title="MTEB",
        settings={"mteb": "2.26.24", "tasks": tasks},
        scores=dict.fromkeys(sets, 60.0),
        evaluated_on=sets,
    )
    sts = TaskResult(
        task="sts", scores={"STS12": 70.0}, evaluated_on={"STS12": EvaluationSet.of(3108, "d")}
    )
    given = {"tasks": {"mteb": of_mteb, "sts": sts}, **changes}
    return save_result(made_result("mcse", **given), root / "mcse.json")


def compared(root, *runs):
    found, baseline = find_runs([*map(str, runs)], root)
    return compare_runs(found, baseline)


def means(row):
    return {metric: cell.mean for metric, cell in row.cells.items()}


def test_mtebs_results_stand_beside_ours_on_the_same_splits_and_subsets(tmp_path):
    folder = written(tmp_path / "results")
    found = compared(tmp_path, ours(tmp_path), folder)
    mine, theirs = found.table.rows
    assert theirs.name == "an/encoder"
    assert theirs.objective == "not trained by Sightline"
    scores = {"STS12": 71, "STS17": 83, "SciDocsRR": 50}
    scores |= {"Avg STS": 77, "Avg Reranking": 50, "Avg": 68}
    expected = {f"MTEB {name}": score for name, score in scores.items()}
    assert means(theirs) == pytest.approx(expected)
    assert list(mine.cells) == list(theirs.cells)
    assert "only the scores of mteb are compared: MTEB's results have no others" in found.notes


def test_the_folder_of_a_model_with_one_revision_is_enough(tmp_path):
    folder = written(tmp_path)
    assert find_run(f"MiniLM={folder.parent}", tmp_path).name == "MiniLM"
    assert find_run(str(folder.parent), tmp_path).files == (folder,)
    (folder.parent / "other").mkdir()
    (folder.parent / "other/STS12.json").write_text((folder / "STS12.json").read_text())
    with pytest.raises(SightlineError, match=r"2 revisions \(no_revision_available, other\)"):
        find_run(str(folder.parent), tmp_path)


def test_a_task_that_mteb_did_not_evaluate_has_no_score_and_other_versions_are_noted(tmp_path):
    nothing = {"STS17": ("b2", {"test": {"en-en": math.nan}})}
    folder = written(tmp_path, version="1.38.3", **nothing)
    (folder / "STS12.json").unlink()
    found = compared(tmp_path, ours(tmp_path), folder)
    assert "MTEB's tasks were evaluated by its versions 1.38.3, 2.26.24" in found.notes
    cells = found.table.rows[1].cells
    assert cells["MTEB STS12"].mean is None
    assert cells["MTEB STS12"].reason.endswith("has no STS12.json")
    assert cells["MTEB STS17"].reason.endswith("STS17.json has no score of test en-en")
    assert cells["MTEB Avg STS"].mean is None
    assert cells["MTEB Avg Reranking"].mean == pytest.approx(50)


def test_other_revisions_of_the_data_are_refused(tmp_path):
    folder = written(tmp_path, STS12=("a0", {"test": {"default": 0.71}}))
    with pytest.raises(SightlineError, match=r"STS12.json: evaluated on revision a0.* on a1"):
        compared(tmp_path, ours(tmp_path), folder)


def test_two_of_mtebs_folders_are_compared_on_the_tasks_of_both(tmp_path):
    first = written(tmp_path)
    second = written(tmp_path, "second", More=("d4", {"dev": {"default": 0.1}}))
    (second / "SciDocsRR.json").unlink()
    found = compared(tmp_path, first, second)
    assert [means(row) for row in found.table.rows] == [
        pytest.approx({"MTEB STS12": 71, "MTEB STS17": (83 + 11) / 2, "MTEB Avg": (71 + 47) / 2})
    ] * 2
    assert "only the tasks that all of MTEB's results have are compared" in found.notes
    for name in ("STS12", "STS17"):
        (second / f"{name}.json").unlink()
    with pytest.raises(SightlineError, match="have no task in common"):
        compared(tmp_path, first, second)


def test_a_split_other_than_test_is_used_if_it_is_the_only_one(tmp_path):
    folder = MtebFolder.read(written(tmp_path, More=("d4", {"dev": {"default": 0.1}})))
    assert folder.result().scores["MTEB More"] == pytest.approx(10)


def test_a_run_without_mtebs_tasks_is_refused_with_the_command(tmp_path):
    file = ours(tmp_path, tasks={"own": TaskResult(scores={"STS12": 70.0})})
    with pytest.raises(SightlineError, match="evaluate mteb with --tasks STS12,STS17,SciDocsRR"):
        compared(tmp_path, file, written(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "Expecting"), ('{"mteb_dataset_name": "STS12"}', "task_name: Field required")],
)
def test_a_damaged_or_old_file_is_named(tmp_path, text, said):
    folder = written(tmp_path)
    (folder / "STS12.json").write_text(text)
    with pytest.raises(SightlineError, match=f"STS12.json: not a result of MTEB 1.11.*{said}"):
        find_run(str(folder), tmp_path)
