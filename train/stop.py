"""SIGINT and SIGTERM during training: the step is finished, a checkpoint saved, then it ends."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from train.loop import Callback, LoopState

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.0
"""Seconds after which a second signal ends the run at once; `timeout` sends its own twice."""


class StopAtStep(Callback):
    """Ends training after the step in which a signal came, with a checkpoint of that step.

    ```python
    stop = StopAtStep()
    with stop:
        Loop(..., callbacks=[stop]).run()
    ```
    Inside the block signals are only remembered. When it ends they get the handlers that they had
    before, and the signal is delivered to these: whoever runs the training decides what it means.
    Of several processes all end after one and the same step, by the signal that one of them got.

    Attributes:
        asked: number of the signal that came, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}
        self._held = False

    def __enter__(self) -> StopAtStep:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._ask)
                for number in SIGNALS
                if signal.getsignal(number) is not signal.SIG_IGN  # of a background job
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._held:
            self.restore()
        if self.asked is not None and error is None:
            signal.raise_signal(self.asked)

    def step(self, state: LoopState) -> None:
        if self.asked is not None:
            state.should_stop, state.signal = True, self.asked

    def end(self, state: LoopState) -> None:
        if state.signal:  # which another process may have got
            self.asked = state.signal

    def hold(self) -> None:
        """Go on after the block as inside it, until `restore`.

        A launcher that has seen one process end sends SIGTERM to the others, which are about to say
        the same by themselves.
        """
        self._held = True

    def restore(self) -> None:
        """Give the signals the handlers back that they had before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > PATIENCE:
            self.restore()
            signal.raise_signal(number)
