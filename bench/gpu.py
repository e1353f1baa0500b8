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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "bench"
SYSTEM_SHARE, PLAIN_RATIO, MINUTES, CEILING, GROUNDING = 1.15, 3.0, 10.0, 0.8, 8.0
EXTRACTED = ("resnet50", "ViT-B-32", "ViT-L-14")

Row = tuple[str, float, str, float]
"""What was measured, its value, `at least` or `at most`, and the target."""


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        words: its command line, after the interpreter.
        seconds: its time limit.
        rows: the lines of the table, from its figures.
        read: the figures in its file.
    """

    name: str
    words: list[str]
    seconds: float
    rows: Callable[[Any], Iterator[Row]]
    read: Callable[[Path], Any] = field(default=lambda path: json.loads(path.read_bytes()))


def parts(options: argparse.Namespace, folder: Path) -> list[Part]:
    """All parts; each writes its figures to ``folder``."""
    device, quick = ["--device", options.device], ["--quick"] if options.quick else []

    def script(part: str, name: str, *words: str) -> list[str]:
        return [str(BENCH / name), *device, *words, "--json", str(folder / f"{part}.json")]

    workers = ["--workers", str(max(1, (os.cpu_count() or 2) - 2))]
    seconds = ["--seconds", "150"]  # what has begun by then may end
    made = [
        Part("ceilings", script("ceilings", "ceilings.py", *quick), 10, no_rows),
        Part("training", script("training", "train_gpu.py", *seconds, *quick), 205, of_training),
    ]
    size, batch, repeats = ("32", "16", "1") if options.quick else ("2048", "128", "3")
    for model in EXTRACTED:
        words = ["--models", model, "--images", size, "--batch-size", batch, *workers]
        words += ["--precisions", "bf16", "--repeats", repeats]
        name = f"extraction-{model}"
        made.append(Part(name, script(name, "extract.py", *words), 35, of_extraction))
    small = ["--images", "4", "--rounds", "1", "--batch", "4"]
    full = ["--full", "--precision", "bf16", "--images", "32", "--rounds", "1", *workers]
    grounding = script("grounding", "grounding.py", *(small if options.quick else full))
    made.append(Part("grounding", grounding, 90, of_grounding))
    tests = ["-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-W", "ignore"]
    tests += [f"--junitxml={folder / 'tests.json'}", *map(str, gpu_tests())]
    made.append(Part("tests", tests, 65, no_rows, counted))
    return [each for each in made if not options.only or each.name.split("-")[0] in options.only]


def gpu_tests() -> list[Path]:
    """Test files with the mark; others may need packages that a GPU machine lacks."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [file for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


def no_rows(found: Any) -> Iterator[Row]:
    """Nothing with a target."""
    return iter(())


def of_training(found: Any) -> Iterator[Row]:
    for row in found.get("wiki+flickr", []):
        if not row["side"].startswith("plain"):
            yield f"mcse, {row['side']} / plain fp32", row["over_plain"], "at least", PLAIN_RATIO
    for row in found.get("projection", []):
        name = f"dalr, wiki + flickr, 4 epochs, {row['variant']}, minutes"
        yield name, row["minutes"], "at most", MINUTES
    for row in found.get("captions", []):
        if row["system"] != "simcse":
            name = f"step of {row['system']} / simcse, {row['variant']}"
            yield name, row["over_simcse"], "at most", SYSTEM_SHARE


def of_extraction(found: Any) -> Iterator[Row]:
    for row in found:
        name = f"extract {row['model']}, {row['precision']}"
        yield f"{name} / ceiling", row["of_ceiling"], "at least", CEILING
        yield f"{name} / plain loop", row["over_plain"], "at least", 1.0


def of_grounding(found: Any) -> Iterator[Row]:
    name = f"grounding, {found['models']}, {found['precision']} / one at a time"
    yield name, found["ratio"], "at least", GROUNDING


def counted(path: Path) -> dict[str, Any]:
    """Numbers of tests, and what they recorded, from pytest's JUnit file."""
    root = ElementTree.parse(path).getroot()
    suite = root if root.tag == "testsuite" else root[0]
    counts = {
        name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    }
    recorded = {
        f"{case.get('name')}: {each.get('name')}": each.get("value")
        for case in suite.iter("testcase")
        for each in case.iter("property")
    }
    return {**counts, "recorded": recorded}


@dataclass
class Outcome:
    """What became of a part: `done`, or what went wrong."""

    status: str
    seconds: float
    found: Any


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
        end(process)
    if stop.signal:
        status = f"stopped by signal {stop.signal}"
    taken = time.monotonic() - start
    try:
        found = part.read(file) if file.is_file() else None
    except (ValueError, ElementTree.ParseError) as error:
        found, status = None, f"failed (its figures cannot be read: {error})"
    if found is None and status == "done":
        status = "failed (it wrote no figures)"
    return Outcome(status, taken, found)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a part: the process and those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(found: dict[str, tuple[Part, Outcome]]) -> Iterator[str]:
    """Lines of parts, then of ratios."""
    yield f"{'part':<24}{'s':>6}  "
    for name, (_, outcome) in found.items():
        yield f"{name:<24}{outcome.seconds:>6.0f}  {outcome.status}"
    for name, (_, outcome) in found.items():
        if name == "ceilings" and outcome.found:
            yield ""
            for what, value in outcome.found["ceilings"].items():
                yield f"{what:<60}{value:>9.1f}"
        if name == "training" and outcome.found and "left_out" in outcome.found:
            yield f"training left out for lack of time: {'; '.join(outcome.found['left_out'])}"
        if name == "tests" and outcome.found:
            counts = (f"{outcome.found[kind]} {kind}" for kind in ("tests", "failures", "skipped"))
            yield f"pytest -m gpu: {', '.join(counts)}"
    yield ""
    yield f"{'':<60}{'found':>9}  target"
    for part, outcome in found.values():
        for what, value, way, target in part.rows(outcome.found) if outcome.found else ():
            met = value >= target if way == "at least" else value <= target
            yield f"{what:<60}{value:>9.2f}  {way} {target:g}{'' if met else ': missed'}"


def main() -> int:
    """Run the parts and print the table; 1 if one failed."""
    parser = argparse.ArgumentParser(description="All measurements that need a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see it work")
    parser.add_argument("--only", nargs="+", help="parts to run", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("bench-gpu"), help="folder for figures")
    options = parser.parse_args()
    if refused := unusable(options.device):
        print(refused, file=sys.stderr)
        return 1
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    figures = folder / "figures.json"
    found: dict[str, tuple[Part, Outcome]] = {}
    start, spare = time.monotonic(), 0.0
    for part in parts(options, folder):
        outcome = run(part, folder, part.seconds + spare, stop)
        spare = max(0.0, spare + part.seconds - outcome.seconds)
        found[part.name] = part, outcome
        write(figures, found)
        if stop.signal:
            return 128 + stop.signal
    print(f"\n{time.monotonic() - start:.0f} s in all; figures: {figures}\n")
    print("\n".join(table(found)))
    return int(any(outcome.status != "done" for _, outcome in found.values()))


def unusable(device: str) -> str:
    """Why ``device`` cannot be used; empty if it can."""
    sys.path.insert(0, str(ROOT))  # runs without an installation
    from sightline.devices import pick_device
    from sightline.errors import SightlineError

    try:
        pick_device(device)
    except SightlineError as error:
        return str(error)
    return ""


def write(path: Path, found: dict[str, tuple[Part, Outcome]]) -> None:
    """All figures so far."""
    body = {
        name: {"status": each.status, "seconds": round(each.seconds, 1), "figures": each.found}
        for name, (_, each) in found.items()
    }
    body["ratios"] = [
        {"what": what, "value": value, "target": f"{way} {target:g}"}
        for part, outcome in found.values()
        if outcome.found
        for what, value, way, target in part.rows(outcome.found)
    ]
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


PARTS = ("ceilings", "training", "extraction", "grounding", "tests")

if __name__ == "__main__":
    sys.exit(main())
