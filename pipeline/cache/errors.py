"""Errors of the cache."""

from __future__ import annotations

from sightline.errors import SightlineError


class CacheError(SightlineError):
    """A set of the cache or a manifest is missing, damaged or of another kind."""


class MissingKeys(CacheError):
    """Keys were asked for that a set does not hold."""
