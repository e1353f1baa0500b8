"""Keys are found whatever their bytes are, and two writers never meet."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache import BusyError, key_of_bytes, key_of_file, key_of_text
from pipeline.cache.keys import KeyTable, as_keys, sort_order, unique_sorted
from pipeline.cache.lock import WriterLock

# few distinct bytes, so that prefixes collide as a forger's would
FORGED = st.lists(
    st.binary(min_size=2, max_size=2).map(lambda b: bytes([b[0] % 2]) * 9 + bytes([b[1] % 4]) * 23),
    min_size=1,
    max_size=30,
)


def test_a_key_is_the_sha256_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert key_of_bytes(b"abc") == hashlib.sha256(b"abc").digest() == key_of_file(tmp_path / "a")
    assert key_of_text("größe") == hashlib.sha256("größe".encode()).digest()


@settings(max_examples=60, deadline=None)
@given(FORGED, FORGED)
def test_a_table_finds_exactly_the_keys_it_holds(held, asked):
    keys = as_keys(held)
    keys = keys[unique_sorted(keys)]
    found = KeyTable(keys).find(as_keys(asked))
    for key, row in zip(asked, found, strict=True):
        assert (row >= 0) == (key in held)
        assert row < 0 or keys[row].tobytes() == key


@settings(max_examples=40, deadline=None)
@given(FORGED)
def test_sorting_is_the_order_of_the_bytes(held):
    keys = as_keys(held)
    assert [row.tobytes() for row in keys[sort_order(keys)]] == sorted(held)


def test_keys_of_another_size_are_refused():
    with pytest.raises(ValueError, match="32"):
        as_keys([b"short"])
    with pytest.raises(ValueError, match=r"uint8 \[n, 32\]"):
        as_keys(np.zeros((2, 16), np.uint8))


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path):
    code = (
        "import sys; from pathlib import Path; from pipeline.cache.lock import WriterLock\n"
        "with WriterLock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {other.pid}"), WriterLock(tmp_path):
            pass
        other.kill()
        other.wait()
        with WriterLock(tmp_path):  # the kernel dropped it with the process
            pass
    finally:
        other.kill()
        other.communicate()
