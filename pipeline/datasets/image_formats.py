"""The one list of image formats, for `prepare` and extraction, and which way up an image is."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING

from sightline.optional_imports import require

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

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

_MOST_TEXT = 1 << 28
"""Bytes of all texts in a PNG, of which generators of images store long ones: as of its pixels."""
_TAG = 0x0112
_RAW_PROFILE = "Raw profile type exif"  # ImageMagick's, from before PNG had eXIf
_HOLD_EXIF = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")


@cache
def formats() -> tuple[str, ...]:
    """The formats that can be read here: AVIF from Pillow 11.3, HEIF and JXL with a plug-in.

    A PNG is then read whatever it says in texts; by Pillow's own limit a long one costs the pixels.
    """
    require("PIL", "reading images")
    from PIL import PngImagePlugin

    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = _MOST_TEXT
    return tuple(name for name in _SUFFIXES if _can_read(name))


@cache
def image_suffixes() -> frozenset[str]:
    """Their suffixes, in small letters, with the dot."""
    return frozenset(f".{suffix}" for name in formats() for suffix in _SUFFIXES[name])


def _can_read(name: str) -> bool:
    if name == "AVIF":
        from PIL import features

        return name.lower() in features.modules and bool(features.check("avif"))
    package, register = _PLUG_INS.get(name, ("", ""))
    if package and find_spec(package) is None:
        return False
    if package:
        module = import_module(package)
        if register:
            getattr(module, register)()
    return True


def orientation(image: ImageFile) -> int:
    """How the size and the pixels of an opened image are still to be turned, 1 to 8 as in EXIF.

    By its EXIF alone, as browsers and torchvision do it: of an orientation that only XMP states,
    nothing is left in ``image``, lest Pillow follow it. A TIFF is turned by Pillow. Where EXIF is
    damaged, silent or out of range, it is 1.

    Args:
        image: not loaded yet; no pixel is decoded here.
    """
    from PIL.Image import Exif

    for name in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(name, None)
    if image.format == "TIFF":
        return 1
    try:
        info = image.info
        if image.format == "PNG" and "exif" not in info and image.fp is not None:
            info = info | _late_info(image.fp)
        profile = info.get(_RAW_PROFILE, "").split("\n")[3:]
        exif = Exif()
        exif.load(info["exif"] if "exif" in info else bytes.fromhex("".join(profile)))
        turned = int(exif.get(_TAG, 1))
    except Exception:  # damaged metadata of a sound image; its parsers may raise anything
        return 1
    return turned if 1 <= turned <= 8 else 1


def swaps_edges(orientation: int) -> bool:
    """Whether such an image is stored on its side: its upright width is the stored height."""
    return orientation >= 5


def _late_info(file: IO[bytes]) -> dict:
    """As ``info``, what a PNG says in its chunks, those behind its rows included."""
    from PIL.PngImagePlugin import PngStream

    back = file.tell()
    file.seek(8)
    stream = PngStream(file)
    try:
        name, at, length = stream.read()
        while name != b"IEND":
            if name in _HOLD_EXIF:
                stream.call(name, at, length)
            file.seek(at + length + 4)  # behind its checksum
            name, at, length = stream.read()
    finally:
        file.seek(back)
    return stream.im_info
