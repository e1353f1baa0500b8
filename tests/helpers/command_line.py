"""Runs the command line in the process of the tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

import pytest

from pipeline.cli import main


def sightline(*words: object) -> int:
    """Run `sightline WORDS`; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sightline", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
    return int(caught.value.code or 0)


def unboxed(text: str) -> str:
    """A message in one line, without the box that the command line draws around misuse."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def set_words(settings: Mapping[str, object], above: str = "") -> Iterator[str]:
    """``--set`` options for nested settings: ``--set=rules.min_score=0.2``."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from set_words(value, f"{above}{name}.")
        else:
            yield f"--set={above}{name}={'null' if value is None else value}"
