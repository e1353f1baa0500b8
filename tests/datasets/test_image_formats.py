"""What `prepare` searches, extraction decodes: one list of formats."""

from __future__ import annotations

import subprocess
import sys

import pytest
from PIL import Image
from PIL.ExifTags import Base
from PIL.PngImagePlugin import PngInfo

from pipeline.datasets.image_formats import formats, image_suffixes
from pipeline.datasets.images import any_pixel_count, found_images, upright_size
from pipeline.extract.decode import decode_image

WRITTEN = sorted(image_suffixes() - {".heic", ".heif", ".jxl"})


@pytest.mark.parametrize("suffix", WRITTEN)
def test_an_image_of_every_suffix_is_found_measured_and_decoded(tmp_path, suffix):
    path = tmp_path / f"0{suffix}"
    form = "JPEG" if suffix == ".jfif" else None
    mode = {".pgm": "L", ".pbm": "1"}.get(suffix, "RGB")
    Image.new(mode, (40, 30), 1 if mode == "1" else 99).save(path, form)
    assert [*found_images(tmp_path, tmp_path)[0]] == [path.name]
    with path.open("rb") as file, any_pixel_count():
        assert upright_size(file) == (40, 30)
    assert decode_image(path.read_bytes()).shape == (3, 30, 40)


@pytest.mark.skipif("AVIF" not in formats(), reason="needs Pillow with AVIF")
def test_an_avif_is_turned_by_its_exif(tmp_path):
    exif = Image.Exif()
    exif[Base.Orientation.value] = 6
    Image.new("RGB", (40, 30)).save(tmp_path / "0.avif", exif=exif)
    with (tmp_path / "0.avif").open("rb") as file, any_pixel_count():
        assert upright_size(file) == (30, 40)
    assert decode_image((tmp_path / "0.avif").read_bytes()).shape == (3, 40, 30)


@pytest.mark.parametrize("text", ["add_text", "add_itxt"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "I;16"])
def test_a_png_is_read_however_long_its_text_is(tmp_path, mode, text):
    said = PngInfo()
    getattr(said, text)("workflow", "x" * 3_000_000, zip=True)
    Image.new(mode, (40, 30)).save(tmp_path / "0.png", pnginfo=said)
    with (tmp_path / "0.png").open("rb") as file, any_pixel_count():
        assert upright_size(file) == (40, 30)
    assert decode_image((tmp_path / "0.png").read_bytes()).shape == (3, 30, 40)


def test_what_is_not_searched_is_counted_by_its_suffix(tmp_path):
    for name in ("0.png", "1.heic", "2.jxl", "3.eps"):
        (tmp_path / name).write_bytes(b"")
    found, ignored = found_images(tmp_path, tmp_path)
    assert [*found] == ["0.png"]
    assert ignored == {".heic": 1, ".jxl": 1, ".eps": 1}


PLUG_IN = """
from PIL import Image, ImageFile

class Heif(ImageFile.ImageFile):
    format = "HEIF"
    def _open(self):
        self._size, self._mode, self.tile = (40, 30), "RGB", []
    def load(self):
        self.im = Image.new("RGB", self.size).im
        return super().load()

def register_heif_opener():
    Image.register_open("HEIF", Heif, lambda head: head[4:12] == b"ftypheic")
"""
USE = """
import sys
from pathlib import Path
from pipeline.datasets.images import found_images
from pipeline.extract.decode import decode_image
folder = Path(sys.argv[1])
images, _ = found_images(folder, folder)
print([*images], tuple(decode_image((folder / "0.heic").read_bytes()).shape))
"""


@pytest.mark.slow
def test_a_plug_in_of_pillow_brings_heic(tmp_path):
    (tmp_path / "pillow_heif.py").write_text(PLUG_IN)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/0.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    command = [sys.executable, "-c", program, tmp_path / "photos"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == "['0.heic'] (3, 30, 40)\n"
