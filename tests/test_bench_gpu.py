"""`make bench-gpu`: a part that fails, hangs or is killed costs its own figures at most."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    sys.path.append(str(SCRIPT.parent))
    return importlib.import_module("gpu")


WRITES = 'import pathlib; pathlib.Path({!r}).write_text(\'{{"rows": [{{"what": 2}}]}}\'); '


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("", "done"),
        ("raise SystemExit(3)", "failed (exit status 3)"),
        ("import time; time.sleep(60)", "out of time after 5 s"),
    ],
)
def test_what_a_part_has_written_is_kept(gpu, tmp_path, then, status):
    words = ["-S", "-c", WRITES.format(str(tmp_path / "made.json")) + then]
    limit = 5 if "sleep" in then else 30
    outcome = gpu.run(gpu.Part("made", words, limit), tmp_path, limit, gpu.Stop())
    assert (outcome.status, outcome.rows) == (status, [{"what": 2}])


def test_a_part_without_figures_or_with_half_a_file_is_a_failure(gpu, tmp_path):
    (tmp_path / "made.json").write_text('{"rows": ["of an earlier run"]}')
    silent = gpu.run(gpu.Part("made", ["-c", "pass"], 9), tmp_path, 9, gpu.Stop())
    assert (silent.status, silent.rows) == ("failed (it wrote no figures)", [])
    code = f"open({str(tmp_path / 'made.json')!r}, 'w').write('{{')"
    half = gpu.run(gpu.Part("made", ["-c", code], 9), tmp_path, 9, gpu.Stop())
    assert half.rows == []
    assert half.status.startswith("failed (its figures cannot be read")


def test_the_table_shows_tests_and_what_missed_its_target(gpu, tmp_path, capsys):
    import harness  # beside `gpu`

    report = harness.Report(Namespace(json=tmp_path / "made.json"))
    report.ratio("fast", 9.0, at_least=8.0)
    report.ratio("slow", 7.0, at_least=8.0, ms=3.5)
    report.ratio("short", 9.0, at_most=10.0)
    report.ratio("long", 11.0, at_most=10.0)
    report.add(step="no ratio", s=1.0)
    (tmp_path / "tests.json").write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1"><testcase name="t">'
        '<properties><property name="peak" value="7"/></properties></testcase></testsuite>'
        "</testsuites>"
    )
    rows = {"made": gpu.rows_of(tmp_path / "made.json")}
    rows["tests"] = gpu.rows_of_tests(tmp_path / "tests.json")
    lines = gpu.table({name: gpu.Outcome("done", 1.0, each) for name, each in rows.items()})
    missed = [line.split()[0] for line in lines if line.endswith("missed")]
    assert missed == ["slow", "long"]
    assert "pytest -m gpu: 3 tests, 1 failures, 0 errors, 1 skipped" in lines
    assert rows["tests"][1] == {"test": "t", "recorded": "peak", "value": "7"}
    assert "| slow | 7.00 | at least 8: missed | 3.50 |" in capsys.readouterr().out


def test_a_stopped_benchmark_ends_its_part(tmp_path):
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


def test_a_missing_gpu_is_one_error(gpu, tmp_path, monkeypatch, capsys):
    words = ["gpu.py", "--device", "cuda:99", "--out", str(tmp_path / "never")]
    monkeypatch.setattr(sys, "argv", words)
    assert gpu.main() == 1
    assert "'cuda:99' was requested" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
