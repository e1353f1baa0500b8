"""A remedy as a test applies it, and the commands that remedies are for, on small inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from command_line import sightline
from small_inputs import write_clip, write_photos
from tiny_encoder import make_encoder

from sightline.cache import PHRASES, key_of_file, key_of_text, write_manifest
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.rle import encode_mask
from sightline.errors import SightlineError

Step = str | Callable[[], object]


class Cure(NamedTuple):
    """A remedy: the part of the message, what provokes it, what applies it, what passes then.

    A step is a command, or a function where no command can do it.
    """

    message: str
    fails: Step
    cures: tuple[Step, ...] = ()
    passes: Step = ""
    begins: Callable[[], object] = lambda: None


PREPARE = "prepare pairs --images photos --captions captions.csv --out d"
EXTRACT = (
    "extract image --data d --encoder clip.json --weights random:0 --workers 0 --threads 1 --out "
)
TEXTS = "extract text --data d --encoder clip.json --weights random:0 --threads 1 --out text"
TOKENS = "tokens --data d --student ./student --out tokens"
TRAIN = (
    "train mcse --data d --tokens tokens --student ./student --set image=clip "
    "--features image-clip=clip --max-steps 1 --batch-size 4 --device cpu --out run"
)
LOOK = "look neighbours red --data d --encoder clip.json --features clip"
PHRASE_TOKENS = "tokens --data d --phrases grounding --student ./student --out phrase-tokens"
GROUND = (
    "ground --data d --set grounder.family=annotations --set grounder.path=phrases.parquet "
    "--set segmenter.family=annotations --out grounding --cutouts cutouts"
)
OBJECTS = (
    "extract object --data d --encoder clip.json --weights random:0 --workers 0 --threads 1 "
    "--out objects"
)


def run(step: Step) -> int:
    """The exit code of a command; of a function, 1 if it raises an error, which is printed."""
    if isinstance(step, str):
        return sightline(*step.split())
    try:
        step()
    except SightlineError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write_inputs(folder: Path) -> None:
    """Photographs, captions, phrases in them, and models, into ``folder``."""
    photos = write_photos(folder / "photos", 4)
    write_clip(folder)
    lines = [f"{i}.png,a red bird {i}\n{i}.png,a boat on a lake {i}\n" for i in range(4)]
    (folder / "captions.csv").write_text("image,caption\n" + "".join(lines))
    for part in make_encoder():
        part.save_pretrained(folder / "student")
    rows = []
    for i in range(4):
        mask = np.zeros((40 + i, 50), bool)
        mask[3:20, 4:30] = True
        code, key = encode_mask(mask), key_of_file(photos / f"{i}.png")
        row = {"image_key": key, "caption_key": key_of_text(f"a boat on a lake {i}"), "mask": code}
        row |= {"phrase": "a boat", "char_start": 0, "char_end": 6, "score": 1.0}
        row |= {"box": [4.0, 3.0, 30.0, 20.0]}
        row["cutout_key"] = cutout_key(key, code["size"], code["counts"], CROP_RULE)
        rows.append(row)
    write_manifest(folder / "phrases.parquet", pa.Table.from_pylist(rows, PHRASES), PHRASES)
