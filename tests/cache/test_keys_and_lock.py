"""Keys are found whatever their bytes are, and two writers never meet."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cache import key_of_bytes, key_of_file, key_of_text
from pipeline.cache.keys import KeyTable, as_keys, sort_order, unique_sorted
from sightline.errors import BusyError, SightlineError
from sightline.lock import WriterLock

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
        "import sys; from pathlib import Path; from sightline.lock import WriterLock\n"
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


def test_one_process_cannot_write_twice_at_once(tmp_path):
    with WriterLock(tmp_path):
        with pytest.raises(BusyError, match="this process"), WriterLock(tmp_path):
            pass
        # and the attempt has not let go of the lock, as closing its file would have
        code = (
            "import sys; from pathlib import Path; from sightline.lock import WriterLock\n"
            "WriterLock(Path(sys.argv[1])).__enter__()"
        )
        found = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert f"process {os.getpid()}" in found.stderr
    with WriterLock(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def lockf(handle: int, how: int, *span: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.lockf", lockf)
    with pytest.raises(SightlineError, match=r"has no locks .* local disk"), WriterLock(tmp_path):
        pass


@pytest.mark.parametrize(
    ("options", "refused"),
    [("rw,vers=3,local_lock=none", False), ("rw,nolock,local_lock=all", True)],
)
def test_a_network_folder_mounted_without_locks_is_refused(tmp_path, monkeypatch, options, refused):
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 0:19 / /proc rw - proc proc rw\n"
        f"36 21 {os.major(device)}:{os.minor(device)} / /data rw shared:1 - nfs a:/b {options}\n"
    )
    monkeypatch.setattr("sightline.mounts.MOUNTINFO", mounts)
    if not refused:
        with WriterLock(tmp_path):
            return
    with pytest.raises(SightlineError, match="without locks"), WriterLock(tmp_path):
        pass


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    real, calls = fcntl.lockf, []

    def lockf(handle: int, how: int, *span: int) -> None:
        if not calls:
            (tmp_path / "lock").unlink()
        calls.append(handle)
        real(handle, how, *span)

    monkeypatch.setattr("fcntl.lockf", lockf)
    with WriterLock(tmp_path):
        assert len(calls) == 2
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()}")


def test_a_lock_is_never_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"), WriterLock(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "precious"
