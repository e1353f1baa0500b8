"""What sharing costs: two independent processes, two workers of one set, and two actors on Ray.

    python bench/engines.py
    python bench/engines.py --images 1000 --rounds 3

Draws images, and encodes them with a randomly initialised network, one thread per process:

- apart: two processes, each with half of the images and a set of its own;
- `--devices cpu,cpu`: two workers that fill one set;
- `--engine ray`: two actors that fill one set, on a cluster of this machine.

The sides take turns. Compared are the seconds from the plan to the last commit, without imports and
models, and the processor time of reading, building the model and encoding, which other work on the
machine disturbs less; the whole command is shown beside them. The goals: two workers reach 0.9 of
what two independent processes do, and Ray takes at most a tenth longer than two workers.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from incremental import draw
from models.timed import Timed

from pipeline.cache import FeatureSet
from pipeline.encoders.named_encoder import named_encoder
from pipeline.extract.encode_missing import ExtractSettings
from pipeline.extract.engine import Engine, run_work
from pipeline.extract.feature_inputs import encode, images_of
from pipeline.extract.runner import Invocation

HOW = Invocation(threads=1, device="cpu")
ONE = Engine(devices=("cpu",))
TWO = Engine(devices=("cpu", "cpu"))
RAY = Engine(name="ray", ray_address="local", actors=2)


def work(model: str, images: Path, out: Path, batch_size: int) -> Timed:
    """The extraction of a folder, with decoding in the same process."""
    inputs = partial(images_of, named_encoder(model, "random:0"), images, None)
    settings = ExtractSettings(batch_size=batch_size, workers=0)
    return Timed(partial(encode, inputs, out, settings), out.with_name(out.name + "-time"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--encoder", default="resnet18")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # of actors
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        halves = [base / "images" / name for name in ("a", "b")]
        for number, half in enumerate(halves):
            draw(half, number * options.images, options.images // 2)
        digests = set()

        def apart(out: Path) -> tuple[float, float]:
            works = [
                work(options.encoder, half, out / half.name, options.batch_size) for half in halves
            ]
            with ThreadPoolExecutor(2) as pool:
                found = list(pool.map(lambda each: run_work(each, HOW, ONE), works))
            return max(each.seconds for each in found), sum(each.seconds() for each in works)

        def together(engine: Engine, out: Path) -> tuple[float, float]:
            every = work(options.encoder, base / "images", out, options.batch_size)
            summary = run_work(every, HOW, engine)
            assert summary.computed == 2 * (options.images // 2)
            digests.add(FeatureSet.open(out).record.content_digest)
            return summary.seconds, every.seconds()

        sides: dict[str, Callable[[Path], tuple[float, float]]] = {
            "apart": apart,
            "two workers": partial(together, TWO),
            "two on Ray": partial(together, RAY),
        }
        took: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
        for number in range(options.rounds):
            for name, side in sides.items():
                start = time.perf_counter()
                seconds, processor = side(base / f"{name}-{number}")
                took[name].append((seconds, processor, time.perf_counter() - start))
                print(f"round {number}, {name}: {seconds:.1f} s, CPU {processor:.1f} s", flush=True)
        assert len(digests) == 1
    wall, processor, whole = (
        {name: median(each[i] for each in rounds) for name, rounds in took.items()}
        for i in range(3)
    )
    print(f"\n{options.images:,} images, {options.encoder}, one thread each\n")
    print("| | s | CPU, s | whole command, s |\n|---|---:|---:|---:|")
    for name in sides:
        print(f"| {name} | {wall[name]:.1f} | {processor[name]:.1f} | {whole[name]:.1f} |")
    for what, found in (("wall time", wall), ("CPU time", processor)):
        gain, more = (
            found["apart"] / found["two workers"],
            found["two on Ray"] / found["two workers"],
        )
        print(f"\n{what}: two workers reach {gain:.3f} of two independent processes (goal 0.9)")
        print(f"{what}: Ray takes {more:.3f} of the time of two workers (goal 1.1)")


if __name__ == "__main__":
    main()
