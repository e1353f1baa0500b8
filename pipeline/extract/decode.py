"""From files to pixels: readable images become RGB, all others an error with a reason."""

from __future__ import annotations

import io
import os
import stat
import warnings
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from pipeline.datasets.image_formats import formats, orientation, swaps_edges
from pipeline.encoders.preprocessing import MAX_PIXELS
from sightline.cache import Place, key_of_bytes
from sightline.errors import SightlineError
from sightline.files.places import is_url
from sightline.files.storage import StorageError, look, read, require_of_file

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.extract.inputs import ImageEntry
    from sightline.cache.parts import Failure

_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N")
_PNG = b"\x89PNG\r\n\x1a\n"
_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2))
_ADAM7 += ((0, 1, 1, 2),)  # first column and row, step to the right and down
_SURPLUS = 1 << 16  # bytes that a PNG may hold beyond its rows


class ImageError(SightlineError):
    """One unusable image, which costs only its own row.

    Attributes:
        code: ``missing``, ``outside`` (its place in an archive ends beyond the file), ``empty``,
            ``undecodable``, ``truncated``, ``too_many_pixels`` or ``changed`` (its bytes are not
            those the manifest was made from); for objects also the codes of
            `pipeline.extract.objects`.
        reason: what was found, without the path.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason

    def at(self, place: Place) -> Failure:
        """What a set keeps of it, for the image or object there."""
        return {"code": self.code, "path": str(place), "reason": self.reason}


def decode_image(data: bytes) -> Tensor:
    """Decode one image file to RGB by its content, regardless of its name.

    torchvision decodes JPEG (grey or colour) and 16-bit PNG; Pillow decodes everything else,
    including what torchvision turns out not to support (for opaque 8-bit PNG its pixels equal
    torchvision's; of 16-bit colour it keeps the high byte). EXIF orientation is applied;
    one that only XMP states is not. The first frame of an animation is taken. Grey, palette, 1-bit
    and CMYK images are converted; 16 bits a channel are scaled by 1/257 (Pillow's readers of 16-bit
    colour keep the high byte, at most one level away); **alpha is composited on white**. ICC
    profiles are not applied.
    `preprocessing.DECODER`, a part of every image fingerprint, states these rules: change them
    together.

    A JPEG damaged in the middle that still decodes to its end cannot be detected here; the
    manifest's key detects it.

    Args:
        data: the whole file.

    Returns:
        uint8 [3, H, W].

    Raises:
        ImageError: ``empty``, ``undecodable``, ``truncated`` (a truncated file never yields half
            an image) or ``too_many_pixels`` (by its header, before any pixel is decoded).
    """
    import torch

    return torch.from_numpy(_decoded(data))


def _decoded(data: bytes, torchvision: bool = True) -> NDArray[np.uint8]:
    """As `decode_image`; without ``torchvision``, Pillow decodes everything."""
    if not data:
        raise ImageError("empty", "the file has 0 bytes")
    with warnings.catch_warnings():
        # Pillow warns of damaged metadata and large sizes, torchvision of deprecations.
        warnings.simplefilter("ignore")
        image = _open(data)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ImageError(
                "too_many_pixels", f"{width} × {height} pixels; at most {MAX_PIXELS:,} are decoded"
            )
        turn = orientation(image)
        try:
            pixels = _upright(_pixels(data, image, torchvision), turn)
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # decoders may raise anything on damaged files
            raise _failure(error) from error
    if pixels.shape[0] == 4:
        pixels = _on_white(pixels)
    if pixels.dtype == np.uint16:
        pixels = _eight_bits(pixels)
    return pixels if pixels.shape[0] == 3 else np.repeat(pixels, 3, axis=0)


def load_image(place: Place, key: bytes) -> Tensor:
    """Read, check and decode one image of a manifest: uint8 [3, H, W].

    Args:
        place: the file, or the byte range in it, that holds the image.
        key: SHA-256 of the image's bytes, from the manifest (32 bytes).

    Raises:
        ImageError: as `decode_image`; ``missing`` if the file cannot be read, ``outside`` if the
            file ends before the place does, ``changed`` if the digest differs.
    """
    return decode_image(load_bytes(place, key))


def load_entry(entry: ImageEntry) -> Tensor:
    """`load_image` of an entry."""
    return load_image(entry.place, entry.key)


def load_picture(place: Place, key: bytes) -> NDArray[np.uint8]:
    """An image of a manifest for a page, decoded by Pillow alone: uint8 [H, W, 3].

    It does without PyTorch, and its values may differ from those of `load_image` by a level or two.

    Raises:
        ImageError: as `load_image`.
    """
    return _decoded(load_bytes(place, key), torchvision=False).transpose(1, 2, 0)


@dataclass(eq=False)
class EncodedImage:
    """An image as it lies in its folder or archive, for models that take files.

    Attributes:
        data: the bytes of the file, of any format that `decode_image` reads.
        size: height and width in pixels, upright.
    """

    data: bytes
    size: tuple[int, int]

    @cached_property
    def pixels(self) -> Tensor:
        """The image, decoded when it is first asked for: uint8 [3, h, w].

        Raises:
            ImageError: as `decode_image`.
        """
        return decode_image(self.data)


def load_bytes(place: Place, key: bytes) -> bytes:
    """Read and check the bytes of one image of a manifest, as they lie there.

    Args:
        place, key: as for `load_image`.

    Raises:
        ImageError: ``missing``, ``outside``, ``empty`` or ``changed``.
    """
    try:
        data = read_place(place)
    except FileNotFoundError as error:
        raise ImageError("missing", "no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        require_of_file(error, place.path)
        reason = getattr(error, "strerror", None) or error
        raise ImageError("missing", f"cannot be read: {reason}") from error
    if key_of_bytes(data) != key:
        raise ImageError(
            "changed",
            f"the {len(data):,} bytes there now differ from those the manifest was made from; "
            "prepare the data set again",
        )
    return data


def read_place(place: Place) -> bytes:
    """The bytes of an image; of an archive, only those.

    Raises:
        OSError: the file cannot be read.
        StorageError: nor on its server, which is no fault of the image.
        ImageError: ``missing`` (a pipe or a device), ``empty`` or ``outside``.
    """
    if place.length == 0:
        raise ImageError("empty", "its place in the file has 0 bytes")
    if is_url(place.path):
        try:
            return read(*place.span)
        except StorageError:
            state = look(place.path)  # of a server that has died, its error
            if state is None:
                raise ImageError("missing", "no such file") from None
            _require_inside(place, state.size)
            raise
    path = Path(place.path)
    if not stat.S_ISREG(path.stat().st_mode):  # reading it may not end
        raise ImageError("missing", "not a regular file")
    if place.offset is None or place.length is None:
        return path.read_bytes()
    with path.open("rb") as file:
        # `read` allocates the requested number of bytes
        _require_inside(place, os.fstat(file.fileno()).st_size)
        file.seek(place.offset)
        return file.read(place.length)


def _require_inside(place: Place, size: int) -> None:
    """Raise `ImageError` for a place that extends beyond a file of ``size`` bytes."""
    _, start, end = place.span
    if end is not None and end > size:
        raise ImageError(
            "outside",
            f"its place is bytes {start:,} to {end:,} of a file that has {size:,}; get the "
            "complete file, or the matching manifest",
        )


def _pixels(data: bytes, image: Image.Image, torchvision: bool) -> NDArray[Any]:
    """uint8 or uint16 [1, 3 or 4, H, W] from the appropriate decoder."""
    sixteen_bit_png = False
    if data.startswith(_PNG):
        _require_every_row(data)
        image.load()  # torchvision's decoder ends the process on damaged rows
        sixteen_bit_png = _png_depth(data) == 16
    jpeg = image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB")
    if torchvision and (jpeg or sixteen_bit_png):
        try:
            return _by_torchvision(data, image).numpy()
        except RuntimeError as error:
            failure = _failure(error)
            # Pillow accepts some truncated files, so what torchvision rejects stays rejected.
            if failure.code == "truncated":
                raise failure from error
    return _by_pillow(image)


def _open(data: bytes) -> ImageFile:
    """The header of an image file; no pixel is decoded."""
    try:
        return Image.open(io.BytesIO(data), formats=formats())
    except UnidentifiedImageError as error:
        raise ImageError(
            "undecodable", f"not an image of a known format ({', '.join(formats())})"
        ) from error
    except Image.DecompressionBombError as error:
        raise ImageError("too_many_pixels", str(error)) from error
    except Exception as error:  # header parsers may raise anything on damaged files
        raise _failure(error) from error


def _require_every_row(data: bytes) -> None:
    """Check a PNG whose header Pillow has accepted: chunks, checksums, and enough rows.

    Pillow leaves missing rows black, and torchvision ends the process.

    Raises:
        ImageError: ``truncated`` or ``undecodable``.
    """
    at, name, packed = len(_PNG), b"", []
    while name != b"IEND":
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise ImageError("truncated", "the file ends before the image does")
        name = data[at + 4 : at + 8]
        if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise ImageError("undecodable", f"the chunk at byte {at} has a wrong checksum")
        if not name[:1].islower() and name not in _CRITICAL:
            raise ImageError("undecodable", f"the chunk at byte {at} is critical but unknown")
        if name == b"IDAT":
            packed.append(data[at + 8 : end - 4])
        at = end
    stream, size = zlib.decompressobj(), _bytes_of_rows(data)
    try:
        rows = stream.decompress(b"".join(packed), size + _SURPLUS)
    except zlib.error as error:
        raise ImageError("undecodable", f"its rows are not zlib data ({error})") from error
    # the decoder of 16 bits needs the stream's end
    if len(rows) < size or (_png_depth(data) == 16 and not stream.eof):
        raise ImageError("truncated", "its rows end before the image does")


def _png_depth(data: bytes) -> int:
    """Bits per channel: byte 8 of IHDR, which must be a PNG's first chunk (length, name, data)."""
    return data[24]


def _bytes_of_rows(data: bytes) -> int:
    """Bytes of all rows of a PNG, each with its filter byte."""
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    bits = _png_depth(data) * _CHANNELS.get(data[25], 1)
    total = 0
    for x, y, right, down in _ADAM7 if data[28] else ((0, 0, 1, 1),):
        columns, lines = -(-(width - x) // right), -(-(height - y) // down)
        if columns > 0 and lines > 0:
            total += lines * (1 + (columns * bits + 7) // 8)
    return total


def _by_torchvision(data: bytes, image: Image.Image) -> Tensor:
    """uint8 or uint16 [3 or 4, H, W] of a JPEG or PNG."""
    import torch
    from torchvision.io import ImageReadMode
    from torchvision.io import decode_image as torchvision_decode

    pixels = torchvision_decode(
        torch.frombuffer(bytearray(data), dtype=torch.uint8),
        mode=ImageReadMode.RGB_ALPHA if image.mode == "RGBA" else ImageReadMode.RGB,
    )
    clear = image.info.get("transparency") if pixels.dtype == torch.uint16 else None
    if clear is None:
        return pixels
    # A colour marked as transparent: torchvision leaves it opaque.
    wide = pixels.to(torch.int32)
    opaque = (wide != torch.tensor(clear).reshape(-1, 1, 1)).any(dim=0, keepdim=True)
    return torch.cat([wide, opaque * 65535]).to(torch.uint16)


def _by_pillow(image: Image.Image) -> NDArray[Any]:
    """uint8 or uint16 [1, 3 or 4, H, W] of any other format, first frame."""
    image.load()
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format == "PPM"):
        return np.array(image).astype(np.uint16)[None]
    if image.mode in ("I", "F"):
        raise ImageError(
            "undecodable", f"32-bit values (mode {image.mode}) have no defined range to scale"
        )
    converted = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return np.array(converted).transpose(2, 0, 1).copy()


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn [C, H, W] as EXIF's orientation says."""
    if orientation == 1:
        return pixels
    if swaps_edges(orientation):
        pixels = pixels.swapaxes(1, 2)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else 1)
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else 1)
    return np.ascontiguousarray(pixels[:, rows, columns])


def _eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """uint16 → uint8, 0–65535 to 0–255, rounded to the nearest."""
    return ((pixels.astype(np.int32) + 128) // 257).astype(np.uint8)


def _on_white(pixels: NDArray[Any]) -> NDArray[Any]:
    """uint8 or uint16 [4, H, W] → [3, H, W]: alpha · colour + (1 − alpha) · white, rounded."""
    white = np.iinfo(pixels.dtype).max
    # 65535² needs more than 31 bits.
    wide = pixels.astype(np.int64 if white > 255 else np.int32)
    colour, alpha = wide[:3], wide[3:]
    blended = (colour * alpha + white * (white - alpha) + white // 2) // white
    return blended.astype(pixels.dtype)


def _failure(error: Exception) -> ImageError:
    """Error code and reason for a decoder's exception."""
    lines = str(error).strip().splitlines()
    text = (lines[0] if lines else type(error).__name__).rstrip(".")
    lowered = text.lower()
    cut = ("truncated", "incomplete", "out of bound read", "unexpected end", "broken data stream")
    if any(word in lowered for word in cut):
        return ImageError("truncated", "the file ends before the image does")
    # torchvision prefixes its messages with internal functions and files.
    reason = text.rpartition(".cpp:")[2].partition(", ")[2] or text
    return ImageError("undecodable", reason)
