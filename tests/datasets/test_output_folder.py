"""The output folder of prepare: when data sets count as different, and which files are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.datasets.folder import building
from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.sentences import SentencesSource
from pipeline.datasets.source import DatasetError
from sightline.cache.prepared import RECORD
from sightline.errors import SightlineError


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def write(out, text, inputs=()):
    with building("pairs", out, inputs) as (folder, report):
        (folder / "images.parquet").write_text(text, encoding="utf-8")
        report.counts["images"] = 1


def test_a_second_run_replaces_the_first_without_leftovers(tmp_path):
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "images.parquet").read_text() == "new"
    assert json.loads((tmp_path / "out" / RECORD).read_text())["files"] == ["images.parquet"]
    assert names_in(tmp_path) == ["out"]
    assert names_in(tmp_path / "out") == [RECORD, "images.parquet"]


def test_an_error_keeps_existing_files(tmp_path):
    write(tmp_path / "out", "old")
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path / "out", "new \ud800")
    assert (tmp_path / "out" / "images.parquet").read_text() == "old"
    assert names_in(tmp_path) == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.datasets.folder import building
with building("pairs", Path(sys.argv[1]), ()) as (folder, report):
    (folder / "images.parquet").write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_keeps_existing_files_and_the_next_run_cleans_up(tmp_path):
    write(tmp_path / "out", "old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")]).returncode == -9
    assert (tmp_path / "out" / "images.parquet").read_text() == "old"
    assert len(names_in(tmp_path)) == 2
    write(tmp_path / "out", "new")
    assert names_in(tmp_path) == ["out"]


@pytest.fixture
def pairs(make_images, make_file, tmp_path: Path):
    """Prepares a data set of some images, named by their number, into ``out``."""

    def run(folder: str, numbers: range) -> None:
        images = make_images([f"{i}.png" for i in range(max(numbers) + 1)], folder)
        for path in images.iterdir():
            if int(path.stem) not in numbers:
                path.unlink()
        captions = make_file(f"{folder}.csv", "image,caption\n" + f"{numbers[0]}.png,some words\n")
        prepare("pairs", PairsSource(images=images, captions=captions), tmp_path / "out")

    return run


def test_a_data_set_with_an_image_in_common_replaces_it(pairs, tmp_path):
    pairs("old", range(0, 5))
    pairs("new", range(4, 9))
    body = json.loads((tmp_path / "out" / RECORD).read_text())
    assert body["counts"]["images"] == 5


def test_another_data_set_is_not_replaced(pairs, tmp_path):
    pairs("old", range(0, 5))
    before = (tmp_path / "out" / "images.parquet").read_bytes()
    with pytest.raises(
        DatasetError, match="different data set: none of its 5 images is among the 4"
    ):
        pairs("new", range(5, 9))
    assert (tmp_path / "out" / "images.parquet").read_bytes() == before


def test_sentences_do_not_replace_pairs(pairs, make_file, tmp_path):
    pairs("old", range(0, 5))
    source = SentencesSource(path=make_file("s.txt", "some words\n"))
    with pytest.raises(DatasetError, match="of kind pairs, but this is one of kind sentences"):
        prepare("sentences", source, tmp_path / "out")
    prepare("sentences", source, tmp_path / "other")
    more = SentencesSource(path=make_file("t.txt", "others\n"))
    with pytest.raises(DatasetError, match="none of its 1 sentences is among the 1 new ones"):
        prepare("sentences", more, tmp_path / "other")


@pytest.mark.parametrize("name", ["images.parquet", RECORD, "dataset.json.next"])
def test_a_foreign_file_with_our_name_is_refused(tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("years of work")
    with pytest.raises(SightlineError, match=rf"{name}: .* name another output"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / name).read_text() == "years of work"
    assert names_in(tmp_path / "out") == [name]
