"""What a folder is called, and from where, changes nothing of what is read and written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from odd_names import ADDRESSES, BUILDERS, ODD_NAMES
from packed import picture, samples, write_tar

SOURCES = ("parquet", "arrow", "saved", "webdataset", "pairs", "sentences")


def fill(kind: str, folder: Path, first: int) -> None:
    """A data set of three images, or three sentences."""
    from saved_tables import save, table, write

    numbers = range(first, first + 3)
    folder.mkdir(parents=True)
    if kind == "saved":
        save(folder, train=table(numbers))
    elif kind in ("parquet", "arrow"):
        write(folder.absolute() / f"mine.{kind}", table(numbers))
    elif kind == "webdataset":
        write_tar(folder / "0.tar", samples(*numbers))
    else:
        for number in numbers:
            (folder / f"{number}.png").write_bytes(picture(number))
        lines = [f"{number}.png#0\tcaption {number}" for number in numbers]
        (folder / "said.token").write_text("\n".join(lines))
        (folder / "said.txt").write_text("\n".join(lines).replace("\t", " "))


def words(kind: str, folder: str) -> list[str]:
    given = {
        "webdataset": ["webdataset", "--images", f"{folder}"],
        "pairs": ["pairs", "--images", f"{folder}", "--captions", f"{folder}/said.token"],
        "sentences": ["sentences", "--path", f"{folder}/said.txt"],
    }
    return ["prepare", *given.get(kind, ["huggingface", "--path", f"{folder}"])]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_folder_is_itself_whatever_its_name_means_to_a_library(kind, tmp_path, monkeypatch, said):
    fill(kind, tmp_path / "plain/mine", 0)
    fill(kind, tmp_path / "plain/another", 10)
    assert said(*words(kind, str(tmp_path / "plain/mine")), "--out", tmp_path / "expected")[0] == 0
    expected = manifests(tmp_path / "expected")
    for number, name in enumerate(ODD_NAMES if kind in SOURCES[:3] else ADDRESSES):
        here = tmp_path / str(number)
        for folder, filled in ((name, "mine"), ("ab", "another"), ("another", "another")):
            shutil.copytree(tmp_path / "plain" / filled, here / folder)
        monkeypatch.chdir(here)
        spellings = (name, f"./{name}", f"../{number}/{name}")
        for spelling in spellings if name in BUILDERS[:2] else [name]:
            out = f"out-{name}"  # with a colon, a file system to pyarrow
            assert said(*words(kind, spelling), "--out", out)[0] == 0, name
            assert manifests(Path(out)) == expected, (name, spelling)
        shutil.rmtree(here)


def test_the_temporary_folder_may_have_any_name(tmp_path, monkeypatch, said):
    fill("parquet", tmp_path / "mine", 0)
    command = words("parquet", str(tmp_path / "mine"))
    assert said(*command, "--out", tmp_path / "expected")[0] == 0
    failed = []
    for number, name in enumerate(ODD_NAMES):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        code, _, error = said(*command, "--out", tmp_path / f"out-{number}")
        if code or manifests(tmp_path / f"out-{number}") != manifests(tmp_path / "expected"):
            failed.append((name, error))
        assert not any((tmp_path / name).iterdir())
    assert failed == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a[bc]"))
    monkeypatch.setattr("pipeline.datasets.hub_files._PLAIN", ())
    code, _, error = said(*command, "--out", tmp_path / "refused")
    assert (code, "set TMPDIR to a folder" in error) == (1, True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a b"))
    assert said(*command, "--out", tmp_path / "refused")[0] == 0


def manifests(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
