"""Whether two checkouts compute the same on this machine: their demos, compared value by value.

    python bench/same.py OTHER_CHECKOUT
    python bench/same.py OTHER_CHECKOUT --keep     # compares the demos that are there already

Runs `make demo` from scratch here and in the other checkout, in turn, and compares exactly: the
rows of every set, the weights and losses of every run, every score, and the report's table. Lists
what differs; exits with 1 if anything does. Each checkout describes its own demo with its own copy
of this file (``--describe``), in one form for all versions: formats and names may change.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sightline.cache.record import TableKind

HERE = Path(__file__).resolve().parents[1]
SHOWN = 5  # differing entries that are named

Description = dict[str, dict[str, Any]]
"""What is compared (such as ``rows of features/scenes/image/clip``) → entry → value or digest."""


def describe(demo: Path) -> Description:
    """What a finished demo contains."""
    found: Description = {}
    for record in sorted(demo.glob("data/**/set.json")):
        folder, name = record.parent, record.parent.relative_to(demo / "data").as_posix()
        kind = json.loads(record.read_text())["spec"]["kind"]
        if kind in ("image", "object", "text", "teacher"):
            found[f"rows of {name}"] = dict(features(folder))
        else:
            found |= {f"{table} of {name}": rows for table, rows in tables(folder, kind).items()}
    for summary in sorted(demo.glob("runs/*/*/run.json")):
        name = summary.parent.relative_to(demo / "runs").as_posix()
        found[f"weights of {name}"] = dict(weights(summary.parent))
        log = json.loads(summary.read_text())["log"]
        found[f"losses of {name}"] = {
            f"{what} at step {entry['step']:.0f}": value
            for entry in log
            for what, value in entry.items()
            if what != "sentences_per_second"
        }
    for result in sorted(demo.glob("results/*/*.json")):
        name = result.relative_to(demo / "results").with_suffix("").as_posix()
        scores = found[f"scores of {name}"] = {}
        for task in json.loads(result.read_text())["tasks"].values():
            scores |= task["scores"]
            for reference, values in task["references"].items():
                scores |= {f"{reference}: {metric}": value for metric, value in values.items()}
    lines = (demo / "report/report.txt").read_text().splitlines()
    found["table of the report"] = {f"line {i}": line for i, line in enumerate(lines, start=1)}
    return found


def features(folder: Path) -> Iterator[tuple[str, str]]:
    """Key → digest of the row's bytes, in the order of the keys."""
    from sightline.cache import FeatureSet

    rows = FeatureSet.open(folder)
    for key in sorted(bytes(key) for key in rows.keys):
        yield key.hex(), digest(rows.take([key])[0].tobytes())


def tables(folder: Path, kind: TableKind) -> dict[str, dict[str, tuple[int, str]]]:
    """Table → digest of a row's canonical JSON → how often it occurs, and how the row begins."""
    from sightline.cache.table_sets import open_tables

    found: dict[str, dict[str, tuple[int, str]]] = {}
    _, rows, _ = open_tables(folder, kind)
    for key, row in zip(rows.keys, rows.gather(np.arange(len(rows))).to_pylist(), strict=True):
        for table, flat in flattened(kind, key.tobytes(), row):
            text = json.dumps(flat, sort_keys=True, default=digest)
            digests = found.setdefault(table, {})
            count = digests.get(digest(text.encode()), (0, ""))[0]
            digests[digest(text.encode())] = count + 1, text[:200]
    return found


def flattened(kind: TableKind, key: bytes, row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The rows of the flat tables that a row of a set stands for: table, columns."""
    if kind == "grounding":
        image = {"image_key": row["image_key"]}
        counts = {"captions": row["captions"], "pairs": len(row["phrases"]), "error": ""}
        yield "images", {"unit_key": key, **image, **counts}
        for table in ("phrases", "drops"):
            yield from ((table, {**image, **each}) for each in row[table])
    elif kind == "phrase-tokens":
        yield from (("phrase_tokens", {"pair_key": key, **each}) for each in row["phrases"])
    else:
        yield kind, {"key": key, **row}


def weights(run: Path) -> Iterator[tuple[str, str]]:
    """Name of every exported tensor → digest."""
    from safetensors.numpy import load_file

    for file in sorted(run.rglob("*.safetensors")):
        for name, tensor in load_file(file).items():
            yield f"{file.stem}: {name}", digest(tensor.tobytes())


def digest(value: bytes) -> str:
    return sha256(value).hexdigest()[:32]


def differences(here: Description, there: Description) -> list[str]:
    """What differs, one line for each thing that is compared."""
    lines = []
    for what in sorted(here.keys() | there.keys()):
        one, other = here.get(what), there.get(what)
        if one is None or other is None:
            lines.append(f"{what}: only {'there' if one is None else 'here'}")
            continue
        differ = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
        if differ:
            shown = sorted(differ)[:SHOWN]
            lines.append(f"{what}: {len(differ):,} of {len(one):,} differ")
            lines += [f"    {name}: {one.get(name)} / {other.get(name)}" for name in shown]
    return lines


def described(checkout: Path) -> Description:
    command = [checkout / ".venv/bin/python", "bench/same.py", "--describe", "demo"]
    done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def run_demo(checkout: Path) -> float:
    """Seconds of `make demo` from scratch."""
    shutil.rmtree(checkout / "demo", ignore_errors=True)
    subprocess.run(["make", "--silent", "setup"], cwd=checkout, check=True)
    start = time.monotonic()
    subprocess.run(["make", "--silent", "demo"], cwd=checkout, check=True, stdout=sys.stderr)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", nargs="?", type=Path, help="another checkout of Sightline")
    parser.add_argument("--keep", action="store_true", help="do not run the demos again")
    parser.add_argument("--describe", type=Path, metavar="DEMO", help="print one demo as JSON")
    options = parser.parse_args()
    if options.describe:
        sys.path.insert(0, str(HERE))
        print(json.dumps(describe(options.describe)))
        return
    if options.other is None:
        parser.error("give the other checkout")
    checkouts = [HERE, options.other.resolve()]
    if not options.keep:
        took = [run_demo(checkout) for checkout in checkouts]
        print(f"make demo: {took[0]:.0f} s here, {took[1]:.0f} s there: {took[0] / took[1]:.2f} ×")
    here, there = (described(checkout) for checkout in checkouts)
    lines = differences(here, there)
    print("\n".join(lines or [f"nothing differs: {len(here)} sets, runs and tables"]))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
