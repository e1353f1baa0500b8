"""Extraction: how close to its ceiling, and compared with a plain loop, in one run.

    python bench/extract.py                                  # this machine's device
    python bench/extract.py --models resnet50 --images 128 --threads 1

For each model (random weights of the true shapes) and precision, over JPEGs of 500 × 375 that it
draws:

- model: the encoder alone, on inputs in memory (on the GPU's, if there is one);
- decoding: from the files to model inputs alone;
- plain: a loop as users write it: DataLoader, Pillow, the library's model and transform, one .npy;
  below fp32 its model is cast, too;
- Sightline: `sightline extract image` without start: from the folder to a published set.

The sides alternate; medians count. On a CPU the ceiling is 1 / (model + decoding) in CPU seconds
of all processes, on a GPU the lower of the two rates in wall time. It ends with a table of ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.encoders.config import named_encoder
from pipeline.encoders.weights import seeded
from pipeline.extract.batches import ImageReader, decode_batch, decoded_batches
from pipeline.extract.encode_missing import encode
from pipeline.extract.inputs import FeatureInputs, ImageEntry, images_below
from pipeline.extract.settings import RunSettings
from sightline.devices import AUTOCAST, computing, pick_device, using_threads

MODELS = {"resnet50": 1.0, "ViT-B-32": 1.0, "ViT-L-14": 0.125}
"""Each model with its share of the images on a CPU: a ViT-L/14 costs 20 times a ResNet-50."""
SIZE = (500, 375)
SIDES = ("model", "decoding", "plain", "Sightline")
CEILING = {"cpu": 0.95, "cuda": 0.8}
PLAIN = 1.0


@dataclass(frozen=True)
class Cost:
    """Seconds of one side: of the wall, and of the CPU over all processes."""

    wall: float
    cpu: float


def draw(folder: Path, count: int) -> None:
    """`count` JPEGs of 500 × 375: noise of several scales under shapes, about 70 kB each."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda number: draw_one(folder / f"{number:05}.jpg", number), range(count)))


def draw_one(path: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    picture = np.zeros((SIZE[1], SIZE[0], 3))
    for side, strength in ((4, 90), (16, 50), (64, 25), (250, 12)):
        noise = rng.normal(0, strength, (side * 3 // 4, side, 3))
        layer = [
            np.asarray(Image.fromarray(noise[..., c].astype(np.float32)).resize(SIZE))
            for c in range(3)
        ]
        picture += np.stack(layer, axis=2)
    for _ in range(6):
        left, top = rng.integers(0, SIZE[0] - 40), rng.integers(0, SIZE[1] - 40)
        width, height = rng.integers(20, 160, 2)
        picture[top : top + height, left : left + width] += rng.normal(0, 60, 3)
    pixels = np.clip(picture + 128, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=90)


class Files(Dataset[Tensor]):
    """A data set as users write it: Pillow, and the library's transform."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self._paths, self._transform = sorted(folder.glob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        return self._transform(Image.open(self._paths[index]).convert("RGB"))


class Plain:
    """The loop as users write it, with the same random weights."""

    def __init__(self, name: str, device: torch.device, precision: str) -> None:
        self.device, self.dtype = device, getattr(torch, AUTOCAST.get(precision, "float32"))
        with seeded(0):
            if name == "resnet50":
                import torchvision

                model = torchvision.models.resnet50(weights=None)
                model.fc = torch.nn.Identity()
                self.forward: Any = model
                weights = torchvision.models.ResNet50_Weights.IMAGENET1K_V1
                self.transform: Any = weights.transforms()
            else:
                import open_clip

                made = open_clip.create_model_and_transforms(name, pretrained=None)
                model, self.transform = made[0], made[2]
                self.forward = model.encode_image
        self._model = model.eval().to(device, self.dtype)

    def run(self, folder: Path, out: Path, batch_size: int, workers: int) -> Tensor:
        loader = DataLoader(
            Files(folder, self.transform),
            batch_size=batch_size,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
        )
        rows = []
        with torch.inference_mode():
            for images in loader:
                images = images.to(self.device, self.dtype, non_blocking=True)
                rows.append(self.forward(images).float().cpu())
        features = torch.cat(rows)
        np.save(out, features.numpy().astype(np.float16))
        return features


class Sides:
    """The four sides over one folder, with one model at one precision."""

    def __init__(self, name: str, folder: Path, precision: str, options: Any) -> None:
        self._device = pick_device(options.device)
        self._folder, self._options, self._precision = folder, options, precision
        self._encoder: Any = named_encoder(name, "random:0").build_image(self._device, precision)
        self._plain = Plain(name, self._device, precision)
        self._entries = images_below(folder)
        self._read = ImageReader(self._encoder.preprocessing)
        self.batches = [decoded.to(self._device) for decoded in self._decoded()]

    def _decoded(self) -> Iterator[Tensor]:
        size = self._options.batch_size
        for start in range(0, len(self._entries), size):
            pixels, failures = decode_batch(self._entries[start : start + size], size, self._read)
            assert not failures
            batch = torch.empty(size, 3, *self._read.size)
            for row, each in enumerate(pixels):
                self._read.preprocessing.normalised(each, out=batch[row])
            yield batch

    def model(self) -> None:
        if self._device.type == "cpu":
            for batch in self.batches:
                self._encoder.encode(batch)
            return
        rows = [self._encoder.encode(batch) for batch in self.batches]
        torch.cuda.synchronize(self._device)
        del rows

    def decoding(self) -> None:
        if self._device.type == "cpu":
            with using_threads(1):
                for _ in self._decoded():
                    pass
            return
        size = self._options.batch_size
        parts = [self._entries[i : i + size] for i in range(0, len(self._entries), size)]
        workers = self._options.workers
        for _ in decoded_batches(iter(parts), size, self._read, workers, pinned=True):
            pass

    def plain(self, scratch: Path) -> Tensor:
        options = self._options
        out = scratch / "plain.npy"
        return self._plain.run(self._folder, out, options.batch_size, options.workers)

    def sightline(self, scratch: Path) -> Path:
        options = self._options
        entries: list[ImageEntry] = images_below(self._folder)
        settings = RunSettings(
            batch_size=options.batch_size,
            workers=options.workers,
            threads=options.threads,
            precision=self._precision,
            devices=str(self._device),
        )
        out = scratch / "set"
        encode(FeatureInputs("image", entries), self._encoder, out, settings)
        return out

    def check(self, scratch: Path) -> None:
        """Both sides compute the same rows, or the ratio means nothing."""
        from sightline.cache import FeatureSet

        plain = self.plain(scratch).numpy()
        features = FeatureSet.open(self.sightline(scratch))
        keys = {entry.place.path: entry.key for entry in self._entries}
        paths = sorted(self._folder.glob("*.jpg"))
        ours = np.asarray(features.take([keys[path] for path in paths]), np.float32)
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(plain, axis=1)
        cosine = ((ours * plain).sum(axis=1) / norms).min()
        assert cosine > 0.999, f"the sides differ: cosine {cosine:.5f}"


def timed(run: Callable[[], object]) -> Cost:
    """What one run costs; its decode processes have ended."""
    gc.collect()
    wall, cpu = time.perf_counter(), _cpu()
    run()
    return Cost(time.perf_counter() - wall, _cpu() - cpu)


def _cpu() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def measure(name: str, precision: str, folder: Path, options: Any) -> dict[str, Any]:
    """One row of the table: seconds per image of each side, and the two ratios."""
    sides = Sides(name, folder, precision, options)
    count = len(list(folder.glob("*.jpg")))
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as first:
        sides.check(Path(first))  # warms up, too
    for repeat in range(options.repeats):
        for side in SIDES if repeat % 2 else SIDES[::-1]:
            with tempfile.TemporaryDirectory() as scratch:
                run: dict[str, Callable[[], object]] = {
                    "model": sides.model,
                    "decoding": sides.decoding,
                    "plain": lambda: sides.plain(Path(scratch)),
                    "Sightline": lambda: sides.sightline(Path(scratch)),
                }
                costs[side].append(timed(run[side]))
    on_cpu = pick_device(options.device).type == "cpu"
    clock = "cpu" if on_cpu else "wall"
    each = {
        side: statistics.median(getattr(cost, clock) for cost in found) / count
        for side, found in costs.items()
    }
    floor = each["model"] + each["decoding"] if on_cpu else max(each["model"], each["decoding"])
    wall = {
        side: statistics.median(cost.wall for cost in found) / count
        for side, found in costs.items()
    }
    return {
        "model": name,
        "precision": precision,
        "images": count,
        "clock": clock,
        "seconds_per_image": each,
        "wall_seconds_per_image": wall,
        "of_ceiling": floor / each["Sightline"],
        "over_plain": each["plain"] / each["Sightline"],
        "over_plain_wall": wall["plain"] / wall["Sightline"],
    }


def main() -> None:
    """Measure and print a table of ratios."""
    parser = argparse.ArgumentParser(description="Extraction: its ceiling, and a plain loop.")
    parser.add_argument("--images", type=int, default=1024, help="a multiple of the batch size")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2, help="decode processes of both loops")
    parser.add_argument("--threads", type=int, help="CPU threads of the models")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    options.precisions = options.precisions or ["fp32", "bf16"]
    device = pick_device(options.device)
    options.threads = options.threads or torch.get_num_threads()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(
        f"{where}, {options.threads} threads, {options.workers} decode processes, batches of "
        f"{options.batch_size}, torch {torch.__version__}; medians of {options.repeats}; "
        f"images per {'CPU second of all processes' if device.type == 'cpu' else 'second'}"
    )
    head = "".join(f"{side:>11}" for side in SIDES)
    print(f"{'':<22}{'images':>7}{head}{'of ceiling':>12}{'× plain':>9}{'wall':>7}", flush=True)
    found = []
    for name in options.models:
        share = MODELS[name] if device.type == "cpu" else 1.0
        size = options.batch_size
        count = max(size, int(options.images * share) // size * size)
        with tempfile.TemporaryDirectory() as scratch, computing(device, "fp32"):
            draw(Path(scratch), count)
            for precision in options.precisions:
                row = measure(name, precision, Path(scratch), options)
                rates = "".join(f"{1 / row['seconds_per_image'][side]:>11.2f}" for side in SIDES)
                ratios = f"{row['of_ceiling']:>12.3f}{row['over_plain']:>9.2f}"
                print(
                    f"{name + ', ' + precision:<22}{count:>7}{rates}{ratios}"
                    f"{row['over_plain_wall']:>7.2f}",
                    flush=True,
                )
                found.append(row)
    target = CEILING["cuda" if device.type == "cuda" else "cpu"]
    print(f"\ntargets: {target} of the ceiling, {PLAIN} × the plain loop")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
