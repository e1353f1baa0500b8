"""SIGINT and SIGTERM end a command with one line that says how to go on."""

from __future__ import annotations

import os
import signal
from types import FrameType


class Stopped(BaseException):
    """SIGINT or SIGTERM asked a command to end, which is no error.

    Whoever knows how much is done, and how to go on, says it with `add_note`. It is neither an
    `Exception` nor a `KeyboardInterrupt`, because libraries catch those.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        notes = getattr(self, "__notes__", None) or [
            "what was published before is intact; run the same command again"
        ]
        return f"stopped by {signal.Signals(self.number).name}: {' '.join(notes)}"


def stop_on_signals() -> None:
    """Let the first SIGINT or SIGTERM raise `Stopped` in the main thread.

    Later ones change nothing: `timeout` and container runtimes signal a process and then its whole
    group, and saving takes a moment only. SIGKILL is always safe. In a process forked from this one
    the signals change nothing either: decode workers end when this process does.
    """
    process = os.getpid()
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or os.getpid() != process:
            return
        asked = True
        raise Stopped(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT in background
            signal.signal(number, stop)
