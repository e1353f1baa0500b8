"""Time and memory of every cache operation, with one or ten million rows.

    python bench/scale.py
    python bench/scale.py --rows 10000000 --steps plan,fill,open,take
    python bench/scale.py --rows 12000000 --steps captions

Every step runs in a separate process, so that its peak memory is its own. Rows are narrow
(8 numbers), so the benchmark measures what grows with the number of rows: keys, plan, index. There
is no encoder. The memory includes the caller's keys, 32 bytes each. The step ``captions`` is a dry
run of text extraction: distinct captions of some ten words are tokenised for their lengths and
planned; its memory includes the captions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, verify
from sightline.cache.compact import collect, compact
from sightline.cache.keys import Keys

DIM, TAKEN = 8, 1000
SPEC = FeatureSpec(
    kind="image",
    encoder=EncoderRecord(name="keys", source="random:0", weights_sha256="0" * 64),
    preprocessing={},
    precision="fp32",
    dim=DIM,
    dtype="float16",
)


def random_keys(count: int) -> Keys:
    """The same keys every time; a smaller ``count`` gives a prefix of a larger one."""
    data = np.random.default_rng(0).bytes(32 * count)
    return np.frombuffer(data, dtype=np.uint8).reshape(count, 32)


def rows_of(keys: Keys) -> np.ndarray:
    return keys[:, :DIM].astype(np.float32)


def run(folder: Path, keys: Keys, batch_size: int) -> str:
    """Update the set to contain exactly these keys."""
    with SetWriter(folder, SPEC) as writer:
        computed = 0
        for batch in writer.plan(keys, batch_size=batch_size):
            writer.add(batch.keys, rows_of(batch.keys))
            computed += len(batch.keys)
        writer.publish()
    return f"{computed:,} computed"


def plan(folder: Path, keys: Keys, batch_size: int) -> str:
    with SetWriter(folder, SPEC) as writer:
        return f"{len(writer.plan(keys, batch_size=batch_size)):,} batches"


def take(folder: Path, keys: Keys) -> str:
    features = FeatureSet.open(folder)
    start = time.perf_counter()
    rows = features.take(keys)
    took = time.perf_counter() - start
    np.testing.assert_array_equal(rows, rows_of(keys))
    return f"{TAKEN:,} rows in {took * 1e3:.1f} ms"


def check(folder: Path) -> str:
    faults = verify(folder)
    assert not faults, faults
    return "sound"


@dataclass(frozen=True)
class Step:
    """An operation and the range of random keys that it receives.

    ``first`` and ``end`` are in hundredths of the rows; keys are made before the clock starts.
    """

    do: Callable[[Path, Keys, int], str]
    first: int = 0
    end: int = 0


STEPS = {
    "plan": Step(plan, 0, 100),
    "fill": Step(run, 0, 100),
    "nothing to do": Step(run, 0, 100),
    "add 1 %": Step(run, 0, 101),
    "drop 1 %": Step(run, 1, 101),
    "verify": Step(lambda folder, keys, batch: check(folder)),
    "gc": Step(lambda folder, keys, batch: f"{collect(folder).bytes / 1e6:.1f} MB freed"),
    "compact": Step(lambda folder, keys, batch: f"{len(compact(folder).shards)} shards"),
    "open": Step(lambda folder, keys, batch: f"{len(FeatureSet.open(folder)):,} rows"),
    "take": Step(lambda folder, keys, batch: take(folder, keys[-TAKEN:]), 1, 100),
}


def captions(folder: Path, count: int) -> str:
    """Plan the rows of so many distinct captions, with a teacher of random weights."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from pipeline.encoders.config import named_encoder
    from pipeline.extract.encode_missing import encode
    from pipeline.extract.inputs import FeatureInputs
    from pipeline.extract.settings import RunSettings

    letters = "abcdefghij"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "and", "number", *letters]
    words += [f"##{letter}" for letter in letters]
    model = folder.parent / "model"
    model.mkdir(exist_ok=True)
    (model / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(model / "vocab.txt")).save_pretrained(model)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    BertModel(BertConfig(vocab_size=len(words), intermediate_size=8, **shape)).save_pretrained(
        model
    )
    encoder = named_encoder(str(model), "random:0", "teacher").build_text(
        torch.device("cpu"), "fp32"
    )
    digits = str.maketrans("0123456789", letters)
    texts = [f"a photo of {number} and of number".translate(digits) for number in range(count)]
    settings = RunSettings(dry_run=True, threads=1)
    return str(encode(FeatureInputs("teacher", texts), encoder, folder, settings))


def peak_megabytes() -> float:
    """Peak memory of this process, in MB of 10^6 bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status["VmHWM"].split()[0]) * 1024 / 1e6


OTHERS = {"captions": captions}
"""Steps that make their own input from the number of rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", default=",".join(STEPS), help="default: %(default)s")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        imports = peak_megabytes()
        if options.step in OTHERS:
            start = time.perf_counter()
            said = OTHERS[options.step](options.folder, options.rows)
            print(json.dumps([time.perf_counter() - start, peak_megabytes(), imports, said]))
            return
        step = STEPS[options.step]
        keys = random_keys(step.end * options.rows // 100)[step.first * options.rows // 100 :]
        start = time.perf_counter()
        said = step.do(options.folder, keys, options.batch_size)
        took = time.perf_counter() - start
        print(json.dumps([took, peak_megabytes(), imports, said]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        print(f"{options.rows:,} rows × {DIM} float16, batches of {options.batch_size}\n")
        print("| step | s | peak MB | |\n|---|---:|---:|---|")
        imports = 0.0
        for step in options.steps.split(","):
            command = [sys.executable, __file__, "--step", step, "--folder", f"{scratch}/set"]
            command += ["--rows", str(options.rows), "--batch-size", str(options.batch_size)]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            took, peak, imports, said = json.loads(found.stdout)
            print(f"| {step} | {took:.2f} | {peak:,.0f} | {said} |", flush=True)
        print(f"\nincluding imports: {imports:.0f} MB")


if __name__ == "__main__":
    main()
