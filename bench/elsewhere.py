"""Tars at a URL against the same tars here: `prepare`, then decoding every image.

    python bench/elsewhere.py
    python bench/elsewhere.py --only https --images 4000

The servers (S3 of moto, HTTPS of the standard library) are Python in a process of their own on the
same machine, and share its cores with the reader. There is no network between: the ratios
hold what the servers compute, and not the latency and bandwidth of a real one.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Report, median, options_of, photographs, timed

from pipeline.datasets.prepare import prepare_dataset
from pipeline.extract.decode import load_image
from pipeline.extract.inputs import inputs_of
from sightline.files.storage import reading_ahead

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests/helpers"))
TARS, BATCH = 8, 64


def serve(name: str, folder: Path, answers: multiprocessing.SimpleQueue) -> None:
    """Serve a folder until killed; print its URL and the environment that reads it."""
    import os
    import threading

    from shelves import SHELVES

    before = {**os.environ}
    with pytest.MonkeyPatch.context() as patch, SHELVES[name](folder, patch) as shelf:
        new = {key: value for key, value in os.environ.items() if before.get(key) != value}
        answers.put((shelf.url, new))
        threading.Event().wait()


def main() -> None:
    """Measure and print."""
    from packed import write_tar

    parser = options_of(__doc__, rounds=5)
    parser.add_argument("--only", choices=("https", "s3"))
    parser.add_argument("--images", type=int, default=2000)
    options = parser.parse_args()
    report = Report(options)
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        drawn = photographs(Path(scratch, "drawn"), options.images, size=(640, 480))
        data = [path.read_bytes() for path in drawn]
        for tar in range(TARS):
            rows = [(f"{n}.jpg", data[n]) for n in range(tar, options.images, TARS)]
            rows += [(f"{n}.txt", b"a bird") for n in range(tar, options.images, TARS)]
            write_tar(Path(scratch, f"tars/{tar:05}.tar"), sorted(rows))
        sides: dict[str, Path | str] = {"here": Path(scratch, "tars")}
        context = multiprocessing.get_context("spawn")
        servers = []
        for name in [options.only] if options.only else ["https", "s3"]:
            answers = context.SimpleQueue()
            servers.append(context.Process(target=serve, args=(name, sides["here"], answers)))
            servers[-1].start()
            sides[name], environment = answers.get()
            for key, value in environment.items():
                patch.setenv(key, value)
        measured = {name: {"prepare": [], "decode": []} for name in sides}
        try:
            for number in range(options.rounds + 1):
                for name, images in sides.items():
                    for part, run in steps(images, Path(scratch, f"{name}-{number}")).items():
                        cost = timed(run)
                        measured[name][part] += [cost] if number else []  # one to warm up
        finally:
            for server in servers:
                server.terminate()
    for name in [*sides][1:]:
        for part in ("prepare", "decode"):
            here, there = (median(measured[side][part]).wall for side in ("here", name))
            seconds = {"here_s": here, f"{name}_s": there}
            report.ratio(
                f"{part}: {options.images:,} images, {name} / here", there / here, **seconds
            )


def steps(images: Path | str, out: Path) -> dict[str, Callable[[], object]]:
    """What is timed of one side, in order."""

    def decode() -> None:
        entries = inputs_of("image", out).entries
        for start in range(0, len(entries), BATCH):
            batch = entries.take(np.arange(start, min(start + BATCH, len(entries))))
            ahead = [entry.place.span for entry in batch] if isinstance(images, str) else []
            with reading_ahead(ahead):
                for entry in batch:
                    load_image(entry.place, entry.key)

    shards = f"{{00000..{TARS - 1:05}}}.tar"
    return {
        "prepare": lambda: prepare_dataset("webdataset", out, images=images, shards=shards),
        "decode": decode,
    }


if __name__ == "__main__":
    main()
