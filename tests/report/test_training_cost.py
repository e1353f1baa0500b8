"""What the training of each run took, in `sightline compare`."""

from __future__ import annotations

import json

import pytest
from invented_runs import SCORES, invented, training
from made_results import untrained_result

from train.report.comparison import compare_results, document_of
from train.report.formats import to_text
from train.report.run_tables import notes_on_training
from train.report.tables import parts_of, printable

CPU = {"device": "cpu", "precision": "fp32", "peak_memory": {"host": 900_000_000}}


def run(name, *trainings):
    """A run with a seed for each of ``trainings``."""
    return [
        invented(name, seed, SCORES["simcse"][seed], training=took)
        for seed, took in enumerate(trainings)
    ]


def tables(results):
    every = document_of(compare_results(results)).tables
    return [each for each in every if each.title.startswith("Training")]


def texts(table, rows=None):
    """Each row's name and cells as they are printed."""
    return [
        [row.name, *(" ".join(parts_of(row.cells.get(c.name), c)) for c in table.columns)]
        for row in (table.rows if rows is None else rows)
    ]


def headings(table):
    return [table.heading, *(column.heading for column in table.columns)]


def test_a_row_has_the_means_over_the_seeds_and_the_largest_memory():
    larger = training(120.0, peak_memory={"device": 7_000_000_000})
    (found,) = tables(run("simcse", training(60.0), larger, training(180.0, saving_seconds=30.0)))
    assert found.title == "Training (NVIDIA A100-SXM4-80GB, bf16, 1 process)"
    header = ["run", "seeds", "minutes", "sentences/s", "GPU memory", "parameters", "steps"]
    assert headings(found) == header
    # 192,000 sentences in 1, 2 and 3 minutes: 3200, 1600 and 1066.7 a second; saving took half one
    row = ["simcse", "0, 1, 2", "2.17 ± 1.26", "1,956 ± 1,110", "7.0 GB", "109.48 M", "3,000"]
    assert texts(found) == [row]
    seeds = [row[2:5] for row in texts(found, found.rows[0].details)]
    assert seeds == [
        ["1.00", "3,200", "5.1 GB"],
        ["2.00", "1,600", "7.0 GB"],
        ["3.50", "1,067", "5.1 GB"],
    ]


def test_steps_differ_after_an_early_stop_and_a_slow_rate_has_a_decimal():
    seeds = (training(60.0, steps=steps, sentences_per_second=12.34) for steps in (100, 300))
    (found,) = tables(run("slow", *seeds))
    (row,) = texts(found)
    assert (row[3], row[6]) == ("12.3", "200 ± 141")


def test_other_devices_are_marks_and_a_note():
    alike = [*run("simcse", training(60.0)), *run("mcse", training(30.0, processes=(1, 2)))]
    results = [*alike, *run("old", training(9000.0, **CPU))]
    (found,) = tables(results)
    assert found.title == "Training"
    assert [row.label for row in found.rows] == [
        "simcse (NVIDIA A100-SXM4-80GB, bf16, 1 process)",
        "mcse (NVIDIA A100-SXM4-80GB, bf16, 1, then 2 processes)",
        "old (cpu, fp32, 1 process)",
    ]
    assert headings(found)[4:6] == ["GPU memory", "process memory"]
    assert [row[4:6] for row in texts(found)[1:]] == [["5.1 GB", "–"], ["–", "900.0 MB"]]
    assert notes_on_training(results) == [
        "the runs were trained on different devices (NVIDIA A100-SXM4-80GB: simcse, mcse; cpu: "
        "old): minutes, sentences per second and memory are not comparable"
    ]
    assert notes_on_training(alike) == []


def test_seeds_on_different_devices_are_one_note_of_one_run():
    results = run("simcse", training(60.0), training(9000.0, **CPU))
    (found,) = tables(results)
    assert "GPU memory" not in found.names  # never of some of the seeds
    assert found.title == "Training (NVIDIA A100-SXM4-80GB / cpu, bf16 / fp32, 1 process)"
    assert len(notes_on_training(results)) == 1


@pytest.mark.parametrize(
    ("machine", "place"),
    [
        ({"processor": "AMD EPYC\x1b[2J 9B14"}, "AMD EPYC\ufffd[2J 9B14"),  # cannot clear a screen
        ({"device": "mps"}, "mps"),
    ],
)
def test_without_a_gpu_the_memory_is_that_of_the_process(machine, place):
    (found,) = tables(run("simcse", training(60.0, **{**CPU, **machine})))
    assert printable(found.title) == f"Training ({place}, fp32, 1 process)"
    assert (headings(found)[4], texts(found)[0][4]) == ("process memory", "900.0 MB")


def test_a_seed_without_a_best_step_makes_no_mean_over_the_others():
    log = [{"dev": 60.0, "step": 2}]
    best = training(60.0, best_step=2, dev="STS-B dev", log=log)
    assert "best step" in tables(run("simcse", best, best))[0].names
    assert "best step" not in tables(run("simcse", best, training(60.0)))[0].names


def test_models_that_were_not_trained_have_no_row():
    scores = invented("minilm", 0, SCORES["simcse"][0]).tasks["own"].model_dump()
    model = untrained_result("minilm", **scores)
    (found,) = tables([*run("simcse", training(60.0)), model])
    assert [row[0] for row in texts(found)] == ["simcse"]
    assert compare_results([model]).training is None
    assert tables([model]) == []


def test_the_json_has_the_figures_unrounded():
    results = run("simcse", training(100.0), training(101.0))
    (row,) = json.loads(to_text(document_of(compare_results(results)), "json"))["training"]["rows"]
    assert row["cells"]["minutes"]["seeds"] == [100 / 60, 101 / 60]
    assert row["cells"]["GPU memory"]["mean"] == 5_100_000_000
    assert row["cells"]["parameters"]["mean"] == 109_482_240
