"""DVC is killed while its stage runs: the stage continues, and `dvc repro` reuses its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from interrupted import wait_until
from test_faults import STAGE

from sightline.cache import FeatureSet, verify

pytestmark = pytest.mark.slow

HELD = """
import time

def held(texts, length):
    while Path("held").exists():  # however long a second run takes to be refused
        time.sleep(0.05)
    return stub_rows(texts, length)

stage(3000, held)
"""
PIPELINE = """
stages:
  features:
    cmd: {python} stage.py features
    deps: [stage.py]
    outs:
      - features:
          persist: true
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "stage.py").write_text(STAGE + HELD)
    (tmp_path / "dvc.yaml").write_text(PIPELINE.format(python=sys.executable))
    for command in (["git", "init", "-q"], [*DVC, "init", "-q"]):
        subprocess.run(command, cwd=tmp_path, check=True, env=ENVIRONMENT)
    return tmp_path


DVC = [sys.executable, "-m", "dvc"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": ":".join(map(str, (Path(__file__).parent, *Path(__file__).parents[1:3]))),
    "DVC_NO_ANALYTICS": "1",
}


def repro(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*DVC, "repro", "-q"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT)


def stages_in(folder: Path) -> list[int]:
    """Processes that run the stage there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"stage.py" in command and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue  # it has ended in the meantime
    return found


def test_the_orphan_is_respected_and_its_work_reused(repository: Path) -> None:
    blocks, held = repository / "features.run" / "parts", repository / "held"
    held.touch()
    dvc = subprocess.Popen([*DVC, "repro", "-q"], cwd=repository, env=ENVIRONMENT)
    try:
        wait_until(blocks.exists)
        dvc.kill()
        dvc.wait()
        (stage,) = stages_in(repository)
        refused = repro(repository)
        assert refused.returncode != 0
        assert f"another run is writing here (process {stage}" in refused.stdout + refused.stderr
        assert stages_in(repository) == [stage]
        os.kill(stage, signal.SIGTERM)
        wait_until(lambda: not stages_in(repository))
        held.unlink()
        assert repro(repository).returncode == 0
    finally:
        for process in stages_in(repository):
            os.kill(process, signal.SIGKILL)
    assert verify(repository / "features") == []
    assert len(FeatureSet.open(repository / "features")) == 2970
    assert not blocks.exists()
