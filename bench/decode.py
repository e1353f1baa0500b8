"""Decoding: images per CPU second, ours compared with Pillow, on real photographs in one run.

    python bench/decode.py [--images DIR] [--repeats 5]

One process, one thread, files in the page cache, CPU time (less sensitive to a busy machine).
Both sides read the bytes, check the key and convert each image to ResNet's input (resize 256,
centre crop 224, normalised float32): ours with `pipeline.extract.batches.decode_batch`, the other
with torchvision's transforms on Pillow images. "decode" is the first step alone. The two sides
alternate, and the ratio of the medians is printed. Skipped if there are no photographs.
"""

from __future__ import annotations

import hashlib
import io
import statistics
import time
from collections.abc import Callable

from models.photographs import photographs


def main() -> None:
    """Measure and print a table."""
    paths, repeats = photographs("Images per second, compared with Pillow.", 5)

    import numpy as np
    import torch
    from PIL import Image
    from torchvision.models import ResNet50_Weights

    from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing
    from pipeline.extract.batches import ImageReader, decode_batch
    from pipeline.extract.decode import decode_image
    from pipeline.extract.inputs import ImageEntry
    from sightline.cache import Place

    torch.set_num_threads(1)
    entries = [
        ImageEntry(Place(path), hashlib.sha256(path.read_bytes()).digest()) for path in paths
    ]
    contents = [path.read_bytes() for path in paths]
    ours = ImagePreprocessing((256, 256), (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)
    read, buffer = ImageReader(ours), torch.empty(64, 3, 224, 224)
    transform = ResNet50_Weights.IMAGENET1K_V1.transforms()

    def ours_decode() -> None:
        for data in contents:
            decode_image(data)

    def pillow_decode() -> None:
        for data in contents:
            np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    def ours_batch() -> None:
        for start in range(0, len(entries), 64):
            pixels, failures = decode_batch(entries[start : start + 64], 64, read)
            assert not failures
            for row in range(64):
                ours.normalised(pixels[row], out=buffer[row])

    def pillow_batch() -> None:
        for start in range(0, len(entries), 64):
            rows = []
            for place, key in entries[start : start + 64]:
                data = place.path.read_bytes()
                assert hashlib.sha256(data).digest() == key
                rows.append(transform(Image.open(io.BytesIO(data)).convert("RGB")))
            torch.stack(rows)

    print(f"{len(paths)} photographs, 1 thread, median of {repeats}, images per CPU second")
    print(f"{'':<22}{'Pillow':>9}{'ours':>9}{'ratio':>8}")
    for name, pillow, mine in (
        ("decode", pillow_decode, ours_decode),
        ("file → model's input", pillow_batch, ours_batch),
    ):
        theirs, own = in_turns(pillow, mine, repeats)
        rate = len(paths) / statistics.median(theirs), len(paths) / statistics.median(own)
        print(f"{name:<22}{rate[0]:>9.0f}{rate[1]:>9.0f}{rate[1] / rate[0]:>8.2f}")


def in_turns(
    first: Callable[[], None], second: Callable[[], None], repeats: int
) -> tuple[list[float], list[float]]:
    """CPU seconds of `repeats` runs of each side, after one warm-up run."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, run in enumerate((first, second)):
            start = time.process_time()
            run()
            if repeat:
                seconds[side].append(time.process_time() - start)
    return seconds


if __name__ == "__main__":
    main()
