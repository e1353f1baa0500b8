"""A command keeps its heap, unless the user has a say in it; a script that imports us does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_inputs import write_photos

from sightline.machine import heap

ROOT = Path(__file__).parents[2]
LIMIT = 32 << 20
FAULTS = """
import resource
def pages_of_eight(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(size << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def kept(size):
    pages_of_eight(size)
    return pages_of_eight(size) < 8 * size * 256 / 2
print("kept", *filter(kept, (6, 40, 80)))
"""
A_COMMAND = """
import sys
from pipeline.cli import main
sys.argv = ["sightline", "--help"]
try:
    main()
except SystemExit:
    pass
"""
GROUND = ["ground", "--data", "nowhere", "--grounder", "florence2:any", "--out", "nowhere"]
A_STAGE = """
from types import SimpleNamespace
from pipeline.stages import ground
try:
    ground(SimpleNamespace(grounding={}), "nowhere")
except Exception as error:
    assert "nowhere" in str(error), error
"""
needs_glibc = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc"
)


def python(code: str, **environment: str) -> str:
    """What a process of its own prints last; it has only these variables of malloc."""
    own = {name: text for name, text in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**own, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().rpartition("\n")[2]


@needs_glibc
@pytest.mark.parametrize(
    ("code", "environment", "kept"),
    [
        (A_COMMAND, {}, "6 40"),
        (A_COMMAND.replace('"--help"', str(GROUND)[1:-1]), {}, "6"),
        (A_STAGE, {}, "6"),
        (A_COMMAND, {"MALLOC_PERTURB_": "0"}, ""),
        ("import sightline as sl\nsl.extract_features, sl.train_model", {}, ""),
    ],
    ids=["a command", "grounding", "its stage", "a command whose user has a say", "a script"],
)
def test_freed_memory_stays_with_a_command(code, environment, kept):
    # MiB of blocks of which most pages are there when they are asked for again
    assert python(f"{code}{FAULTS}", **environment).split()[1:] == kept.split()


@needs_glibc
def test_a_preloaded_allocator_wins():
    ray = importlib.util.find_spec("ray")
    library = Path(ray.origin if ray and ray.origin else "").parent / "core/libjemalloc.so"
    if not library.is_file():
        pytest.skip("ray brings no jemalloc here")
    code = "from sightline.machine.heap import keep_heap\nprint(keep_heap())"
    assert python(code) == ""
    assert python(code, LD_PRELOAD=str(library)) == "another malloc stands in for glibc's"


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, "MALLOC_TRIM_THRESHOLD_"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.rtld.nns=4"}, "GLIBC_TUNABLES"),
        ({"GLIBC_TUNABLES": "glibc.rtld.nns=4", "PYTHONMALLOC": "malloc"}, ""),
    ],
)
def test_what_a_user_says_of_malloc_stays(monkeypatch, environment, variable):
    for name in [name for name in os.environ if "MALLOC" in name or "TUNABLES" in name]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = heap.keep_heap()
    assert said.startswith(variable) if variable else "says how" not in said


@pytest.mark.parametrize("most", [64 << 20, 32 << 20, 0])
def test_a_glibc_may_map_what_is_larger_than_half_of_a_threads_heap(most):
    taken = dict[int, int]()

    def mallopt(number: int, value: int) -> int:
        if number == -3 and value > most:
            return 0
        taken[number] = value
        return 1

    assert heap.set_thresholds(mallopt, heap.LARGEST) == (most > 0)
    assert taken == ({-3: most, -1: (1 << 31) - 1, -2: 64 << 20} if most else {})


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(os, "confstr_names", {})
    monkeypatch.setattr(heap, "settled_by", lambda environment: "")
    assert heap.keep_heap() == "only glibc's malloc can keep it"


@pytest.mark.slow
@needs_glibc
def test_rows_are_the_same_bytes(tmp_path):
    photos = write_photos(tmp_path / "photos", 5)
    words = ["extract", "image", "--data", str(photos), "--encoder", "resnet18"]
    words += ["--weights", "random:0", "--dtype", "float32", "--batch-size", "4", "--workers", "0"]
    sets = [tmp_path / "kept", tmp_path / "mapped"]
    for out, variables in zip(sets, ({}, {"MALLOC_PERTURB_": "0"}), strict=True):
        python(
            A_COMMAND.replace('["sightline", "--help"]', repr(["", *words, "--out", str(out)])),
            **variables,
        )
    files = [{file.name: file.read_bytes() for file in out.iterdir()} for out in sets]
    assert any(name.endswith(".h5") for name in files[0])
    assert files[0] == files[1]
