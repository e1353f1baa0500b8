"""`sightline compare` with results that MTEB itself wrote, in the layout of its version 2."""

from __future__ import annotations

import json
import math

import pytest
from made_results import made_result

from sightline.errors import SightlineError
from train.evaluate.results import save_result
from train.report.comparison import compare_runs
from train.report.found_runs import find_run, find_runs
from train.report.mteb_results import TYPES
from train.report.paper import ExpectedRun, compare_entry
from train.report.published import find_entries


def written(root, model="an__encoder", version="2.26.24", **more):
    """MTEB's folder of a model, on several splits and languages."""
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


def on_test(score):
    return "a1", {"test": {"default": score}}


def compared(root, *runs):
    found, baseline = find_runs([*map(str, runs)], root)
    return compare_runs(found, baseline)


def means(row):
    return {metric: cell.value for metric, cell in row.cells.items()}


def test_two_of_mtebs_folders_are_compared_on_the_tasks_of_both(tmp_path):
    first, second = written(tmp_path), written(tmp_path, "second", STS12=on_test(0.5))
    (second / "SciDocsRR.json").unlink()
    found = compared(tmp_path, first, f"other={second}")
    assert [(row.name, means(row)) for row in found.table.rows] == [
        ("an/encoder", pytest.approx({"MTEB STS12": 71, "MTEB STS17": 47})),
        ("other", pytest.approx({"MTEB STS12": 50, "MTEB STS17": 47})),
    ]
    assert "left out, as not every run was scored on it: MTEB SciDocsRR" in found.notes
    for name in ("STS12", "STS17"):
        (second / f"{name}.json").unlink()
    (second / "BIOSSES.json").write_text((first / "STS12.json").read_text())
    with pytest.raises(SightlineError, match="only runs with the same evaluation can be compared"):
        compared(tmp_path, first, second)


def test_tasks_that_no_paper_has_are_mtebs_own_to_show(tmp_path):
    folder = written(tmp_path, More=on_test(0.1), CQADupstackEnglishRetrieval=on_test(0.2))
    found = compared(tmp_path, folder)
    assert found.table.names == ("MTEB SciDocsRR", "MTEB STS12", "MTEB STS17")
    assert "an/encoder: 2 files of MTEB's other tasks left out" in found.notes
    for name in ("STS12", "STS17", "SciDocsRR"):
        (folder / f"{name}.json").unlink()
    with pytest.raises(SightlineError, match=r"has no task of .*load_results of mteb itself makes"):
        find_run(str(folder), tmp_path)


def test_dalr_s_table_5_has_the_means_of_types_of_which_all_tasks_are_there(tmp_path):
    means = {"Reranking": 0.5, "Classification": 0.6, "Retrieval": 0.25}
    scores = {task: means.get(kind, 0.8) for kind, tasks in TYPES.items() for task in tasks}
    more = {name: ("d4", {"test": {"default": score}}) for name, score in scores.items()}
    (written(tmp_path, "dalr", **more) / "STS16.json").unlink()
    (entry,) = find_entries("dalr:table-5")
    rows = compare_entry(entry, [tmp_path], lambda *_: ExpectedRun({}, {}))
    (dalr,) = [row for row in rows if row.published.run == "dalr"]
    assert dalr.measured.cells["MTEB STS12"].value == pytest.approx(80)
    cells = {column.name: dalr.cell(column) for column in entry.columns}
    assert cells.pop("STS") is None
    found = {name: cell.value for name, cell in cells.items()}
    assert found == pytest.approx({"Re-Rank": 50, "CLF": 60, "Retrieval": 25})
    assert dalr.marks == (
        "scored by mteb, which does not record the training",
        "no score of MTEB Avg STS",
    )
    assert {row.why_not for row in rows if row.published.run == "kdmcse"} == {"not run"}


def test_the_folder_of_a_model_with_one_revision_is_enough(tmp_path):
    folder = written(tmp_path)
    assert find_run(f"MiniLM={folder.parent}", tmp_path).name == "MiniLM"
    assert find_run(str(folder.parent), tmp_path).files == (folder,)
    (folder.parent / "other").mkdir()
    (folder.parent / "other/model_meta.json").write_text("{}")
    with pytest.raises(SightlineError, match=r"2 revisions \(no_revision_available, other\)"):
        find_run(str(folder.parent), tmp_path)


def test_a_score_that_is_not_a_number_has_a_reason(tmp_path):
    subsets = {"en-en": math.nan, "en-de": 0.1}
    folder = written(tmp_path, STS17=("b2", {"test": subsets}), STS12=("a1", {"test": {}}))
    cells = compared(tmp_path, folder).table.rows[0].cells
    assert cells["MTEB STS17"].hint.endswith("STS17.json has no score of test en-en")
    assert cells["MTEB STS12"].hint.endswith("STS12.json has no score of any split")
    assert [cells[f"MTEB {name}"].value for name in ("STS17", "STS12")] == [None, None]
    assert cells["MTEB SciDocsRR"].value == pytest.approx(50)


@pytest.mark.parametrize(
    ("task", "other"),
    [
        ("STS12", ("a0", {"test": {"default": 0.71}})),  # another revision of the data
        ("STS17", ("b2", {"test": {"en-en": 0.83}})),
    ],
)
def test_other_data_of_a_task_is_refused(tmp_path, task, other):
    changed = written(tmp_path, "changed", **{task: other})
    with pytest.raises(SightlineError, match=f"MTEB {task} was scored on different test sets: SHA"):
        compared(tmp_path, written(tmp_path), changed)


def test_a_split_other_than_test_is_used_if_it_is_the_only_one(tmp_path):
    written(tmp_path, MSMARCO=("d4", {"dev": {"default": 0.1}}))
    found = compared(tmp_path, tmp_path / "an__encoder")
    assert means(found.table.rows[0])["MTEB MSMARCO"] == pytest.approx(10)


def test_a_run_without_scores_by_mteb_is_refused(tmp_path):
    file = save_result(made_result("mcse", scores={"STS12": 70.0}), tmp_path / "mcse.json")
    with pytest.raises(SightlineError, match=r"was scored on MTEB .*, but .* on STS12; only"):
        compared(tmp_path, file, written(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not JSON"), ('{"mteb_dataset_name": "STS12"}', "dataset_revision")],
)
def test_a_damaged_or_old_file_is_named(tmp_path, text, said):
    folder = written(tmp_path)
    (folder / "STS12.json").write_text(text)
    with pytest.raises(SightlineError, match=f"STS12.json: .*{said}.*a result of MTEB 1"):
        find_run(str(folder), tmp_path)
