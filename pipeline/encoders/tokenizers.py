"""Digest of a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 (hex) of a Hugging Face tokenizer: vocabulary, merges, rules, special tokens.

    Current truncation and padding settings are excluded.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        for state in ("version", "truncation", "padding"):
            content.pop(state, None)
    else:
        content = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    body = [content, sorted(tokenizer.all_special_tokens)]
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
