"""The digest of any JSON value: descriptions, parameters, records."""

from __future__ import annotations

import hashlib
import json


def digest(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
