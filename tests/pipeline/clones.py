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
        for role in ("AUTHOR", "COMMITTER"):
            kept |= {f"GIT_{role}_NAME": "A", f"GIT_{role}_EMAIL": "a@example.org"}
        own = {"HOME": str(home), "DVC_SITE_CACHE_DIR": str(home / "dvc"), "DVC_NO_ANALYTICS": "1"}
        self._environment = {**kept, **own, "AWS_EC2_METADATA_DISABLED": "true", "PATH": path}

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
        """Another working copy of the same user, with CLIP: it shares DVC's cache with this one."""
        other = self.clone(name)
        other.run("dvc", "cache", "dir", "-q", "--local", self.folder / ".dvc/cache")
        other.run("dvc", "checkout", "-q", "--with-deps", "image-features@scenes-clip")
        return other

    def grow(self) -> None:
        """One per cent more images and their CLIP features, committed to DVC and Git."""
        with (self.folder / "pictures.txt").open("a") as pictures:
            pictures.writelines(f"\nnew-{i}" for i in range(20))
        self.run("sightline", "stage", "image-features", "scenes", "clip")
        self.run("dvc", "commit", "-q", "-f", "image-features@scenes-clip")
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


def repository(
    folder: Path, path: str, remote: Path, changes: dict | None = None, own: tuple[str, ...] = ()
) -> Clone:
    """A repository whose features and tokens are computed, committed and pushed to ``remote``.

    Args:
        changes: merged into sections of the demo's parameters.
        own: files that Git ignores, so that they are on this machine alone.
    """
    (folder / ".dvc").mkdir(parents=True)  # without the project's config, which may have a remote
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    for file in (".dvc/.gitignore", "dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / file, folder / file)
    params = demo_params()
    for section, values in (changes or {}).items():
        params[section] |= values
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "pictures.txt").write_text("\n".join(f"picture-{i}" for i in range(2000)))
    ignored = "".join(f"/{name}\n" for name in ("calls.txt", *own))
    (folder / ".gitignore").write_text((ROOT / ".gitignore").read_text() + ignored)
    for name in own:
        (folder / name).write_text(name)
    clone = Clone(folder, path)
    clone.run("git", "init", "-q", "-b", "main")
    clone.run("dvc", "remote", "add", "-q", "-d", "team", remote)
    clone.run("dvc", "repro", "-q", "image-features", "tokens")
    clone.run("git", "add", ".")
    clone.run("git", "commit", "-qm", "Features")
    clone.run("dvc", "push", "-q")
    return clone
