"""What the distribution is called: the index has another project's ``sightline``."""

from __future__ import annotations

DISTRIBUTION = "sightline-encoders"
"""The name that it is installed by; it is imported, and its command called, ``sightline``."""


def installing(extra: str) -> str:
    """The command that adds an extra to what is installed, from an index, a wheel or a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
