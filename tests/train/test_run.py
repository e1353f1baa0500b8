"""Whole runs: resume, selection, export, what is written, and what stops a run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import KillAfter, Killed, World, assert_equal, curves_of, silent, weights_of
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from sightline.digest import blake3_of_file
from sightline.errors import SightlineError
from train import loop, progress, run_folder
from train.data import TrainingData
from train.embed import Embedder
from train.evaluate.evaluation import Evaluation, evaluate_run
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import load_result
from train.loop import LogWindow, NonFiniteLoss
from train.objectives import make_objective
from train.objectives.simcse import SimCSE
from train.records import RunState, RunSummary
from train.run_folder import RunFolder
from train.run_inputs import RunInputs
from train.run_spec import OF_THE_MACHINE
from train.schedule import Schedule
from train.train_run import train_run

RESUMED: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation": 3},
    {"chunk": 3},
    # killed between two entries of the log, whose means are over steps on both sides
    {"logging_steps": 3, "eval_steps": 4},
]


@pytest.mark.parametrize("train", RESUMED, ids=str)
def test_resume_gives_the_weights_and_the_log_of_an_uninterrupted_run(
    world: World, tmp_path: Path, train: dict[str, Any]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train_run(world.spec(whole, "mcse", train=train), say=silent)
    spec = world.spec(broken, "mcse", train=train)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    lines: list[str] = []
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


def test_the_time_left_of_a_resumed_run_follows_from_its_own_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, lines = SimpleNamespace(monotonic=lambda: 0.0), list[str]()
    monkeypatch.setattr(progress, "time", clock)
    report, state = progress.ProgressReport("mcse", lines.append), RunState(steps=100, step=80)
    report.begin(state, torch.nn.Linear(1, 1))  # pyright: ignore[reportArgumentType]
    state.step, clock.monotonic = 90, lambda: 20.0
    report.log(state, {"loss": 1.0})
    assert lines == ["mcse: step 90/100  loss 1.0000  0:00:20 left"]


def test_checkpoints_are_as_often_as_told(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path, train={"save_steps": 3})
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    lines: list[str] = []
    train_run(spec, say=lines.append)
    assert "resuming after step 3" in lines[0]


@pytest.mark.parametrize("patience", [None, 1])
def test_the_last_step_is_always_logged(world: World, tmp_path: Path, patience: int | None) -> None:
    train: dict[str, Any] = {"max_steps": 5, "logging_steps": 25, "eval_steps": 1}
    if patience:
        train |= {"learning_rate": 1e-12, "early_stopping_patience": patience}
    summary = train_run(world.spec(tmp_path, train=train), say=silent)
    assert summary.stopped_early == bool(patience)
    assert [entry["step"] for entry in summary.log if "loss" in entry] == [summary.steps]


def test_an_overflow_that_is_skipped_is_not_logged() -> None:
    window = LogWindow()
    window.add({"total": torch.tensor(2.0)}, {}, 1)
    window.step(torch.tensor(float("inf")), 8)
    assert window.means(1e-3) == {"loss": 2.0, "learning_rate": 1e-3}


def test_how_many_steps_are_on_pairs_is_said_and_recorded(world: World, tmp_path: Path) -> None:
    lines: list[str] = []
    spec = world.spec(tmp_path / "mcse", "mcse", train={"max_steps": 5, "gradient_accumulation": 2})
    summary = train_run(spec, say=lines.append)
    data = TrainingData(spec, make_objective("mcse", spec.parameters))
    streams = [data[k].stream for k in range(10)]
    paired = sum("pairs" in streams[k : k + 2] for k in range(0, 10, 2))
    assert summary.steps_on_pairs == paired
    assert f"mcse: {paired} of 5 steps on pairs" in lines
    assert f"{paired} of 5 steps on pairs" in str(summary)
    assert not any("warning: fewer than one step" in line for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Schedule, "pairs_before", lambda self, k: -(-k // 60))
        spec = world.spec(tmp_path / "few", "mcse", train={"max_steps": 60, "eval_steps": 60})
        lines.clear()
        assert train_run(spec, say=lines.append).steps_on_pairs == 1
    assert "mcse: 1 of 60 steps on pairs" in lines
    assert any("warning: fewer than one step in fifty is on pairs" in line for line in lines)
    lines.clear()
    train_run(world.spec(tmp_path / "simcse"), say=lines.append)
    assert not any("on pairs" in line for line in lines)  # it reads no features


def test_a_resumed_run_reads_its_checkpoint_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.spec(tmp_path)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    hashed: list[Path] = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return blake3_of_file(path)

    monkeypatch.setattr(run_folder, "blake3_of_file", counted)
    train_run(spec, say=silent)
    saved = [path for path in hashed if path.is_relative_to(tmp_path / "checkpoints")]
    assert sorted(path.name for path in saved) == ["loop.pt", "model.safetensors"]


def test_epochs_count_both_streams_and_log_what_plots_need(world: World, tmp_path: Path) -> None:
    # 18 images in training, one caption each: 3 batches of 8; 40 sentences: 5 batches
    spec = world.spec(tmp_path, "mcse", train={"max_steps": None, "epochs": 1, "eval_steps": 5})
    summary = train_run(spec, say=silent)
    assert summary.steps == 8
    assert summary.sentences == 18 + 40
    assert [step for step, _ in summary.dev_history] == [5, 8]
    assert [entry["step"] for entry in summary.log if "loss_text" in entry] == list(range(1, 9))
    found = {name for entry in summary.log for name in entry}
    assert found >= {"learning_rate", "grad_norm", "dev", "sentences_per_second", "loss_image"}
    rates = [entry["learning_rate"] for entry in summary.log if "learning_rate" in entry]
    assert rates == pytest.approx([1e-3 * (8 - n) / 8 for n in range(8)])


def test_export_gives_the_embeddings_that_were_evaluated(world: World, tmp_path: Path) -> None:
    summary = train_run(world.spec(tmp_path, "mcse"), say=silent)
    folder = tmp_path / "model"
    texts = ["a red circle", "the star is above the ring", "one cross painted white on the left"]
    ours = Embedder.load(folder, device="cpu").encode(texts)
    exported = SentenceTransformer(str(folder), device="cpu")
    assert exported.max_seq_length == 24  # the tokenizer's own, neither 16 nor 32
    np.testing.assert_allclose(exported.encode(texts), ours, atol=1e-6)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        states = model.eval()(**tokenizer(texts, padding=True, return_tensors="pt"))
    np.testing.assert_allclose(states.last_hidden_state[:, 0].numpy(), ours, atol=1e-6)
    assert_card(folder / "README.md", summary)
    assert set(load_file(tmp_path / "heads.safetensors")) == {
        f"{head}.0.{part}" for head in ("text", "grounding", "image") for part in ("weight", "bias")
    }


def assert_card(path: Path, summary: RunSummary) -> None:
    """The model card says data, objective, parameters, scores and features."""
    card = path.read_text()
    assert "NAACL 2022" in card  # MCSE's paper
    assert all(file in card for file in summary.data.values())
    assert summary.features["image-tiny-cnn"].fingerprint in card
    assert "**Untrained weights**" in card
    assert f"Spearman × 100 = {max(score for _, score in summary.dev_history):.2f}" in card
    _, _, block = card.partition("```json\n")
    parameters = json.loads(block.partition("```")[0])
    assert parameters["objective"] == {"name": "mcse", **summary.parameters}
    assert parameters["train"]["learning_rate"] == 1e-3
    assert parameters["seed"] == summary.seed


def test_the_best_weights_are_exported_and_score_what_the_history_says(
    world: World, tmp_path: Path
) -> None:
    from train.evaluate.sts import load_graded_pairs
    from train.train_run import dev_score

    # a destructive learning rate: the best score comes early
    spec = world.spec(tmp_path, train={"learning_rate": 0.05, "max_steps": 8, "eval_steps": 1})
    summary = train_run(spec, say=silent)
    best = max(summary.dev_history, key=lambda entry: entry[1])
    assert summary.best_step == best[0]
    assert spec.dev is not None
    embedder = Embedder.load(tmp_path / "model", device="cpu")
    assert dev_score(embedder, load_graded_pairs(spec.dev), 64) == pytest.approx(best[1], abs=1e-9)


def scored_on(pairs: Path) -> Evaluation:
    return Evaluation.load({"similarity": {"data": pairs}, "geometry": {"data": pairs}})


def test_a_result_has_the_scores_of_the_best_weights(world: World, tmp_path: Path) -> None:
    train = {"learning_rate": 0.05, "max_steps": 8, "eval_steps": 1}
    spec = world.spec(tmp_path / "run", train=train)
    summary = train_run(spec, say=silent)
    assert summary.best_step is not None
    assert summary.best_step < summary.steps
    assert spec.dev is not None
    sets = scored_on(spec.dev)
    result, _ = evaluate_run(tmp_path / "run", sets, tmp_path / "result.json", "cpu")
    history = dict(summary.dev_history)
    assert result.scores["similarity"] == pytest.approx(history[summary.best_step], abs=1e-9)
    assert [path.name for path in (tmp_path / "run").glob("*.safetensors")] == ["heads.safetensors"]


def test_only_what_changed_is_scored_again(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path / "run", train={"max_steps": 2, "eval_steps": 1})
    train_run(spec, say=silent)
    assert spec.dev is not None
    run, out = tmp_path / "run", tmp_path / "result.json"
    other = tmp_path / "other.tsv"
    other.write_text("".join(spec.dev.read_text().splitlines(keepends=True)[:-1]))

    def scored(similarity: Path, **more: Path) -> list[str]:
        given = {"similarity": {"data": similarity}}
        given |= {name: {"data": path} for name, path in more.items()}
        result, names = evaluate_run(run, Evaluation.load(given), out, "cpu")
        assert result == load_result(out)
        assert list(result.tasks) == list(given)
        return names

    assert scored(spec.dev) == ["similarity"]
    whole = out.read_bytes()
    assert scored(spec.dev) == []
    assert out.read_bytes() == whole
    assert scored(spec.dev, geometry=spec.dev) == ["geometry"]
    assert scored(other, geometry=spec.dev) == ["similarity"]
    with pytest.MonkeyPatch.context() as patch:  # a task left out takes its scores along
        patch.delattr(EvaluatedModel, "load")  # and needs no model
        assert scored(other) == []
    assert scored(spec.dev) == ["similarity"]
    assert out.read_bytes() == whole
    assert load_result(out).training.processes == (1,)
    out.write_bytes(whole[:-20])  # a damaged one is replaced
    assert scored(spec.dev) == ["similarity"]
    summary = run / "run.json"
    summary.write_text(summary.read_text().replace('"max_steps": 2', '"max_steps": 3'))
    assert scored(spec.dev) == ["similarity"]


def test_a_result_says_what_its_run_was_trained_on(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path / "run", train={"max_steps": 1, "eval_steps": 1})
    train_run(spec, say=silent)
    assert spec.dev is not None
    run, out, sets = tmp_path / "run", tmp_path / "result.json", scored_on(spec.dev)
    result, _ = evaluate_run(run, sets, out, "cpu")
    assert result.training == RunSummary.read(run)
    assert result.training.data != {}
    assert load_result(out) == result


def test_several_seeds_of_a_run_make_one_row_of_the_command(
    world: World, tmp_path: Path, said: Callable[..., tuple[int, str, str]]
) -> None:
    models: list[str] = []
    for seed in (0, 1):
        spec = world.spec(tmp_path / f"{seed}", seed=seed, train={"max_steps": 2, "eval_steps": 1})
        train_run(spec, say=silent)
        models += ["--model", str(tmp_path / f"{seed}")]
    words = ["evaluate", "similarity", "--set", f"data={spec.dev}", "--device", "cpu"]
    code, out, err = said(*words, *models, "--out", tmp_path / "results")
    assert code == 0, err
    assert re.search(r"simcse +0, 1 ", out)
    files = sorted(path.name for path in (tmp_path / "results").rglob("*.json"))
    assert files == ["seed-0.json", "seed-1.json"]
    code, out, err = said(*words, *models, "--model", f"again={tmp_path / '1'}", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [each["run"] for each in found] == ["simcse", "simcse", "again"]
    assert found[1]["tasks"] == found[2]["tasks"]
    code, _, err = said(*words, *models, *models[2:])
    assert code == 1
    assert "two models are called 'simcse, seed 1'" in err


def test_the_summary_records_the_cost_of_the_run(world: World, tmp_path: Path) -> None:
    summary = train_run(world.spec(tmp_path, "mcse"), say=silent)
    assert (summary.device, summary.precision) == ("cpu", "fp32")
    assert summary.negatives_per_anchor == 7
    assert summary.peak_memory.keys() == {"host"}
    assert 50 << 20 < summary.peak_memory["host"] < 64 << 30
    trained = sum(tensor.numel() for tensor in weights_of(tmp_path).values())
    assert summary.trained_parameters == trained
    assert summary.seconds > 0
    assert summary.sentences_per_second == summary.sentences / summary.seconds


def test_peak_memory_is_the_largest_of_all_parts_of_a_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = iter([{"host": 9}, *[{"host": 3}] * 9])  # of one checkpoint each
    monkeypatch.setattr(loop, "peak_memory", lambda device: next(peaks))
    assert train_run(world.spec(tmp_path), say=silent).peak_memory == {"host": 9}


def test_early_stop_after_patience_scores_without_a_new_best(world: World, tmp_path: Path) -> None:
    train = {"learning_rate": 1e-12, "max_steps": 50, "eval_steps": 1}
    train["early_stopping_patience"] = 3
    summary = train_run(world.spec(tmp_path / "stopped", train=train), say=silent)
    assert summary.stopped_early
    assert summary.best_step is not None
    assert summary.steps == summary.best_step + 3 < 50
    train["max_steps"] = summary.steps  # out of patience at the last step: nothing is left out
    assert not train_run(world.spec(tmp_path / "whole", train=train), say=silent).stopped_early


def test_a_finished_run_is_not_trained_again_but_a_changed_one_is(
    world: World, tmp_path: Path
) -> None:
    first = train_run(world.spec(tmp_path), say=silent)
    lines: list[str] = []
    assert train_run(world.spec(tmp_path), say=lines.append) == first
    assert len(lines) == 1
    assert "nothing to do" in lines[0]
    other = train_run(world.spec(tmp_path, seed=1), say=silent)
    assert other.spec_digest != first.spec_digest
    assert RunSummary.read(tmp_path) == other


def test_settings_of_the_machine_keep_a_finished_run(world: World, tmp_path: Path) -> None:
    others = {
        "device_cache": 0.1,
        "eval_batch_size": 7,
        "logging_steps": 2,
        "save_steps": 3,
    }
    assert others.keys() == OF_THE_MACHINE
    spec = world.spec(tmp_path / "run", train={"max_steps": 2})
    first = train_run(spec, say=silent)
    moved = shutil.copytree(world.student, tmp_path / "elsewhere" / "student")
    for changed in ({"train": others}, {"student": {"model": str(moved)}}, {"device": "auto"}):
        changes = {**changed, "train": {"max_steps": 2, **changed.get("train", {})}}
        assert train_run(world.spec(tmp_path / "run", **changes), say=silent) == first
    for train in ({"chunk": 4}, {"compile": "on"}, {"precision": "bf16"}):
        changed = RunInputs.open(world.spec(tmp_path / "run", train={"max_steps": 2, **train}))
        assert changed.digest != first.spec_digest


def test_a_checkpoint_with_different_parameters_is_not_resumed(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        train_run(world.spec(tmp_path), say=silent, callbacks=[KillAfter(5)])
    lines: list[str] = []
    train_run(world.spec(tmp_path, train={"learning_rate": 2e-3}), say=lines.append)
    assert "starting over" in lines[0]


def test_a_checkpoint_of_another_optimiser_is_an_error_and_is_kept(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    message = (
        "its checkpoint was made with train.optimizer released, but this run has torch; "
        "set released to resume, or delete .*checkpoints to start over"
    )
    with pytest.raises(SightlineError, match=message):
        train_run(world.spec(tmp_path, train={"optimizer": "torch"}), say=silent)
    lines: list[str] = []
    train_run(spec, say=lines.append)
    assert "resuming after step 4" in lines[0]


def nan_loss(value: torch.Tensor) -> torch.Tensor:
    return value * float("nan")


def nan_gradient(value: torch.Tensor) -> torch.Tensor:
    """The same value; its gradient is inf − inf."""
    return value + (value - value).sqrt()


@pytest.mark.parametrize(
    ("k", "broken", "message"),
    [
        (
            3,
            nan_loss,
            r"step 4 \(micro-batch 3, .* text is nan\. .*checkpoint is of step 2\. ",
        ),
        (3, nan_gradient, r"step 4 \(.* gradient norm is nan\. .*checkpoint is of step 2\. "),
        (0, nan_loss, r"step 1 \(.* text is nan\. .*there is no checkpoint\. "),
    ],
)
def test_a_non_finite_value_stops_the_run_naming_its_batch_and_is_not_saved(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    k: int,
    broken: Callable[[torch.Tensor], torch.Tensor],
    message: str,
) -> None:
    reference = tmp_path / "reference"
    train_run(world.spec(reference, train={"max_steps": 6, "eval_steps": 2}), say=silent)
    terms = SimCSE.terms

    def break_at_k(self: Any, batch: Any, views: Any, heads: Any) -> Any:
        found = terms(self, batch, views, heads)
        return {name: broken(v) for name, v in found.items()} if batch.k == k else found

    out = tmp_path / "out"
    spec = world.spec(out, train={"max_steps": 6, "eval_steps": 2})
    monkeypatch.setattr(SimCSE, "terms", break_at_k)
    with pytest.raises(NonFiniteLoss, match=message):
        train_run(spec, say=silent)
    state = RunFolder(out).state()
    assert state is not None
    assert state.step == (2 if k == 3 else 0)
    report = json.loads((out / "failure.json").read_text())
    assert (report["step"], report["micro_batch"]) == (k + 1, k)
    batch = TrainingData(spec, make_objective("simcse", {}))[k]
    assert report["keys"] == [key.tobytes().hex() for key in batch.keys]
    monkeypatch.undo()
    train_run(spec, say=silent)  # resumes before it as if nothing had happened
    assert_equal(weights_of(out), weights_of(reference))


@pytest.mark.parametrize("damaged", ["features", "tokens"])
def test_a_flipped_byte_of_a_set_is_not_trained_on(
    world: World, tmp_path: Path, damaged: str
) -> None:
    root = Path(shutil.copytree(world.root, tmp_path / "world"))
    other = replace(world, root=root)
    shard = next((root / damaged).glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SightlineError, match=f"{shard}: BLAKE3 .* run `sightline cache repair"):
        train_run(other.spec(tmp_path / "out", "mcse"), say=silent)
    assert not (tmp_path / "out").exists()
