"""The model hub: one look whether it answers, and one error for whatever cannot be fetched."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from huggingface_hub import constants

from sightline.errors import SightlineError

_SECONDS = 5.0


@cache
def why_silent(address: str) -> str:
    """Why the hub at ``address`` does not answer; empty where it does."""
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""  # an answer, whatever it says
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def use_cache_where_silent() -> None:
    """Where the hub does not answer, look for models in this machine's cache alone.

    huggingface_hub would ask for every file of a model six times, half a minute each.
    """
    if constants.is_offline_mode():
        return
    reason = why_silent(constants.ENDPOINT)
    if reason:
        constants.HF_HUB_OFFLINE = True
        print(
            f"{constants.ENDPOINT} does not answer ({reason}): only models in this machine's cache "
            "can be loaded",
            file=sys.stderr,
        )


@contextmanager
def reaching(model: str, what: str) -> Iterator[None]:
    """Turn every way in which a download can fail into one SightlineError.

    Args:
        model: as the user named it.
        what: was to be fetched, such as ``weights 'openai'``.
    """
    try:
        yield
    except Exception as error:
        # OSError covers urllib's URLError, timeouts, refused connections, huggingface_hub's
        # "offline and not in the cache", and what transformers makes of them; the HTTP client
        # under huggingface_hub has a family of its own, under a name that changes.
        from_client = type(error).__module__.startswith("httpx")
        if not isinstance(error, OSError) and not from_client:
            raise
        raise SightlineError(
            f"{model}: its {what} cannot be had: not cached here, and fetching failed "
            f"({type(error).__name__}: {first_lines(error, 1)}). Run this once where the network "
            "reaches the host, name files that you copied here, or correct the name. "
            "Nothing was put in its place"
        ) from error


def first_lines(error: Exception, count: int = 2) -> str:
    """The beginning of what a library says, on one line; its class where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:count]).rstrip(". ") or type(error).__name__
