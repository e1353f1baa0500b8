"""SIGINT and SIGTERM during training: finish the step, save a checkpoint, then end."""

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
    """Ends training after the step in which a signal arrived, with a checkpoint of that step.

    ```python
    stop = StopAtStep()
    with stop:
        Loop(..., callbacks=[stop]).run()
    ```
    Inside the block signals are only recorded. When the block ends, the previous handlers are
    restored and the signal is delivered to them: the caller of the training decides what it means.
    Several processes all end after the same step, with the signal that one of them received.

    Attributes:
        asked: number of the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopAtStep:
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._ask)
                for number in SIGNALS
                if signal.getsignal(number) is not signal.SIG_IGN  # in a background job
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()
        if self.asked is not None and error is None:
            signal.raise_signal(self.asked)

    def step(self, state: LoopState) -> None:
        if self.asked is not None:
            state.should_stop, state.signal = True, self.asked

    def end(self, state: LoopState) -> None:
        if state.signal:  # another process may have received it
            self.asked = state.signal

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked, self._asked_at = number, time.monotonic()
        elif time.monotonic() - self._asked_at > PATIENCE:
            self.restore()
            signal.raise_signal(number)
