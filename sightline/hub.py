"""The model hub: one look whether it answers, before any file is asked of it."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from functools import cache

from huggingface_hub import constants

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
