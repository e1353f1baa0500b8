"""Cost of adding one per cent of images, compared with a full run and with one that has no work.

    python bench/incremental.py
    python bench/incremental.py --images 6400 --batch-size 16

Encodes a folder of drawn images with a ResNet-18 of random weights, then in rounds: a run with
nothing to do, and a run with 1 % more images. The goal: adding costs at most 1.5 % of the full run
plus the time of a run with nothing to do. Only whole batches are computed, so 1 % should be several
batches: use many images or small batches.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from drawn import photographs
from harness import Report, median, options_of, timed

from pipeline.encoders.config import named_encoder
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import inputs_of
from pipeline.extract.runner import run
from pipeline.extract.settings import ExtractSettings

SIZE = (256, 192)


def main() -> None:
    """Measure and print."""
    parser = options_of(__doc__, rounds=5)
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    report = Report(options, f"{options.images:,} images, batches of {options.batch_size}")
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
    report.ratio("1 % more images, % of a full run", share, at_most=1.5, **seconds)


if __name__ == "__main__":
    main()
