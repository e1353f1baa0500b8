"""Digests: of any JSON value, such as descriptions, parameters and records, and of whole files.

The SHA-256 of a file is `sightline.cache.key_of_file`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from blake3 import blake3


def digest(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def blake3_of_file(path: Path) -> str:
    """BLAKE3 (hex) of a file, in one thread: a pool of them does not survive a fork."""
    return blake3().update_mmap(path).hexdigest()
