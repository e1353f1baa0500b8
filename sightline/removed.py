"""What went before 0.1.0 is tagged, and what stands in its place: an error for whoever uses it."""

from __future__ import annotations

REMOVED = {
    "sightline look space": "examples/embedding_map.py draws the maps, and "
    "`sightline evaluate geometry` has alignment and uniformity",
    "sightline compare --space": "examples/embedding_map.py draws the maps; the page draws "
    "alignment and uniformity by itself",
    "sightline look features --near": "vectors that are nearly equal are no longer listed; "
    "`sightline look neighbours` shows the nearest",
    "evaluation task mteb": "give the run's model/ to mteb itself (docs/evaluation.md)",
    "sightline cache export --format mcse": "export parquet or npy; MCSE's files are only read",
    "sightline cache export --texts": "it was for MCSE's files, which are only read",
    "sightline cache export --split": "it was for MCSE's files, which are only read",
    "sl.Invocation": "use sl.Machine",
}
"""What it was (a command, an option, a Python name, or a kind and a name) → what to do now."""


def removed(what: str) -> str:
    """The error for something that Sightline had; empty if it never had it."""
    return f"{what} was removed: {REMOVED[what]}" if what in REMOVED else ""
