"""Names, means and test sets of MTEB's scores. Needs no mteb."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from train.evaluate.evaluation_set import EvaluationSet

TITLE = "MTEB"
"""Heading of their table."""

AVERAGE = "MTEB Avg"
"""Mean over all tasks. "MTEB Avg STS" is the mean over those of type STS."""


class MtebTask(BaseModel):
    """What is evaluated of one of MTEB's tasks.

    Attributes:
        type: MTEB's, such as "STS" or "PairClassification"; empty if not known.
        revision: of its data set on the hub.
        splits: split → subsets (MTEB's `hf_subsets`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = ""
    revision: str
    splits: dict[str, tuple[str, ...]]

    def test_set(self, name: str, examples: int | None) -> EvaluationSet:
        """Identified by the task's name, revision, splits and subsets, as MTEB's results name them.

        MTEB pins the revision of every data set, so equal ones have equal contents.
        """
        splits = {split: sorted(subsets) for split, subsets in self.splits.items()}
        identity = json.dumps([name, self.revision, splits], sort_keys=True)
        sha256 = hashlib.sha256(identity.encode()).hexdigest()
        return EvaluationSet(examples=examples, sha256=sha256)

    def parts(self, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
        """Main score × 100 of each split and subset, such as "test" or "test en".

        Args:
            scores: as MTEB's results have them: split → a mapping with `hf_subset` and
                `main_score` for each subset.

        Returns:
            None for a part that is missing or has no finite score.
        """
        found: dict[str, float | None] = {}
        for split, subsets in self.splits.items():
            given = {each["hf_subset"]: each["main_score"] for each in scores.get(split, ())}
            for subset in subsets:
                value = given.get(subset)
                part = split if subset == "default" else f"{split} {subset}"
                found[part] = _percent(value)
        return found


def metric_of(task: str) -> str:
    """Name of the metric of a task. Our own task `sts` has a metric "STS12" too."""
    return f"MTEB {task}"


def mean(scores: Sequence[float | None]) -> float | None:
    """None if one is missing, never a mean over the others."""
    values = [score for score in scores if score is not None]
    return sum(values) / len(values) if values and len(values) == len(scores) else None


def averages(types: Mapping[str, str]) -> dict[str, list[str]]:
    """Metric → the tasks that it is the mean of; one for each type if there are several.

    Args:
        types: task → its type, or "".
    """
    groups: dict[str, list[str]] = {}
    for task, kind in types.items():
        if kind:
            groups.setdefault(f"{AVERAGE} {kind}", []).append(task)
    return {**(groups if len(groups) > 1 else {}), AVERAGE: list(types)}


def _percent(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return 100 * float(value)
