"""Which of several processes this is, if `torchrun` or `accelerate launch` started several."""

from __future__ import annotations

import os


def is_first_process() -> bool:
    """Whether this process is the only one, or number 0: the one that talks to the user."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return True
    return os.environ.get("RANK", "0") == "0"
