"""Digests: of any JSON value, such as descriptions and parameters, of whole files, of models.

The SHA-256 of a file is `sightline.cache.key_of_file`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3


def digest(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def blake3_of_file(path: Path) -> str:
    """BLAKE3 (hex) of a file, in one thread: a pool of them does not survive a fork."""
    return blake3().update_mmap(path).hexdigest()


@dataclass(frozen=True)
class Pinned:
    """What identifies an encoder wherever it lies.

    Attributes:
        revision: commit of a hub model; empty for a folder.
        weights_sha256: SHA-256 (hex) over the SHA-256 of config.json and the files of weights.
        tokenizer_sha256: the same over the tokenizer's files.
    """

    revision: str = ""
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
