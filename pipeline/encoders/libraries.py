"""Other people's libraries: missing extras and unreachable hosts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pipeline.encoders.base import EncoderError

_EXTRA = {"torchvision": "extract", "open_clip": "extract"}


def require(module: str) -> ModuleType:
    """Import `module`; EncoderError names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise EncoderError(
            f"{module} is not installed, and this encoder needs it; "
            f"run: pip install 'sightline[{_EXTRA[module]}]'"
        ) from error


@contextmanager
def reaching(model: str, what: str) -> Iterator[None]:
    """Turn every way in which a download can fail into one EncoderError.

    Args:
        model: the encoder, as the user named it.
        what: what was to be fetched, such as ``weights 'openai'``.
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
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise EncoderError(
            f"{model}: its {what} cannot be had: not cached here, and fetching failed "
            f"({type(error).__name__}: {reason.rstrip('.')}). Run this once where the network "
            "reaches the host, name files that you copied here, or correct the name. "
            "Nothing was put in its place"
        ) from error
