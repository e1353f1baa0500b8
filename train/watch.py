"""Finds the first step that is not finite, without a wait for the device in each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from train.model import TOTAL


@dataclass(frozen=True)
class BadStep:
    """A step that is not finite.

    Attributes:
        step: its number, from 1.
        micro_batch: the first one to blame.
        values: its loss terms; or the gradient norm, if they are finite.
    """

    step: int
    micro_batch: int
    values: dict[str, float]

    @property
    def culprits(self) -> list[str]:
        """What is not finite among `values`; the total only if no term is to blame."""
        names = [name for name, value in self.values.items() if not math.isfinite(value)]
        return [name for name in names if name != TOTAL] or names


class Watch:
    """The terms and gradient norms of the steps since the last look; they stay on the device."""

    def __init__(self, *, norm_counts: bool) -> None:
        """
        Args:
            norm_counts: a gradient norm that is not finite is bad too.
        """
        self._norm_counts = norm_counts
        self._steps: list[tuple[int, Mapping[int, Mapping[str, Tensor]], Tensor]] = []

    def add(self, step: int, terms: Mapping[int, Mapping[str, Tensor]], norm: Tensor) -> None:
        """Take note of a step.

        Args:
            step: its number, from 1.
            terms: micro-batch → its loss terms.
            norm: of the gradient.
        """
        self._steps.append((step, terms, norm))

    def first_bad(self) -> BadStep | None:
        """The first bad step since the last look; None if there is none. Waits for the device."""
        steps, self._steps = self._steps, []
        values = [each[TOTAL].float() for _, terms, _ in steps for each in terms.values()]
        if self._norm_counts:
            values += [norm.float() for _, _, norm in steps]
        if not values or torch.isfinite(torch.stack(values)).all():
            return None
        for step, terms, norm in steps:
            for k, each in terms.items():
                if not torch.isfinite(each[TOTAL]):
                    return BadStep(step, k, {name: term.item() for name, term in each.items()})
            if self._norm_counts and not torch.isfinite(norm):
                return BadStep(step, max(terms), {"gradient norm": norm.item()})
        return None
