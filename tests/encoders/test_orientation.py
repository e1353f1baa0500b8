"""Wherever a format puts an image's orientation, all readers of the image turn it alike."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from image_files import photograph, saved
from numpy.typing import NDArray
from PIL import Image, ImageOps, PngImagePlugin

from pipeline.datasets.images import any_pixel_count, upright_size
from pipeline.extract.decode import decode_image, load_picture
from sightline.cache import Place, key_of_bytes

SAVED = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}
APP1 = b"\xff\xe1"


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def xmp_of(orientation: int) -> bytes:
    return (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf'
        '-syntax-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" '
        f'tiff:Orientation="{orientation}"/></rdf:RDF></x:xmpmeta>'
    ).encode()


def plain(fmt: str) -> bytes:
    return saved(photograph(), fmt, **SAVED.get(fmt, {}))


def with_exif(fmt: str, orientation: int) -> bytes:
    return saved(photograph(), fmt, exif=exif_of(orientation), **SAVED.get(fmt, {}))


def with_xmp(fmt: str, orientation: int) -> bytes:
    if fmt == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", xmp_of(orientation).decode())
        return saved(photograph(), fmt, pnginfo=text)
    if fmt == "TIFF":
        return saved(photograph(), fmt, tiffinfo={700: xmp_of(orientation)})
    return saved(photograph(), fmt, xmp=xmp_of(orientation), **SAVED.get(fmt, {}))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_with(name: bytes, data: bytes, late: bool, of: bytes | None = None) -> bytes:
    """A PNG with one more chunk, before or behind its rows."""
    png = of or plain("PNG")
    at = png.index(b"IEND" if late else b"IDAT") - 4
    return png[:at] + chunk(name, data) + png[at:]


def raw_profile(orientation: int) -> bytes:
    """What ImageMagick wrote before PNG had a chunk for EXIF."""
    exif = exif_of(orientation)
    text = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    return b"Raw profile type exif\0\0" + zlib.compress(text)


def xmp_then_exif(orientation: int) -> bytes:
    """A JPEG whose EXIF is its second APP1 segment; XMP, the first, says otherwise."""
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + xmp_of(3)
    segments = b"".join(
        APP1 + struct.pack(">H", len(part) + 2) + part for part in (xmp, exif_of(orientation))
    )
    jpeg = plain("JPEG")
    return jpeg[:2] + segments + jpeg[2:]


def animated(orientation: int) -> bytes:
    """An animated PNG whose EXIF follows its last frame."""
    frames = [photograph(seed=seed) for seed in (0, 1)]
    png = saved(frames[0], "PNG", save_all=True, append_images=frames[1:])
    return png_with(b"eXIf", exif_of(orientation)[6:], late=True, of=png)


EXIF = {
    "JPEG": lambda n: with_exif("JPEG", n),
    "JPEG, XMP first": xmp_then_exif,
    "PNG": lambda n: with_exif("PNG", n),
    "PNG, behind the rows": lambda n: png_with(b"eXIf", exif_of(n)[6:], late=True),
    "PNG, raw profile": lambda n: png_with(b"zTXt", raw_profile(n), late=False),
    "PNG, late raw profile": lambda n: png_with(b"zTXt", raw_profile(n), late=True),
    "PNG, animated": animated,
    "WebP": lambda n: with_exif("WEBP", n),
    "TIFF": lambda n: with_exif("TIFF", n),
    "TIFF, compressed": lambda n: saved(
        photograph(), "TIFF", compression="tiff_lzw", exif=exif_of(n)
    ),
}
XMP = {fmt: lambda n, fmt=fmt: with_xmp(fmt, n) for fmt in ("JPEG", "PNG", "WEBP", "TIFF", "GIF")}


def check(data: bytes, shown: NDArray[np.uint8], tmp_path, levels: int) -> None:
    """Manifest, encoder and page read an image of these pixels, [H, W, 3]."""
    path = tmp_path / "image"
    path.write_bytes(data)
    with any_pixel_count(), path.open("rb") as file:
        assert upright_size(file) == (shown.shape[1], shown.shape[0])
    for pixels in (
        decode_image(data).permute(1, 2, 0).numpy(),
        load_picture(Place(path), key_of_bytes(data)),
    ):
        assert pixels.shape == shown.shape
        assert np.abs(pixels.astype(int) - shown).max() <= levels


def stored(data: bytes) -> Image.Image:
    """The image as its rows stand in the file."""
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("case", EXIF)
def test_exif_turns_an_image_wherever_it_stands(tmp_path, case, orientation):
    tagged = Image.Exif()
    tagged[0x0112] = orientation
    upright = stored(plain("JPEG" if "JPEG" in case else "PNG"))
    upright.info["exif"] = tagged.tobytes()
    shown = np.array(ImageOps.exif_transpose(upright))
    check(EXIF[case](orientation), shown, tmp_path, levels=2 if "JPEG" in case else 0)


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("fmt", XMP)
def test_an_orientation_that_only_xmp_states_turns_nothing(tmp_path, fmt, orientation):
    check(XMP[fmt](orientation), np.array(stored(plain(fmt))), tmp_path, levels=2)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_orientation_that_does_not_exist_turns_nothing(tmp_path, fmt, orientation):
    check(with_exif(fmt, orientation), np.array(stored(plain(fmt))), tmp_path, levels=2)
