"""Photographs for benches of reading and decoding."""

from __future__ import annotations

import argparse
from pathlib import Path

_DEFAULT = Path(__file__).parents[3] / "shared" / "data" / "flickr8k" / "images_full"


def photographs(about: str, repeats: int) -> tuple[list[Path], int]:
    """Up to 300 photographs of ``--images``, and ``--repeats``; exits if there are none."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--images", type=Path, default=_DEFAULT)
    parser.add_argument("--repeats", type=int, default=repeats)
    options = parser.parse_args()
    found = sorted(options.images.glob("*.jpg"))[:300]
    if not found:
        print(f"skipped: no photographs in {options.images}")
        raise SystemExit(0)
    return found, options.repeats
