"""Time and memory of every cache operation, with one or ten million rows.

    python bench/scale.py
    python bench/scale.py --rows 10000000 --steps plan fill open take
    python bench/scale.py --rows 10000000 --steps worker publishing images captions tokens

Every step runs in a process of its own, so that its peak memory is its own; the step "imports" does
nothing. Rows are narrow (8 numbers), so the benchmark measures what grows with the number of rows:
keys, plan, index. There is no encoder. The peak includes the caller's keys, 32 bytes each. The last
steps print what a row takes beside what was there before: a worker's plan, publishing, and, from
manifests, the plans of image and text extraction and tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, verify
from sightline.cache.compact import collect
from sightline.cache.keys import Keys
from sightline.cache.manifest import IMAGES, in_file, key_array

if TYPE_CHECKING:
    from pipeline.extract.inputs import FeatureInputs

DIM, TAKEN, BATCH = 8, 1000, 256
ONE_STEP = "--one-step"
_AT_ONCE = 1 << 16
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


def bytes_a_row(work: Callable[[], object], rows: int) -> str:
    """Peak memory of this process during ``work``, beyond what it had before, for each row."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    work()
    return f"{(memory('VmHWM') - before) / rows:.0f} bytes a row"


def memory(name: str) -> int:
    """A figure of this process's memory, in bytes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024


def worker(folder: Path, keys: Keys) -> str:
    """What a worker holds of its keys and its plan."""
    return bytes_a_row(lambda: SetWriter(folder, SPEC).preview(keys, batch_size=BATCH), len(keys))


def publishing(folder: Path, keys: Keys) -> str:
    """What the last worker takes beside that, to publish what all have finished."""
    with SetWriter(folder, SPEC) as writer:
        for batch in writer.plan(keys, batch_size=BATCH):
            writer.add(batch, rows_of(batch.keys))
        return bytes_a_row(writer.publish, len(keys))


def images(folder: Path, keys: Keys) -> str:
    """The plan of image extraction, from a manifest of as many images."""
    import torch

    from pipeline.encoders.names import named_encoder
    from pipeline.extract.inputs import FeatureInputs, image_entries_of
    from sightline.cache.prepared import PreparedDataset

    manifest, schema = folder.parent / "images.parquet", in_file(IMAGES)
    with pq.ParquetWriter(manifest, schema) as writer:
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            names = [f"{start + row:010}.jpg" for row in range(len(some))]
            columns = {"image_id": names, "path": names, "key": key_array(some)}
            columns |= dict.fromkeys(("offset", "length"), pa.nulls(len(some), pa.int64()))
            columns |= {"width": [0] * len(some), "height": [0] * len(some)}
            columns["split"] = [""] * len(some)
            writer.write_table(pa.table(columns, schema))
    encoder = named_encoder("resnet18", "random:0").build_image(torch.device("cpu"), "fp32")

    def work() -> None:
        data = PreparedDataset(manifest.parent, manifest.parent)
        planned(FeatureInputs("image", image_entries_of(data)), encoder, folder)

    return bytes_a_row(work, len(keys))


def captions(folder: Path, keys: Keys) -> str:
    """The plan of text extraction, with a teacher of random weights, from as many captions."""
    import torch

    from pipeline.encoders.names import named_encoder
    from pipeline.extract.inputs import inputs_of

    path, model = caption_files(folder, len(keys))
    encoder = named_encoder(str(model), "random:0", "teacher").build_text(
        torch.device("cpu"), "fp32"
    )
    return bytes_a_row(lambda: planned(inputs_of("teacher", path), encoder, folder), len(keys))


def tokens(folder: Path, keys: Keys) -> str:
    """Tokens of as many captions."""
    from pipeline.tokenize_texts import texts_of, tokenize

    path, model = caption_files(folder, len(keys))
    out = folder.with_name("tokens")
    return bytes_a_row(lambda: tokenize(texts_of([path]), model, 32, out), len(keys))


def planned(inputs: FeatureInputs, encoder: Any, folder: Path) -> None:
    """A dry run."""
    from pipeline.extract.encode_missing import feature_job
    from pipeline.extract.run_options import RunOptions
    from pipeline.extract.runner import run
    from pipeline.extract.settings import ExtractSettings
    from pipeline.machine import Machine

    job = feature_job(inputs, encoder, folder.with_name("planned"), ExtractSettings())
    run(job, 0, Machine(threads=1), RunOptions(dry_run=True))


def caption_files(folder: Path, count: int) -> tuple[Path, Path]:
    """A table of distinct captions of some ten words, and a small model that reads them."""
    from transformers import BertConfig, BertModel, BertTokenizer

    letters, model = "abcdefghij", folder.parent / "model"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "and", "number", *letters]
    words += [f"##{letter}" for letter in letters]
    model.mkdir(exist_ok=True)
    (model / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(model / "vocab.txt")).save_pretrained(model)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = BertConfig(vocab_size=len(words), intermediate_size=8, **shape)
    BertModel(config).save_pretrained(model)
    digits = str.maketrans("0123456789", letters)
    path, schema = folder.parent / "captions.parquet", pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            texts = [f"a photo of {number} and of number".translate(digits) for number in numbers]
            writer.write_table(pa.table({"text": texts}, schema))
    return path, model


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
    "open": (lambda folder, keys: f"{len(FeatureSet.open(folder)):,} rows", 0, 0),
    "take": (take, 1, 100),
    "worker": (worker, 100, 200),
    "publishing": (publishing, 100, 200),
    "images": (images, 0, 100),
    "captions": (captions, 0, 100),
    "tokens": (tokens, 0, 100),
}
"""Each step, and the range of random keys that it gets, in hundredths of the rows."""


def one_step(step: str, folder: Path, count: int) -> None:
    """Run a step in this process, and print what it cost; keys are made before."""
    run, first, end = STEPS[step]
    keys = random_keys(end * count // 100)[first * count // 100 :]
    start = time.perf_counter()
    done = run(folder, keys)
    seconds = time.perf_counter() - start
    megabytes = memory("VmHWM") / 1e6
    print(json.dumps({"step": step, "s": seconds, "peak_MB": megabytes, "done": done}))


def main() -> None:
    """Run every step in a process of its own."""
    from harness import Report, options_of  # not in those processes: it imports PyTorch

    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    chosen = [name for name in STEPS if name not in ("images", "captions", "tokens")]
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
