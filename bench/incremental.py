"""Cost of adding one per cent of images, compared with a full run and with one that has no work.

    python bench/incremental.py
    python bench/incremental.py --images 6400 --batch-size 16
    python bench/incremental.py --only prepare

**prepare**: a folder of small files with their captions becomes manifests; then in rounds, with
nothing new and with 1 % more files. Only these may be read.

**extract**: encodes a folder of drawn images with a ResNet-18 of random weights, then in rounds: a
run with nothing to do, and a run with 1 % more images. The goal: adding costs at most 1.5 % of the
full run plus the time of a run with nothing to do. Only whole batches are computed, so 1 % should
be several batches: use many images or small batches.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import torch
from harness import Cost, Report, median, options_of, photographs, timed

from pipeline.datasets.prepare import prepare_dataset
from pipeline.encoders.names import named_encoder
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import inputs_of
from pipeline.extract.runner import run
from pipeline.extract.settings import ExtractSettings

SIZE, SMALL = (256, 192), (64, 48)
SETTLED = 2.1  # seconds after which a file counts as written


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__, rounds=5)
    parser.add_argument("--only", choices=("prepare", "extract"))
    parser.add_argument("--files", type=int, default=100_000, help="of prepare")
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    report = Report(options)
    if options.only != "extract":
        preparing(options, report)
    if options.only != "prepare":
        extracting(options, report)


def preparing(options: argparse.Namespace, report: Report) -> None:
    """CPU seconds of `prepare`: of all files, of nothing new, of 1 % more."""
    more = options.files // 100
    with tempfile.TemporaryDirectory() as scratch:
        images, captions, out = (Path(scratch) / name for name in ("images", "c.csv", "out"))
        photograph = photographs(Path(scratch), 1, size=SMALL)[0].read_bytes()
        for number in range(100):
            (images / f"{number:02}").mkdir(parents=True)

        def write(start: int, stop: int) -> None:
            for number in range(start, stop):  # bytes behind a JPEG's end change its key alone
                path = images / f"{number % 100:02}/{number:06}.jpg"
                path.write_bytes(photograph + number.to_bytes(4, "big"))
            with captions.open("a") as file:
                file.writelines(f"{number:06}.jpg,a bird\n" for number in range(start, stop))
            time.sleep(SETTLED)

        def run() -> Cost:
            given = {"images": images, "captions": captions}
            return timed(lambda: prepare_dataset("pairs", out, **given))

        captions.write_text("image,caption\n")
        write(0, options.files)
        full, nothing, added = run(), [], []
        for number in range(options.rounds):
            nothing.append(run())
            write(options.files + number * more, options.files + (number + 1) * more)
            added.append(run())
    seconds = {"full_run_s": full.cpu, "nothing_new_s": median(nothing).cpu}
    seconds["one_per_cent_s"] = median(added).cpu
    share = 100 * (seconds["one_per_cent_s"] - seconds["nothing_new_s"]) / full.cpu
    what = f"prepare: 1 % more of {options.files:,} files, % of a full run"
    report.ratio(what, share, at_most=2, **seconds)


def extracting(options: argparse.Namespace, report: Report) -> None:
    """Seconds of an extraction: of all images, of nothing to do, of 1 % more."""
    encoder = named_encoder("resnet18", "random:0").build_image(torch.device("cpu"), "fp32")
    settings = ExtractSettings(batch_size=options.batch_size)
    more = options.images // 100
    nothing, added = [], []
    with tempfile.TemporaryDirectory() as scratch:
        images, out, kept = (Path(scratch) / name for name in ("images", "set", "kept"))

        def expecting(computed: int) -> None:
            inputs = inputs_of("image", images)
            job = feature_job(inputs, encoder, out, settings, options.workers)
            assert run(job, settings.max_failed).computed == computed

        photographs(images, options.images, size=SIZE)
        full = timed(lambda: expecting(options.images)).wall
        shutil.copytree(out, kept)
        for number in range(options.rounds):
            nothing.append(timed(lambda: expecting(0)))
            new = photographs(images, more, first=options.images + number * more, size=SIZE)
            added.append(timed(lambda: expecting(more)))
            for path in new:
                path.unlink()
            shutil.rmtree(out)
            shutil.copytree(kept, out)
    idle, one_per_cent = median(nothing).wall, median(added).wall
    seconds = {"full_run_s": full, "nothing_to_do_s": idle, "one_per_cent_s": one_per_cent}
    share = 100 * (one_per_cent - idle) / full
    what = f"extract: 1 % more of {options.images:,} images, % of a full run"
    report.ratio(what, share, at_most=1.5, **seconds)


if __name__ == "__main__":
    main()
