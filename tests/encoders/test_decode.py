"""Images at their places, and batches of them; test_odd_images.py has the formats."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import photograph, saved
from PIL import Image

from pipeline.datasets.images import any_pixel_count, upright_size
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract.decode import ImageError, decode_image, load_entry, load_image
from pipeline.extract.decode_batches import EntryDecoder, decode_batch, decoded_batches
from pipeline.extract.inputs import ImageEntry
from sightline.cache import Place
from sightline.errors import SightlineError
from sightline.files.storage import StorageError

SMALL = ImagePreprocessing((16, 16), (16, 16), "bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
PNG = saved(photograph(), "PNG")
JPEG = saved(photograph(), "JPEG")
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
def test_a_place_without_the_image(tmp_path, offset, length, code, reason):
    (tmp_path / "shard.tar").write_bytes(bytes(1000))
    with pytest.raises(ImageError) as caught:
        load_image(Place(tmp_path / "shard.tar", offset, length), b"\1" * 32)
    assert caught.value.code == code
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", ["gone.tar", "", "zero\0byte.tar"])
def test_an_archive_that_cannot_be_read(tmp_path, name):
    for place in (Place(tmp_path / name, 0, 5), Place(tmp_path / name)):
        with pytest.raises(ImageError, match="missing: "):
            load_image(place, b"\1" * 32)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE])
def test_an_image_that_could_not_be_read_just_now_has_not_failed(tmp_path, monkeypatch, number):
    (tmp_path / "a.png").write_bytes(PNG)
    place, key = Place(tmp_path / "a.png"), hashlib.sha256(PNG).digest()

    def failing(path):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(StorageError, match=r"a\.png: cannot be read just now \("):
        load_image(place, key)
    monkeypatch.undo()
    load_image(place, key)


def test_an_image_is_read_from_the_middle_of_an_archive_and_nothing_else(tmp_path):
    path, key = tmp_path / "shard.tar", hashlib.sha256(PNG).digest()
    with path.open("wb") as file:
        file.seek(1 << 30)  # a hole, which takes no room on the disk
        file.write(PNG)
        file.truncate(1 << 31)
    place = Place(path, 1 << 30, len(PNG))
    image = load_image(place, key)  # what is imported is read as well
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(photograph()))
    before = bytes_read()
    load_image(place, key)
    assert bytes_read() - before < len(PNG) + (1 << 20)


def bytes_read() -> int:
    """Bytes that this process has read so far, from any source."""
    about = Path("/proc/self/io")
    if not about.is_file():
        pytest.skip("this system does not count the bytes that a process reads")
    counts = dict(line.split(": ") for line in about.read_text().splitlines())
    return int(counts["rchar"])


def entry(folder: Path, name: str, data: bytes) -> ImageEntry:
    (folder / name).write_bytes(data)
    return ImageEntry(Place(folder / name), hashlib.sha256(data).digest())


def test_a_bad_file_costs_its_own_row(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.extract.decode_batches.MAX_PIXELS", 100_000)
    good = entry(tmp_path, "good.png", PNG)
    cut = entry(tmp_path, "cut.jpg", JPEG[:300])
    strip = entry(tmp_path, "strip.png", saved(Image.new("RGB", (40_000, 1)), "PNG"))
    batch, failed, _ = decode_batch([cut, good, strip], 4, EntryDecoder(load_entry, SMALL))
    assert (batch.shape, batch.dtype) == ((4, 3, 16, 16), torch.uint8)
    bad = {cut: "truncated", strip: "too_many_pixels"}  # the strip once it is resized
    expected = [(each.key, code, str(each.place)) for each, code in bad.items()]
    assert [(key, why["code"], why["path"]) for key, why in failed.items()] == expected
    assert torch.equal(SMALL.normalised(batch[1]), SMALL(decode_image(PNG)))
    assert not batch[[0, 2, 3]].any()
    with pytest.raises(ValueError, match="do not fit"):
        decode_batch([good] * 3, 2, EntryDecoder(load_entry, SMALL))


def test_batches_are_the_same_with_and_without_workers(tmp_path):
    entries = [
        entry(tmp_path, f"{i}.png", saved(photograph(20 + i, 30, seed=i), "PNG")) for i in range(7)
    ]
    entries[3] = ImageEntry(Place(tmp_path / "gone"), bytes(32))
    read = pickle.loads(pickle.dumps(EntryDecoder(load_entry, SMALL)))
    batches = [entries[:3], entries[3:6], entries[6:]]
    asked: list[int] = []

    def asking() -> Iterator[list[ImageEntry]]:
        for number, batch in enumerate(batches):
            asked.append(number)
            yield batch

    here, there = (list(decoded_batches(asking(), 3, read, workers)) for workers in (0, 2))
    assert asked == [0, 1, 2] * 2
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.pixels, other.pixels)
        assert (one.failed, one.dark) == (other.failed, other.dark)
    assert here[1].failed[bytes(32)]["code"] == "missing"
    assert not here[2].pixels[1:].any()
    assert list(decoded_batches(iter([]), 3, read, 2)) == []


def test_a_pipe_or_device_is_not_read(tmp_path):
    """It may never end."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="missing: not a regular file"):
            load_image(Place(path), b"k" * 32)


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg", "tiff"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0", b"\0" * 40, b"II*\0"]
)
def test_a_sound_image_with_damaged_exif_decodes(tmp_path, suffix, exif):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    path = tmp_path / f"odd.{suffix}"
    given = {} if suffix == "tiff" else {"exif": exif}
    Image.fromarray(pixels).save(path, **given, **({"lossless": True} if suffix == "webp" else {}))
    image = load_image(Place(path), hashlib.sha256(path.read_bytes()).digest())
    assert image.shape == (3, 20, 30)
    if suffix != "jpg":
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels)
    with any_pixel_count(), path.open("rb") as file:
        assert upright_size(file) == (30, 20)


# --- decode processes that die, or cannot hand on their batches


def many_batches(folder: Path) -> Iterator[list[ImageEntry]]:
    for i in range(40):
        yield [entry(folder, f"{i}.png", PNG)]


def test_a_killed_decode_process_is_one_error_where_its_batch_is_missing(tmp_path):
    """Not one that is raised wherever the main thread is at that moment."""
    decoded = decoded_batches(many_batches(tmp_path), 1, EntryDecoder(load_entry, SMALL), 2)
    next(decoded)
    (process, *_) = multiprocessing.active_children()
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    busy = sum(range(1_000_000))  # as an encoder would be
    began = time.monotonic()
    with pytest.raises(SightlineError, match=r"a decode process died.* rerun the same command"):
        list(decoded)
    assert busy
    assert time.monotonic() - began < 20


ROOM = r"/dev/shm has .* free of .*, and the batches of the decode processes \(2\) need 3.8 kB"


def test_no_kill_leaves_half_a_message_in_the_pipe_of_decode_processes(tmp_path):
    """The parent would wait for the other half: each process can write into that pipe.

    A pipe takes PIPE_BUF bytes whole or not at all, whatever happens to the writer.
    """
    script = """
import os, select, signal
from multiprocessing.connection import Connection
from pathlib import Path
from pipeline.extract.decode_batches import decoded_batches
from pipeline.extract.inputs import ImageEntry
from test_decode import SMALL, Place, EntryDecoder, load_entry

parent, whole = os.getpid(), Connection._send

def send(self, message, *more):
    if os.getpid() != parent and len(message) > select.PIPE_BUF:
        os.write(self.fileno(), bytes(message)[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(self, message, *more)

Connection._send = send
long = "x" * 200
entries = [ImageEntry(Place(Path(long, str(row))), bytes([row]) * 32) for row in range(64)]
decoder = EntryDecoder(load_entry, SMALL)
for pixels, failed, _ in decoded_batches(iter([entries] * 3), 64, decoder, 2):
    assert not pixels.any()
    assert [*failed] == [entry.key for entry in entries]
    print({failure["code"] for failure in failed.values()})
"""
    words = [sys.executable, "-c", script]
    place = {"cwd": Path(__file__).parent, "capture_output": True, "text": True}
    ended = subprocess.run(words, **place, timeout=60)
    assert (ended.stdout, ended.stderr) == ("{'missing'}\n" * 3, "")


def test_too_little_shared_memory_is_said_before_a_process_starts(tmp_path, monkeypatch):
    usage = shutil.disk_usage("/")._replace(total=4000, free=3839)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SightlineError, match=ROOM) as caught:
        next(decoded_batches(many_batches(tmp_path), 1, EntryDecoder(load_entry, SMALL), 2))
    assert "has 3.8 kB free of 4.0 kB" in str(caught.value)
    for way_out in ("--shm-size", "--ipc=host", "--batch-size", "--workers 0"):
        assert way_out in str(caught.value)
    assert not multiprocessing.active_children()
    assert (
        len(list(decoded_batches(many_batches(tmp_path), 1, EntryDecoder(load_entry, SMALL), 0)))
        == 40
    )


def test_shared_memory_that_runs_out_later_is_one_error(tmp_path, monkeypatch):
    def full(tensor):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(SightlineError, match=rf"{ROOM} \(.*No space left on device \(28\)\);"):
        list(decoded_batches(many_batches(tmp_path), 1, EntryDecoder(load_entry, SMALL), 2))


def test_a_full_device_of_shared_memory_raises_and_does_not_hang(tmp_path):
    """As `docker run` makes one, and without the check at the start."""
    script = f"""
from pathlib import Path
from pipeline.extract import decode_batches
from test_decode import ImagePreprocessing, EntryDecoder, load_entry, many_batches
from sightline.errors import SightlineError

decode_batches._require_shared_memory = lambda needed, workers: None
large = ImagePreprocessing((512, 512), (512, 512), "bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
try:
    batches = many_batches(Path({str(tmp_path)!r}))
    list(decode_batches.decoded_batches(batches, 1, EntryDecoder(load_entry, large), 2))
except SightlineError as error:
    print(error)
"""
    mounted = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted + "true"]
    if not shutil.which("unshare") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounts need rights that this user lacks")
    words[-1] = f'{mounted} "$@"'
    ended = subprocess.run(
        [*words, "sh", sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stderr == ""
    assert re.match(r"/dev/shm has .* free of 1.0 MB.* need 3.9 MB \(.*\); give", ended.stdout)
