"""Whole runs: resume, selection, export, what is written, and what stops a run."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_world import KillAfter, Killed, assert_equal, curves_of, silent, weights_of
from transformers import AutoModel, AutoTokenizer

from sightline.errors import SightlineError
from train import loop, progress
from train.data import TrainingData
from train.embed import Embedder
from train.evaluate.evaluation import Evaluation, evaluate_model, evaluate_run
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import load_result, save_result
from train.loop import LogWindow, NonFiniteLoss
from train.objectives import make_objective
from train.objectives.simcse import SimCSE
from train.records import RunState, RunSummary
from train.run_folder import RunFolder
from train.schedule import Schedule
from train.train_run import train_run

# ---- resuming, and what is said and logged ------------------------------------------------------

RESUMED = [
    {},
    {"gradient_accumulation": 3},
    {"chunk": 3},
    # killed between two entries of the log, whose means are over steps on both sides
    {"logging_steps": 3, "eval_steps": 4},
]


@pytest.mark.parametrize("train", RESUMED, ids=str)
def test_resume_gives_the_weights_and_the_log_of_an_uninterrupted_run(world, tmp_path, train):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train_run(world.spec(whole, "mcse", train=train), say=silent)
    spec = world.spec(broken, "mcse", train=train)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    lines = []
    resumed = train_run(spec, say=lines.append)
    assert "resuming after step 4" in lines[0]
    assert lines[1].endswith("of 6 steps on pairs")
    shown = r"mcse: step [56]/6  loss \S+  \d+ sentences/s  0:00:\d\d left"
    assert re.fullmatch(shown, lines[2])
    assert resumed.sentences == expected.sentences
    assert resumed.processes == (1,)
    assert_equal(weights_of(broken), weights_of(whole))
    curves = curves_of(resumed)
    assert curves == curves_of(expected)
    every = train.get("logging_steps", 1)
    assert [step for step, _ in curves["loss"]] == list(range(every, 7, every))


def test_the_time_left_of_a_resumed_run_follows_from_its_own_steps(monkeypatch):
    clock, lines = SimpleNamespace(monotonic=lambda: 0.0), []
    monkeypatch.setattr(progress, "time", clock)
    report, state = progress.ProgressReport("mcse", lines.append), RunState(steps=100, step=80)
    report.begin(state, torch.nn.Linear(1, 1))
    state.step, clock.monotonic = 90, lambda: 20.0
    report.log(state, {"loss": 1.0})
    assert lines == ["mcse: step 90/100  loss 1.0000  0:00:20 left"]


@pytest.mark.parametrize(
    ("steps", "stopped"),
    [(50, True), (5, False)],  # out of patience at the last step: nothing is left out
)
def test_early_stop_after_patience_scores_without_a_new_best(
    world, tmp_path, monkeypatch, steps, stopped
):
    scores = iter([1.0, 3.0, 2.0, 3.0, 2.5, 9.0])
    monkeypatch.setattr("train.train_run.dev_score", lambda *_: next(scores))
    train = {"max_steps": steps, "eval_steps": 1, "logging_steps": 25, "early_stopping_patience": 3}
    summary = train_run(world.spec(tmp_path, train=train), say=silent)
    assert (summary.steps, summary.best_step, summary.stopped_early) == (5, 2, stopped)
    assert [step for step, _ in summary.curve("loss")] == [5]  # the last step is always logged


def test_an_overflow_that_is_skipped_is_not_logged():
    window = LogWindow()
    window.add({"total": torch.tensor(2.0)}, {}, 1)
    window.step(torch.tensor(float("inf")), 8)
    assert window.means(1e-3) == {"loss": 2.0, "learning_rate": 1e-3}


def test_how_many_steps_are_on_pairs_is_said_and_recorded(world, tmp_path, monkeypatch):
    lines = []
    spec = world.spec(tmp_path / "mcse", "mcse", train={"max_steps": 5, "gradient_accumulation": 2})
    summary = train_run(spec, say=lines.append)
    data = TrainingData(spec, make_objective("mcse", spec.parameters))
    streams = [data[k].stream for k in range(10)]
    paired = sum("pairs" in streams[k : k + 2] for k in range(0, 10, 2))
    assert summary.steps_on_pairs == paired
    assert summary.sentences == sum(len(data[k]) for k in range(10))
    assert f"mcse: {paired} of 5 steps on pairs" in lines
    assert f"{paired} of 5 steps on pairs" in str(summary)
    monkeypatch.setattr(Schedule, "pairs_before", lambda self, k: -(-k // 60))
    for steps in (50, 51):
        assert not any("warning: fewer than one step" in line for line in lines)
        spec = world.spec(tmp_path / f"{steps}", "mcse", train={"max_steps": steps})
        with pytest.raises(Killed):
            train_run(spec, say=lines.append, callbacks=[KillAfter(1)])
        assert f"mcse: 1 of {steps} steps on pairs" in lines
    assert any("warning: fewer than one step in fifty is on pairs" in line for line in lines)


def test_a_batch_larger_than_its_stream_is_said(world, tmp_path):
    lines = []
    spec = world.spec(tmp_path / "mcse", "mcse", train={"batch_size": 20, "max_steps": 1})
    train_run(spec, say=lines.append)
    said = [line for line in lines if "a batch of" in line]
    assert said == ["mcse: a batch of pairs is all 18 pairs: batch_size is 20"]


def test_epochs_count_both_streams_and_log_what_plots_need(world, tmp_path):
    # 18 images in training, one caption each: 3 batches of 8; 40 sentences: 5 batches
    spec = world.spec(tmp_path, "mcse", train={"max_steps": None, "epochs": 1, "eval_steps": 5})
    summary = train_run(spec, say=silent)
    assert summary.steps == 8
    assert summary.sentences == 18 + 40
    assert [step for step, _ in summary.dev_history] == [5, 8]
    assert [step for step, _ in summary.curve("loss_text")] == list(range(1, 9))
    found = {name for entry in summary.log for name in entry}
    assert found >= {"learning_rate", "grad_norm", "dev", "sentences_per_second", "loss_image"}
    rates = [rate for _, rate in summary.curve("learning_rate")]
    assert rates == pytest.approx([1e-3 * (8 - n) / 8 for n in range(8)])


# ---- what is exported, recorded and scored ------------------------------------------------------


def test_export_gives_the_embeddings_that_were_evaluated(trained):
    out, _ = trained
    folder = out / "model"
    texts = ["a red circle", "the star is above the ring", "one cross painted white on the left"]
    ours = Embedder.load(folder, device="cpu").encode(texts)
    exported = SentenceTransformer(str(folder), device="cpu")
    assert exported.max_seq_length == 24  # the tokenizer's own, neither 16 nor 32
    np.testing.assert_allclose(exported.encode(texts), ours, atol=1e-6)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        states = model.eval()(**tokenizer(texts, padding=True, return_tensors="pt"))
    np.testing.assert_allclose(states.last_hidden_state[:, 0].numpy(), ours, atol=1e-6)
    assert set(load_file(out / "heads.safetensors")) == {
        f"{head}.0.{part}" for head in ("text", "grounding", "image") for part in ("weight", "bias")
    }


def test_the_card_says_data_objective_parameters_scores_and_features(trained):
    out, summary = trained
    card = (out / "model/README.md").read_text()
    assert "NAACL 2022" in card  # MCSE's paper
    for stream in summary.data:
        assert re.search(rf"^- {stream}: `[\w-]+`$", card, re.M)
    assert summary.features["image-tiny-cnn"].fingerprint in card
    assert "**Untrained weights**" in card
    assert f"Spearman × 100 = {max(score for _, score in summary.dev_history):.2f}" in card
    _, _, block = card.partition("```json\n")
    parameters = json.loads(block.partition("```")[0])
    assert parameters["objective"] == {"name": "mcse", **summary.parameters}
    assert parameters["train"]["learning_rate"] == 1e-3
    assert parameters["seed"] == summary.seed


def test_the_summary_records_the_cost_of_the_run(trained):
    out, summary = trained
    assert (summary.device, summary.precision) == ("cpu", "fp32")
    assert summary.peak_memory.keys() == {"host"}
    assert 50 << 20 < summary.peak_memory["host"] < 64 << 30
    weights = [w for name, w in weights_of(out).items() if not name.startswith("pooler.")]
    assert summary.trained_parameters == sum(tensor.numel() for tensor in weights)
    assert summary.seconds > 0
    assert summary.sentences_per_second == summary.sentences / summary.seconds


def test_peak_memory_is_the_largest_of_all_parts_of_a_run(world, tmp_path, monkeypatch):
    peaks = iter([{"host": 9}, *[{"host": 3}] * 9])  # of one checkpoint each
    monkeypatch.setattr(loop, "peak_memory", lambda device: next(peaks))
    assert train_run(world.spec(tmp_path), say=silent).peak_memory == {"host": 9}


def test_the_best_weights_are_exported_and_a_result_has_their_scores(world, tmp_path):
    # a destructive learning rate: the best score comes early
    train = {"learning_rate": 0.05, "max_steps": 8, "eval_steps": 1}
    spec = world.spec(tmp_path / "run", train=train)
    summary = train_run(spec, say=silent)
    step, score = max(summary.dev_history, key=lambda entry: entry[1])
    assert summary.best_step == step < summary.steps
    tasks = Evaluation.load({"similarity": {"data": spec.dev}, "geometry": {"data": spec.dev}})
    result, _ = evaluate_run(spec.out, tasks, tmp_path / "result.json", "cpu")
    assert result.scores["similarity"] == pytest.approx(score, abs=1e-9)
    assert result.training == summary
    assert load_result(tmp_path / "result.json") == result
    assert [path.name for path in spec.out.glob("*.safetensors")] == ["heads.safetensors"]


def test_only_what_changed_is_scored_again(world, finished_run, tmp_path):
    run, out = Path(shutil.copytree(finished_run, tmp_path / "run")), tmp_path / "result.json"
    dev, other = world.root / "dev.tsv", tmp_path / "other.tsv"
    other.write_text("".join(dev.read_text().splitlines(keepends=True)[:-1]))

    def scored(**files):
        tasks = {name: {"data": path} for name, path in files.items()}
        result, names = evaluate_run(run, Evaluation.load(tasks), out, "cpu")
        assert result == load_result(out)
        assert list(result.tasks)[: len(tasks)] == list(tasks)
        return names

    assert scored(similarity=dev) == ["similarity"]
    whole = out.read_bytes()
    assert scored(similarity=dev) == []
    assert out.read_bytes() == whole
    assert scored(similarity=dev, geometry=dev) == ["geometry"]
    assert scored(similarity=other, geometry=dev) == ["similarity"]
    both = out.read_bytes()
    with pytest.MonkeyPatch.context() as patch:  # a task left out keeps its scores
        patch.delattr(EvaluatedModel, "load")  # and needs no model
        assert scored(similarity=other) == []
        assert out.read_bytes() == both
        assert scored(geometry=dev, similarity=other) == []  # another order
    assert scored(similarity=dev) == ["similarity"]
    assert list(load_result(out).tasks) == ["similarity", "geometry"]
    out.write_bytes(both[:-20])  # a damaged one is replaced
    assert scored(similarity=dev) == ["similarity"]
    assert out.read_bytes() == whole
    summary = run / "run.json"
    summary.write_text(summary.read_text().replace('"max_steps": 6', '"max_steps": 7'))
    assert scored(similarity=dev) == ["similarity"]


@pytest.mark.parametrize("asked", [{"precision": "bf16"}, {"pooling": "mean"}])
def test_scores_of_another_arithmetic_or_pooling_are_not_those_of_the_run(
    finished_run, world, tmp_path, asked
):
    tasks = Evaluation.load({"similarity": {"data": world.root / "dev.tsv"}})
    own = evaluate_run(finished_run, tasks, tmp_path / "own.json", "cpu")[0]
    other = evaluate_model(EvaluatedModel.load(str(finished_run), device="cpu", **asked), tasks)
    assert other.marks in {("scored in bf16",), ("pooled by mean",)}
    save_result(other, tmp_path / "result.json")
    assert evaluate_run(finished_run, tasks, tmp_path / "result.json", "cpu")[0] == own


def test_a_figure_that_is_not_finite_keeps_no_run_from_going_on(world, tmp_path, monkeypatch):
    monkeypatch.setattr(SimCSE, "statistics", lambda self, batch: {"odd": torch.tensor(math.nan)})
    with pytest.raises(Killed):
        train_run(world.spec(tmp_path), say=silent, callbacks=[KillAfter(3)])
    train_run(world.spec(tmp_path), say=silent)
    assert RunSummary.read(tmp_path).curve("odd") == []


def test_several_seeds_of_a_run_make_one_row_of_the_command(world, finished_run, tmp_path, said):
    spec = world.spec(tmp_path / "1", seed=1)
    train_run(spec, say=silent)
    models = ["--model", finished_run, "--model", spec.out]
    words = ["evaluate", "similarity", "--data", str(spec.dev), "--device", "cpu", *models]
    code, out, err = said(*words, "--out", tmp_path / "results")
    assert code == 0, err
    assert re.search(r"simcse +0, 1 ", out)
    files = sorted(path.name for path in (tmp_path / "results").rglob("*.json"))
    assert files == ["seed-0.json", "seed-1.json"]
    code, out, err = said(*words, "--model", f"again={spec.out}", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [each["run"] for each in found] == ["simcse", "simcse", "again"]
    assert found[1]["tasks"] == found[2]["tasks"]
    code, _, err = said(*words, *models[2:])
    assert code == 1
    assert "two models are called 'simcse, seed 1'" in err


def test_a_result_gains_tasks_of_its_run_and_no_other(world, finished_run, tmp_path, said):
    other = world.spec(tmp_path / "other", seed=1, train={"max_steps": 2})
    train_run(other, say=silent)
    alike = Path(shutil.copytree(finished_run, tmp_path / "alike"))
    record = alike / "run.json"
    record.write_text(record.read_text().replace('"seconds": ', '"seconds": 1'))
    file = tmp_path / "results/simcse/seed-0.json"

    def evaluated(task, model, *more):
        words = ["--data", other.dev, "--device", "cpu", "--out", tmp_path / "results", *more]
        code, _, err = said("evaluate", task, "--model", model, *words)
        assert code == bool("error" in err)
        return err

    assert "written" in evaluated("similarity", finished_run)
    similarity = load_result(file).tasks["similarity"]
    assert "written" in evaluated("geometry", finished_run)
    assert load_result(file).tasks["similarity"] == similarity
    assert list(load_result(file).tasks) == ["similarity", "geometry"]
    before = file.read_bytes()
    for model, more, message in (
        (alike, (), f"{file}: has the scores of another run than {alike}"),
        (finished_run, ("--pooling", "mean"), "pooled as its folder says in fp32, not pooled by m"),
        (finished_run, ("--precision", "bf16"), "in fp32, not pooled as its folder says in bf16"),
        (other.out, (), f"{file}: has the scores of what {other.out} is not another seed of"),
    ):
        err = evaluated("similarity", model, *more)
        assert message in err
        remedy = re.search("--model (NAME=[^`]*)`", err)[1]
        assert "written" in evaluated("similarity", remedy, *more)
        shutil.rmtree(tmp_path / "results/NAME")
    assert file.read_bytes() == before
    assert "written" in evaluated("similarity", finished_run, "--pooling", "cls")  # its own
    assert sorted(path.name for path in file.parent.parent.rglob("*")) == [
        *("seed-0.json", "simcse")
    ]


def test_runs_of_one_name_that_differ_in_more_than_the_seed_need_names(
    world, finished_run, tmp_path, said
):
    other = world.spec(tmp_path / "other", seed=1, train={"max_steps": 2})
    train_run(other, say=silent)
    words = ["evaluate", "similarity", "--data", other.dev, "--device", "cpu"]
    code, _, err = said(*words, "--model", finished_run, "--model", other.out)
    assert code == 1
    assert f"two models are called 'simcse': {finished_run} and {other.out}; rename one" in err
    assert said(*words, "--model", finished_run, "--model", f"NAME={other.out}")[0] == 0


# ---- what stops a run ---------------------------------------------------------------------------


def nan_loss(value):
    return value * float("nan")


def nan_gradient(value):
    """The same value; its gradient is inf − inf."""
    return value + (value - value).sqrt()


@pytest.mark.parametrize(
    ("bad", "broken", "message"),
    [
        (3, nan_loss, r"step 4 \(micro-batch 3, .* text is nan\. .*checkpoint is of step 2\. "),
        (3, nan_gradient, r"step 4 \(.* gradient norm is nan\. .*checkpoint is of step 2\. "),
        (0, nan_loss, r"step 1 \(.* text is nan\. .*there is no checkpoint\. "),
    ],
)
def test_a_non_finite_value_stops_the_run_naming_its_batch_and_is_not_saved(
    world, finished_run, tmp_path, monkeypatch, bad, broken, message
):
    terms = SimCSE.terms

    def broken_terms(self, heads, batch, embeddings):
        found = terms(self, heads, batch, embeddings)
        return {name: broken(v) for name, v in found.items()} if batch.k == bad else found

    spec = world.spec(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SimCSE, "terms", broken_terms)
        with pytest.raises(NonFiniteLoss, match=message):
            train_run(spec, say=silent)
    assert RunFolder(tmp_path).state().step == (2 if bad == 3 else 0)
    train_run(spec, say=silent)  # resumes before it as if nothing had happened
    assert_equal(weights_of(tmp_path), weights_of(finished_run))


@pytest.mark.parametrize("damaged", ["features", "tokens"])
def test_a_flipped_byte_of_a_set_is_not_trained_on(world, tmp_path, damaged):
    root = Path(shutil.copytree(world.root, tmp_path / "world"))
    shard = next((root / damaged).glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    spec = replace(world, root=root).spec(tmp_path / "out", "mcse")
    with pytest.raises(SightlineError, match=f"{shard}: BLAKE3 .* run `sightline cache repair"):
        train_run(spec, say=silent)
    assert not (tmp_path / "out").exists()
