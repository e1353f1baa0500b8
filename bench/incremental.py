"""Cost of adding one per cent of images, compared with a full run and a no-op run.

    python bench/incremental.py

Draws images into a folder, encodes all of them with a randomly initialised
ResNet-18, then in rounds: a run with nothing to do, and a run with 1 % more images. The goal:
adding costs at most 1.5 % of the full run plus the time of a run with nothing to do. Only whole
batches are computed, so 1 % should be several batches: use many images or small batches.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

from pipeline.encoders.config import named_encoder
from pipeline.extract.encode_missing import encode
from pipeline.extract.inputs import inputs_of
from pipeline.extract.settings import RunSettings


def draw(folder: Path, start: int, count: int) -> list[Path]:
    """Write ``count`` small images of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06d}.jpg" for i in range(start, start + count)]
    for i, path in enumerate(paths, start):
        pixels = np.random.default_rng(i).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((256, 192)).save(path, quality=85)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    encoder = named_encoder("resnet18", "random:0").build_image(torch.device("cpu"), "fp32")
    settings = RunSettings(batch_size=options.batch_size, workers=options.workers)
    with tempfile.TemporaryDirectory() as scratch:
        images, out, kept = (Path(scratch) / name for name in ("images", "set", "kept"))
        draw(images, 0, options.images)

        def run() -> tuple[float, int]:
            start = time.perf_counter()
            summary = encode(inputs_of("image", images), encoder, out, settings)
            return time.perf_counter() - start, summary.computed

        run_time, computed = run()
        assert computed == options.images
        shutil.copytree(out, kept)
        nothing, added = [], []
        more = options.images // 100
        for number in range(options.rounds):
            seconds, computed = run()
            assert computed == 0
            nothing.append(seconds)
            new = draw(images, options.images * (number + 1), more)
            seconds, computed = run()
            assert computed == more
            added.append(seconds)
            for path in new:
                path.unlink()
            shutil.rmtree(out)
            shutil.copytree(kept, out)
    limit = 0.015 * run_time + median(nothing)
    print(f"full run, {options.images:,} images:   {run_time:8.2f} s")
    print(f"nothing to do:               {median(nothing):8.2f} s  ({_spread(nothing)})")
    print(f"1 % more, {more:,} images:       {median(added):8.2f} s  ({_spread(added)})")
    share = (median(added) - median(nothing)) / run_time
    print(f"1 % more costs {share:.2%} of a full run beyond a run with nothing to do (goal 1.5 %)")
    print(f"goal: at most {limit:.2f} s: " + ("met" if median(added) <= limit else "MISSED"))


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


if __name__ == "__main__":
    main()
