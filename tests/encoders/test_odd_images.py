"""Odd and broken image files through a whole extraction: the right row, or the right error row."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import photograph, png, saved, sixteen_bit_png
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin
from torch import Tensor

from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.extract.encode_missing import ImageEntry, extract_images
from pipeline.extract.inputs import image_entries_of
from pipeline.extract.runner import RunSettings
from sightline.cache import FeatureSet, Place, key_of_file

SIDE = 8
PREPROCESSING = ImagePreprocessing(
    resize=(SIDE, SIDE),
    crop=(SIDE, SIDE),
    interpolation="bilinear",
    mean=(0.0,) * 3,
    std=(1.0,) * 3,
)
RGB = np.array(photograph())
GREY = np.array(photograph().convert("L"))
LOSSY = 0.03  # eight of 255 levels
EXACT = 1e-6


class Eye:
    """An encoder that returns its input: its rows are pixels."""

    identity = EncoderIdentity("eye", "random:0", "", "0" * 64, untrained=True)
    dim = 3 * SIDE * SIDE
    preprocessing = PREPROCESSING
    device = torch.device("cpu")

    def encode(self, images: Tensor) -> Tensor:
        return images.reshape(len(images), -1)


@dataclass(frozen=True)
class Good:
    """A file, and the image it shows: uint8 [H, W, 3]."""

    data: bytes
    shows: NDArray[np.uint8]
    tolerance: float = EXACT


@dataclass(frozen=True)
class Bad:
    """An unusable file, and its possible error codes."""

    data: bytes
    codes: tuple[str, ...]


def grey(values: NDArray) -> NDArray[np.uint8]:
    """[H, W] as RGB."""
    return np.repeat(values[..., None].astype(np.uint8), 3, axis=2)


def on_white(colour: NDArray, alpha: NDArray) -> NDArray[np.uint8]:
    """Colour [H, W, 3] under alpha [H, W], both 0 … 255, on white."""
    share = alpha[..., None].astype(float) / 255
    return np.floor(colour * share + 255 * (1 - share) + 0.5).astype(np.uint8)


def lossy(image: Image.Image, fmt: str, **options: object) -> Good:
    """A file whose expected image is Pillow's."""
    data = saved(image, fmt, **options)
    with Image.open(io.BytesIO(data)) as found:
        return Good(data, np.array(found.convert("RGB")), LOSSY)


def unseen(seed: int) -> Good:
    """A different image each, because files with the same bytes are one row."""
    image = photograph(seed=seed)
    return Good(saved(image, "PNG"), np.array(image))


def oriented(orientation: int) -> Good:
    """A JPEG on its side, and the picture upright."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(photograph(), "JPEG", exif=exif, quality=95)
    with Image.open(io.BytesIO(data)) as found:
        stored = np.array(found)
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
    return Good(data, np.ascontiguousarray(upright), LOSSY)


def few_bits(depth: int) -> Good:
    """A grey PNG of 1, 2 or 4 bits, two to eight pixels a byte."""
    most = (1 << depth) - 1
    values = GREY.astype(np.uint16) * most // 255
    packed = np.zeros((len(values), values.shape[1] * depth // 8), np.uint8)
    for i in range(8 // depth):
        packed |= (values[:, i :: 8 // depth] << (8 - depth * (i + 1))).astype(np.uint8)
    rows = [row.tobytes() for row in packed]
    return Good(png(GREY.shape[1], GREY.shape[0], depth, 0, rows), grey(values * 255 // most))


def interlaced() -> bytes:
    """A PNG in the seven passes of Adam7."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2)]
    rows = [
        b"\0" + row.tobytes()
        for y, x, down, right in [*passes, (1, 0, 2, 1)]
        for row in RGB[y::down, x::right]
    ]
    header = struct.pack(">IIBBBBB", RGB.shape[1], RGB.shape[0], 8, 2, 0, 0, 1)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)


def keyed() -> Good:
    """A PNG of one transparent colour: that of its first pixel."""
    clear = b"".join(struct.pack(">H", int(value)) for value in RGB[0, 0])
    rows = [row.tobytes() for row in RGB]
    shows = RGB.copy()
    shows[(RGB[0, 0] == RGB).all(axis=2)] = 255
    return Good(png(RGB.shape[1], RGB.shape[0], 8, 2, rows, clear), shows)


def palette_with_clear() -> Good:
    image = photograph().quantize(16)
    index, colours = np.array(image), np.array(image.getpalette()[: 16 * 3]).reshape(-1, 3)
    shows = colours[index].astype(np.uint8)
    shows[index == 3] = 255
    return Good(saved(image, "PNG", transparency=3), shows)


def frames(fmt: str, **options: object) -> bytes:
    others = [photograph(seed=seed) for seed in (1, 2)]
    return saved(photograph(), fmt, save_all=True, append_images=others, **options)


def lie(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def png_header(width: int, height: int) -> bytes:
    """The image's PNG with a different size in its header, checksum included."""
    data = saved(photograph(), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, checksum included."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


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
STRIP = np.array(photograph(500, 1))
JPEG = saved(photograph(), "JPEG")
PNG = saved(photograph(), "PNG")
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
    "palette, clear.png": palette_with_clear(),
    "colour key.png": keyed(),
    "alpha.png": Good(saved(RGBA, "PNG"), on_white(RGB, ALPHA), 0.005),
    "grey alpha.png": Good(saved(LA, "PNG"), on_white(grey(GREY), ALPHA), 0.005),
    "sixteen bits.png": Good(
        sixteen_bit_png(np.dstack([WIDE] * 3), 2), grey((WIDE.astype(int) + 128) // 257)
    ),
    "sixteen bits grey.png": Good(
        sixteen_bit_png(WIDE[..., None], 0), grey((WIDE.astype(int) + 128) // 257)
    ),
    "much said.png": Good(text_chunk(), RGB),
    "animated.png": Good(frames("PNG"), RGB),
    "more behind its end.png": Good(PNG + b"more" * 1000, RGB),
    "a png.jpg": Good(saved(photograph(seed=3), "PNG"), np.array(photograph(seed=3))),
    "one pixel.png": Good(saved(photograph(1, 1), "PNG"), np.array(photograph(1, 1))),
    "a strip.png": Good(saved(photograph(500, 1), "PNG"), STRIP),
    "plain.gif": Good(saved(PALETTE, "GIF", interlace=0), np.array(PALETTE.convert("RGB"))),
    "interlaced.gif": Good(saved(PALETTE, "GIF", interlace=1), np.array(PALETTE.convert("RGB"))),
    "animated.gif": lossy(photograph(), "GIF", save_all=True, append_images=[photograph(seed=9)]),
    "plain.bmp": Good(saved(photograph(), "BMP"), RGB),
    "palette.bmp": Good(saved(PALETTE, "BMP"), np.array(PALETTE.convert("RGB"))),
    "one bit.bmp": Good(saved(photograph().convert("1"), "BMP"), grey(BITS * 255)),
    "plain.tiff": Good(saved(photograph(), "TIFF"), RGB),
    "lzw.tiff": Good(saved(photograph(), "TIFF", compression="tiff_lzw"), RGB),
    "deflate.tiff": Good(saved(photograph(), "TIFF", compression="tiff_adobe_deflate"), RGB),
    "pages.tiff": Good(frames("TIFF"), RGB),
    "alpha.tiff": Good(saved(RGBA, "TIFF"), on_white(RGB, ALPHA), 0.005),
    "sixteen bits.tiff": Good(
        saved(Image.fromarray(WIDE), "TIFF"), grey((WIDE.astype(int) + 128) // 257)
    ),
    "cmyk.tiff": lossy(photograph().convert("CMYK"), "TIFF"),
    "plain.ppm": Good(saved(photograph(), "PPM"), RGB),
    "grey.pgm": Good(saved(photograph().convert("L"), "PPM"), grey(GREY)),
    "one bit.pbm": Good(saved(photograph().convert("1"), "PPM"), grey(BITS * 255)),
    "lossless.webp": Good(saved(photograph(), "WEBP", lossless=True), RGB),
    "alpha.webp": Good(saved(RGBA, "WEBP", lossless=True, exact=True), on_white(RGB, ALPHA), 0.005),
    "animated.webp": Good(frames("WEBP", lossless=True), RGB),
    "lossy.webp": lossy(photograph(), "WEBP"),
    "lossless.jp2": Good(saved(photograph(), "JPEG2000"), RGB),
    "plain.jpg": lossy(photograph(), "JPEG"),
    "progressive.jpg": lossy(photograph(), "JPEG", progressive=True),
    "grey.jpg": lossy(photograph().convert("L"), "JPEG"),
    "cmyk.jpg": lossy(photograph().convert("CMYK"), "JPEG"),
    "coarse colour.jpg": lossy(photograph(), "JPEG", subsampling=2, quality=60),
    "worst.jpg": lossy(photograph(), "JPEG", quality=1),
    "profile.jpg": lossy(photograph(seed=4), "JPEG", icc_profile=b"no profile" * 20),
    "more behind its end.jpg": Good(
        JPEG + b"\0" * 999, np.array(Image.open(io.BytesIO(JPEG))), LOSSY
    ),
    **{f"orientation {n}.jpg": oriented(n) for n in range(1, 9)},
    " spaces  in it .png": unseen(10),
    "two\nlines.png": unseen(11),
    "наука 写真 😀 ñ n\u0303.png": unseen(12),
    "-rf.png": unseen(13),
    "<b>'\"&amp;$(x).png": unseen(14),
    "%s%n ..\\..\t.png": unseen(15),
    "x" * 240 + ".png": unseen(16),
    "nothing.png": Bad(b"", ("empty",)),
    "zeros.jpg": Bad(bytes(5000), NO_IMAGE),
    "a page.jpg": Bad(b"<!doctype html><title>404</title>", NO_IMAGE),
    "signature.png": Bad(PNG[:8], BROKEN),
    "header.png": Bad(PNG[:33], BROKEN),
    "half.png": Bad(PNG[: len(PNG) // 2], CUT),
    "no end.png": Bad(PNG[:-20], CUT),
    "signature.jpg": Bad(JPEG[:4], BROKEN),
    "half.jpg": Bad(JPEG[: len(JPEG) // 2], CUT),
    "half.gif": Bad(saved(PALETTE, "GIF")[:900], BROKEN),
    "half.bmp": Bad(saved(photograph(), "BMP")[:2000], BROKEN),
    "half.tiff": Bad(saved(photograph(), "TIFF")[:2000], BROKEN),
    "half.webp": Bad(saved(photograph(), "WEBP", lossless=True)[:900], BROKEN),
    "half.jp2": Bad(saved(photograph(), "JPEG2000")[:900], BROKEN),
    "half.ppm": Bad(saved(photograph(), "PPM")[:900], BROKEN),
    "header says more rows.png": Bad(png_header(48, 64), BROKEN),
    "header says more rows of sixteen bits.png": Bad(
        png(8, 64, 16, 2, [np.full((8, 3), 30_000, ">u2").tobytes()] * 4), BROKEN
    ),
    "rows of sixteen bits without an end.png": Bad(rows_without_an_end(), CUT),
    "a chunk that nobody knows.png": Bad(PNG[:33] + chunk(b"ABCD", b"x") + PNG[33:], NO_IMAGE),
    "header says wider.png": Bad(png_header(64, 32), BROKEN),
    "header says nothing.png": Bad(png_header(0, 32), NO_IMAGE),
    "header says gigabytes.png": Bad(png_header(60_000, 60_000), ("too_many_pixels",)),
    "header says no number.png": Bad(
        png_header(2**32 - 1, 2**32 - 1), (*NO_IMAGE, "too_many_pixels")
    ),
    "header of a wrong sum.png": Bad(lie(PNG, PNG[29:33], b"\1\2\3\4"), NO_IMAGE),
    "data that is no data.png": Bad(png(4, 4, 8, 2, [b""]), BROKEN),
    "a depth of seven.png": Bad(png(8, 1, 7, 0, [b"\0"]), NO_IMAGE),
    "wider than gigabytes.bmp": Bad(
        lie(
            saved(photograph(), "BMP"), struct.pack("<ii", 48, 32), struct.pack("<ii", 2**30, 2**30)
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
    out = tmp_path_factory.mktemp("features") / "set"
    entries = image_entries_of(folder)
    assert len(entries) == len(FILES)
    others = (folder / "gone.png", folder, folder / "plain.png", loop(folder))
    entries += [ImageEntry(Place(path), bytes([n] * 32)) for n, path in enumerate(others, 1)]
    extract_images(entries, Eye(), out, RunSettings(dtype="float32", max_failed=1, workers=0))
    return FeatureSet.open(out)


def loop(folder: Path) -> Path:
    """A link to itself."""
    path = folder / "loop.png"
    path.symlink_to(path)
    return path


def test_there_are_enough_odd_files() -> None:
    assert sum(isinstance(file, Good) for file in FILES.values()) >= 60
    assert sum(isinstance(file, Bad) for file in FILES.values()) >= 28
    assert len({file.data for file in FILES.values()}) >= len(FILES) - 2


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if isinstance(file, Good)])
def test_a_readable_file_gives_the_row_of_its_picture(
    folder: Path, features: FeatureSet, name: str
) -> None:
    file = FILES[name]
    assert isinstance(file, Good)
    row = features.take([key_of_file(folder / name)])[0]
    picture = torch.from_numpy(np.ascontiguousarray(file.shows)).permute(2, 0, 1)
    expected = PREPROCESSING(picture).flatten().numpy()
    np.testing.assert_allclose(row, expected, atol=file.tolerance)


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if isinstance(file, Bad)])
def test_a_broken_file_gives_its_error_row(folder: Path, features: FeatureSet, name: str) -> None:
    file = FILES[name]
    assert isinstance(file, Bad)
    assert features.failed[key_of_file(folder / name)] in file.codes
    assert features.find([key_of_file(folder / name)]) == [-1]


def test_files_that_are_not_what_the_manifest_names(features: FeatureSet) -> None:
    codes = [features.failed[bytes([n]) * 32] for n in (1, 2, 3, 4)]
    assert codes == ["missing", "missing", "changed", "missing"]
