"""Keys and digests depend on bytes alone, and two writers exclude each other."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
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
from sightline.cache.keys import as_keys, find_keys, increasing, sort_order, unique_sorted
from sightline.cache.parts import read_failures, write_failures
from sightline.digest import digest
from sightline.errors import BusyError, SightlineError
from sightline.files import lock
from sightline.files.atomic_files import write_bytes
from sightline.files.lock import WriterLock
from sightline.files.output import FAILURES
from sightline.models.sentence_transformers_folder import tokenizer_sha256

# few distinct bytes, zeros at the end among them
FEW = st.lists(
    st.binary(min_size=2, max_size=2).map(lambda b: bytes([b[0] % 2]) * 9 + bytes([b[1] % 4]) * 23),
    min_size=1,
    max_size=30,
)


def test_a_key_is_the_sha256_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert key_of_bytes(b"abc") == hashlib.sha256(b"abc").digest() == key_of_file(tmp_path / "a")
    assert key_of_text("größe") == hashlib.sha256("größe".encode()).digest()


@settings(max_examples=60, deadline=None)
@given(FEW, FEW)
def test_keys_are_sorted_and_found_as_bytes(held, asked):
    keys = as_keys(held)
    assert [key.tobytes() for key in keys[sort_order(keys)]] == sorted(held)
    assert increasing(keys) == (held == sorted(set(held)))
    table = keys[unique_sorted(keys)]
    assert [key.tobytes() for key in table] == sorted(set(held))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sightline.cache.keys._FIND_ROWS", 3)  # keys at once
        found = find_keys(table, as_keys(asked))
    assert found.tolist() == [sorted(set(held)).index(k) if k in held else -1 for k in asked]
    assert find_keys(table[:0], keys).tolist() == [-1] * len(keys)


def test_keys_of_the_wrong_size_are_refused():
    with pytest.raises(ValueError, match="32"):
        as_keys([b"short"])
    with pytest.raises(ValueError, match=r"uint8 \[n, 32\]"):
        as_keys(np.zeros((2, 16), np.uint8))


def test_digests_have_not_changed():
    """They are on disk: in fingerprints, names of encoders, token sets and runs."""
    value = {"b": [1, 2.5, None, True], "a": {"ü": "é", "z": 1e-05}}
    assert digest(value) == "c874b0801717ddd1fc976eea2556f5bb9682d2baac704b6257bff0fff5feb29b"
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest(value) == hashlib.sha256(text.encode()).hexdigest()

    class Tokenizer:  # a slow one: a vocabulary and special tokens
        all_special_tokens = ("[SEP]", "[CLS]")

        def get_vocab(self):
            return {"é": 1, "a": 0}

    expected = "51115bfb7e773200bdcef5c054a93f3e03941153415fb851ce1186914ff71329"
    assert tokenizer_sha256(Tokenizer()) == expected


@pytest.mark.parametrize(
    "path",
    ["snö/1.jpg", os.fsdecode(b"caf\xe9.jpg"), "two\u2028lines", "next\x85line", "a\nb.jpg"],
)
def test_reasons_of_failures_are_read_back_for_any_file_name(path, tmp_path):
    write_failures(tmp_path, {})
    assert not (tmp_path / FAILURES).exists()
    failures = {bytes(range(32)): {"code": "unreadable", "path": path, "reason": "cut short"}}
    write_failures(tmp_path, failures)
    assert read_failures(tmp_path) == failures
    write_failures(tmp_path, {})
    assert (tmp_path / FAILURES).read_bytes() == b""


# --- locks: in separate processes, since the kernel grants one process every lock it requests


LOCKER = """
import sys
from pathlib import Path
from sightline.files.lock import WriterLock

lock = WriterLock(Path(sys.argv[1]), sys.argv[2], join=bool(sys.argv[2]))
with lock:
    print(lock.alone, flush=True)
    for line in sys.stdin:
        word, *number = line.split()
        print(getattr(lock, word)(*map(int, number)), flush=True)
"""


class Locker:
    """A process that takes the lock of a folder, and what it answers."""

    def __init__(self, folder, worker):
        words = [sys.executable, "-c", LOCKER, str(folder), worker]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(words, text=True, **pipes)

    def says(self):
        return self.process.stdout.readline().strip()

    def asked(self, words):
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.says()

    def end(self):
        return self.process.communicate()[1]


@pytest.fixture
def locker(tmp_path):
    started = []

    def start(worker=""):
        started.append(Locker(tmp_path, worker))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.end()


def take(folder):
    """Take the lock of the folder, and release it."""
    with WriterLock(folder):
        pass


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path, locker):
    other = locker()
    assert other.says() == "True"
    with pytest.raises(BusyError, match=f"process {other.process.pid}"):
        take(tmp_path)
    other.process.kill()
    other.process.wait()
    with WriterLock(tmp_path):  # the kernel dropped it with the process
        with pytest.raises(BusyError, match="this process"):
            take(tmp_path)
        # and the attempt has not let go of the lock, as closing its file would have
        assert f"process {os.getpid()}" in locker().end()
    take(tmp_path)


def test_workers_share_a_lock_and_nobody_else_gets_in(tmp_path, locker):
    first = locker("worker 0/2")
    assert first.says() == "True"
    second = locker("worker 1/2")
    assert first.asked("share") == "None"
    assert second.says() == "False"  # it has waited for that
    with pytest.raises(BusyError, match=r"another run is writing here \(worker 0/2, process"):
        take(tmp_path)
    assert first.asked("claim 3") == "True"
    assert second.asked("claim 3") == "False"
    assert second.asked("claim 4") == "True"
    assert first.asked("release 3") == "None"
    assert second.asked("claim 3") == "True"
    second.process.kill()
    second.process.wait()
    assert first.asked("claim 3") == "True"  # the kernel has let go of it
    first.end()
    with WriterLock(tmp_path) as last:
        assert last.alone


def raising(number):
    """A system call that fails with this error."""

    def fails(*words):
        raise OSError(number, os.strerror(number))

    return fails


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.lockf", raising(errno.ENOLCK))
    with pytest.raises(SightlineError, match=r"has no locks .* local disk"):
        take(tmp_path)


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
    monkeypatch.setattr("sightline.files.atomic_files.MOUNTINFO", mounts)
    if not refused:
        take(tmp_path)
        return
    with pytest.raises(SightlineError, match="without locks"):
        take(tmp_path)


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    real, calls = fcntl.lockf, []

    def lockf(handle, how, *span):
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
    with pytest.raises(SightlineError, match="not a lock of Sightline"):
        take(tmp_path)
    assert (tmp_path / "lock").read_bytes() == text


def test_a_lock_is_never_a_link(tmp_path):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        take(tmp_path)
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_file_system_that_cannot_rename_over_a_file_is_named(tmp_path, monkeypatch, number):
    monkeypatch.setattr(Path, "replace", raising(number))
    said = pytest.raises(SightlineError, match=r"cannot replace a file by renaming .* local disk")
    with said:
        write_bytes(tmp_path / "plan", b"x")
    assert list(tmp_path.iterdir()) == []
    with SetWriter(tmp_path / "set", SPEC) as writer, said:
        writer.plan(KEYS, batch_size=16)
    assert not (tmp_path / "set").exists()


def test_a_worker_that_meets_the_end_of_another_run_is_the_first_one(tmp_path, monkeypatch):
    """It finds the lock taken, and free a moment later."""
    locked, tried = lock._locked, []

    def just_ended(handle, **how):
        tried.append(how)
        return len(tried) > 1 and locked(handle, **how)

    with WriterLock(tmp_path, "worker 1/2"):
        pass
    monkeypatch.setattr(lock, "_locked", just_ended)
    with WriterLock(tmp_path, "worker 0/2", join=True) as first:
        assert first.alone
        first.share()
        with pytest.raises(BusyError, match="already writing"):
            WriterLock(tmp_path).__enter__()
    assert (tmp_path / "lock").read_text().endswith("shared\n")
    with WriterLock(tmp_path, "worker 0/2", join=True) as first:
        assert first.alone
        assert "shared" not in (tmp_path / "lock").read_text()
