"""The digest of any JSON value: descriptions, parameters, records."""

from __future__ import annotations

import hashlib
import json


def digest(value: object, *, spaced: bool = False, escaped: bool = False) -> str:
    """SHA-256 (hex) of a value's canonical JSON: sorted keys, no spaces, UTF-8.

    Args:
        spaced: a space after every comma and colon.
        escaped: non-ASCII letters as ``\\u…``. Digests already on disk use these two forms; a new
            one uses neither.
    """
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(", ", ": ") if spaced else (",", ":"),
        ensure_ascii=escaped,
    )
    return hashlib.sha256(text.encode()).hexdigest()
