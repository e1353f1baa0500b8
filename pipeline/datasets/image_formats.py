"""The one list of image formats: what `prepare` searches, extraction can decode."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from sightline.optional_imports import require

_SUFFIXES: dict[str, tuple[str, ...]] = {
    "AVIF": ("avif",),
    "BMP": ("bmp",),
    "GIF": ("gif",),
    "HEIF": ("heic", "heif"),
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "JPEG2000": ("jp2",),
    "JXL": ("jxl",),
    "PNG": ("png",),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "TIFF": ("tif", "tiff"),
    "WEBP": ("webp",),
}
"""Pillow's name of a format → its suffixes. Pillow reads more, but some run programs (EPS)."""

_PLUG_INS = {"HEIF": ("pillow_heif", "register_heif_opener"), "JXL": ("pillow_jxl", "")}
"""Format → the package that brings it to Pillow, and what registers it there."""


@cache
def formats() -> tuple[str, ...]:
    """The formats that can be read here: AVIF from Pillow 11.3, HEIF and JXL with a plug-in."""
    return tuple(name for name in _SUFFIXES if _can_read(name))


@cache
def image_suffixes() -> frozenset[str]:
    """Their suffixes, in small letters, with the dot."""
    return frozenset(f".{suffix}" for name in formats() for suffix in _SUFFIXES[name])


def _can_read(name: str) -> bool:
    require("PIL", "reading images")
    if name == "AVIF":
        return _has_avif()
    package, register = _PLUG_INS.get(name, ("", ""))
    if package and find_spec(package) is None:
        return False
    if package:
        module = import_module(package)
        if register:
            getattr(module, register)()
    return True


def _has_avif() -> bool:
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return False
    return bool(AvifImagePlugin.SUPPORTED)
