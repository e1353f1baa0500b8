"""Keys are found regardless of their bytes, and two writers exclude each other."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_set import KEYS, SPEC

from sightline.cache import SetWriter, key_of_bytes, key_of_file, key_of_text
from sightline.cache import keys as keys_module
from sightline.cache.keys import as_keys, find_keys, sort_order, unique_sorted
from sightline.errors import BusyError, SightlineError
from sightline.files import write_bytes
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
    found = find_keys(keys, as_keys(asked))
    for key, row in zip(asked, found, strict=True):
        assert (row >= 0) == (key in held)
        assert row < 0 or keys[row].tobytes() == key


@settings(max_examples=40, deadline=None)
@given(FORGED)
def test_sorting_is_the_order_of_the_bytes(held):
    keys = as_keys(held)
    assert [row.tobytes() for row in keys[sort_order(keys)]] == sorted(held)


def test_keys_of_the_wrong_size_are_refused():
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
    monkeypatch.setattr("sightline.files.MOUNTINFO", mounts)
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


@pytest.mark.parametrize("line", [b"worker 1/2, process 12 on here\n", b"process 12 on here\n"])
def test_a_lock_of_which_a_part_was_written_is_ours(tmp_path, line):
    for length in range(len(line) + 1):
        (tmp_path / "lock").write_bytes(line[:length])
        with WriterLock(tmp_path) as lock:
            assert lock.alone


@pytest.mark.parametrize("text", [b"processed", b"workers", b"a worker 1/2, process 1", b"\0"])
def test_a_lock_of_something_else_is_left_alone(tmp_path, text):
    (tmp_path / "lock").write_bytes(text)
    with pytest.raises(SightlineError, match="not a lock of Sightline"), WriterLock(tmp_path):
        pass
    assert (tmp_path / "lock").read_bytes() == text


def test_a_lock_is_never_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"), WriterLock(tmp_path / "run"):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_file_system_that_cannot_rename_over_a_file_is_named(tmp_path, monkeypatch, number):
    def replace(path: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(SightlineError, match=r"cannot replace a file by renaming .* local disk"):
        write_bytes(tmp_path / "plan", b"x")
    assert list(tmp_path.iterdir()) == []
    said = pytest.raises(SightlineError, match="cannot replace a file by renaming")
    with SetWriter(tmp_path / "set", SPEC) as writer, said:
        writer.plan(KEYS, batch_size=16)
    assert not (tmp_path / "set").exists()


def test_workers_share_a_lock_and_nobody_else_gets_in(tmp_path):
    """In separate processes: the kernel grants one process every lock it requests."""
    code = (
        "import sys; from pathlib import Path; from sightline.lock import WriterLock\n"
        "lock = WriterLock(Path(sys.argv[1]), sys.argv[2], join=True)\n"
        "with lock:\n"
        "    print(lock.alone, flush=True)\n"
        "    for line in sys.stdin:\n"
        "        word, _, number = line.strip().partition(' ')\n"
        "        if word == 'share':\n            lock.share()\n"
        "        if word == 'release':\n            lock.release(int(number))\n"
        "        print(lock.claim(int(number)) if word == 'claim' else 'ok', flush=True)\n"
    )

    def worker(name: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code, str(tmp_path), name]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(process: subprocess.Popen[str], words: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{words}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    first = worker("worker 0/2")
    assert first.stdout is not None
    assert first.stdout.readline() == "True\n"
    second = worker("worker 1/2")
    assert second.stdout is not None
    assert ask(first, "share") == "ok"
    assert second.stdout.readline() == "False\n"  # it has waited for that
    with pytest.raises(BusyError, match=r"another run is writing here \(worker 0/2, process"):
        WriterLock(tmp_path).__enter__()
    assert ask(first, "claim 3") == "True"
    assert ask(second, "claim 3") == "False"
    assert ask(second, "claim 4") == "True"
    assert ask(first, "release 3") == "ok"
    assert ask(second, "claim 3") == "True"
    second.kill()
    second.wait()
    assert ask(first, "claim 3") == "True"  # the kernel has let go of it
    first.communicate()
    with WriterLock(tmp_path) as last:
        assert last.alone


def test_keys_are_increasing_across_chunks_too(monkeypatch):
    monkeypatch.setattr(keys_module, "_FIND_ROWS", 2)
    rows = np.zeros((7, 32), dtype=np.uint8)
    rows[:, 31] = range(7)
    assert keys_module.increasing(rows)
    for row in range(1, 7):
        swapped = rows.copy()
        swapped[[row - 1, row]] = swapped[[row, row - 1]]
        assert not keys_module.increasing(swapped)
        twice = rows.copy()
        twice[row] = twice[row - 1]
        assert not keys_module.increasing(twice)
