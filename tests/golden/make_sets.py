"""The sets in `sets/`: small ones of every kind and history, which any later version must read.

Run it to write them again; they change only with the format:

    python tests/golden/make_sets.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from sightline.cache import (
    EncoderRecord,
    FeatureSpec,
    PhraseTokenHeader,
    SetWriter,
    TokenHeader,
    as_keys,
    key_of_text,
    pair_keys,
    write_phrase_tokens,
    write_tokens,
)
from sightline.cache.compact import compact
from sightline.cache.cutout_identity import CROP_RULE
from sightline.cache.record import Spec, TableSpec, read_record
from sightline.cache.repair import repair
from sightline.cache.rle import encode_mask
from sightline.cache.tables import ROWS_OF

HERE = Path(__file__).parent
SETS = HERE / "sets"
DIM = 4
SHARD_ROWS = 4
COMPUTED = {"device": "cpu", "batch_size": 2}
_KILLED = (
    "import sys; sys.path.append(sys.argv[1]); import make_sets; make_sets.killed(sys.argv[2])"
)

Rows = dict[bytes, Any]
"""Key → row: a list of numbers, or the columns of a table."""


@dataclass(frozen=True)
class Golden:
    """A set of `sets/`, and how to write it into a folder."""

    kind: str
    rows: Rows
    make: Callable[[Path], object]
    failed: dict[bytes, str] = field(default_factory=dict)  # key → status of a key without a row
    verdict: str = "sound"  # of `sightline cache verify`
    damaged: bytes | None = None  # key of a row that was changed on disk afterwards


def keys_of(*texts: str) -> list[bytes]:
    return [key_of_text(text) for text in texts]


def features_of(keys: Sequence[bytes]) -> Rows:
    """Rows of numbers that float16 holds exactly; they follow from the key."""
    return {key: [(byte - 128) / 8 for byte in key[:DIM]] for key in keys}


def feature_spec(kind: Any, dtype: Any = "float16", dim: int = DIM) -> FeatureSpec:
    return FeatureSpec(
        kind=kind,
        encoder=EncoderRecord(
            name="golden", source="random:0", weights_sha256="0" * 64, untrained=True
        ),
        preprocessing={"resize": 8},
        precision="fp32",
        dim=dim,
        dtype=dtype,
    )


def fill(
    folder: Path,
    spec: Spec,
    rows: Mapping[bytes, Any],
    failed: Mapping[bytes, str] | None = None,
    *,
    killed: bool = False,
    **options: Any,
) -> None:
    """Bring the set to these rows; ``killed``: end this process after half of the batches."""
    failed = failed or {}
    with SetWriter(folder, spec) as writer:
        keys = as_keys([*rows, *failed])
        batches = writer.plan(keys, batch_size=2, shard_rows=SHARD_ROWS, **options)
        for number, batch in enumerate(batches):
            if killed and number == len(batches) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            asked = [key.tobytes() for key in batch.keys]
            good = [key for key in asked if key in rows]
            codes = {key: failed[key] for key in asked if key in failed}
            bad = {key: {"code": codes[key], "path": "a.png", "reason": "why"} for key in codes}
            values = [rows[key] for key in good]
            if isinstance(spec, FeatureSpec):
                made: Any = np.array(values, np.float32).reshape(-1, spec.dim)
            else:
                made = pa.Table.from_pylist(values, ROWS_OF[spec.kind])
            writer.add(batch, made, bad, COMPUTED)
        writer.publish()


# -- features of each kind ---------------------------------------------------------------------

IMAGES = keys_of("image 0", "image 1", "image 2", "image 3", "image 4", "image 5")
IMAGE_ROWS = features_of(IMAGES)
IMAGE = feature_spec("image")
CAPTIONS = keys_of("a red dog", "a blue ball", "nothing", "Ein Mädchen, 小さい")
OBJECTS = keys_of("object 0", "object 1", "object 2")


def texts(folder: Path) -> None:
    lengths = np.array([16, 8, 8, 16], np.int32)
    fill(folder, feature_spec("text"), features_of(CAPTIONS), lengths=lengths)


def objects(folder: Path) -> None:
    groups = as_keys([IMAGES[1], IMAGES[0], IMAGES[1]])
    fill(folder, feature_spec("object"), features_of(OBJECTS), groups=groups)


# -- tables of each kind -----------------------------------------------------------------------

GROUNDING = TableSpec(
    kind="grounding",
    description={"grounder": {"family": "words"}, "segmenter": {"family": "box"}, "rules": {}},
)
CUTOUTS = TableSpec(kind="cutouts", description={"format": "cutouts/2", "crop_rule": CROP_RULE})
TOKENS = TokenHeader("0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)
SPANS = PhraseTokenHeader("0" * 64, max_length=8, phrases=4, dropped={"truncated": 1})


def unit(image: bytes, *captions: bytes) -> bytes:
    """Key of an image with its captions."""
    return hashlib.sha256(image + b"".join(captions)).digest()


def phrase(caption: bytes, text: str, start: int, cutout: bytes) -> dict[str, Any]:
    mask = np.zeros((4, 4), bool)
    mask[1:3, start % 2 :] = True
    return {
        "caption_key": caption,
        "phrase": text,
        "char_start": start,
        "char_end": start + len(text),
        "box": [0.5, 1.0, 3.25, 3.0],
        "score": 0.75,
        "mask": encode_mask(mask),
        "cutout_key": cutout,
    }


def drop(caption: bytes, text: str, reason: str) -> dict[str, str | bytes]:
    return {"caption_key": caption, "phrase": text, "reason": reason, "detail": "0.1 < 0.3"}


GROUNDED: Rows = {
    unit(IMAGES[0], *CAPTIONS[:2]): {
        "image_key": IMAGES[0],
        "captions": 2,
        "phrases": [
            phrase(CAPTIONS[0], "a red dog", 0, OBJECTS[0]),
            phrase(CAPTIONS[1], "blue ball", 2, OBJECTS[1]),
        ],
        "drops": [drop(CAPTIONS[0], "dog", "duplicate")],
    },
    unit(IMAGES[1], CAPTIONS[2]): {
        "image_key": IMAGES[1],
        "captions": 1,
        "phrases": [],
        "drops": [drop(CAPTIONS[2], "", "no_phrase")],
    },
    unit(IMAGES[2], CAPTIONS[3]): {
        "image_key": IMAGES[2],
        "captions": 1,
        "phrases": [phrase(CAPTIONS[3], "Mädchen", 4, OBJECTS[2])],
        "drops": [],
    },
}
BAD_UNIT = unit(IMAGES[3], CAPTIONS[0])


def stored_png(pixels: np.ndarray) -> bytes:
    """[h, w, 3 or 4] uncompressed: what zlib makes of pixels depends on its version."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    stored = struct.pack("<BHH", 1, len(rows), len(rows) ^ 0xFFFF) + rows
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    body = b"x\x01" + stored + struct.pack(">I", zlib.adler32(rows))
    chunks = (b"IHDR" + header, b"IDAT" + body, b"IEND")
    parts = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def cutout(width: int, value: int) -> dict[str, int | bytes]:
    rows = [[[value, 255 - value, y, 255]] * width for y in range(3)]
    return {"width": width, "height": 3, "png": stored_png(np.array(rows, np.uint8))}


CUT: Rows = {key: cutout(2 + i, 40 * i) for i, key in enumerate(OBJECTS)}
TOKEN_ROWS: Rows = {
    key: {"input_ids": [1, *range(10, 10 + i), 2]} for i, key in enumerate(CAPTIONS)
}
PAIRS = pair_keys(as_keys([*IMAGES[:2], IMAGES[0]]), as_keys(CAPTIONS[:3]))
SPAN_ROWS: Rows = {
    PAIRS[0].tobytes(): {
        "phrases": [
            {"token_start": 1, "token_end": 3, "cutout_key": OBJECTS[0]},
            {"token_start": 4, "token_end": 5, "cutout_key": OBJECTS[1]},
        ]
    },
    PAIRS[1].tobytes(): {"phrases": [{"token_start": 2, "token_end": 4, "cutout_key": OBJECTS[2]}]},
}


def tokens(folder: Path) -> None:
    ids = [row["input_ids"] for row in TOKEN_ROWS.values()]
    write_tokens(folder, TOKENS, as_keys(list(TOKEN_ROWS)), ids)


def phrase_tokens(folder: Path) -> None:
    each = [(pair, span) for pair, row in SPAN_ROWS.items() for span in row["phrases"]]
    write_phrase_tokens(
        folder,
        SPANS,
        as_keys([pair for pair, _ in each]),
        as_keys([span["cutout_key"] for _, span in each]),
        [span["token_start"] for _, span in each],
        [span["token_end"] for _, span in each],
    )


# -- histories ---------------------------------------------------------------------------------

FAILED = dict(
    zip(keys_of("not an image", "half of one"), ("undecodable", "truncated"), strict=True)
)
OVERFLOW = key_of_text("an image with a row that float16 does not hold")


def failed(folder: Path) -> None:
    fill(folder, IMAGE, IMAGE_ROWS | {OVERFLOW: [1e6] * DIM}, FAILED)


def killed(folder: str) -> None:
    """Half of a run over some of the images."""
    fill(Path(folder), IMAGE, features_of(IMAGES[:5]), killed=True)


def resumed(folder: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(HERE), str(folder)]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    fill(folder, IMAGE, IMAGE_ROWS)


def grown(folder: Path) -> None:
    """Images come one run after the other; then one is gone, and its row stays in its shard."""
    for count in (2, 3, 6):
        fill(folder, IMAGE, features_of(IMAGES[:count]))
    fill(folder, IMAGE, features_of(IMAGES[1:]))


def compacted(folder: Path) -> None:
    grown(folder)
    compact(folder, SHARD_ROWS)


LOST = sorted(IMAGES)[:SHARD_ROWS]
"""Keys of a full shard."""


def damaged(folder: Path) -> None:
    """A bit of the first row of that shard flips."""
    fill(folder, IMAGE, IMAGE_ROWS)
    (name,) = (shard.name for shard in read_record(folder).shards if shard.rows == SHARD_ROWS)
    path = folder / name
    with h5py.File(path) as file:
        at = file["features"].id.get_offset()
    data = bytearray(path.read_bytes())
    data[at + 1] ^= 1
    path.write_bytes(data)


def repaired(folder: Path) -> None:
    damaged(folder)
    repair(folder)


GOLDEN: dict[str, Golden] = {
    "image": Golden("image", IMAGE_ROWS, lambda to: fill(to, IMAGE, IMAGE_ROWS)),
    "text": Golden("text", features_of(CAPTIONS), texts),
    "teacher": Golden(
        "teacher",
        features_of(CAPTIONS),
        lambda to: fill(to, feature_spec("teacher", "float32"), features_of(CAPTIONS)),
    ),
    "object": Golden("object", features_of(OBJECTS), objects),
    "grounding": Golden(
        "grounding",
        GROUNDED,
        lambda to: fill(to, GROUNDING, GROUNDED, {BAD_UNIT: "too_narrow"}),
        {BAD_UNIT: "too_narrow"},
    ),
    "cutouts": Golden("cutouts", CUT, lambda to: fill(to, CUTOUTS, CUT)),
    "tokens": Golden("tokens", TOKEN_ROWS, tokens),
    "phrase-tokens": Golden("phrase-tokens", SPAN_ROWS, phrase_tokens),
    "failed": Golden("image", IMAGE_ROWS, failed, FAILED | {OVERFLOW: "not_finite"}),
    "resumed": Golden("image", IMAGE_ROWS, resumed),
    "grown": Golden("image", features_of(IMAGES[1:]), grown),
    "compacted": Golden("image", features_of(IMAGES[1:]), compacted),
    "damaged": Golden("image", IMAGE_ROWS, damaged, verdict="1 fault", damaged=LOST[0]),
    "repaired": Golden(
        "image",
        {key: IMAGE_ROWS[key] for key in IMAGES if key not in LOST},
        repaired,
        dict.fromkeys(LOST, "damaged"),
        verdict=f"sound, {len(LOST)} rows to compute",
    ),
}
"""Every set, by its folder's name."""


def make_all(folder: Path) -> None:
    """Write every set below ``folder``, without what runs left beside them."""
    for name, golden in GOLDEN.items():
        golden.make(folder / name)
        shutil.rmtree(folder / f"{name}.run", ignore_errors=True)


if __name__ == "__main__":
    shutil.rmtree(SETS, ignore_errors=True)
    make_all(SETS)
