"""Odd and broken image files, alone and in an extraction: the right row, or its error."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from image_files import photograph, saved
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract import decode
from pipeline.extract.decode import MAX_PIXELS, ImageError, decode_image
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import Entries, FeatureInputs, ImageEntry, images_below
from pipeline.extract.runner import run
from pipeline.extract.settings import ExtractSettings
from sightline.cache import EncoderRecord, FeatureSet, Place, key_of_file
from sightline.cache.keys import as_keys

PIXELS = ImagePreprocessing((8, 8), (8, 8), "bilinear", mean=(0.0,) * 3, std=(1.0,) * 3)
EYE = ImageEncoder(
    EncoderRecord(name="eye", source="random:0", weights_sha256="0" * 64, untrained=True),
    3 * 8 * 8,
    PIXELS,
    torch.device("cpu"),
    encode=lambda images: images.reshape(len(images), -1),
)
"""An encoder that returns its input: its rows are pixels."""
RGB = np.array(photograph())
GREY = np.array(photograph().convert("L"))
ROUNDED = 0.51


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, checksum included."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour_type, rows, clear=b"", interlace=0) -> bytes:
    """A PNG of raw rows: for the layouts that Pillow does not write, and for false headers.

    `clear` is the content of its tRNS chunk: the colour that is transparent.
    """
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, interlace)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    transparency = chunk(b"tRNS", clear) if clear else b""
    parts = (chunk(b"IHDR", header), transparency, chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sixteen_bit_png(values: np.ndarray, colour_type: int, clear: bytes = b"") -> bytes:
    """A 16-bit PNG of uint16 [H, W, C]."""
    height, width, _ = values.shape
    return png(width, height, 16, colour_type, values.astype(">u2"), clear)


class Good(NamedTuple):
    """A file, and the image it shows: [H, W, 3], 0 to 255, within so many levels."""

    data: bytes
    shows: NDArray[Any]
    levels: float = 0


class Bad(NamedTuple):
    """An unusable file, and its possible error codes."""

    data: bytes
    codes: tuple[str, ...]


def grey(values: NDArray) -> NDArray[np.uint8]:
    """[H, W] as RGB."""
    return np.repeat(values[..., None].astype(np.uint8), 3, axis=2)


def on_white(data: bytes, colour: NDArray, alpha: NDArray) -> Good:
    """A file of colour [H, W, 3] under alpha [H, W], both 0 … 255, which is shown on white."""
    share = alpha[..., None].astype(float) / 255
    return Good(data, colour * share + 255 * (1 - share), ROUNDED)


def as_pillow(data: bytes) -> Good:
    """A file that shows what Pillow makes of it."""
    with Image.open(io.BytesIO(data)) as found:
        return Good(data, np.array(found.convert("RGB")))


def lossy(image: Image.Image, fmt: str, **options: object) -> Good:
    return as_pillow(saved(image, fmt, **options))


def unseen(seed: int, size: tuple[int, int] = (48, 32)) -> Good:
    """A different image each, because files with the same bytes are one row."""
    image = photograph(*size, seed)
    return Good(saved(image, "PNG"), np.array(image))


def oriented(orientation: int, fmt: str) -> Good:
    """A picture on its side, which is shown upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(fmt, {})
    stored = lossy(photograph(), fmt, **options).shows
    upright = {
        1: stored,
        2: stored[:, ::-1],
        3: stored[::-1, ::-1],
        4: stored[::-1],
        5: stored.transpose(1, 0, 2),
        6: stored[::-1].transpose(1, 0, 2),
        7: stored[::-1, ::-1].transpose(1, 0, 2),
        8: stored[:, ::-1].transpose(1, 0, 2),
    }[orientation]
    return Good(saved(photograph(), fmt, exif=exif, **options), upright)


def few_bits(depth: int) -> Good:
    """A grey PNG of 1, 2 or 4 bits, two to eight pixels a byte."""
    most = (1 << depth) - 1
    values = GREY.astype(np.uint16) * most // 255
    bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=2)[..., -depth:]
    rows = np.packbits(bits.reshape(len(values), -1), axis=1)
    return Good(png(48, 32, depth, 0, rows), grey(values * 255 // most))


def interlaced() -> bytes:
    """A PNG in the seven passes of Adam7."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2)]
    passes += [(1, 0, 2, 1)]
    rows = [row for y, x, down, right in passes for row in RGB[y::down, x::right]]
    return png(48, 32, 8, 2, rows, interlace=1)


def keyed(mode: str) -> Good:
    """A PNG of one transparent colour: that of its first pixel."""
    image = photograph().convert(mode)
    values = np.array(image).reshape(*RGB.shape[:2], -1)
    shows = np.array(image.convert("RGB"))
    shows[(values[0, 0] == values).all(axis=2)] = 255
    return Good(saved(image, "PNG", transparency=image.getpixel((0, 0))), shows)


def keyed_in_sixteen_bits(channels: int) -> Good:
    """The transparent colour and the others differ in the low byte alone."""
    values = np.full((2, 3, channels), 30_000, dtype=np.uint16)
    values[0, 1] = 30_001
    key = np.full(channels, 30_001, dtype=">u2").tobytes()
    shows = np.full((2, 3, 3), round(30_000 / 257))
    shows[0, 1] = 255
    return Good(sixteen_bit_png(values, channels - 1, key), shows)


def sixteen_bits(colour_type: int, channels: int) -> Good:
    """A PNG of random values: 16 bits are scaled, not cut."""
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 7, channels)).astype(np.uint16)
    share = values / 65535
    colour = share[..., :3] if channels >= 3 else np.repeat(share[..., :1], 3, axis=-1)
    alpha = share[..., -1:] if channels in (2, 4) else 1.0
    shows = 255 * (colour * alpha + 1 - alpha)
    return Good(sixteen_bit_png(values, colour_type), shows, ROUNDED)


def frames(fmt: str, **options: object) -> bytes:
    others = [photograph(seed=seed) for seed in (1, 2)]
    return saved(photograph(), fmt, save_all=True, append_images=others, **options)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def lie(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def rows_without_an_end() -> bytes:
    """A 16-bit PNG without the checksum after its rows, on which torchvision aborts."""
    data = sixteen_bit_png(WIDE[..., None], 0)
    at = data.index(b"IDAT")
    rows = zlib.compress(zlib.decompress(data[at + 4 :]))
    return data[: at - 4] + chunk(b"IDAT", rows[:-4]) + chunk(b"IEND", b"")


def text_chunk() -> bytes:
    about = PngImagePlugin.PngInfo()
    about.add_itxt("Title", "наука\n写真")
    return saved(photograph(), "PNG", pnginfo=about, exif=Image.Exif().tobytes(), dpi=(0.001, 9e6))


ALPHA = np.linspace(0, 255, RGB.shape[1]).astype(np.uint8)[None].repeat(len(RGB), axis=0)
RGBA = Image.fromarray(np.dstack([RGB, ALPHA]))
LA = Image.fromarray(np.dstack([GREY, ALPHA]))
BITS = np.array(photograph().convert("1"))
WIDE = np.arange(32 * 48, dtype=np.uint16).reshape(32, 48) * 42
PALETTE = photograph().quantize(64)
JPEG = saved(photograph(), "JPEG")
PNG = saved(photograph(), "PNG")
OTHER_JPEGS = {
    "progressive": saved(photograph(), "JPEG", progressive=True),
    "grey": saved(photograph().convert("L"), "JPEG"),
    "cmyk": saved(photograph().convert("CMYK"), "JPEG"),
}
WIDE_SHOWS = np.repeat(WIDE[..., None] / 257, 3, axis=2)
ODD_NAMES = (" spaces  in it", "two\nlines", "наука 写真 😀 ñ n\u0303", "-rf", "<b>'\"&amp;$(x)")
ODD_NAMES += ("%s%n ..\\..\t", "x" * 240)
CUT = ("truncated",)
BROKEN = ("truncated", "undecodable")
NO_IMAGE = ("undecodable",)

FILES: dict[str, Good | Bad] = {
    "plain.png": Good(PNG, RGB),
    "interlaced.png": Good(interlaced(), RGB),
    "grey.png": Good(saved(photograph().convert("L"), "PNG"), grey(GREY)),
    "one bit.png": Good(saved(photograph().convert("1"), "PNG"), grey(BITS * 255)),
    "two bits.png": few_bits(2),
    "four bits.png": few_bits(4),
    "palette.png": Good(saved(PALETTE, "PNG"), np.array(PALETTE.convert("RGB"))),
    "palette, clear.png": keyed("P"),
    "colour key.png": keyed("RGB"),
    "grey key.png": keyed("L"),
    "alpha.png": on_white(saved(RGBA, "PNG"), RGB, ALPHA),
    "grey alpha.png": on_white(saved(LA, "PNG"), grey(GREY), ALPHA),
    "sixteen bits grey.png": sixteen_bits(0, 1),
    "sixteen bits.png": sixteen_bits(2, 3),
    "sixteen bits grey alpha.png": sixteen_bits(4, 2),
    "sixteen bits alpha.png": sixteen_bits(6, 4),
    "sixteen bits grey key.png": keyed_in_sixteen_bits(1),
    "sixteen bits key.png": keyed_in_sixteen_bits(3),
    "much said.png": Good(text_chunk(), RGB),
    "animated.png": Good(frames("PNG"), RGB),
    "more behind its end.png": Good(PNG + b"more" * 1000, RGB),
    "a png.jpg": unseen(3),
    "one pixel.png": unseen(0, (1, 1)),
    "a strip.png": unseen(0, (500, 1)),
    "plain.gif": Good(saved(PALETTE, "GIF", interlace=0), np.array(PALETTE.convert("RGB"))),
    "animated.gif": lossy(photograph(), "GIF", save_all=True, append_images=[photograph(seed=9)]),
    "plain.bmp": Good(saved(photograph(), "BMP"), RGB),
    "plain.tiff": Good(saved(photograph(), "TIFF"), RGB),
    "pages.tiff": Good(frames("TIFF"), RGB),
    "one bit.tiff": lossy(photograph().convert("1"), "TIFF"),
    "alpha.tiff": on_white(saved(RGBA, "TIFF"), RGB, ALPHA),
    "sixteen bits.tiff": Good(saved(Image.fromarray(WIDE), "TIFF"), WIDE_SHOWS, ROUNDED),
    "sixteen bits.pgm": Good(saved(Image.fromarray(WIDE), "PPM"), WIDE_SHOWS, ROUNDED),
    "cmyk.tiff": lossy(photograph().convert("CMYK"), "TIFF"),
    "plain.ppm": Good(saved(photograph(), "PPM"), RGB),
    "lossless.webp": Good(saved(photograph(), "WEBP", lossless=True), RGB),
    "alpha.webp": on_white(saved(RGBA, "WEBP", lossless=True, exact=True), RGB, ALPHA),
    "animated.webp": Good(frames("WEBP", lossless=True), RGB),
    "lossy.webp": lossy(photograph(), "WEBP"),
    "lossless.jp2": Good(saved(photograph(), "JPEG2000"), RGB),
    "plain.jpg": lossy(photograph(), "JPEG"),
    **{f"{name}.jpg": as_pillow(data) for name, data in OTHER_JPEGS.items()},
    "profile.jpg": lossy(photograph(seed=4), "JPEG", icc_profile=b"no profile" * 20),
    "more behind its end.jpg": Good(JPEG + b"\0" * 999, np.array(Image.open(io.BytesIO(JPEG)))),
    **{
        f"orientation {n}.{fmt}": oriented(n, fmt)
        for n in range(1, 9)
        for fmt in ("JPEG", "PNG", "WEBP", "TIFF")
    },
    **{f"{name}.png": unseen(10 + n) for n, name in enumerate(ODD_NAMES)},
    "nothing.png": Bad(b"", ("empty",)),
    "zeros.jpg": Bad(bytes(5000), NO_IMAGE),
    "a page.jpg": Bad(b"<!doctype html><title>404</title>", NO_IMAGE),
    "signature.png": Bad(PNG[:8], BROKEN),
    "header.png": Bad(PNG[:33], BROKEN),
    "half.png": Bad(half(PNG), CUT),
    "nearly whole.png": Bad(PNG[: len(PNG) * 9 // 10], CUT),
    "no end.png": Bad(PNG[:-20], CUT),
    "signature.jpg": Bad(JPEG[:4], BROKEN),
    **{
        f"{name}, cut at {share}.jpg": Bad(data[: int(len(data) * share)], CUT)
        for name, data in {"plain": JPEG, **OTHER_JPEGS}.items()
        for share in (0.5, 0.9)
    },
    **{
        f"half a {fmt}.png": Bad(half(saved(photograph(), fmt)), BROKEN)
        for fmt in ("GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "PPM")
    },
    "header says more rows.png": Bad(png(48, 64, 8, 2, RGB), BROKEN),
    "header says more rows of sixteen bits.png": Bad(
        png(8, 64, 16, 2, np.full((4, 8, 3), 30_000, ">u2")), BROKEN
    ),
    "rows of sixteen bits without an end.png": Bad(rows_without_an_end(), CUT),
    "a chunk that nobody knows.png": Bad(PNG[:33] + chunk(b"ABCD", b"x") + PNG[33:], NO_IMAGE),
    "header says wider.png": Bad(png(64, 32, 8, 2, RGB), BROKEN),
    "header says nothing.png": Bad(png(0, 32, 8, 2, RGB), NO_IMAGE),
    "header says gigabytes.png": Bad(png(60_000, 60_000, 8, 2, RGB), ("too_many_pixels",)),
    "header says no number.png": Bad(
        png(2**32 - 1, 2**32 - 1, 8, 2, RGB), (*NO_IMAGE, "too_many_pixels")
    ),
    "header of a wrong sum.png": Bad(lie(PNG, PNG[29:33], b"\1\2\3\4"), NO_IMAGE),
    "data that is no data.png": Bad(png(4, 4, 8, 2, RGB[:1, :0]), BROKEN),
    "a depth of seven.png": Bad(png(8, 1, 7, 0, GREY[:1, :1]), NO_IMAGE),
    "wider than gigabytes.bmp": Bad(
        lie(
            saved(photograph(), "BMP"), struct.pack("<ii", 48, 32), struct.pack("<ii", *[2**30] * 2)
        ),
        (*NO_IMAGE, "too_many_pixels"),
    ),
    "floats.tiff": Bad(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), NO_IMAGE),
    "a program.png": Bad(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage", NO_IMAGE),
    "a drawing.png": Bad(b'<svg xmlns="http://www.w3.org/2000/svg" width="9"/>', NO_IMAGE),
    "an icon.png": Bad(saved(photograph(), "ICO"), NO_IMAGE),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, file in FILES.items():
        (folder / name).write_bytes(file.data)
    return folder


@pytest.fixture(scope="module")
def features(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureSet:
    """Of all files, and of four that are not what the manifest names."""
    out = tmp_path_factory.mktemp("features") / "set"
    entries = list(images_below(folder))
    assert len(entries) == len(FILES)
    (folder / "loop.png").symlink_to(folder / "loop.png")
    others = (folder / "gone.png", folder, folder / "plain.png", folder / "loop.png")
    entries += [ImageEntry(Place(path), bytes([n] * 32)) for n, path in enumerate(others, 1)]
    settings = ExtractSettings(dtype="float32")
    images = Entries.of(as_keys([entry.key for entry in entries]), entries)
    run(feature_job(FeatureInputs("image", images), EYE, out, settings), max_failed=1)
    return FeatureSet.open(out)


@pytest.mark.parametrize("name", FILES)
def test_a_readable_file_gives_the_row_of_its_picture_and_a_broken_one_its_error(
    folder, features, name
):
    file, key = FILES[name], key_of_file(folder / name)
    if isinstance(file, Bad):
        with pytest.raises(ImageError) as caught:
            decode_image(file.data)
        assert caught.value.code == features.failed[key]
        assert caught.value.code in file.codes
        assert caught.value.reason
        assert ".cpp" not in caught.value.reason
        assert features.find([key]) == [-1]
        return
    picture = decode_image(file.data)
    assert picture.dtype == torch.uint8
    assert np.abs(picture.permute(1, 2, 0).numpy() - file.shows.astype(float)).max() <= file.levels
    assert torch.equal(torch.from_numpy(features.take([key])[0]), PIXELS(picture).flatten())


def test_files_that_are_not_what_the_manifest_names(features):
    codes = [features.failed[bytes([n]) * 32] for n in (1, 2, 3, 4)]
    assert codes == ["missing", "missing", "changed", "missing"]


def test_too_many_pixels_are_refused_before_any_is_decoded(monkeypatch):
    def must_not_run(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(decode, "_by_torchvision", must_not_run)
    monkeypatch.setattr(decode, "_by_pillow", must_not_run)
    # above the limit, above Pillow's, gigabytes
    headers = [png(side, side, 8, 2, []) for side in (9_500, 13_400, 60_000)]
    for data, limit in [*((header, MAX_PIXELS) for header in headers), (JPEG, 48 * 32 - 1)]:
        monkeypatch.setattr(decode, "MAX_PIXELS", limit)
        with pytest.raises(ImageError, match="too_many_pixels"):
            decode_image(data)
    monkeypatch.undo()
    monkeypatch.setattr(decode, "MAX_PIXELS", 48 * 32)
    assert decode_image(JPEG).shape == (3, 32, 48)


def test_pillow_reads_what_torchvision_cannot(monkeypatch):
    def unsupported(*_: object) -> torch.Tensor:
        raise RuntimeError("decode_jpeg, /x/decode_jpeg.cpp:1, not supported")

    usual = decode_image(JPEG)
    monkeypatch.setattr(decode, "_by_torchvision", unsupported)
    assert torch.equal(decode_image(JPEG), usual)
