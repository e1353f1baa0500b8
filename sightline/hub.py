"""The model hub: one check that it responds, and one error for any failed download."""

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
    """Why the hub at ``address`` does not respond; empty if it does."""
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS):
            return ""
    except urllib.error.HTTPError:
        return ""  # any response will do
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def use_cache_where_silent() -> None:
    """Use only models in this machine's cache if the hub does not respond.

    huggingface_hub would request every file of a model six times, half a minute each.
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
    """Turn any failure of a download into one SightlineError.

    Args:
        model: as the user named it.
        what: is being fetched, such as ``weights 'openai'``.
    """
    try:
        yield
    except Exception as error:
        # OSError covers urllib's URLError, timeouts, refused connections, huggingface_hub's
        # "offline and not in the cache", and what transformers makes of them; the HTTP client
        # under huggingface_hub has its own exceptions, under a name that changes.
        from_client = type(error).__module__.startswith("httpx")
        if not isinstance(error, OSError) and not from_client:
            raise
        raise SightlineError(
            f"{model}: its {what} cannot be fetched: not cached here, and the download failed "
            f"({type(error).__name__}: {first_lines(error, 1)}). Run this once with network access "
            "to the hub, copy the files here and give their path, or correct the name. "
            "No substitute was loaded"
        ) from error


def first_lines(error: Exception, count: int = 2) -> str:
    """The first lines of a library's error, on one line; its class if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:count]).rstrip(". ") or type(error).__name__
