"""`sightline plan`: what there is to do, how long it takes, and that nothing is written."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import sightline
from demo_params import demo_params
from PIL import Image
from tiny_scenes import TINY

from pipeline.cache import FeatureSet
from pipeline.cli.plan import COMMANDS
from pipeline.configure import configuration, to_yaml
from pipeline.params import validate_params
from pipeline.plan_graph import GraphPlan, StagePlan
from sightline import hardware
from sightline.errors import SightlineError
from sightline.planning import Timing, WorkPlan, in_bytes, in_time, measure, spread

ROOT = Path(__file__).parents[2]
CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture
def place(tmp_path_factory, monkeypatch) -> Path:
    """A folder with images, texts and a model; temporary files go to ``tmp`` in it."""
    tmp_path = tmp_path_factory.mktemp("p")  # short, for the sockets of decode processes
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(10):
        pixels = rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "clip.json").write_text(json.dumps(CLIP))
    (tmp_path / "texts.txt").write_text("".join(f"a boat{' of wood' * i}\n" for i in range(6)))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # torch makes this folder where it is first imported
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def images(*more: object) -> list[object]:
    words = ["extract", "image", "--images", "photos", "--encoder", "clip.json"]
    return [
        *words,
        "--weights",
        "random:0",
        "--out",
        "out",
        "--batch-size",
        4,
        "--workers",
        1,
        *more,
    ]


def texts(*more: object) -> list[object]:
    words = ["extract", "text", "--texts", "texts.txt", "--encoder", "clip.json"]
    return [*words, "--weights", "random:0", "--out", "out", "--batch-size", 2, *more]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder, except that ``tmp`` itself may have changed: when, and its bytes."""
    found = [path for path in sorted(folder.rglob("*")) if path.name != "tmp"]
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in found
    }


def planned(capsys, *words: object) -> WorkPlan:
    capsys.readouterr()
    assert sightline("plan", *words, "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)
    return WorkPlan(**shown)


# -- arithmetic ----------------------------------------------------------------------------------


class Clock:
    """A clock that moves when work is done."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def work(self, *pieces: tuple[float, float]):
        """Pieces of so many seconds and such a weight."""
        for seconds, weight in pieces:
            self.now += seconds
            yield weight


def test_the_first_pieces_are_start_up_and_the_rest_set_the_rate():
    clock = Clock()
    timing = measure(clock.work((7.0, 1), *[(2.0, 1)] * 11), most=1e9, clock=clock)
    assert timing.per_weight == 2.0
    assert timing.start_up == 5.0  # the first took 7 s in place of 2
    assert timing.seconds(1000) == 2005.0


def test_long_texts_weigh_as_much_as_their_tokens():
    clock = Clock()
    pieces = [(0.1 * tokens, tokens) for tokens in (16, 8, 24, 4, 12, 20, 28)]
    timing = measure(clock.work(*pieces), most=1e9, clock=clock)
    assert timing.seconds(10_000) == pytest.approx(1000)


def test_a_single_batch_counts_whole():
    clock = Clock()
    assert measure(clock.work((3.0, 4)), clock=clock).seconds(8) == 6.0


def test_a_slow_probe_ends_after_two_pieces_and_a_fast_one_after_its_time():
    clock = Clock()
    slow = measure(clock.work(*[(60.0, 1)] * 9), most=10, clock=clock)
    assert len(slow.marks) == 2
    fast = measure(clock.work(*[(1.0, 1)] * 99), most=10, clock=clock)
    assert len(fast.marks) == 10


def test_a_rate_is_never_taken_from_start_up_alone():
    assert Timing(((9.0, 1.0), (10.0, 1.0))).seconds(10) == 8.0 + 10.0


def test_a_probe_of_nothing_is_an_error():
    with pytest.raises(SightlineError, match="nothing to compute"):
        measure([])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 17, 1000])
def test_the_batches_of_a_probe_are_spread_over_the_plan(count):
    chosen = spread(count)
    assert len(chosen) == len(set(chosen)) == min(count, 16)
    assert set(chosen) <= set(range(count))
    if count == 1000:
        assert {b - a for a, b in itertools.pairwise(sorted(chosen))} == {62, 63}
        assert chosen[:4] == [31, 531, 281, 781]


def test_sums_say_whether_they_hold_everything():
    done = WorkPlan("a", "images", 5, 0, 0, 0, "cpu", 0.0)
    timed = WorkPlan("b", "images", 1, 2, 1_500, 3_000, "cpu", 90.0)
    graph = GraphPlan((StagePlan("one", (done,)), StagePlan("two", (timed,))))
    assert (graph.write_bytes, graph.seconds, graph.complete) == (1_500, 90.0, True)
    assert str(graph).splitlines()[-1] == "in all: 1.5 kB to write, about 0:01:30"
    waiting = GraphPlan((*graph.stages, StagePlan("three", problem="c: no such manifest")))
    assert not waiting.complete
    assert str(waiting).splitlines()[-1].startswith("in all: at least 1.5 kB")


def test_figures_for_reading():
    assert [in_bytes(each) for each in (0, 999, 1_000, 2.5e6, 3e9, 7.25e15)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB", "7,250.0 TB"),
    ]
    times = [in_time(each) for each in (0.04, 61.4, 90_061)]
    assert times == ["0.0 s", "0:01:01", "1 day, 1:01:01"]


# -- commands ------------------------------------------------------------------------------------


def test_a_plan_says_what_the_run_then_does(capsys, place):
    plan = planned(capsys, *images())
    assert (plan.there, plan.left, plan.unit, plan.device) == (0, 10, "images", "cpu")
    assert plan.seconds
    assert sightline(*images()) == 0
    size = FeatureSet.open(place / "out").record.size
    assert plan.write_bytes == 10 * (8 * 2 + 32 + 45)
    assert plan.write_bytes < size  # HDF5 and Parquet take some kilobytes of their own
    Image.new("RGB", (30, 30), "red").save(place / "photos" / "new.png")
    plan = planned(capsys, *images())
    assert (plan.there, plan.left) == (10, 1)


@pytest.mark.parametrize("words", [images(), texts()])
def test_a_probe_writes_nothing(capsys, place, words):
    before = snapshot(place)
    assert planned(capsys, *words).seconds is not None
    assert snapshot(place) == before
    assert sightline(*words) == 0
    done = snapshot(place)
    assert planned(capsys, *words).left == 0
    (place / "texts.txt").write_text("another\nand another\n")
    shutil.copy(place / "photos" / "1.png", place / "photos" / "0.png")
    done = snapshot(place)
    assert planned(capsys, *words).seconds is not None
    assert snapshot(place) == done


def test_a_plan_of_an_interrupted_run_counts_its_blocks_and_keeps_them(capsys, place, monkeypatch):
    from pipeline.cache import feature_writer
    from pipeline.extract import runner

    monkeypatch.setitem(feature_writer.BLOCK_ROWS, "image", 4)
    add = runner._Writing.__call__
    calls = itertools.count()

    def stop(self, done, computed):
        if next(calls) == 2:
            raise SightlineError("killed")
        add(self, done, computed)

    monkeypatch.setattr(runner._Writing, "__call__", stop)
    assert sightline(*images()) == 1
    monkeypatch.setattr(runner._Writing, "__call__", add)
    before = snapshot(place)
    assert len([name for name in before if "block-" in name]) == 2
    plan = planned(capsys, *images())
    assert (plan.there, plan.left) == (8, 2)
    assert snapshot(place) == before
    capsys.readouterr()
    assert sightline(*images("--json")) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 8


def test_without_a_probe_no_image_is_read(capsys, place):
    for path in (place / "photos").iterdir():
        path.write_bytes(path.name.encode())  # not an image any more
    plan = planned(capsys, *images("--no-probe"))
    assert (plan.left, plan.seconds) == (10, None)


def test_a_plan_beside_a_run_is_neither_stopped_nor_stops_it(capsys, place):
    from pipeline.cache.commit import set_output

    with set_output(place / "out"):  # as a run that has just begun
        assert planned(capsys, *images()).left == 10


def test_workers_share_the_time(capsys, place, monkeypatch):
    alone = planned(capsys, *images("--no-probe"))
    shared = planned(capsys, *images("--no-probe", "--worker", "1/2"))
    assert alone.left == shared.left == 10
    assert any("2 workers" in each for each in shared.remarks)


def test_other_weights_are_announced_as_recomputing_everything(capsys, place):
    assert sightline(*images()) == 0
    other = ["random:1" if word == "random:0" else word for word in images("--no-probe")]
    plan = planned(capsys, *other)
    assert plan.left == 10
    assert "everything is recomputed" in plan.remarks[0]


def test_the_graph_names_the_files_that_are_missing(capsys, tmp_path, monkeypatch):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "params.yaml").write_text(to_yaml(configuration("cc12m", ROOT / "configs"), "x"))
    monkeypatch.chdir(tmp_path)
    assert sightline("plan", "--no-probe") == 0
    shown = capsys.readouterr().out
    assert "prepare cc12m: cannot be planned yet: data/raw/cc12m: no such file or folder" in shown
    assert "prepare wiki: cannot be planned yet: data/raw/wiki1m_for_simcse.txt: no such" in shown


@pytest.mark.slow  # it prepares the demo
def test_the_graph_is_planned_as_far_as_its_inputs_are_there(capsys, tmp_path, monkeypatch):
    given = demo_params()
    scenes = {"kind": "scenes", "source": str(ROOT / "pipeline/datasets/scenes"), "seed": 0, **TINY}
    given["datasets"] = {"scenes": scenes}
    systems = ("simcse", "mcse-clip", "mcse-resnet")
    given["systems"] = {name: given["systems"][name] for name in systems}
    given["report"].pop("control")
    given["extract"]["device"] = given["train"]["device"] = "cpu"
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(given))
    monkeypatch.chdir(tmp_path)

    def graph(*more: str) -> dict[str, dict]:
        before = snapshot(tmp_path)
        capsys.readouterr()
        assert sightline("plan", *more, "--json") == 0
        assert snapshot(tmp_path) == before
        return {each["stage"]: each for each in json.loads(capsys.readouterr().out)["stages"]}

    found = graph()
    assert len(found) == 1 + 2 + 1 + 1 + 1 + len(validate_params(given, "it").runs)
    assert "no such manifest; `sightline prepare`" in found["text-features scenes clip"]["problem"]
    assert sightline("stage", "prepare", "scenes") == 0
    found = graph("--no-probe")
    (images,) = found["image-features scenes clip"]["sets"]
    assert (images["there"], images["left"], images["seconds"]) == (0, 24, None)
    assert images["out"] == "data/features/scenes/image/clip"
    assert found["object-features scenes clip"]["problem"]  # nothing is grounded yet
    assert sightline("stage", "image-features", "scenes", "clip") == 0
    assert sightline("stage", "tokens") == 0
    found = graph()
    (images,) = found["image-features scenes clip"]["sets"]
    assert (images["there"], images["left"], images["seconds"]) == (24, 0, 0)
    (run,) = found["train mcse-clip 0"]["sets"]
    assert run["left"] > 0
    assert run["seconds"] > 0
    assert found["train mcse-resnet 0"]["problem"]
    assert sightline("plan", "stage", "image-features", "scenes", "clip") == 0
    shown = capsys.readouterr().out
    assert shown == "data/features/scenes/image/clip: all 24 images are there\n"


# -- bad input -----------------------------------------------------------------------------------


def test_a_probe_on_an_empty_plan_is_one_error(capsys, place):
    assert sightline(*images()) == 0
    before = snapshot(place)
    assert planned(capsys, *images()).seconds == 0
    assert sightline("plan", *images("--probe")) == 1
    said = capsys.readouterr().err
    assert "out: there is nothing to compute, so a probe has nothing to time" in said
    assert "leave out --probe" in said
    assert "Traceback" not in said
    assert snapshot(place) == before


def test_a_folder_without_images_is_the_error_of_the_command(capsys, place):
    shutil.rmtree(place / "photos")
    (place / "photos").mkdir()
    assert sightline("plan", *images()) == 1
    assert "no images" in capsys.readouterr().err


def test_what_cannot_be_planned_is_not_run(capsys, place):
    for words in (["prepare", "pairs"], ["cache", "gc", "out"], ["stage", "report"], ["extract"]):
        assert sightline("plan", *words) == 2
        assert "cannot be planned" in capsys.readouterr().err


def test_what_can_be_planned_exists():
    import typer

    from pipeline.cli.commands import app

    root: Any = typer.main.get_command(app)
    for group, names in COMMANDS.items():
        assert set(names) <= set(getattr(root.commands[group], "commands", {}))


def test_mistakes_in_the_command_are_those_of_the_command(capsys, place):
    assert sightline("plan", "extract", "image", "--images", "photos") == 2
    assert "--encoder" in capsys.readouterr().err
    assert sightline("plan", *images("--no-such-option")) == 2
    assert "no-such-option" in capsys.readouterr().err


# -- GPUs that are not used ----------------------------------------------------------------------


def test_work_on_a_cpu_beside_a_gpu_is_a_warning(capsys, place, monkeypatch):
    tool = place / "tmp" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '570.1, NVIDIA H100'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    plan = planned(capsys, *images("--no-probe"))
    assert any("warning: this computes on the CPU" in each for each in plan.remarks)
    assert sightline(*images()) == 0
    assert (
        "warning: this computes on the CPU, but the driver lists 1 GPU" in capsys.readouterr().err
    )
    assert hardware.cpu_warning("cuda:0") == ""


def test_without_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("", []))
    assert hardware.cpu_warning("cpu") == ""
