"""Names in the log of a run."""

from __future__ import annotations

DEV = "dev"
"""The dev score (Spearman's ρ × 100)."""
