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
from command_line import sightline
from PIL import Image
from small_inputs import write_clip, write_photos

from sightline import hardware
from sightline.cache import FeatureSet
from sightline.errors import SightlineError
from sightline.wording import in_bytes


@pytest.fixture
def place(tmp_path_factory, monkeypatch) -> Path:
    """A folder with images, texts and a model; temporary files go to ``tmp`` in it."""
    tmp_path = tmp_path_factory.mktemp("p")  # short, for the sockets of decode processes
    write_photos(tmp_path / "photos", 10)
    write_clip(tmp_path)
    (tmp_path / "texts.txt").write_text("".join(f"a boat{' of wood' * i}\n" for i in range(6)))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # torch makes this folder where it is first imported
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def images(*more: object) -> list[object]:
    words = ["extract", "image", "--data", "photos", "--encoder", "clip.json"]
    words += ["--weights", "random:0", "--out", "out", "--batch-size", 4, "--workers", 1]
    return [*words, *more]


def texts(*more: object) -> list[object]:
    words = ["extract", "text", "--data", "texts.txt", "--encoder", "clip.json"]
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


def to_do(capsys, *words: object) -> dict[str, Any]:
    """What the command says that there is to do."""
    capsys.readouterr()
    assert sightline(*words, "--dry-run", "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_says_what_the_run_then_does(capsys, place):
    said = to_do(capsys, *images())
    assert said == {
        "out": "out",
        "to_do": 10,
        "copied": 0,
        "bytes_to_write": 10 * (8 * 2 + 32 + 61),
    }
    assert sightline(*images("--dry-run")) == 0
    assert capsys.readouterr().out == "out: 0 images there · 10 to compute · 1.1 kB to write\n"
    assert sightline(*images()) == 0
    size = FeatureSet.open(place / "out").record.size
    assert said["bytes_to_write"] < size  # HDF5 and Parquet take some kilobytes of their own
    Image.new("RGB", (30, 30), "red").save(place / "photos" / "new.png")
    capsys.readouterr()
    assert sightline(*images("--dry-run")) == 0
    assert capsys.readouterr().out.startswith("out: 10 images there · 1 to compute")


@pytest.mark.parametrize("words", [images(), texts()])
def test_a_dry_run_writes_nothing(capsys, place, words):
    before = snapshot(place)
    assert to_do(capsys, *words)["to_do"]
    assert snapshot(place) == before
    assert sightline(*words) == 0
    (place / "texts.txt").write_text("another\nand another\n")
    shutil.copy(place / "photos" / "1.png", place / "photos" / "0.png")
    done = snapshot(place)
    to_do(capsys, *words)
    assert snapshot(place) == done


def test_a_dry_run_of_an_interrupted_run_counts_its_blocks_and_keeps_them(
    capsys, place, monkeypatch
):
    from pipeline.extract.halving import HalvingCalls
    from sightline.cache import writer

    monkeypatch.setitem(writer.BLOCK_ROWS, "image", 4)
    encode, batches = HalvingCalls.run, itertools.count()

    def stop(self, items, call):
        if next(batches) == 2:
            raise SightlineError("killed")
        return encode(self, items, call)

    monkeypatch.setattr(HalvingCalls, "run", stop)
    assert sightline(*images()) == 1
    monkeypatch.setattr(HalvingCalls, "run", encode)
    before = snapshot(place)
    assert len([name for name in before if "part-" in name]) == 2
    assert to_do(capsys, *images())["to_do"] == 2
    assert snapshot(place) == before
    assert sightline(*images("--json")) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 8


def test_no_image_is_read(capsys, place):
    for path in (place / "photos").iterdir():
        path.write_bytes(path.name.encode())  # not an image any more
    assert to_do(capsys, *images())["to_do"] == 10


def test_a_dry_run_beside_a_run_is_neither_stopped_nor_stops_it(capsys, place):
    from sightline.cache.record import set_output

    with set_output(place / "out"):  # as a run that has just begun
        assert to_do(capsys, *images())["to_do"] == 10


def test_workers_and_devices_say_what_all_of_them_do(capsys, place):
    for more in (["--worker", "1/2"], ["--devices", "cpu,cpu"]):
        assert to_do(capsys, *images(*more))["to_do"] == 10


def test_other_weights_are_announced_as_recomputing_everything(capsys, place):
    assert sightline(*images()) == 0
    other = ["random:1" if word == "random:0" else word for word in images("--dry-run")]
    assert sightline(*other) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert "10 to compute" in said
    assert "recomputing everything because encoder.source" in said


def test_rows_that_another_set_has_are_to_be_copied(capsys, place):
    assert sightline(*images()) == 0
    other = ["features" if word == "out" else word for word in images("--copy-from", ".")]
    said = to_do(capsys, *other)
    assert (said["to_do"], said["copied"]) == (0, 10)
    assert said["bytes_to_write"] > 0


def test_a_folder_without_images_is_the_error_of_the_command(capsys, place):
    shutil.rmtree(place / "photos")
    (place / "photos").mkdir()
    assert sightline(*images("--dry-run")) == 1
    assert "no images" in capsys.readouterr().err


def test_figures_for_reading():
    assert [in_bytes(each) for each in (0, 999, 1_000, 2.5e6, 3e9, 7.25e15)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB", "7,250.0 TB"),
    ]


# -- GPUs that are not used ----------------------------------------------------------------------


def test_work_on_a_cpu_beside_a_gpu_is_a_warning(capsys, place, monkeypatch):
    tool = place / "tmp" / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '570.1, NVIDIA H100'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert sightline(*images()) == 0
    assert (
        "warning: this computes on the CPU, but the driver lists 1 GPU" in capsys.readouterr().err
    )
    assert hardware.cpu_warning("cuda:0") == ""


def test_without_a_gpu_nothing_is_said(monkeypatch):
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("", []))
    assert hardware.cpu_warning("cpu") == ""
