"""A remedy as a test applies it, and the commands that remedies are for, on small inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Cure(NamedTuple):
    """A remedy: the part of the message, what provokes it, what applies it, what passes then."""

    message: str
    fails: str
    cures: tuple[str | Callable[[], object], ...] = ()
    passes: str = ""
    begins: Callable[[], object] = lambda: None


PREPARE = "prepare pairs --set images=photos --set captions=captions.csv --out d"
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
