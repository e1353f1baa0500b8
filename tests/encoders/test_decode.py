"""Decoding: every odd image becomes RGB as in Pillow, every bad one an error with a code."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import photograph, png, saved, sixteen_bit_png
from PIL import Image, ImageOps

from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract import decode
from pipeline.extract.batches import (
    ImageReader,
    decode_batch,
    decoded_batches,
)
from pipeline.extract.decode import ImageError, decode_image, load_image
from sightline.cache import Place

SMALL = ImagePreprocessing(
    resize=(16, 16), crop=(16, 16), interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3
)


def pixels(data: bytes) -> np.ndarray:
    image = decode_image(data)
    assert image.dtype == torch.uint8
    assert image.shape[0] == 3
    return image.permute(1, 2, 0).numpy()


def code_of(data: bytes, **options: int) -> str:
    with pytest.raises(ImageError) as caught:
        decode_image(data, **options)
    assert caught.value.reason
    assert ".cpp" not in caught.value.reason
    return caught.value.code


PLAIN = {
    "jpeg": saved(photograph(), "JPEG"),
    "jpeg progressive": saved(photograph(), "JPEG", progressive=True),
    "jpeg grey": saved(photograph().convert("L"), "JPEG"),
    "jpeg cmyk": saved(photograph().convert("CMYK"), "JPEG"),
    "png": saved(photograph(), "PNG"),
    "png grey": saved(photograph().convert("L"), "PNG"),
    "png 1 bit": saved(photograph().convert("1"), "PNG"),
    "png palette": saved(photograph().convert("P"), "PNG"),
    "gif": saved(photograph(), "GIF"),
    "bmp": saved(photograph(), "BMP"),
    "tiff": saved(photograph(), "TIFF"),
    "tiff cmyk": saved(photograph().convert("CMYK"), "TIFF"),
    "tiff 1 bit": saved(photograph().convert("1"), "TIFF"),
    "webp": saved(photograph(), "WEBP", lossless=True),
    "jpeg 2000": saved(photograph(), "JPEG2000"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_opaque_images_are_what_pillow_makes_of_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(PLAIN[name])
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(pixels(PLAIN[name]), expected)


def on_white(image: Image.Image) -> np.ndarray:
    rgba = image.convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba))[..., :3]


def translucent() -> Image.Image:
    image = photograph()
    image.putalpha(photograph(seed=1).convert("L"))
    return image


def test_alpha_is_composited_on_white() -> None:
    image = translucent()
    keyed = photograph().convert("P")
    files = {
        "rgba png": (saved(image, "PNG"), image),
        "grey+alpha png": (saved(image.convert("LA"), "PNG"), image.convert("LA")),
        "rgba webp": (saved(image, "WEBP", lossless=True, exact=True), image),
        "rgba tiff": (saved(image, "TIFF"), image),
    }
    for name, (data, original) in files.items():
        difference = np.abs(pixels(data).astype(int) - on_white(original).astype(int))
        assert difference.max() <= 1, name
    clear = keyed.getpixel((5, 5))
    shown = pixels(saved(keyed, "PNG", transparency=clear))
    mask = np.asarray(keyed) == clear
    assert (shown[mask] == 255).all()
    np.testing.assert_array_equal(shown[~mask], np.asarray(keyed.convert("RGB"))[~mask])


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_colour_key_is_transparent(mode: str) -> None:
    image = photograph().convert(mode)
    image.paste(Image.new(mode, (8, 8)), (0, 0))
    data = saved(image, "PNG", transparency=0 if mode == "L" else (0, 0, 0))
    assert (pixels(data)[:8, :8] == 255).all()
    assert not (pixels(data)[8:, 8:] == 255).all()


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_are_scaled_not_cut(colour_type: int, channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 7, channels)).astype(np.uint16)
    share = values / 65535
    colour = share[..., :3] if channels >= 3 else np.repeat(share[..., :1], 3, axis=-1)
    alpha = share[..., -1:] if channels in (2, 4) else 1.0
    expected = 255 * (colour * alpha + 1 - alpha)
    found = pixels(sixteen_bit_png(values, colour_type))
    assert np.abs(found - expected).max() <= 0.51


@pytest.mark.parametrize("colour_type", [0, 2])
def test_a_colour_key_of_sixteen_bits(colour_type: int) -> None:
    values = np.full((2, 3, colour_type + 1), 30_000, dtype=np.uint16)
    values[0, 1] = 30_001  # the same 8 bits
    key = np.full(colour_type + 1, 30_001, dtype=">u2").tobytes()
    found = pixels(sixteen_bit_png(values, colour_type, key))
    clear = np.zeros((2, 3), dtype=bool)
    clear[0, 1] = True
    assert (found[clear] == 255).all()
    assert (found[~clear] == round(30_000 / 257)).all()


@pytest.mark.parametrize("fmt", ["TIFF", "PPM"])
def test_sixteen_bit_grey_of_other_formats(fmt: str) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (5, 7)).astype(np.uint16)
    found = pixels(saved(Image.fromarray(values), fmt))
    assert np.abs(found - values[..., None] / 257).max() <= 0.51


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(fmt: str, orientation: int) -> None:
    image = photograph()
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if fmt == "JPEG" else {"lossless": True} if fmt == "WEBP" else {}
    tagged = image.copy()
    tagged.info["exif"] = exif.tobytes()
    plain = Image.fromarray(pixels(saved(image, fmt, **options)))
    plain.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(plain))
    np.testing.assert_array_equal(pixels(saved(image, fmt, exif=exif, **options)), expected)


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    for fmt in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if fmt == "WEBP" else {}
        data = saved(frames[0], fmt, save_all=True, append_images=frames[1:], **options)
        assert (pixels(data) == (255, 0, 0)).all(), fmt


def test_a_mislabelled_file_is_decoded_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(PLAIN["png"])
    image = load_image(Place(path), hashlib.sha256(PLAIN["png"]).digest())
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(photograph()))


@pytest.mark.parametrize("name", ["two words.png", "zwei\nZeilen.png", "наука 写真 😀.png"])
def test_any_file_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(PLAIN["png"])
    key = hashlib.sha256(PLAIN["png"]).digest()
    assert load_image(Place(tmp_path / name), key).shape == (3, 32, 48)


def test_an_image_in_the_middle_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(b"x" * 700 + PLAIN["png"] + b"y" * 300)
    place = Place(path, 700, len(PLAIN["png"]))
    image = load_image(place, hashlib.sha256(PLAIN["png"]).digest())
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(photograph()))


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("offset", "length", "code", "reason"),
    [
        (100, 0, "empty", "its place in the file has 0 bytes"),
        (LARGEST, 0, "empty", "its place in the file has 0 bytes"),
        (999, 2, "outside", "bytes 999 to 1,001 of a file that has 1,000; get the complete file"),
        (1000, 1, "outside", "bytes 1,000 to 1,001 of a file that has 1,000"),
        (0, LARGEST, "outside", "of a file that has 1,000"),
        (LARGEST, LARGEST, "outside", "of a file that has 1,000"),
        (0, 1000, "changed", "the 1,000 bytes there now differ from those"),
        (100, 10, "changed", "the 10 bytes there now differ from those"),
    ],
)
def test_a_place_without_the_image(
    tmp_path: Path, offset: int, length: int, code: str, reason: str
) -> None:
    (tmp_path / "shard.tar").write_bytes(bytes(1000))
    with pytest.raises(ImageError) as caught:
        load_image(Place(tmp_path / "shard.tar", offset, length), b"\1" * 32)
    assert caught.value.code == code
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", ["gone.tar", "", "zero\0byte.tar"])
def test_an_archive_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    for place in (Place(tmp_path / name, 0, 5), Place(tmp_path / name)):
        with pytest.raises(ImageError) as caught:
            load_image(place, b"\1" * 32)
        assert caught.value.code == "missing"


def test_only_the_image_is_read_from_an_archive(tmp_path: Path) -> None:
    path, data = tmp_path / "shard.tar", PLAIN["png"]
    with path.open("wb") as file:
        file.seek(1 << 30)  # a hole, which takes no room on the disk
        file.write(data)
        file.truncate(1 << 31)
    key = hashlib.sha256(data).digest()
    load_image(Place(path, 1 << 30, len(data)), key)  # what is imported is read as well
    before = bytes_read()
    load_image(Place(path, 1 << 30, len(data)), key)
    assert bytes_read() - before < len(data) + (1 << 20)


def bytes_read() -> int:
    """Bytes that this process has read so far, from any source."""
    about = Path("/proc/self/io")
    if not about.is_file():
        pytest.skip("this system does not count the bytes that a process reads")
    counts = dict(line.split(": ") for line in about.read_text().splitlines())
    return int(counts["rchar"])


@pytest.mark.parametrize("name", ["jpeg", "jpeg progressive", "jpeg grey", "jpeg cmyk", "png"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_file_is_an_error(name: str, share: float) -> None:
    data = PLAIN[name]
    assert code_of(data[: int(len(data) * share)]) == "truncated"


def test_a_png_that_pillow_would_accept_unchecked() -> None:
    """It has its last rows, but not their checksum and the end."""
    cut = PLAIN["png"][:-20]
    with Image.open(io.BytesIO(cut)) as image:
        image.load()
    assert code_of(cut) == "truncated"


def test_other_truncated_formats_are_errors_too() -> None:
    for name in ("gif", "bmp", "tiff", "webp", "jpeg 2000"):
        data = PLAIN[name]
        assert code_of(data[: len(data) // 2]) in ("truncated", "undecodable"), name


def test_bytes_that_are_not_an_image() -> None:
    assert code_of(b"") == "empty"
    assert code_of(b"<html>404</html>") == "undecodable"
    assert code_of(b"\x89PNG\r\n\x1a\n" + bytes(40)) == "undecodable"
    assert code_of(b"\xff\xd8\xff") in ("truncated", "undecodable")
    assert code_of(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n") == "undecodable"
    floats = Image.fromarray(np.ones((4, 4), dtype=np.float32))
    assert code_of(saved(floats, "TIFF")) == "undecodable"


def test_too_many_pixels_are_refused_before_any_is_decoded(monkeypatch) -> None:
    def must_not_run(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(decode, "_by_torchvision", must_not_run)
    monkeypatch.setattr(decode, "_by_pillow", must_not_run)
    for side in (9_500, 13_400, 60_000):  # above the limit, above Pillow's, gigabytes
        assert code_of(png(side, side, 8, 2, [])) == "too_many_pixels"
    assert code_of(PLAIN["jpeg"], max_pixels=48 * 32 - 1) == "too_many_pixels"
    monkeypatch.undo()
    assert decode_image(PLAIN["jpeg"], max_pixels=48 * 32).shape == (3, 32, 48)


def test_pillow_reads_what_torchvision_cannot(monkeypatch) -> None:
    def unsupported(*_: object) -> torch.Tensor:
        raise RuntimeError("decode_jpeg, /x/decode_jpeg.cpp:1, not supported")

    usual = pixels(PLAIN["jpeg"])
    monkeypatch.setattr(decode, "_by_torchvision", unsupported)
    np.testing.assert_array_equal(pixels(PLAIN["jpeg"]), usual)


def entry(folder: Path, name: str, data: bytes) -> tuple[Place, bytes]:
    (folder / name).write_bytes(data)
    return Place(folder / name), hashlib.sha256(data).digest()


def test_a_bad_file_costs_its_own_row(tmp_path: Path) -> None:
    good = entry(tmp_path, "good.png", PLAIN["png"])
    cut = entry(tmp_path, "cut.jpg", PLAIN["jpeg"][:300])
    strip = entry(tmp_path, "strip.png", saved(Image.new("RGB", (40_000, 1)), "PNG"))
    folder = (Place(tmp_path), bytes(32))
    missing = (Place(tmp_path / "nowhere.png"), bytes(32))
    changed = (good[0], bytes(32))
    empty = entry(tmp_path, "empty.jpg", b"")
    batch, failures = decode_batch(
        [cut, good, missing, changed, empty, folder, strip], 9, ImageReader(SMALL, 100_000)
    )
    assert batch.shape == (9, 3, 16, 16)
    assert batch.dtype == torch.uint8
    codes = [(failure.row, failure.code) for failure in failures]
    assert codes == [
        (0, "truncated"),
        (2, "missing"),
        (3, "changed"),
        (4, "empty"),
        (5, "missing"),
        (6, "too_many_pixels"),
    ]
    assert torch.equal(SMALL.normalised(batch[1]), SMALL(decode_image(PLAIN["png"])))
    others = [0, *range(2, 9)]
    assert not batch[others].any()
    with pytest.raises(ValueError, match="do not fit"):
        decode_batch([good] * 3, 2, ImageReader(SMALL))


def test_batches_are_the_same_with_and_without_workers(tmp_path: Path) -> None:
    entries = [
        entry(tmp_path, f"{i}.png", saved(photograph(20 + i, 30, seed=i), "PNG")) for i in range(7)
    ]
    entries[3] = (Place(tmp_path / "gone"), bytes(32))
    read = pickle.loads(pickle.dumps(ImageReader(SMALL)))
    batches = [entries[:3], entries[3:6], entries[6:]]
    asked: list[int] = []

    def asking() -> Iterator[list[tuple[Place, bytes]]]:
        for number, batch in enumerate(batches):
            asked.append(number)
            yield batch

    here, there = (list(decoded_batches(asking(), 3, read, workers)) for workers in (0, 2))
    assert asked == [0, 1, 2] * 2
    for (one, failures), (other, other_failures) in zip(here, there, strict=True):
        assert torch.equal(one, other)
        assert failures == other_failures
    assert here[1][1][0][:2] == (0, "missing")
    assert not here[2][0][1:].any()
    assert list(decoded_batches(iter([]), 3, read, 2)) == []


def test_a_pipe_or_device_is_not_read(tmp_path: Path) -> None:
    """It may never end."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="missing: not a regular file"):
            load_image(Place(path), b"k" * 32)
