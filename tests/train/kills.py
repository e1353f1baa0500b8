"""Runs that die in the middle."""

from __future__ import annotations

from train.loop import Callback
from train.records import RunState


class Killed(Exception):
    """Stands for the process being killed."""


class KillAfter(Callback):
    """Dies at the end of a step, before that step is logged, scored or saved."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, state: RunState) -> None:
        if state.step == self.at:
            raise Killed
