"""Evaluation and reporting import little, and never need what only extraction needs."""

from __future__ import annotations

import subprocess
import sys


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout


def test_packages_import_nothing_heavy():
    code = (
        "import sys, train, train.evaluate, train.report, train.evaluate.results;"
        "print([m for m in ('torch', 'matplotlib', 'scipy', 'transformers') if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


def test_everything_works_without_the_extraction_libraries():
    code = (
        "import sys\n"
        "for name in ('torchvision', 'open_clip', 'sam2'): sys.modules[name] = None\n"
        "import train.embed, train.evaluate.sts, train.evaluate.geometry\n"
        "import train.evaluate.retrieval, train.report.write\n"
        "print('fine')"
    )
    assert python(code).strip() == "fine"
