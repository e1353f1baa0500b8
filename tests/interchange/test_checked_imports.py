"""Imported rows are encoded again: what differs is recorded, and never passes as computed here."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import sightline
from foreign_files import clip_retrieval, unit
from PIL import Image
from small_inputs import write_clip, write_photos

from sightline.cache import FeatureSet, key_of_file, verify
from sightline.cache.record import read_record


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Photographs, and features extracted from them."""
    folder = tmp_path_factory.mktemp("world")
    write_photos(folder / "photos", 6)
    write_clip(folder)
    assert extract(folder, folder / "set") == 0
    return folder


def extract(world: Path, out: Path, *more: object, seed: int = 0) -> int:
    words = ["--encoder", world / "clip.json", "--weights", f"random:{seed}", "--workers", 0]
    data = [] if "--data" in more else ["--data", world / "photos"]
    return sightline("extract", "image", *data, *words, "--batch-size", 8, *more, "--out", out)


def as_they_are(rows: np.ndarray) -> np.ndarray:
    return rows


def by_clip_retrieval(world: Path, tmp_path: Path, change=as_they_are) -> Path:
    """Features of the photographs as clip-retrieval writes them, imported."""
    paths = sorted((world / "photos").iterdir())
    rows = FeatureSet.open(world / "set").take([key_of_file(path) for path in paths])
    values = change(unit(rows.astype(np.float32)))
    clip_retrieval(tmp_path / "emb", [path.name for path in paths], values)
    words = ["--kind", "image", "--data", world / "photos", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "emb", *words) == 0
    return tmp_path / "set"


def by_our_export(world: Path, tmp_path: Path, *more: str) -> Path:
    """The features exported and imported."""
    words = ["cache", "export", world / "set", "--format", "parquet", "--out", tmp_path / "out"]
    assert sightline(*words, *more) == 0
    words = ["--kind", "image", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "out", *words) == 0
    return tmp_path / "set"


@pytest.mark.parametrize(
    ("source", "more"),
    [(by_clip_retrieval, []), (by_our_export, []), (by_our_export, ["--normalise"])],
)
def test_equal_rows_are_recorded(world, tmp_path, capsys, said, source, more):
    folder = source(world, tmp_path, *more)
    before = read_record(folder)
    assert before.provenance.doubt == "imported, not checked"
    assert extract(world, folder, "--check", 5) == 0
    assert "largest difference" in capsys.readouterr().out
    after = read_record(folder)
    check = after.provenance.check
    assert check is not None
    assert (check.rows, check.differing, after.provenance.doubt) == (5, 0, "")
    assert check.largest_difference <= 2**-11  # the last place of float16, in another batch
    assert "5 rows recomputed and equal (smallest cosine 1.000000" in str(after.provenance)
    assert after.content_digest == before.content_digest
    assert verify(folder) == []
    for command in ("list", "info"):
        assert "5 rows recomputed" in " ".join(said("cache", command, folder)[1].split())


@pytest.mark.parametrize(
    ("change", "seed"),
    [(lambda rows: rows * np.float16(2), 0), (lambda rows: -rows, 0), (as_they_are, 1)],
)
def test_rows_that_differ_are_recorded_and_no_later_sample_hides_them(
    world, tmp_path, change, seed
):
    folder = by_clip_retrieval(world, tmp_path, change)
    assert extract(world, folder, "--check", 5, seed=seed) == 1
    provenance = read_record(folder).provenance
    assert provenance.doubt == "imported, differs when recomputed"
    assert "of 5 recomputed rows differ" in str(provenance)
    assert provenance.check is not None
    better = provenance.check.model_copy(update={"differing": 0, "rows": 1})
    assert provenance.checked(better) == provenance
    other = better.model_copy(update={"fingerprint": "f" * 64})
    assert provenance.checked(other).doubt == ""  # another encoder is another question
    if seed:
        assert extract(world, folder, "--check", 5) == 0
        assert read_record(folder).provenance.doubt == ""


def test_imported_rows_are_not_passed_off_as_computed_here(world, tmp_path):
    """Neither by copying them into another set, nor by an extraction into theirs."""
    folder, some = by_our_export(world, tmp_path / "features"), tmp_path / "images"
    some.mkdir()
    for path in sorted((world / "photos").iterdir())[:3]:
        shutil.copy(path, some)
    Image.new("RGB", (64, 64), "teal").save(some / "new.png")
    more = ["--data", some, "--copy-from", tmp_path / "features"]
    assert extract(world, tmp_path / "mine", *more) == 0
    mine = read_record(tmp_path / "mine")
    assert not mine.provenance.imported
    assert extract(world, folder, *more) == 0
    replaced = read_record(folder)
    assert (replaced.rows, replaced.provenance.imported) == (4, False)
    shards = [*mine.shards, *replaced.shards]
    assert all("imported_from" not in shard.computed for shard in shards)
