"""`make bench-gpu`: a part that fails, hangs or is killed costs its own figures at most."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_gpu"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


WRITES = "import pathlib; pathlib.Path({!r}).write_text('{{\"ratio\": 2}}'); "


@pytest.mark.parametrize(
    ("then", "status", "found"),
    [
        ("", "done", {"ratio": 2}),
        ("raise SystemExit(3)", "failed (exit status 3)", {"ratio": 2}),
        ("import time; time.sleep(60)", "out of time after 3 s", {"ratio": 2}),
        ("raise ValueError", "failed (exit status 1)", {"ratio": 2}),
    ],
)
def test_what_a_part_has_written_is_kept(
    gpu: ModuleType, tmp_path: Path, then: str, status: str, found: object
) -> None:
    words = ["-c", WRITES.format(str(tmp_path / "made.json")) + then]
    outcome = gpu.run(gpu.Part("made", words, 3, gpu.no_rows), tmp_path, 3, gpu.Stop())
    assert (outcome.status, outcome.found) == (status, found)


def test_a_part_without_figures_or_with_half_a_file_is_a_failure(
    gpu: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "made.json").write_text('{"of": "an earlier run"}')
    silent = gpu.run(gpu.Part("made", ["-c", "pass"], 9, gpu.no_rows), tmp_path, 9, gpu.Stop())
    assert (silent.status, silent.found) == ("failed (it wrote no figures)", None)
    code = f"open({str(tmp_path / 'made.json')!r}, 'w').write('{{')"
    half = gpu.run(gpu.Part("made", ["-c", code], 9, gpu.no_rows), tmp_path, 9, gpu.Stop())
    assert half.found is None
    assert half.status.startswith("failed (its figures cannot be read")


def test_the_table_marks_what_missed_its_target(gpu: ModuleType) -> None:
    rows = [("fast", 9.0, "at least", 8.0), ("slow", 7.0, "at least", 8.0)]
    rows += [("short", 9.0, "at most", 10.0), ("long", 11.0, "at most", 10.0)]
    part = gpu.Part("made", [], 1, lambda found: iter(rows))
    lines = list(gpu.table({"made": (part, gpu.Outcome("done", 1.0, {"any": 1}))}))
    missed = [line.split()[0] for line in lines if line.endswith("missed")]
    assert missed == ["slow", "long"]


def test_a_stopped_benchmark_ends_its_part(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--quick", "--only", "tests", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while "== tests" not in process.stdout.readline():
        pass
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.is_file():
        process.kill()
        pytest.skip("this kernel does not list children")
    deadline = time.monotonic() + 20
    while not (found := children.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.01)
    (child,) = map(int, found)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["tests"]["status"] == f"stopped by signal {signal.SIGTERM.value}"


def test_a_missing_gpu_is_one_error(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--device", "cuda:99", "--out", str(tmp_path / "never")],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "'cuda:99' was requested" in found.stderr
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "never").exists()


def test_figures_are_one_file(gpu: ModuleType, tmp_path: Path) -> None:
    part = gpu.Part("made", [], 1, lambda found: iter([("it", 3.0, "at least", 2.0)]))
    gpu.write(tmp_path / "figures.json", {"made": (part, gpu.Outcome("done", 1.0, {"any": 1}))})
    body = json.loads((tmp_path / "figures.json").read_text())
    assert body["made"] == {"status": "done", "seconds": 1.0, "figures": {"any": 1}}
    assert body["ratios"] == [{"what": "it", "value": 3.0, "target": "at least 2"}]
