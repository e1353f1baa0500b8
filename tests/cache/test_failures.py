"""The list of failed rows, with unusual file names."""

from __future__ import annotations

import os

import pytest

from sightline.cache.parts import FailureList

KEY = bytes(range(32))


@pytest.mark.parametrize(
    "path",
    [
        "snö/1.jpg",
        os.fsdecode(b"caf\xe9.jpg"),
        "two\u2028lines.jpg",
        "next\x85line.jpg",
        "a\nb.jpg",
    ],
)
def test_reasons_are_read_back_for_any_file_name(path, tmp_path):
    listed = FailureList(tmp_path / "failures.jsonl")
    listed.add({KEY: {"code": "unreadable", "path": path, "reason": "cut short"}})
    listed.write()
    again = FailureList(listed.path)
    again.read()
    assert again.entries() == listed.entries()
    assert [each["path"] for each in again.entries()] == [path]


def test_a_list_is_written_only_after_a_failure(tmp_path):
    listed = FailureList(tmp_path / "failures.jsonl")
    listed.write()
    assert not listed.path.exists()
    listed.add({KEY: {"code": "unreadable", "path": "1.jpg", "reason": "cut short"}})
    listed.write()
    listed.keep(set())
    listed.write()
    assert listed.path.read_bytes() == b""
