"""Manifests that would expand to gigabytes: rejected quickly and in little memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bombs import BOMBS, zigzag
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache import PHRASES, SENTENCES, CacheError, read_manifest, write_manifest
from pipeline.cache.parquet_pages import pages

MEMORY = 300 << 20
"""Bytes beyond those of the libraries."""


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombs")
    for name, (write, _) in BOMBS.items():
        write(folder / name)
        assert (folder / name).stat().st_size < 1_100_000
    return folder


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(bombs: Path, name: str) -> None:
    with pytest.raises(CacheError, match=r"would expand to more than .* bytes of memory") as found:
        read_manifest(bombs / name, BOMBS[name][1])
    assert str(bombs / name) in str(found.value)


def read_all(bombs: Path, way: str) -> dict[str, str]:
    """The results of reading every bomb in a process with little memory."""
    found = subprocess.run(
        [sys.executable, __file__, way, *(str(bombs / name) for name in BOMBS)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_no_bomb_fills_the_memory(bombs: Path) -> None:
    said = read_all(bombs, "read_manifest")
    assert {name: said[name] for name in BOMBS} == dict.fromkeys(BOMBS, "refused")


@pytest.mark.slow
def test_they_are_bombs(bombs: Path) -> None:
    said = read_all(bombs, "pyarrow")
    assert {name: said[name] for name in BOMBS} == dict.fromkeys(BOMBS, "out of memory")


def test_many_long_masks_in_many_parts_of_a_file_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = [{"size": [9, 9], "counts": rng.bytes(300).hex()} for _ in range(3000)]
    key = b"k" * 32
    row = {
        **dict.fromkeys(("image_key", "caption_key", "cutout_key"), key),
        **{"phrase": "a", "char_start": 0, "char_end": 1, "box": [0.0] * 4, "score": 1.0},
    }
    table = pa.Table.from_pylist([{**row, "mask": mask} for mask in masks], PHRASES)
    path = tmp_path / "phrases.parquet"
    for options in ({}, {"row_group_size": 700}):  # a dictionary of a megabyte, then plain values
        pq.write_table(table, path, compression="zstd", **options)
        assert read_manifest(path, PHRASES).equals(table)


def test_a_page_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sentences.parquet"
    table = pa.table({"text": ["\0" * 20_000_000]}, schema=SENTENCES)
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    assert read_manifest(path, SENTENCES).equals(table)
    with pq.ParquetFile(path) as file, path.open("rb") as data:
        chunk = file.metadata.row_group(0).column(0)
        (page,) = pages(data, chunk)
    true, most = zigzag(page.bytes), zigzag((1 << 27) - 1)
    assert len(true) == len(most)
    changed = bytearray(path.read_bytes())
    at = changed.index(true, chunk.data_page_offset)
    changed[at : at + len(true)] = most
    path.write_bytes(changed)
    with pytest.raises(CacheError, match="of memory"):
        read_manifest(path, SENTENCES)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_page_header_does_not_crash(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("damaged") / "sentences.parquet"
    write_manifest(path, pa.table({"text": ["a", "b", "a"]}, schema=SENTENCES), SENTENCES)
    with pq.ParquetFile(path) as file:
        end = file.metadata.row_group(0).column(0).total_compressed_size + 4
    changed = bytearray(path.read_bytes())
    changed[data.draw(st.integers(4, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        rows = read_manifest(path, SENTENCES).num_rows
    except CacheError as error:
        said = str(error)
    else:
        said = f"{path}: {rows} rows"
    assert said.startswith(str(path))


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))), repeat=st.integers(1, 99))
def test_the_pages_of_a_manifest_hold_its_values(tmp_path_factory, texts, repeat) -> None:
    path = tmp_path_factory.mktemp("pages") / "sentences.parquet"
    table = pa.table({"text": texts * repeat}, schema=SENTENCES)
    pq.write_table(table, path, data_page_size=64, row_group_size=50)
    values = 0
    with pq.ParquetFile(path) as file, path.open("rb") as data:
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            found = list(pages(data, group.column(0)))
            values += sum(page.values for page in found[1:])
            assert sum(page.bytes for page in found) <= group.column(0).total_uncompressed_size
    assert values == len(table)
    assert read_manifest(path, SENTENCES).equals(table)


def _read_all(way: str, paths: list[Path]) -> None:
    pages_used = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages_used * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
    report = {}
    for path in paths:
        try:
            if way == "pyarrow":
                pq.read_table(path)
            else:
                read_manifest(path, BOMBS[path.name][1])
            report[path.name] = "opened"
        except CacheError as error:  # of anything, a lack of memory included
            report[path.name] = "refused" if "would expand to more" in str(error) else str(error)
        except MemoryError:
            report[path.name] = "out of memory"
    print(json.dumps(report))


if __name__ == "__main__":
    _read_all(sys.argv[1], [Path(word) for word in sys.argv[2:]])
