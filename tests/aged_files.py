"""Files of an hour ago: of those written in the last two seconds nothing is remembered."""

from __future__ import annotations

import os
import time
from pathlib import Path

HOUR_AGO = time.time() - 3600


def aged(root: Path) -> Path:
    """The same folder, whose files were written an hour ago unless they are older."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_mtime > HOUR_AGO:
            os.utime(path, (HOUR_AGO, HOUR_AGO))
    return root
