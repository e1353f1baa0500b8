"""`prepare` reads what is new or changed; what it writes is what a fresh run writes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from aged_files import aged
from command_line import sightline
from packed import picture, samples, write_tar

from pipeline.datasets.prepare import prepare_dataset
from pipeline.datasets.source import DatasetError
from sightline.cache.prepared import RECORD
from sightline.files.storage import opened


def written(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The files that are read, each time that they are."""
    names: list[str] = []

    def noted(place, found):
        names.append(Path(place).name)
        return opened(place, found)

    monkeypatch.setattr("pipeline.datasets.images.opened", noted)
    monkeypatch.setattr("pipeline.datasets.webdataset.opened", noted)
    return names


@pytest.fixture
def photographs(make_images, make_file) -> dict[str, object]:
    """Ten photographs with captions, written a while ago."""
    names = [f"{number}.png" for number in range(12)]
    captions = "image,caption\n" + "".join(f"{name},a bird\n" for name in names)
    images = aged(make_images(names[:10]))
    return {"images": images, "captions": make_file("captions.csv", captions)}


def test_only_new_and_changed_photographs_are_read(photographs, make_images, out, tmp_path, read):
    images = photographs["images"]
    prepare_dataset("pairs", out, **photographs)
    assert len(read) == 10
    read.clear()
    first = written(out)
    prepare_dataset("pairs", out, **photographs)
    assert not read
    assert written(out) == first

    (images / "3.png").unlink()
    make_images([f"{number}.png" for number in range(11)], "more")
    (tmp_path / "more/10.png").rename(images / "10.png")
    (tmp_path / "more/9.png").replace(images / "4.png")  # of the same size, written now
    aged(images)
    prepare_dataset("pairs", out, **photographs)
    assert sorted(read) == ["10.png", "4.png"]
    read.clear()
    prepare_dataset("pairs", tmp_path / "fresh", **photographs)
    assert len(read) == 10
    assert written(out) == written(tmp_path / "fresh")


def test_what_is_remembered_is_no_part_of_the_output(photographs, out):
    prepare_dataset("pairs", out, **photographs)
    assert not [name for name in written(out) if "remembered" in name]
    assert (out.with_name("out.run") / "remembered.parquet").is_file()


def test_a_file_changed_while_its_clock_stood_still_is_read_again(photographs, out, read):
    """As in Git's index: within two seconds of a look, the same time may be of two contents."""
    picture = photographs["images"] / "3.png"
    other = (photographs["images"] / "4.png").read_bytes()
    now = time.time()
    os.utime(picture, (now, now))
    prepare_dataset("pairs", out, **photographs)
    picture.write_bytes(other)
    os.utime(picture, (now, now))
    read.clear()
    prepare_dataset("pairs", out, **photographs)
    assert read == ["3.png"]


def test_a_file_changed_in_place_whose_time_is_set_back_is_read_again(photographs, out, read):
    """As viewers do that turn a photograph, `cp -p`, and tar."""
    prepare_dataset("pairs", out, **photographs)
    picture = photographs["images"] / "3.png"
    before, first = picture.stat(), written(out)
    picture.write_bytes((photographs["images"] / "4.png").read_bytes())
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    read.clear()
    prepare_dataset("pairs", out, **photographs)
    assert read == ["3.png"]
    assert written(out) != first


def test_a_file_that_gained_a_link_is_read_once_more(photographs, out, read):
    prepare_dataset("pairs", out, **photographs)
    picture, first = photographs["images"] / "3.png", written(out)
    os.link(picture, out.with_name("link"))
    aged(photographs["images"])
    for now in (["3.png"], []):
        read.clear()
        prepare_dataset("pairs", out, **photographs)
        assert (read, written(out)) == (now, first)


def test_verify_reads_all_of_it_again(photographs, out, read):
    prepare_dataset("pairs", out, **photographs)
    read.clear()
    prepare_dataset("pairs", out, verify=True, **photographs)
    assert len(read) == 10


def test_what_a_failed_run_has_read_is_remembered(photographs, make_file, out, read):
    wrong = photographs | {"captions": make_file("wrong.csv", "image,caption\nnone.png,a\n")}
    with pytest.raises(DatasetError, match="none of its 1 captions"):
        prepare_dataset("pairs", out, **wrong)
    read.clear()
    prepare_dataset("pairs", out, **photographs)
    assert not read


def test_an_image_without_a_readable_header_is_tried_again(photographs, out, read):
    (photographs["images"] / "5.png").write_bytes(b"not yet")
    aged(photographs["images"])
    for _ in range(2):
        read.clear()
        prepare_dataset("pairs", out, **photographs)
    assert read == ["5.png"]


@pytest.mark.parametrize("broken", [b"", b"PAR1", b"\0" * 5000])
def test_a_damaged_memory_costs_only_the_reading(photographs, out, read, broken):
    prepare_dataset("pairs", out, **photographs)
    (out.with_name("out.run") / "remembered.parquet").write_bytes(broken)
    read.clear()
    prepare_dataset("pairs", out, **photographs)
    assert len(read) == 10
    read.clear()
    prepare_dataset("pairs", out, **photographs)
    assert not read


def test_only_new_and_changed_tars_are_read(tmp_path, out, read):
    root = tmp_path / "tars"
    for number in range(3):
        extra = [("9.png", b"broken"), ("more.cls", "1"), ("no/image.txt", "of none")]
        write_tar(root / f"{number}.tar", [*samples(2 * number, 2 * number + 1), *extra])
    (root / "2.tar").write_bytes((root / "2.tar").read_bytes()[:5000])  # ends early
    aged(root)
    prepare_dataset("webdataset", out, images=root)
    assert len(read) == 3
    assert json.loads(written(out)[RECORD])["problem_counts"]["incomplete_shards"] == 1
    first = written(out)
    read.clear()
    prepare_dataset("webdataset", out, images=root)
    assert (read, written(out)) == ([], first)

    write_tar(root / "1.tar", samples(6, 7))
    write_tar(root / "3.tar", samples(8))
    aged(root)
    prepare_dataset("webdataset", out, images=root)
    assert sorted(read) == ["1.tar", "3.tar"]
    prepare_dataset("webdataset", tmp_path / "fresh", images=root)
    assert written(out) == written(tmp_path / "fresh")


@pytest.mark.parametrize(
    "given",
    [
        {"caption_part": "text"},
        {"image_part": "jpg"},
        {"caption_field": "other"},
        {"splits": {"dev": "*.tar"}},
    ],
)
def test_a_tar_that_is_read_otherwise_is_read_again(tmp_path, out, read, given):
    both = json.dumps({"caption": "a dog", "other": "a cat"})
    members = [("0.png", picture(0)), ("0.json", both), ("0.text", "a bird"), ("0.txt", "a fish")]
    write_tar(tmp_path / "tars/0.tar", [*members, ("0.jpg", picture(0))])
    aged(tmp_path / "tars")
    prepare_dataset("webdataset", out, images=tmp_path / "tars", caption_field="caption")
    read.clear()
    prepare_dataset("webdataset", out, images=tmp_path / "tars", **given)
    assert read == ["0.tar"]


def test_a_tar_without_captions_still_says_what_it_has(tmp_path, out):
    write_tar(tmp_path / "tars/0.tar", [("0.png", picture(0)), ("0.text", "a bird")])
    aged(tmp_path / "tars")
    for _ in range(2):
        with pytest.raises(DatasetError, match="its samples have the parts png, text"):
            prepare_dataset("webdataset", out, images=tmp_path / "tars")


def test_the_command_has_an_option_for_it(photographs, out, read):
    given = [f"--{name}={value}" for name, value in photographs.items()]
    for verify in ([], ["--verify"]):
        read.clear()
        assert sightline("prepare", "pairs", *given, "--out", out, *verify) == 0
        assert len(read) == 10
