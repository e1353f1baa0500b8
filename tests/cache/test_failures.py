"""The list of failed rows, with unusual file names."""

from __future__ import annotations

import os

import pytest

from sightline.cache.parts import FAILURES, read_failures, write_failures

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
    failures = {KEY: {"code": "unreadable", "path": path, "reason": "cut short"}}
    write_failures(tmp_path, failures)
    assert read_failures(tmp_path) == failures


def test_a_list_is_written_only_after_a_failure(tmp_path):
    write_failures(tmp_path, {})
    assert not (tmp_path / FAILURES).exists()
    write_failures(tmp_path, {KEY: {"code": "unreadable", "path": "1.jpg", "reason": "cut short"}})
    write_failures(tmp_path, {})
    assert (tmp_path / FAILURES).read_bytes() == b""
