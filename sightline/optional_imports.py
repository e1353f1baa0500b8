"""Libraries that an extra of the package installs."""

from __future__ import annotations

import importlib
from types import ModuleType

from sightline.distribution import installing
from sightline.errors import SightlineError

_EXTRA = {
    "torchvision": "extract",
    "open_clip": "extract",
    "timm": "extract",
    "PIL": "extract",
    "matplotlib": "report",
    "datasets": "datasets",
    "dvc": "dvc",
    "dvc_s3": "dvc-s3",
    "peft": "lora",
    "ray": "ray",
    "fsspec": "storage",
    "s3fs": "storage",
    "gcsfs": "storage",
    "aiohttp": "storage",
}


def require(module: str, user: str) -> ModuleType:
    """Import `module`, or name the extra that installs it.

    Args:
        user: needs it, as the subject of a sentence, such as ``this encoder``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SightlineError(
            f"{module} is not installed, but {user} needs it; run: {installing(_EXTRA[module])}"
        ) from error
