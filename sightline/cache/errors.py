"""Errors of the cache."""

from __future__ import annotations

from sightline.errors import SightlineError


class CacheError(SightlineError):
    """A set of the cache or a manifest is missing, damaged or of the wrong kind."""


class MissingKeys(CacheError):
    """A set does not hold all requested keys."""
