"""Finds steps whose loss or gradient is not finite, without a wait for the device in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from train.batch import Batch
from train.model import TOTAL


@dataclass(frozen=True)
class TakenStep:
    """A step that nobody has looked at yet, and how to undo it.

    Attributes:
        step: steps done before it.
        sentences: rows trained on before it.
        batches: its micro-batches, without their features.
        terms: the loss terms of each, on the device.
        norm: gradient norm, on the device.
        groups: the optimiser's, before it.
    """

    step: int
    sentences: int
    batches: Sequence[Batch]
    terms: Sequence[Mapping[str, Tensor]]
    norm: Tensor
    groups: list[dict[str, Any]]


@dataclass(frozen=True)
class BadStep(TakenStep):
    """One that is not finite.

    Attributes:
        culprit: the first micro-batch to blame, and the values of that time.
    """

    culprit: tuple[Batch, dict[str, float]]


class Watch:
    """The steps since the last look.

    From a bad step on, the optimiser changes nothing (`found_inf`, of PyTorch's fused optimisers),
    so the weights are still those before it when somebody looks.

    Attributes:
        found_inf: float32 scalar on the device, 1 after a bad step.
    """

    def __init__(self, device: torch.device, *, norm_counts: bool) -> None:
        """
        Args:
            norm_counts: a gradient norm that is not finite is bad too.
        """
        self.found_inf = torch.zeros((), device=device)
        self._norm_counts = norm_counts
        self._taken: list[TakenStep] = []

    def add(self, taken: TakenStep) -> None:
        """Take note of a step, before the optimiser's."""
        self._taken.append(taken)
        values = [terms[TOTAL].float() for terms in taken.terms]
        if self._norm_counts:
            values.append(taken.norm)
        bad = ~torch.isfinite(torch.stack(values)).all()
        self.found_inf = torch.maximum(self.found_inf, bad.float())

    def look(self) -> BadStep | None:
        """The first bad step since the last look; None if there is none. Waits for the device."""
        taken, self._taken = self._taken, []
        if self.found_inf.item():
            for each in taken:
                culprit = self._culprit(each)
                if culprit is not None:
                    return BadStep(**vars(each), culprit=culprit)
        return None

    def _culprit(self, taken: TakenStep) -> tuple[Batch, dict[str, float]] | None:
        for batch, terms in zip(taken.batches, taken.terms, strict=True):
            if not torch.isfinite(terms[TOTAL]):
                return batch, {name: term.item() for name, term in terms.items()}
        if self._norm_counts and not torch.isfinite(taken.norm):
            return taken.batches[-1], {"gradient norm": taken.norm.item()}
        return None


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The optimiser's groups as they are now; a step does not change this copy."""
    return [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
