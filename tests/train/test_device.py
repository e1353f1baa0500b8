"""Where a run trains: the device that was asked for, and batches that are ready there in time."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training_world import assert_equal, silent, weights_of

import train.progress  # noqa: F401, so that it has the real `runs_ahead`
from sightline import devices
from sightline.devices import pick_device, use_device
from sightline.errors import SightlineError
from train import loop
from train.batch import Batch
from train.data import ReadAhead, TrainingData, make_feed
from train.distributed import Processes
from train.embed import Embedder
from train.loop import Callback, Loop, NonFiniteLoss, StepLosses, first_bad
from train.model import Student
from train.objectives import make_objective
from train.objectives.mcse import MCSE
from train.records import RunSummary
from train.train_run import train_run

CPU = torch.device("cpu")


def test_a_missing_device_is_an_error_and_never_replaced(monkeypatch):
    assert pick_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    for name, message in (
        ("cuda", "device 'cuda' was requested.*CUDA is not available"),
        ("cuda:1", "device 'cuda:1' was requested.*CUDA is not available"),
        ("mps", "'mps' was requested"),
        *((name, "unknown device") for name in ("gpu", "cuda:x", "cuda:", "cpu:0x")),
    ):
        with pytest.raises(SightlineError, match=message):
            pick_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("mps")


def test_a_worker_opens_nothing_on_another_gpu(monkeypatch):
    """Pinned memory and streams name no GPU, so they would open a context on the first one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert use_device("cuda:1") == torch.device("cuda", 1)
    assert use_device("cpu") == CPU
    assert chosen == [torch.device("cuda", 1)]


def test_a_process_has_the_gpu_of_its_number_on_its_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == torch.device("cuda", 0)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(SightlineError, match="has 2 CUDA devices"):
        pick_device("cuda:2")
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")  # the second of the second machine
    assert [Processes(3, 4).device("cuda")] == chosen == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(SightlineError, match="process 3 is number 2 on this machine, which has 2"):
        Processes(3, 4).device("auto")


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        ("fp16", "precision fp16 needs a GPU; on a CPU use fp32 or bf16"),
        ("tf32", r"tf32 needs an NVIDIA GPU .* 8.0 .*, but this run computes on cpu; use fp32"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused_at_the_start(
    world, tmp_path, precision, message
):
    spec = world.spec(tmp_path / "run", train={"precision": precision})
    with pytest.raises(SightlineError, match=message):
        train_run(spec, say=silent)
    assert not (tmp_path / "run").exists()


def test_gpus_multiply_in_tf32_from_the_a100_on(monkeypatch):
    of = {"cuda:0": (7, 5), "cuda:1": (8, 0), "cuda:2": (12, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: of[str(device)])
    names = ["cpu", "mps", *of]
    assert [devices.has_tf32(torch.device(name)) for name in names] == [False] * 3 + [True] * 2
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not devices.has_tf32(torch.device("cuda:1"))


def settings_of_products() -> list[str]:
    parts = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    return [torch.get_float32_matmul_precision(), *(part.fp32_precision for part in parts)]


@pytest.fixture(params=["highest", "high", "medium"])
def of_the_user(request):
    """What PyTorch's setting is before a run, which the run must leave."""
    parts = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    before = settings_of_products()
    torch.set_float32_matmul_precision(request.param)
    yield settings_of_products()
    torch.set_float32_matmul_precision(before[0])
    for part, precision in zip(parts, before[1:], strict=True):
        part.fp32_precision = precision


@pytest.mark.parametrize(("precision", "within"), [("fp32", "highest"), ("tf32", "high")])
def test_a_run_multiplies_in_its_own_precision_and_leaves_pytorchs_setting(
    world, tmp_path, monkeypatch, of_the_user, precision, within
):
    found = []

    class Look(Callback):
        def step(self, state):
            found.append(("step", torch.get_float32_matmul_precision()))

    real = Embedder._embed

    def embed(embedder, batch):
        found.append(("dev score", torch.get_float32_matmul_precision()))
        return real(embedder, batch)

    monkeypatch.setattr("train.train_run.has_tf32", lambda device: True)
    monkeypatch.setattr(Embedder, "_embed", embed)
    told = {"max_steps": 2, "precision": precision}
    run = train_run(world.spec(tmp_path / "run", train=told), say=silent, callbacks=[Look()])
    assert set(found) == {("step", within), ("dev score", "highest")}
    assert run.precision == precision
    assert settings_of_products() == of_the_user


def test_a_setting_of_one_backend_alone_is_left_too(monkeypatch):
    before = settings_of_products()
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # as `torch.get_…` cannot tell
    with devices.float32_products(tf32=False):
        assert settings_of_products()[1] == "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    torch.backends.cuda.matmul.fp32_precision = before[1]
    assert settings_of_products() == before


# ---- batches ------------------------------------------------------------------------------------


def assert_same(one: Batch, other: Batch) -> None:
    ids, same = one.sentences.input_ids, other.sentences.input_ids
    assert torch.equal(ids, same)
    assert ids.dtype == same.dtype == torch.int64
    assert one.sentences.lengths.tolist() == other.sentences.lengths.tolist()
    assert one.keys.tolist() == other.keys.tolist()
    assert one.features.keys() == other.features.keys()
    for feature, rows in one.features.items():
        assert rows.dtype == other.features[feature].dtype == torch.float32
        assert torch.equal(rows, other.features[feature])
    assert one.blocks.keys() == other.blocks.keys()
    if "phrases" in one.blocks:
        for part in ("owners", "starts", "ends"):
            assert torch.equal(getattr(one.phrases, part), getattr(other.phrases, part))
        assert one.phrases.counts.tolist() == other.phrases.counts.tolist()


@pytest.fixture
def data(world, tmp_path):
    """Batches in which several captions share a row of features."""
    parameters = {"image": "tiny-cnn", "caption": "all"}
    spec = world.spec(tmp_path / "unused", "mcse", parameters=parameters)
    return TrainingData(spec, make_objective("mcse", parameters))


def test_batches_of_a_device_are_those_of_the_host(data):
    numbers = range(2 * len(data))
    expected, size = [data[k] for k in numbers], data.nbytes
    data.move_to(CPU)
    assert data.nbytes == size > 0
    for k in numbers:
        assert_same(data[k], expected[k])


def test_reading_ahead_changes_nothing_and_happens_in_a_thread(data, monkeypatch):
    expected = [data[k] for k in range(6)]
    readers, read = set(), TrainingData.__getitem__

    def spied(self, k):
        readers.add(threading.current_thread().name.split("_")[0])
        return read(self, k)

    monkeypatch.setattr(TrainingData, "__getitem__", spied)
    ahead = ReadAhead(data, CPU)
    for k in (0, 1, 2, 5, 3, 4):  # a resumed run begins anywhere
        assert_same(ahead(k), expected[k])
    assert readers == {"read-ahead"}


def test_what_does_not_fit_is_read_ahead(data, world, tmp_path, monkeypatch):
    total, moved = 4 * data.nbytes, []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total, total))
    monkeypatch.setattr(data, "move_to", moved.append)
    device = torch.device("cuda", 0)
    assert isinstance(make_feed(data, device, 0.2), ReadAhead)
    assert isinstance(make_feed(data, device, 0.0), ReadAhead)
    assert moved == []
    assert not isinstance(make_feed(data, device, 0.25), ReadAhead)
    assert moved == [device]
    with pytest.raises(ValueError, match="device_cache"):
        world.spec(tmp_path, train={"device_cache": 1.0})


# ---- nothing waits for the device ---------------------------------------------------------------


class NoWait(TorchDispatchMode):
    """Fails on every operation that reads a tensor's values, which on a GPU waits for it."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in self.WAITS:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def runs_ahead(monkeypatch):
    """The CPU is looked at as rarely as a GPU."""
    monkeypatch.setattr(devices, "runs_ahead", lambda device: True)


def test_no_step_waits_for_the_device(world, tmp_path, monkeypatch, runs_ahead):
    """With what a GPU has besides: features that lie there, and one length group."""
    step, steps = Loop._step, []

    def moved(data, device, share):
        data.move_to(device)
        return data.__getitem__

    def watched(self):
        with NoWait():
            step(self)
        steps.append(self.state.step)

    monkeypatch.setattr(loop, "make_feed", moved)
    monkeypatch.setattr(Student, "_overhead", lambda self, device: None)
    monkeypatch.setattr(Loop, "_step", watched)
    told = {"max_steps": 6, "eval_steps": 3, "logging_steps": 3}
    summary = train_run(world.spec(tmp_path, "mcse", train=told), say=silent)
    assert steps == [1, 2, 3, 4, 5, 6]
    assert [entry["step"] for entry in summary.log if "loss" in entry] == [3, 6]


def test_looking_rarely_gives_the_same_weights(world, tmp_path, request):
    told = {"max_steps": 8, "eval_steps": 4, "logging_steps": 4}
    one = train_run(world.spec(tmp_path / "one", "mcse", train=told), say=silent)
    request.getfixturevalue("runs_ahead")
    other = train_run(world.spec(tmp_path / "other", "mcse", train=told), say=silent)
    assert_equal(weights_of(tmp_path / "one"), weights_of(tmp_path / "other"))
    assert [e.get("loss") for e in one.log] == [e.get("loss") for e in other.log]
    assert other.seconds > 0


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_bad_step_is_found_late_and_nothing_is_saved_after_it(
    world, tmp_path, monkeypatch, runs_ahead, accumulation
):
    """Terms are read once in four steps, before a score or a checkpoint could have bad weights."""
    told = {"max_steps": 8, "eval_steps": 4, "logging_steps": 8}
    told["gradient_accumulation"] = accumulation
    healthy, bad, looks = MCSE.terms, 5 * accumulation, []

    def terms(self, heads, batch, embeddings):
        found = healthy(self, heads, batch, embeddings)
        factor = float("nan") if batch.k == bad else 1.0
        return {**found, "text": found["text"] * factor}

    def counted(steps, *, norm_counts):
        looks.append(len(steps))
        return first_bad(steps, norm_counts=norm_counts)

    run, whole = tmp_path / "run", tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(MCSE, "terms", terms)
        patch.setattr(loop, "first_bad", counted)
        message = rf"step 6 \(micro-batch {bad}, \w+\): text is nan\. .*checkpoint is of step 4\. "
        with pytest.raises(NonFiniteLoss, match=message):
            train_run(world.spec(run, "mcse", train=told), say=silent)
    assert looks == [4, 4]
    assert json.loads((run / "checkpoints/state.json").read_text())["step"] == 4
    # resumed from there without the fault, it is the run that never had it
    train_run(world.spec(run, "mcse", train=told), say=silent)
    expected = train_run(world.spec(whole, "mcse", train=told), say=silent)
    assert_equal(weights_of(run), weights_of(whole))
    assert RunSummary.read(run).sentences == expected.sentences


def test_the_first_bad_step_is_named_and_an_overflow_that_is_skipped_is_none():
    fine, bad, huge = (torch.tensor(value) for value in (1.0, float("nan"), float("inf")))
    healthy: StepLosses = (1, {0: {"text": fine, "total": fine}}, fine)
    overflow: StepLosses = (2, {1: {"text": fine, "total": fine}}, huge)
    broken: StepLosses = (3, {2: {"text": bad, "image": fine, "total": bad}}, bad)
    assert first_bad([], norm_counts=True) is None
    assert first_bad([healthy], norm_counts=True) is None
    found = first_bad([healthy, overflow, broken], norm_counts=True)
    assert found == (2, 1, {"gradient norm": float("inf")})
    step, k, terms = first_bad([broken], norm_counts=True)
    assert (step, k) == (3, 2)
    assert terms.keys() == {"text", "image", "total"}
    assert first_bad([overflow], norm_counts=False) is None  # fp16: the loss scaler skips the step
