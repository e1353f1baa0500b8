"""Digests of the code that trains: they change with a loss, not with a comment.

They are of the modules that train every run, whole, and of its objective's
(`sightline.source_code`). Those of evaluation tasks are in `train.evaluate.task_code`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sightline.source_code import digests_of, with_imports
from train.objectives import OBJECTIVES

CORE = (
    "train.batch",
    "train.data",
    "train.distributed",
    "train.gradient_cache",
    "train.loop",
    "train.losses",
    "train.model",
    "train.objectives.module",
    "train.objectives.needs",
    "train.objectives.objective",
    "train.optimizer",
    "train.pairs",
    "train.rows",
    "train.run_inputs",
    "train.run_spec",
    "train.schedule",
    "train.student",
    "train.train_run",
    "sightline.cache.caption_choice",
    "sightline.devices",
    "sightline.models.pooling",
    "sightline.models.sentence_transformers_folder",
)
"""The modules that train every run."""

APART = {
    "sightline": "names of the Python API",
    "sightline.cache.*": "its rows are inputs, whose digests a run has",
    "sightline.identity": "computes digests",
    "sightline.source_code": "computes these digests",
    "sightline.settings": "checks parameters, which are in the digest of a run",
    **dict.fromkeys(
        [
            *("sightline.digest", "sightline.errors", "sightline.lazy_names", "sightline.files.*"),
            *("sightline.machine.*", "sightline.models.pretrained", "sightline.optional_imports"),
            *("sightline.plugins", "sightline.user_files", "sightline.wording"),
            *("sightline.tables.arrow_arrays", "sightline.tables.arrow_files"),
            *("sightline.tables.outside_columns", "sightline.tables.outside_tables"),
        ],
        "files, messages and imports",
    ),
    "train": "a folder",
    "train.card": "writes the model card",
    "train.code_digest": "computes these digests",
    "train.embed": "encodes the dev set: it selects, as the other evaluations do",
    "train.evaluate.*": "scores; a score says what it was measured with",
    "train.export": "writes the folder of sentence-transformers, whose embeddings are compared",
    "train.objectives": "the names of objectives; each has its own module",
    "train.progress": "shows progress and handles signals",
    "train.records": "what a run records of itself",
    "train.run_folder": "the files of a run; that a resumed one is equal is tested bit for bit",
    "train.tracking": "shows a run elsewhere; it receives copies of the log",
}
"""What a training imports that is no part of its code → why; ``.*``: with all below it."""


def code_of(objectives: Iterable[str]) -> dict[str, str]:
    """Module → digest of its syntax tree, of all that trains these objectives.

    That is `CORE`, the objectives' modules, and what these import that is not `APART`. Of another
    package's objective it is its whole package, what of Sightline this imports, and every package
    that it imports, unless that is installed.
    """
    places = (OBJECTIVES.place(name).partition(":")[0] for name in objectives)
    return digests_of(with_imports(places, CORE, APART))
