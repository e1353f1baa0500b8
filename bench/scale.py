"""Time and memory of every cache operation, with one or ten million rows.

    python bench/scale.py
    python bench/scale.py --rows 10000000 --steps plan fill open take
    python bench/scale.py --rows 12000000 --steps captions

Every step runs in a process of its own, so that its peak memory is its own; the step "imports" does
nothing. Rows are narrow (8 numbers), so the benchmark measures what grows with the number of rows:
keys, plan, index. There is no encoder. The memory includes the caller's keys, 32 bytes each. The
step "captions" is a dry run of text extraction: distinct captions of some ten words are tokenised
for their lengths and planned; its memory includes the captions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, verify
from sightline.cache.compact import collect, compact
from sightline.cache.keys import Keys

DIM, TAKEN, BATCH = 8, 1000, 256
ONE_STEP = "--one-step"
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


def fill(folder: Path, keys: Keys) -> str:
    """Update the set to contain exactly these keys."""
    computed = 0
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(keys, batch_size=BATCH):
            writer.add(batch, rows_of(batch.keys))
            computed += len(batch.keys)
        writer.publish()
    return f"{computed:,} computed"


def plan(folder: Path, keys: Keys) -> str:
    with SetWriter(folder, SPEC) as writer:
        return f"{len(writer.plan(keys, batch_size=BATCH)):,} batches"


def take(folder: Path, keys: Keys) -> str:
    features = FeatureSet.open(folder)
    start = time.perf_counter()
    rows = features.take(keys[-TAKEN:])
    took = time.perf_counter() - start
    np.testing.assert_array_equal(rows, rows_of(keys[-TAKEN:]))
    return f"{TAKEN:,} rows in {took * 1e3:.1f} ms"


def check(folder: Path, keys: Keys) -> str:
    faults = verify(folder)
    assert not faults, faults
    return "sound"


def captions(folder: Path, keys: Keys) -> str:
    """Plan the rows of as many distinct captions, with a teacher of random weights."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from pipeline.encoders.config import named_encoder
    from pipeline.extract.encode_missing import feature_job
    from pipeline.extract.inputs import FeatureInputs
    from pipeline.extract.runner import run
    from pipeline.extract.settings import ExtractSettings, Machine

    letters, model = "abcdefghij", folder.parent / "model"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "and", "number", *letters]
    words += [f"##{letter}" for letter in letters]
    model.mkdir(exist_ok=True)
    (model / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(model / "vocab.txt")).save_pretrained(model)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = BertConfig(vocab_size=len(words), intermediate_size=8, **shape)
    BertModel(config).save_pretrained(model)
    teacher = named_encoder(str(model), "random:0", "teacher")
    encoder = teacher.build_text(torch.device("cpu"), "fp32")
    digits = str.maketrans("0123456789", letters)
    texts = [f"a photo of {number} and of number".translate(digits) for number in range(len(keys))]
    job = feature_job(FeatureInputs("teacher", texts), encoder, folder, ExtractSettings())
    return str(run(job, 0, Machine(threads=1), dry_run=True))


Step = Callable[[Path, Keys], str]
STEPS: dict[str, tuple[Step, int, int]] = {
    "imports": (lambda folder, keys: "", 0, 0),
    "plan": (plan, 0, 100),
    "fill": (fill, 0, 100),
    "nothing to do": (fill, 0, 100),
    "add 1 %": (fill, 0, 101),
    "drop 1 %": (fill, 1, 101),
    "verify": (check, 0, 0),
    "gc": (lambda folder, keys: f"{collect(folder).bytes / 1e6:.1f} MB freed", 0, 0),
    "compact": (lambda folder, keys: f"{len(compact(folder).shards)} shards", 0, 0),
    "open": (lambda folder, keys: f"{len(FeatureSet.open(folder)):,} rows", 0, 0),
    "take": (take, 1, 100),
    "captions": (captions, 0, 100),
}
"""Each step, and the range of random keys that it gets, in hundredths of the rows."""


def one_step(step: str, folder: Path, count: int) -> None:
    """Run a step in this process, and print what it cost; keys are made before."""
    run, first, end = STEPS[step]
    keys = random_keys(end * count // 100)[first * count // 100 :]
    start = time.perf_counter()
    done = run(folder, keys)
    seconds = time.perf_counter() - start
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    megabytes = int(status["VmHWM"].split()[0]) * 1024 / 1e6
    print(json.dumps({"step": step, "s": seconds, "peak_MB": megabytes, "done": done}))


def main() -> None:
    """Run every step in a process of its own."""
    from harness import Report, options_of  # not in those processes: it imports PyTorch

    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    chosen = [name for name in STEPS if name != "captions"]
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=chosen)
    options = parser.parse_args()
    report = Report(options, f"{options.rows:,} rows × {DIM} float16, batches of {BATCH}")
    with tempfile.TemporaryDirectory() as scratch:
        for step in options.steps:
            words = [step, f"{scratch}/set", str(options.rows)]
            command = [sys.executable, __file__, ONE_STEP, *words]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            report.add(**json.loads(ended.stdout))


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_STEP]:
        one_step(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
