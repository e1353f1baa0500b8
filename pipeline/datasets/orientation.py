"""Which way up an image is stored: the one reader of orientation."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_TAG = 0x0112
_RAW_PROFILE = "Raw profile type exif"  # ImageMagick's, from before PNG had eXIf
_HOLD_EXIF = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")


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
