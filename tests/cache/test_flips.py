"""For any flipped bit and any truncated file of a feature set, verify names the file."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from forger import KEYS, write_set

from sightline.cache import CacheError, FeatureSet, verify


def damage(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """``data`` with one bit flipped or truncated, and a description of the damage."""
    if rng.random() < 0.1:
        length = rng.randrange(len(data))
        return data[:length], f"cut to {length} bytes"
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :], f"{place}.{bit}"


def check(folder: Path, path: Path, data: bytes, what: str) -> None:
    """Damage is detected, its file is named first, and no row is served."""
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        with pytest.raises(CacheError) as refused:
            FeatureSet.open(folder).take(KEYS[1:])
        assert path.name in str(refused.value), what
    finally:
        path.write_bytes(before)


def damages(folder: Path, count: int, seed: int) -> Counter[str]:
    """Damage files ``count`` times, each byte of the set as likely as any other."""
    rng = random.Random(seed)
    paths = sorted(folder.iterdir())
    sizes = [path.stat().st_size for path in paths]
    hits: Counter[str] = Counter()
    for path in rng.choices(paths, sizes, k=count):
        data, what = damage(path.read_bytes(), rng)
        check(folder, path, data, what)
        hits[path.suffix] += 1
    assert verify(folder) == []
    assert len(FeatureSet.open(folder).take(KEYS[1:])) == len(KEYS) - 1
    return hits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path / "set")
    return tmp_path / "set"


def test_damage_is_named_and_not_served(folder: Path) -> None:
    assert damages(folder, 300, seed=0).keys() == {".h5", ".json", ".parquet"}


def test_the_last_byte_and_a_byte_too_many(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for changed in (data[:-1], data + b"\n", data + b"\0", b"", b" " + data):
            if changed.strip() != data.strip() or path.suffix != ".json":  # as valid to a reader
                check(folder, path, changed, f"{len(changed)} of {len(data)} bytes")
            path.write_bytes(changed)
            (fault,) = verify(folder)
            assert path.name in fault
            path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_tenth_of_ten_thousand_damages(folder: Path, seed: int) -> None:
    assert sum(damages(folder, 1000, seed).values()) == 1000


@pytest.mark.slow
def test_every_bit_of_the_commit_file(folder: Path) -> None:
    path = folder / "set.json"
    data = path.read_bytes()
    for place in range(len(data)):
        for bit in range(8):
            changed = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
            path.write_bytes(changed)
            assert any(path.name in fault for fault in verify(folder)), (place, bit)
    path.write_bytes(data)
