"""A set whose maker's code has changed: a few rows are encoded again, and it is kept if equal.

The code of another package is in a set's record and not in its fingerprint, so that a release which
moves no row recomputes none.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from sightline.cache import CacheError, FeatureSet
from sightline.cache.diff import cosines
from sightline.cache.index import read_index
from sightline.cache.keys import Keys, at, find_keys, picked, unique_sorted
from sightline.cache.record import FeatureSpec, SetRecord, read_record, set_output, write_record
from sightline.cache.rows import Rows
from sightline.errors import BusyError
from sightline.identity import agrees, named_in
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.extract.runner import Job
    from pipeline.extract.settings import ExtractSettings

SAME = 0.9999
"""Minimum cosine between rows of different devices or batch shapes; below it, rows differ."""
SAME_LENGTH = 0.01
"""Largest relative difference between the lengths of such rows, which a cosine does not see."""
_ROWS = 8
_PATIENCE = 60.0  # seconds for another worker that has found the same


@dataclass(frozen=True)
class Agreement:
    """How rows that were encoded again compare with stored ones; [n] each.

    Attributes:
        cosine: of each pair of rows.
        off: relative difference of their lengths.
    """

    cosine: NDArray[np.float64]
    off: NDArray[np.float64]

    @classmethod
    def of(cls, stored: NDArray, again: NDArray) -> Agreement:
        """Compare [n, dim] with [n, dim]."""
        a, b = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (stored, again))
        off = np.abs(a - b) / np.maximum(np.maximum(a, b), np.finfo(np.float64).tiny)
        return cls(cosines(stored, again), off)

    @property
    def differs(self) -> NDArray[np.bool_]:
        """Which rows differ: by `SAME` or `SAME_LENGTH`."""
        return ~((self.cosine >= SAME) & (self.off <= SAME_LENGTH))


def changed_code(job: Job) -> SetRecord | None:
    """The record of the set that a job extends, if only the code that made it has changed."""
    try:
        record = read_record(job.out)
    except CacheError:
        return None
    same = record.fingerprint == job.spec.fingerprint
    return record if same and record.spec.code != job.spec.code else None


def keep_if_equal(job: Job, record: SetRecord, encode: Callable[[Job], object]) -> str:
    """Encode a few rows of a set again with the code of today; keep the set if they are equal.

    Args:
        record: of the set (`changed_code`).
        encode: fills the set of a job.

    Returns:
        What was found. A set that is not kept still has its record, and the run that follows
        computes all of it again.
    """
    changed = f"{job.out}: the code that made its rows has changed"
    try:
        stored, _ = read_index(job.out, record, digests=True)
        distinct = at(job.keys, unique_sorted(job.keys))
        held = picked(distinct, stored.find(distinct) >= 0)
        places = np.random.default_rng(0).choice(len(held), min(_ROWS, len(held)), replace=False)
        sample = held[np.sort(places)]
        differing = _differing(job, stored, sample, encode)
    except CacheError as error:  # of a damaged set
        return f"{changed}, and they cannot be compared: {error}"
    rows = counted(len(sample), "row")
    if differing or not len(sample):
        return f"{changed}, and {differing} of {rows} encoded again differ: all are computed again"
    _adopt(job)
    return f"{changed}, and {rows} encoded again are equal: the set is kept"


def _differing(job: Job, stored: Rows, keys: Keys, encode: Callable[[Job], object]) -> int:
    """How many of these rows (uint8 [n, 32]) the code of today computes otherwise."""
    order = unique_sorted(job.keys)
    chosen = order[find_keys(at(job.keys, order), keys)]
    options = {
        name: None if of_keys is None else at(of_keys, chosen)
        for name, of_keys in (("groups", job.groups), ("lengths", job.lengths))
    }
    with tempfile.TemporaryDirectory() as scratch:
        again = replace(job, out=Path(scratch) / "set", keys=at(job.keys, chosen), **options)
        encode(again)
        new, _ = read_index(again.out, read_record(again.out), digests=True)
        encoded = picked(keys, new.find(keys) >= 0)
        assert stored.digests is not None
        assert new.digests is not None
        equal = (stored.digests[stored.find(encoded)] == new.digests[new.find(encoded)]).all(axis=1)
        if isinstance(job.spec, FeatureSpec) and len(encoded):
            rows = [FeatureSet.open(folder).take(encoded) for folder in (job.out, again.out)]
            equal |= ~Agreement.of(*rows).differs
    return len(keys) - int(equal.sum())


def _adopt(job: Job) -> None:
    """Write the code of today into the record; another worker may do so as well."""
    began = time.monotonic()
    while True:
        try:
            with set_output(job.out, job.inputs, kind=job.spec.kind) as output:
                record = read_record(job.out)
                spec = record.spec.model_copy(update={"code": job.spec.code})
                write_record(output, record.model_copy(update={"spec": spec}))
            return
        except BusyError:
            if changed_code(job) is None:
                return
            if time.monotonic() - began > _PATIENCE:
                raise
            time.sleep(0.1)


def stays_unchecked(
    folder: Path, keys: Keys, config: BaseModel, settings: ExtractSettings, code: str
) -> str:
    """What to say of a feature set that is kept where no row can be encoded, without the weights.

    Args:
        keys: that it must have: uint8 [n, 32].
        config: of its encoder, as far as it is here.
        settings: its precision and type.
        code: digest of the code of today.

    Returns:
        Empty if something besides the code has changed, or nothing has, or rows are missing.
    """
    try:
        record = read_record(folder, "features")
        rows, failed = read_index(folder, record)
    except CacheError:
        return ""
    spec, distinct = record.spec, at(keys, unique_sorted(keys))
    absent = picked(distinct, rows.find(distinct) < 0)
    same = agrees(config, named_in(spec.preprocessing, "encoder"))
    same &= spec.dtype == settings.dtype and spec.precision.startswith(settings.precision)
    is_changed = spec.code not in ("", code)
    if not (same and is_changed and all(key.tobytes() in failed for key in absent)):
        return ""
    return f"{folder}: the code that made its rows has changed; it stays, unchecked"
