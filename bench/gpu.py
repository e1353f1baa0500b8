"""Everything that only a GPU can show, in under eight minutes: `make bench-gpu`.

    python bench/gpu.py                                 # writes bench-gpu/figures.json
    python bench/gpu.py --device cpu --quick            # tiny shapes, to see it work

Each part is a process of its own with a time limit; what one leaves over goes to the next. A part
that fails or runs out of time is reported, and the others go on. `figures.json` is written after
every part, with what an unfinished one had measured; each part's own file is beside it, and stays
if this process is killed. It ends with a table of ratios and targets. Exit status 1 if a part
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # runs without an installation

from harness import shown, write_json  # noqa: E402

from sightline.devices import pick_device  # noqa: E402
from sightline.errors import SightlineError  # noqa: E402

PARTS = ("training", "extraction", "grounding", "tests")
EXTRACTED = ("resnet50", "ViT-B-32", "ViT-L-14")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows that a benchmark has written."""
    return json.loads(path.read_bytes())["rows"]


def rows_of_tests(path: Path) -> list[dict[str, Any]]:
    """Numbers of tests, and what they recorded, from pytest's JUnit file."""
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    kinds = ("tests", "failures", "errors", "skipped")
    counts = {kind: sum(int(suite.get(kind, "0")) for suite in suites) for kind in kinds}
    recorded = [
        {"test": case.get("name"), "recorded": each.get("name"), "value": each.get("value")}
        for suite in suites
        for case in suite.iter("testcase")
        for each in case.iter("property")
    ]
    return [counts, *recorded]


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        words: its command line, after the interpreter.
        seconds: its time limit.
        rows: reads its file.
    """

    name: str
    words: list[str]
    seconds: float
    rows: Callable[[Path], list[dict[str, Any]]] = rows_of


@dataclass
class Outcome:
    """What became of a part: `done`, or what went wrong."""

    status: str
    seconds: float
    rows: list[dict[str, Any]]


def parts(options: argparse.Namespace, folder: Path) -> list[Part]:
    """All parts; each writes its rows to ``folder``."""
    device, quick = ["--device", options.device], ["--quick"] * options.quick

    def script(part: str, name: str, *words: str) -> list[str]:
        file = str(folder / f"{part}.json")
        return [str(ROOT / "bench" / name), *device, *quick, *words, "--json", file]

    workers = ["--workers", str(max(1, (os.cpu_count() or 2) - 2))]
    seconds = ["--seconds", "150"]  # what has begun by then may end
    made = [Part("training", script("training", "training.py", *seconds), 215)]
    for model in EXTRACTED[:1] if options.quick else EXTRACTED:
        name = f"extraction-{model}"
        words = ["--models", model, "--precisions", "bf16", *workers]
        made.append(Part(name, script(name, "extract.py", *words), 35))
    words = ["--precision", "bf16", "--rounds", "1", *workers]
    made.append(Part("grounding", script("grounding", "grounding.py", *words), 90))
    tests = ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-W", "ignore"]
    tests += [f"--junitxml={folder / 'tests.json'}", *map(str, gpu_tests())]
    made.append(Part("tests", tests, 65, rows_of_tests))
    if options.quick:  # on a CPU, which may be a busy one
        made = [replace(each, seconds=10 * each.seconds) for each in made]
    return [each for each in made if not options.only or each.name.split("-")[0] in options.only]


def gpu_tests() -> list[Path]:
    """Test files with the mark; others may need packages that a GPU machine lacks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [file for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


class Stop:
    """The signal that asked this process to end, or 0; a part is never left behind."""

    def __init__(self) -> None:
        self.signal = 0

    def __call__(self, number: int, frame: object) -> None:
        self.signal = number


def run(part: Part, folder: Path, limit: float, stop: Stop) -> Outcome:
    """Run one part; its output goes to the terminal as it comes."""
    print(f"\n== {part.name} (at most {limit:.0f} s)", flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    file = folder / f"{part.name}.json"
    file.unlink(missing_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        environment["TMPDIR"] = scratch  # what a killed part leaves there goes, too
        process = subprocess.Popen(
            [sys.executable, *part.words], cwd=ROOT, env=environment, start_new_session=True
        )
        status = f"out of time after {limit:.0f} s"
        while time.monotonic() - start < limit and not stop.signal:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(0.2)
                status = "done" if code == 0 else f"failed (exit status {code})"
                break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that it started
        process.wait()
    if stop.signal:
        status = f"stopped by signal {stop.signal}"
    rows: list[dict[str, Any]] = []
    try:
        rows = part.rows(file)
    except FileNotFoundError:
        status = "failed (it wrote no figures)" if status == "done" else status
    except (ValueError, KeyError, ElementTree.ParseError) as error:
        status = f"failed (its figures cannot be read: {error})"
    return Outcome(status, time.monotonic() - start, rows)


def table(outcomes: dict[str, Outcome]) -> list[str]:
    """Lines of parts, then of tests, then of figures with their targets."""
    lines = [f"{'part':<24}{'s':>6}"]
    lines += [f"{name:<24}{each.seconds:>6.0f}  {each.status}" for name, each in outcomes.items()]
    for counts in (row for each in outcomes.values() for row in each.rows if "failures" in row):
        lines.append("pytest -m gpu: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    lines += ["", f"{'':<60}{'found':>9}  target"]
    for row in (row for each in outcomes.values() for row in each.rows if "target" in row):
        lines.append(f"{row['what']:<60}{shown(row['value']):>9}  {row['target']}".rstrip())
    return lines


def main() -> int:
    """Run the parts and print the table; 1 if one failed."""
    parser = argparse.ArgumentParser(description="All measurements that need a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see it work")
    parser.add_argument("--only", nargs="+", help="parts to run", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("bench-gpu"), help="folder for figures")
    options = parser.parse_args()
    try:
        pick_device(options.device)
    except SightlineError as error:
        print(error, file=sys.stderr)
        return 1
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    figures, outcomes = folder / "figures.json", dict[str, Outcome]()
    start, spare = time.monotonic(), 0.0
    for part in parts(options, folder):
        outcome = outcomes[part.name] = run(part, folder, part.seconds + spare, stop)
        spare = max(0.0, spare + part.seconds - outcome.seconds)
        write_json(figures, {name: asdict(each) for name, each in outcomes.items()})
        if stop.signal:
            return 128 + stop.signal
    print(f"\n{time.monotonic() - start:.0f} s in all; figures: {figures}\n")
    print("\n".join(table(outcomes)))
    return int(any(outcome.status != "done" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
