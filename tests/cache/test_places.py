"""Where an image's bytes are: valid and invalid manifests."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets.folder import building
from sightline.cache import (
    IMAGES,
    CacheError,
    Place,
    places_of,
    read_manifest,
    whole_files,
    write_manifest,
)

NAME = Path("images.parquet")
SOUND = {"image_id": "a", "path": "a.tar", "key": bytes(32), "width": 1, "height": 1, "split": ""}


def table(*rows: dict) -> pa.Table:
    return pa.Table.from_pylist([{**SOUND, **row} for row in rows], schema=IMAGES)


NUMBERS = st.integers(0, 2**63 - 1)


@given(st.lists(st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS))))
def test_a_place_matches_its_row(found):
    rows = [
        {} if each is None else dict(zip(("offset", "length"), each, strict=True)) for each in found
    ]
    places = places_of(NAME, table(*rows))
    assert places == [Place(Path("a.tar"), *(each or ())) for each in found]
    assert places_of(NAME, table(*rows).select(IMAGES.names[::-1])) == places


def test_a_place_is_shown_as_a_byte_range_of_its_file():
    assert str(Place(Path("a/b.jpg"))) == f"{Place(Path('a/b.jpg'))}" == "a/b.jpg"
    assert str(Place(Path("a/b.tar"), 1024, 5000)) == "a/b.tar[1024:+5000]"
    assert str(Place(Path("b.tar"), 0, 0).below(Path("/photos"))) == "/photos/b.tar[0:+0]"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"offset": 5}, "has offset 5 and length null"),
        ({"length": 5}, "has offset null and length 5"),
        ({"offset": 0}, "has offset 0 and length null"),
    ],
)
def test_a_row_with_an_invalid_place_is_named(row, says):
    expected = re.escape("images.parquet: row 1: image 'b' ") + ".*" + re.escape(says)
    with pytest.raises(CacheError, match=expected):
        places_of(NAME, table({}, {"image_id": "b", **row}, {}))


def write_old(path: Path) -> None:
    """A manifest from before images had places."""
    names = [name for name in IMAGES.names if name not in ("offset", "length")]
    old = pa.schema([IMAGES.field(name) for name in names], metadata={"sightline": "images/1"})
    write_manifest(path, table({}).select(names).cast(old), old)


def test_a_manifest_without_places_is_of_an_older_kind(tmp_path):
    write_old(tmp_path / NAME)
    with pytest.raises(CacheError, match=r"(?s)of kind images/2.*Run `sightline prepare`"):
        read_manifest(tmp_path / NAME, IMAGES)


def test_preparing_again_replaces_a_manifest_of_the_older_kind(tmp_path):
    for write in (write_old, lambda path: write_manifest(path, table({}), IMAGES)):
        with building("pairs", tmp_path / "out", [tmp_path / "photos"]) as (folder, _):
            write(folder / NAME)
    assert places_of(NAME, read_manifest(tmp_path / "out" / NAME, IMAGES)) == [Place(Path("a.tar"))]


def test_images_in_separate_files(tmp_path):
    columns = {name: [value] * 3 for name, value in SOUND.items()} | {"image_id": ["a", "b", "c"]}
    write_manifest(tmp_path / NAME, pa.table({**columns, **whole_files(3)}, schema=IMAGES), IMAGES)
    assert places_of(NAME, read_manifest(tmp_path / NAME, IMAGES)) == [Place(Path("a.tar"))] * 3
