"""DVC is killed while its stage runs: the stage continues, and `dvc repro` reuses its work."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_work import StubWork
from interrupted import wait_until

from sightline.cache import FeatureSet, verify

pytestmark = pytest.mark.slow

DVC = [sys.executable, "-m", "dvc"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DVC_NO_ANALYTICS": "1"}
STAGE = {"cmd": "", "deps": ["input"], "outs": [{"features": {"persist": True}}]}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A stage that waits after three batches until another process has begun."""
    (tmp_path / "log").mkdir()
    (tmp_path / "input").touch()
    work = StubWork(Path("features"), log=tmp_path / "log", meet=2)
    stages = {"features": {**STAGE, "cmd": shlex.join(work.command())}}
    (tmp_path / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    for command in (["git", "init", "-q"], [*DVC, "init", "-q"]):
        subprocess.run(command, cwd=tmp_path, check=True, env=ENVIRONMENT)
    return tmp_path


def repro(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*DVC, "repro", "-q"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT)


def stages_in(folder: Path) -> list[int]:
    """Processes that run the stage there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if b"engine_work" in command and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue  # it has ended in the meantime
    return found


def test_the_orphan_is_respected_and_its_work_reused(repository: Path) -> None:
    log, blocks = repository / "log", repository / "features.run" / "parts"
    dvc = subprocess.Popen([*DVC, "repro", "-q"], cwd=repository, env=ENVIRONMENT)
    try:
        wait_until(lambda: list(log.iterdir()))
        dvc.kill()
        dvc.wait()
        (stage,) = stages_in(repository)
        refused = repro(repository)
        assert refused.returncode != 0
        assert f"another run is writing here (process {stage}" in refused.stdout + refused.stderr
        assert stages_in(repository) == [stage]
        os.kill(stage, signal.SIGTERM)
        wait_until(lambda: not stages_in(repository))
        assert repro(repository).returncode == 0
    finally:
        for process in stages_in(repository):
            os.kill(process, signal.SIGKILL)
    assert verify(repository / "features") == []
    assert len(FeatureSet.open(repository / "features")) == 237
    assert not blocks.exists()
