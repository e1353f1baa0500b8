"""Runs the command line in the process of the tests."""

from __future__ import annotations

import sys

import pytest

from pipeline.cli import main


def sightline(*words: object) -> int:
    """Run `sightline WORDS`; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sightline", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
    return int(caught.value.code or 0)
