"""What a score was measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from train.evaluate.similarity import GradedPairs


class EvaluationSet(BaseModel):
    """What identifies a test set.

    Attributes:
        examples: how many there are; None = not known, as in results of another program.
        sha256: of their content, or of the names and revision that determine it (hex).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    examples: Annotated[int, Field(ge=0)] | None
    sha256: str

    @classmethod
    def of(cls, examples: int | None, *sha256: str) -> EvaluationSet:
        """A set from the digests (hex) of its parts."""
        return cls(examples=examples, sha256=hashlib.sha256("".join(sha256).encode()).hexdigest())

    @classmethod
    def of_pairs(cls, parts: Sequence[GradedPairs]) -> EvaluationSet:
        """Graded pairs, in one or several parts."""
        return cls.of(sum(map(len, parts)), *(pairs.sha256 for pairs in parts))
