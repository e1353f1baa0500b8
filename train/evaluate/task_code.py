"""Digests of the code that scores: of an evaluation task's module and all that it scores with."""

from __future__ import annotations

from functools import cache

from sightline.digest import digest
from sightline.source_code import digests_of, with_imports
from train.code_digest import APART, CORE
from train.evaluate.task import TASKS

SCORING = (
    "train.embed",
    "train.evaluate.models",
    "sightline.devices",
    "sightline.models.pooling",
    "sightline.models.sentence_transformers_folder",
)
"""The modules that every score goes through: from an encoder's folder to its embeddings."""
_CARRIES_SCORES = ("train.evaluate.evaluation", "train.evaluate.results")


@cache
def code_of_task(name: str) -> str:
    """Digest of the code that computes the scores of an evaluation task.

    It covers `SCORING`, the task's module, and what these import, as `train.code_digest.code_of`
    does; but not what trains: a run that this changes is another run.
    """
    place = TASKS.place(name).partition(":")[0]
    apart = {*(APART.keys() - {"train.evaluate.*"}), *CORE, *_CARRIES_SCORES}
    return digest(digests_of(with_imports([place], SCORING, apart)))
