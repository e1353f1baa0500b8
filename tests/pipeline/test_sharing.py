"""Sharing through DVC: a team-mate trains with what they pulled; a push uploads only what is new.

The graph is the real dvc.yaml; only the stages' work is a stub.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.cache import FeatureSet, verify

ROOT = Path(__file__).parents[2]
CLIP, RESNET = (Path("data/features/scenes/image") / name for name in ("clip", "resnet"))


class Clone:
    """A working copy, and the commands that are run in it."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        names = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org"}
        names |= {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org"}
        self._environment = {**os.environ, **names, "PATH": path, "DVC_NO_ANALYTICS": "1"}

    def run(self, *words: str | Path) -> str:
        ended = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, f"{words}:\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def calls(self) -> list[str]:
        """The stages that were run here, in order."""
        path = self.folder / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def path(tmp_path) -> str:
    """A PATH on which `sightline` is the stub."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stub = Path(__file__).with_name("stub_sightline.py")
    (folder / "sightline").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stub}" "$@"\n')
    (folder / "sightline").chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def owner(tmp_path, path) -> Clone:
    """A repository whose features are computed, committed and pushed to a folder."""
    folder = tmp_path / "owner"
    folder.mkdir()
    shutil.copy(ROOT / "dvc.yaml", folder)
    shutil.copy(ROOT / "params.yaml", folder)
    for stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values():
        for dep in stage.get("do", stage).get("deps", []):
            if dep.startswith("pipeline/"):  # code that a stage depends on
                (folder / dep).parent.mkdir(parents=True, exist_ok=True)
                (folder / dep).write_text("code")
    (folder / "pictures.txt").write_text("\n".join(f"picture-{i}" for i in range(2000)))
    (folder / ".gitignore").write_text((ROOT / ".gitignore").read_text() + "/calls.txt\n")
    clone = Clone(folder, path)
    clone.run("git", "init", "-q", "-b", "main")
    clone.run("dvc", "init", "-q")
    clone.run("dvc", "remote", "add", "-q", "-d", "team", tmp_path / "remote")
    clone.run("dvc", "repro", "-q", "image-features", "tokens")
    clone.run("git", "add", ".")
    clone.run("git", "commit", "-qm", "Features")
    clone.run("dvc", "push", "-q")
    return clone


def stored(remote: Path) -> dict[str, int]:
    """Name → bytes of everything in a remote folder."""
    return {
        path.relative_to(remote).as_posix(): path.stat().st_size
        for path in remote.rglob("*")
        if path.is_file()
    }


def test_a_team_mate_trains_with_one_feature_set_and_nothing_is_computed_again(
    owner, tmp_path, path
):
    subprocess.run(["git", "clone", "-q", owner.folder, tmp_path / "mate"], check=True)
    mate = Clone(tmp_path / "mate", path)
    mate.run("dvc", "pull", "-q", CLIP)
    mate.run("dvc", "repro", "-q", "--pull", "--allow-missing", "train-mcse-clip@0")
    assert mate.calls() == ["train mcse-clip 0"]
    assert (mate.folder / "runs/mcse-clip/seed-0/model.json").read_text() == '{"rows": 2000}'
    assert verify(mate.folder / CLIP) == []
    assert not (mate.folder / RESNET).exists()


def test_a_push_after_adding_images_uploads_only_the_new_shard_and_the_index(owner, tmp_path):
    before = stored(tmp_path / "remote")
    old = {file.name: file.stat().st_size for file in (owner.folder / CLIP).iterdir()}
    with (owner.folder / "pictures.txt").open("a") as pictures:
        pictures.writelines(f"\nnew-{i}" for i in range(20))
    for name in ("clip", "resnet"):
        owner.run("sightline", "stage", "image-features", "scenes", name)
    owner.run("dvc", "commit", "-q", "-f", "image-features")
    owner.run("dvc", "push", "-q")
    assert len(FeatureSet.open(owner.folder / CLIP)) == 2020
    now = {file.name: file.stat().st_size for file in (owner.folder / CLIP).iterdir()}
    new = {name: size for name, size in now.items() if name not in old}
    assert sorted(name.partition("-")[0] for name in new) == ["index", "shard"]
    after = stored(tmp_path / "remote")
    uploaded = sum(size for name, size in after.items() if name not in before)
    commit_file = now["feature_set.json"]
    listing = 2000  # DVC's own list of the folder's files
    one_set = sum(new.values()) + commit_file
    assert uploaded <= 2 * (one_set + listing)
    assert uploaded < sum(old.values()) / 5


def test_one_feature_set_can_be_had_from_another_repository(owner, tmp_path, path):
    other = Clone(tmp_path / "other", path)
    other.folder.mkdir()
    other.run("dvc", "get", "-q", owner.folder, CLIP, "-o", "got")
    assert verify(other.folder / "got") == []
    other.run("git", "init", "-q")
    other.run("dvc", "init", "-q")
    other.run("dvc", "import", "-q", owner.folder, CLIP, "-o", "tracked")
    assert len(FeatureSet.open(other.folder / "tracked")) == 2000
    assert (other.folder / "tracked.dvc").exists()
