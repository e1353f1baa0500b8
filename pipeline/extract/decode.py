"""From files to pixels: every readable image becomes RGB, every other one a reason."""

from __future__ import annotations

import io
import os
import warnings

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from pipeline.cache import Place, key_of_bytes
from pipeline.extract.png import SIGNATURE, png_fault
from sightline.errors import SightlineError

MAX_PIXELS = 89_478_485
"""The largest image that is decoded, in pixels: Pillow's own limit, 256 MiB of RGB."""

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are read. Pillow knows more, some of which run other programs (EPS)."""

_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")


class ImageError(SightlineError):
    """One image that cannot be used: it costs its own row and nothing else.

    Attributes:
        code: ``missing``, ``outside`` (its place in an archive ends beyond the file), ``empty``,
            ``undecodable``, ``truncated``, ``too_many_pixels`` or ``changed`` (its bytes are not
            those the manifest was made from); of an object also those of
            `pipeline.extract.objects`.
        reason: what was found, without the path.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


def decode_image(data: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decode one image file to RGB, by its content, whatever its name says.

    JPEG (grey or colour) and PNG of 16 bits are decoded by torchvision, everything else, and what
    torchvision turns out not to support, by Pillow (whose pixels of an opaque 8-bit PNG are those
    of torchvision). EXIF orientation is applied.
    The first frame of an animation is taken. Grey, palette, 1-bit and CMYK images are converted;
    16 bits a channel are scaled by 1/257 (Pillow's readers of 16-bit colour keep the high byte,
    at most one level away); **alpha is composited on white**. ICC profiles are not applied.
    These rules are `preprocessing.DECODER`, a part of every image fingerprint: change them
    together.

    A JPEG whose middle was damaged but which reads to its end cannot be told from a good one
    here; the manifest's key can tell.

    Args:
        data: the whole file.
        max_pixels: largest width × height, read from the header before any pixel is decoded.
            Pillow refuses more than twice `MAX_PIXELS` whatever is given here.

    Returns:
        uint8 [3, H, W].

    Raises:
        ImageError: ``empty``, ``undecodable``, ``truncated`` (a file cut short is never half an
            image) or ``too_many_pixels``.
    """
    if not data:
        raise ImageError("empty", "the file has 0 bytes")
    with warnings.catch_warnings():
        # Pillow's about damaged metadata and large sizes, torchvision's about its own future.
        warnings.simplefilter("ignore")
        image = _open(data)
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                "too_many_pixels", f"{width} × {height} pixels, at most {max_pixels:,} are decoded"
            )
        try:
            pixels = _pixels(data, image)
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # decoders raise anything at all on damaged files
            raise _failure(error) from error
    if pixels.shape[0] == 4:
        pixels = _on_white(pixels)
    if pixels.dtype == torch.uint16:
        pixels = _eight_bits(pixels)
    return pixels if pixels.shape[0] == 3 else pixels.expand(3, -1, -1)


def load_image(place: Place, key: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Read, check and decode one image of a manifest: uint8 [3, H, W].

    Args:
        place: the file, or the stretch of it, that the image is.
        key: SHA-256 of the image's bytes as the manifest has it (32 bytes).

    Raises:
        ImageError: as `decode_image`; ``missing`` if the file cannot be read, ``outside`` if it
            ends before the place does, ``changed`` if the bytes have another digest.
    """
    try:
        data = _read(place)
    except FileNotFoundError as error:
        raise ImageError("missing", "no such file") from error
    except OSError as error:
        raise ImageError("missing", f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a zero byte in it
        raise ImageError("missing", f"cannot be read: {error}") from error
    if key_of_bytes(data) != key:
        raise ImageError(
            "changed",
            f"the {len(data):,} bytes there now are not those the manifest was made from; "
            "prepare the data set again",
        )
    return decode_image(data, max_pixels)


def _read(place: Place) -> bytes:
    """The bytes of an image, and of an archive no others."""
    if place.offset is None or place.length is None:
        return place.path.read_bytes()
    if place.length == 0:
        raise ImageError("empty", "its place in the file has 0 bytes")
    end = place.offset + place.length
    with place.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if end > size:  # checked first: `read` reserves as many bytes as it is asked for
            raise ImageError(
                "outside",
                f"its place is bytes {place.offset:,} to {end:,} of a file that has {size:,}; get "
                "the whole file, or the manifest that belongs to it",
            )
        file.seek(place.offset)
        return file.read(place.length)


def _pixels(data: bytes, image: Image.Image) -> Tensor:
    """uint8 or uint16 [1, 3 or 4, H, W] by the decoder whose turn it is."""
    if _torchvision_reads(data, image):
        try:
            return _by_torchvision(data, image)
        except RuntimeError as error:
            failure = _failure(error)
            # Pillow accepts some files that end too early; what torchvision misses stays missed.
            if failure.code == "truncated":
                raise failure from error
    return _by_pillow(image)


def _open(data: bytes) -> Image.Image:
    """The header of an image file; no pixel is decoded."""
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ImageError(
            "undecodable", f"not an image of a known format ({', '.join(FORMATS)})"
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageError("too_many_pixels", str(error)) from error
    except Exception as error:  # header parsers raise anything at all on damaged files
        raise _failure(error) from error


def _torchvision_reads(data: bytes, image: Image.Image) -> bool:
    """Whether torchvision gives this image's pixels, by what its header says."""
    if image.format in ("JPEG", "MPO"):
        return image.mode in ("L", "RGB")
    if not data.startswith(SIGNATURE):
        return False
    # On damaged rows torchvision's PNG decoder takes the process down, so Pillow, whose pixels of
    # an opaque PNG are the same, reads them first; it does not mind rows that are missing. Of 16
    # bits it keeps only the high byte.
    fault = png_fault(data)
    if fault is not None:
        raise ImageError(*fault)
    image.load()
    return _png_depth(data) == 16


def _png_depth(data: bytes) -> int:
    """Bits per channel: byte 8 of IHDR, which must be a PNG's first chunk (length, name, data)."""
    return data[24]


def _by_torchvision(data: bytes, image: Image.Image) -> Tensor:
    """uint8 or uint16 [3 or 4, H, W] of a JPEG or a PNG."""
    from torchvision.io import ImageReadMode
    from torchvision.io import decode_image as torchvision_decode

    pixels = torchvision_decode(
        torch.frombuffer(bytearray(data), dtype=torch.uint8),
        mode=ImageReadMode.RGB_ALPHA if image.mode == "RGBA" else ImageReadMode.RGB,
        apply_exif_orientation=True,
    )
    clear = image.info.get("transparency") if pixels.dtype == torch.uint16 else None
    if clear is None:
        return pixels
    # A colour that stands for "nothing here": torchvision leaves it opaque.
    wide = pixels.to(torch.int32)
    opaque = (wide != torch.tensor(clear).reshape(-1, 1, 1)).any(dim=0, keepdim=True)
    return torch.cat([wide, opaque * 65535]).to(torch.uint16)


def _by_pillow(image: Image.Image) -> Tensor:
    """uint8 or uint16 [1, 3 or 4, H, W] of anything else, first frame, upright."""
    import numpy as np

    image.load()
    upright = ImageOps.exif_transpose(image)
    sixteen = upright.mode in _SIXTEEN_BITS or (upright.mode == "I" and image.format == "PPM")
    if sixteen:
        values = np.array(upright).astype(np.uint16)
        return torch.from_numpy(values).unsqueeze(0)
    if upright.mode in ("I", "F"):
        raise ImageError(
            "undecodable", f"32-bit values (mode {upright.mode}) have no range to scale from"
        )
    converted = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    return torch.from_numpy(np.array(converted)).permute(2, 0, 1).contiguous()


def _eight_bits(pixels: Tensor) -> Tensor:
    """uint16 → uint8, 0–65535 to 0–255, rounded to the nearest."""
    return ((pixels.to(torch.int32) + 128) // 257).to(torch.uint8)


def _on_white(pixels: Tensor) -> Tensor:
    """uint8 or uint16 [4, H, W] → [3, H, W]: alpha · colour + (1 − alpha) · white, rounded."""
    white = torch.iinfo(pixels.dtype).max
    # 65535² needs more than 31 bits.
    wide = pixels.to(torch.int64 if white > 255 else torch.int32)
    colour, alpha = wide[:3], wide[3:]
    blended = (colour * alpha + white * (white - alpha) + white // 2) // white
    return blended.to(pixels.dtype)


def _failure(error: Exception) -> ImageError:
    """The code and reason for what a decoder raised."""
    lines = str(error).strip().splitlines()
    text = (lines[0] if lines else type(error).__name__).rstrip(".")
    lowered = text.lower()
    cut = ("truncated", "incomplete", "out of bound read", "unexpected end", "broken data stream")
    if any(word in lowered for word in cut):
        return ImageError("truncated", "the file ends before the image does")
    # torchvision begins its messages with functions and files of its own.
    reason = text.rpartition(".cpp:")[2].partition(", ")[2] or text
    return ImageError("undecodable", reason)
