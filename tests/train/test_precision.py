"""bf16 and `precision: auto`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import World, silent
from kills import KillAfter, Killed
from safetensors.torch import load_file

from sightline.errors import SightlineError
from train import precision_probe
from train.data import TrainingData
from train.model import GroundedModel, load_student
from train.objectives import make_objective
from train.precision_probe import probe, probed
from train.probe_record import PrecisionProbe
from train.run_summary import RunSummary
from train.train_run import train_run

CPU = torch.device("cpu")
FAST = PrecisionProbe(machine="one", fp32=2.0, bf16=1.0)
SLOW = PrecisionProbe(machine="another", fp32=1.0, bf16=2.0)


def test_bf16_rounds_the_weights_once_and_trains_the_float32_ones(world: World) -> None:
    spec = world.spec(Path("unused"), "mcse")
    objective = make_objective("mcse", spec.parameters)
    data = TrainingData(spec, objective)
    encoder, _ = load_student(spec.student)
    model = GroundedModel(encoder, objective, "cls", data.dims).eval()
    batch = data[0]
    exact, _ = model.encode(batch.sentences)
    model.precision = "bf16"
    rounded, _ = model.encode(batch.sentences)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    cosine = torch.nn.functional.cosine_similarity(rounded, exact, dim=-1)
    assert cosine.min() > 0.999
    model(batch)["total"].backward()
    gradients = [p.grad for p in encoder.parameters()]
    assert all(each is not None and each.dtype == torch.float32 for each in gradients)
    assert all(p.dtype == torch.float32 for p in encoder.parameters())


def test_the_faster_precision_is_taken_if_it_is_clearly_faster() -> None:
    assert (FAST.choice, SLOW.choice) == ("bf16", "fp32")
    assert PrecisionProbe(machine="", fp32=1.04, bf16=1.0).choice == "fp32"
    assert PrecisionProbe(machine="", fp32=1.06, bf16=1.0).choice == "bf16"


def test_a_probe_measures_both_and_leaves_random_states_alone(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path, "mcse", train={"precision": "auto"})
    data = TrainingData(spec, make_objective("mcse", spec.parameters))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    found = probe(spec, data, CPU, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.fp32 > 0
    assert found.bf16 > 0
    assert "threads" in found.machine


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model/model.safetensors")


@pytest.mark.parametrize(("found", "precision"), [(FAST, "bf16"), (SLOW, "fp32")])
def test_auto_trains_exactly_what_asking_for_its_choice_does(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: PrecisionProbe,
    precision: str,
) -> None:
    monkeypatch.setattr(precision_probe, "probe", lambda *given: found)
    said: list[str] = []
    auto = world.spec(tmp_path / "auto", "mcse", train={"precision": "auto"})
    summary = train_run(auto, say=said.append)
    assert any("precision auto" in line and f"{found.gain:.2f} x" in line for line in said)
    assert (summary.precision, summary.precision_probe) == (precision, found)
    plain = world.spec(tmp_path / "plain", "mcse", train={"precision": precision})
    expected = train_run(plain, say=silent)
    assert summary.spec_digest == expected.spec_digest
    for name, weight in weights_of(tmp_path / "plain").items():
        assert torch.equal(weight, weights_of(tmp_path / "auto")[name])


def test_a_resumed_or_finished_run_keeps_its_choice(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.spec(tmp_path, "mcse", train={"precision": "auto"})
    monkeypatch.setattr(precision_probe, "probe", lambda *given: FAST)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(4)])
    # resumed on a machine where fp32 is faster
    monkeypatch.setattr(precision_probe, "probe", lambda *given: SLOW)
    said: list[str] = []
    summary = train_run(spec, say=said.append)
    assert any("resuming from checkpoint-" in line for line in said)
    assert (summary.precision, summary.precision_probe) == ("bf16", FAST)
    said.clear()
    assert train_run(spec, say=said.append) == summary
    assert any("already trained" in line for line in said)
    # other parameters are another run
    changed = world.spec(tmp_path, "mcse", train={"precision": "auto", "learning_rate": 1e-4})
    assert train_run(changed, say=silent).precision == "fp32"
    assert RunSummary.read(tmp_path).precision_probe == SLOW


def test_the_runs_of_a_study_share_one_probe(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "precision" / "probes.json"
    made = iter((FAST, SLOW))
    monkeypatch.setattr(precision_probe, "probe", lambda *given: next(made))

    def found(**changes: object) -> PrecisionProbe:
        spec = world.spec(tmp_path / "run", "mcse", precision_file=file, **changes)
        return probed(spec, data, CPU, 8)

    data = TrainingData(world.spec(tmp_path, "mcse"), make_objective("mcse", {"image": "tiny-cnn"}))
    assert found() == FAST
    assert found(seed=3) == FAST
    assert found(student={"layers": 1}) == SLOW  # another shape of encoder
    assert found() == FAST
    file.write_text(file.read_text()[:-20])
    with pytest.raises(SightlineError, match=r"probes\.json: not the probes .* delete it"):
        found()
    file.write_text(json.dumps({"mine": 1}))
    with pytest.raises(SightlineError, match="delete it"):
        found()
