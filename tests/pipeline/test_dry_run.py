"""`--dry-run`: what there is to do, and that nothing is written."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_inputs import extracting

from sightline import hardware
from sightline.cache import FeatureSet
from sightline.errors import SightlineError
from sightline.wording import in_bytes


@pytest.fixture
def place(world, tmp_path_factory, monkeypatch) -> Path:
    """The current folder; temporary files go to ``tmp`` in it."""
    Path("tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(world / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # torch makes this folder where it is first imported
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
    return world


def images(*more: object) -> list[object]:
    return extracting("image", "out", "--batch-size", 2, "--workers", 1, *more)


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Every file and folder, except that ``tmp`` itself may have changed: when, and its bytes."""
    found = [path for path in folder.rglob("*") if path.name != "tmp"]
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in found
    }


@pytest.fixture
def to_do(said, place):
    """Runs a command with `--dry-run`: what it says that there is to do, having written nothing."""

    def run(*words: object) -> dict[str, Any]:
        before = snapshot(place)
        code, out, err = said(*words, "--dry-run", "--json")
        assert code == 0, err
        assert snapshot(place) == before
        return json.loads(out)

    return run


def test_a_dry_run_says_what_the_run_then_does(said, says, to_do):
    size = 6 * (8 * 2 + 32 + 61)
    assert to_do(*images()) == {"out": "out", "to_do": 6, "copied": 0, "bytes_to_write": size}
    assert says(*images("--dry-run")) == (
        f"out: 0 images there · 6 to compute · {in_bytes(size)} to write\n"
    )
    said(*images())
    assert size < FeatureSet.open("out").record.size  # HDF5 and Parquet take some kilobytes
    Image.new("RGB", (30, 30), "red").save("photos/new.png")
    shutil.copy("photos/1.png", "photos/0.png")
    assert says(*images("--dry-run")).startswith("out: 5 images there · 1 to compute")
    assert to_do(*images())["to_do"] == 1


def test_a_dry_run_of_texts(to_do):
    Path("texts.txt").write_text("another\nand another\n")
    assert to_do(*extracting("text", "text"))["to_do"] == 2


def test_a_dry_run_of_an_interrupted_run_counts_its_blocks_and_keeps_them(
    said, says, to_do, place, monkeypatch
):
    from pipeline.extract.halving import HalvingCalls
    from sightline.cache import writer

    monkeypatch.setitem(writer.BLOCK_ROWS, "image", 2)
    encode, batches = HalvingCalls.run, itertools.count()

    def stop(self, items, call):
        if next(batches) == 2:
            raise SightlineError("killed")
        return encode(self, items, call)

    monkeypatch.setattr(HalvingCalls, "run", stop)
    assert said(*images())[0] == 1
    monkeypatch.setattr(HalvingCalls, "run", encode)
    assert len(list(place.rglob("*part-*"))) == 2
    assert to_do(*images())["to_do"] == 2
    assert json.loads(says(*images("--json")))["resumed"] == 4


def test_no_image_is_read_nor_a_run_beside_it_stopped(to_do, place):
    from sightline.cache.record import set_output

    for path in Path("photos").iterdir():
        path.write_bytes(path.name.encode())  # not an image any more
    with set_output(place / "out"):  # as a run that has just begun
        assert to_do(*images())["to_do"] == 6


@pytest.mark.parametrize("more", [("--worker", "1/2"), ("--devices", "cpu,cpu")])
def test_workers_and_devices_say_what_all_of_them_do(to_do, more):
    assert to_do(*images(*more))["to_do"] == 6


def test_other_weights_are_announced_as_recomputing_everything(said, place):
    _, out, _ = said(*extracting("image", "image", "--weights", "random:1", "--dry-run"))
    assert "6 to compute" in out
    assert "recomputing everything because encoder.source" in out


def test_rows_that_another_set_has_are_to_be_copied(to_do):
    found = to_do(*images("--copy-from", "."))
    assert (found["to_do"], found["copied"]) == (0, 6)
    assert found["bytes_to_write"] > 0


def test_a_folder_without_images_is_the_error_of_the_command(fails, place):
    shutil.rmtree("photos")
    Path("photos").mkdir()
    assert "no images" in fails(*images("--dry-run"))


def test_figures_for_reading():
    assert [in_bytes(each) for each in (0, 999, 1_000, 2.5e6, 3e9, 7.25e15)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB", "7,250.0 TB"),
    ]


# -- GPUs that are not used ----------------------------------------------------------------------


def test_work_on_a_cpu_beside_a_gpu_is_a_warning(said, place, monkeypatch):
    tool = place / "tmp" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '570.1, NVIDIA H100'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert "warning: this computes on the CPU, but the driver lists 1 GPU" in said(*images())[2]
    assert hardware.cpu_warning("cuda:0") == ""


def test_without_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("", []))
    assert hardware.cpu_warning("cpu") == ""
