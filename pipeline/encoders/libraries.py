"""Third-party libraries installed by an extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from sightline.errors import SightlineError

_EXTRA = {"torchvision": "extract", "open_clip": "extract"}


def require(module: str) -> ModuleType:
    """Import `module`; SightlineError names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SightlineError(
            f"{module} is not installed, but this encoder needs it; "
            f"run: pip install 'sightline[{_EXTRA[module]}]'"
        ) from error
