"""Pinned values in the JSON files here; `SIGHTLINE_PIN=1 pytest tests/golden` rewrites them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import transformers

HERE = Path(__file__).parent
PINNING = os.environ.get("SIGHTLINE_PIN") == "1"
"""Only then is anything written; a change of a pinned value belongs in the changelog."""


def pinned(file: str, name: str, current: Any) -> Any:
    """The pinned value of ``name`` in ``file``; while pinning, that is ``current``."""
    path = HERE / file
    values = json.loads(path.read_text()) if path.exists() else {}
    if PINNING:
        values[name] = current
        entries = (f"{json.dumps(key)}: {json.dumps(values[key])}" for key in sorted(values))
        path.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    return values[name]


def same_transformers(file: str) -> bool:
    """Whether the values of ``file`` are from the installed version of transformers.

    Its word for an image processor, its tokenizer's form and the tensors that a model names differ
    between versions, and with them the fingerprints of Florence-2 and Grounding DINO.
    """
    version = transformers.__version__
    return pinned(file, "transformers", version) == version
