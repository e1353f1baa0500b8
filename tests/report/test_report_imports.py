"""Evaluation and reporting import little, and never need what only extraction needs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
for name in ("torchvision", "open_clip", "sam2"):
    sys.modules[name] = None
import train, train.evaluate, train.report, train.evaluate.results
print([m for m in ("torch", "matplotlib", "scipy", "transformers") if m in sys.modules])
import train.embed, train.evaluate.sts, train.evaluate.geometry
import train.evaluate.retrieval, train.report.write
"""


def test_packages_import_nothing_heavy_and_nothing_of_extraction():
    words = [sys.executable, "-c", CODE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
