"""Working copies for the sharing tests: the real dvc.yaml, commands as a user runs them."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import yaml
from demo_params import demo_params

ROOT = Path(__file__).parents[2]
CLIP, RESNET = (Path("data/features/scenes/image") / name for name in ("clip", "resnet"))
DATASET = Path("data/datasets/scenes")
OF_THE_USER = ("AWS_", "DVC_", "XDG_", "GIT_")


class Clone:
    """A working copy, and the commands run in it.

    Isolated from the user who runs the tests: no configuration, no credentials, no proxy.
    """

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.path = folder, path
        home = folder.parent / "home"
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(OF_THE_USER) and not name.lower().endswith("_proxy")
        }
        names = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org"}
        names |= {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.org"}
        own = {"HOME": str(home), "DVC_SITE_CACHE_DIR": str(home / "dvc"), "DVC_NO_ANALYTICS": "1"}
        own |= {"AWS_EC2_METADATA_DISABLED": "true", "PATH": path}
        self._environment = {**kept, **names, **own}

    def attempt(self, *words: str | Path) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a command; DVC runs in this process."""
        command = [str(word) for word in words]
        if command[0] == "dvc":
            return self._dvc(command[1:])
        place, piped = {"cwd": self.folder, "env": self._environment}, {"capture_output": True}
        ended = subprocess.run(command, **place, **piped, text=True)
        return ended.returncode, ended.stdout, ended.stderr

    def _dvc(self, words: list[str]) -> tuple[int, str, str]:
        from dvc.cli import main

        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(self.folder))
            stack.enter_context(mock.patch.dict(os.environ, self._environment, clear=True))
            out = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            err = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            return main(words), out.getvalue(), err.getvalue()

    def run(self, *words: str | Path) -> str:
        code, out, err = self.attempt(*words)
        assert code == 0, f"{words}:\n{out}\n{err}"
        return out

    def clone(self, name: str, path: str = "") -> Clone:
        """A fresh clone beside this one, like a team-mate's; with another PATH, if given."""
        self.run("git", "clone", "-q", self.folder, self.folder.with_name(name))
        return Clone(self.folder.with_name(name), path or self.path)

    def second(self, name: str) -> Clone:
        """Another working copy of the same user: it shares DVC's cache with this one."""
        other = self.clone(name)
        other.run("dvc", "cache", "dir", "-q", "--local", self.folder / ".dvc/cache")
        return other

    def grow(self, *cells: Path) -> None:
        """One per cent more images and their features, both committed to DVC."""
        with (self.folder / "pictures.txt").open("a") as pictures:
            pictures.writelines(f"\nnew-{i}" for i in range(20))
        for cell in cells:
            self.run("sightline", "stage", "image-features", "scenes", cell.name)
            self.run("dvc", "commit", "-q", "-f", f"image-features@scenes-{cell.name}")
        self.run("git", "commit", "-qam", "More pictures")

    def calls(self) -> list[str]:
        """The stages that were run here, in order."""
        path = self.folder / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []


def path_with(folder: Path, *command: str | Path) -> str:
    """A PATH on which `sightline` is ``command``; the executable is written to ``folder``."""
    folder.mkdir()
    words = shlex.join(str(word) for word in command)
    (folder / "sightline").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "sightline").chmod(0o755)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])


def stub_path(folder: Path) -> str:
    """A PATH on which the stages are stubs (``stub_sightline.py``)."""
    return path_with(folder, sys.executable, Path(__file__).with_name("stub_sightline.py"))


def repository(folder: Path, path: str, params: dict | None = None) -> Clone:
    """A repository with the graph, nothing computed yet; ``params`` instead of the demo's."""
    folder.mkdir()
    (folder / ".dvc").mkdir()  # not the project's own config: somebody's remote may stand in it
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    shutil.copy(ROOT / ".dvc/.gitignore", folder / ".dvc")
    shutil.copy(ROOT / "dvc.yaml", folder)
    given = demo_params() if params is None else params
    (folder / "params.yaml").write_text(yaml.safe_dump(given))
    shutil.copy(ROOT / ".dvcignore", folder)
    code = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["code"]["deps"]
    for source in code:
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        (folder / source).write_text("code")
    for dataset in given["datasets"].values():
        source = folder / dataset["source"]
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("what it is made from")
    (folder / "pictures.txt").write_text("\n".join(f"picture-{i}" for i in range(2000)))
    (folder / ".gitignore").write_text((ROOT / ".gitignore").read_text() + "/calls.txt\n")
    clone = Clone(folder, path)
    clone.run("git", "init", "-q", "-b", "main")
    return clone
