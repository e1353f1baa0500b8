"""A project: a folder with dvc.yaml, params.yaml and DVC's settings, anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.configure import configuration, to_yaml
from pipeline.params import FILE_NAME, GRAPH_FILE
from pipeline.shipped import GRAPH, PLOT
from sightline.errors import SightlineError
from sightline.files.atomic_files import write_bytes
from sightline.optional_imports import require
from sightline.user_files import read_text

BESIDE_RUNS = "/runs/**/*.run/"
"""What DVC does not look at: a line of .dvcignore."""
_IGNORED = """\
# what the graph makes, which DVC keeps, and what it is made of
/data/*
!/data/README.md
!/data/inputs/
# of what you put there, what `dvc add` writes
!/data/*.dvc
!/data/.gitignore
!/data/raw/
!/data/senteval/
/data/raw/**
/data/senteval/**
!/data/*/**/
!/data/*/**/*.dvc
!/data/*/**/.gitignore
/runs/
/results/
/report/
*.tmp
"""
_DATA = """\
# What lies where

You put here:

- `raw/`: photographs, captions and sentences as you have them (`dvc add data/raw/NAME` and
  `dvc push` share them);
- `senteval/`: SentEval's folder `downstream`, for dev scores and evaluation.

The graph makes:

- `datasets/`: manifests of images, captions and sentences (`prepare`);
- `features/`: rows of frozen models (`image-features`, `text-features`, `teachers` and others);
- `objects/` and `cutouts/`: phrases with boxes and masks, and what is cut out (`ground`);
- `tokens/` and `phrase-tokens/`: texts as the student reads them;
- `inputs/`: what identifies the files and code that the graph reads, to commit (`inputs`);
- `evaluation/`: digests of the data that scores are of.

`runs/`, `results/` and `report/` beside this folder hold what is trained, scored and shown.
"""


@dataclass
class NewProject:
    """What `make_project` did.

    Attributes:
        created: files that were written, in order.
        kept: files that were there.
        outdated: dvc.yaml is there, and is not that of this version of Sightline.
    """

    created: list[str]
    kept: list[str]
    outdated: bool = False


def make_project(folder: Path, names: Sequence[str]) -> NewProject:
    """Make ``folder`` a project; what is there is kept, so a second time nothing changes.

    DVC does not look at what lies beside runs (`BESIDE_RUNS`).

    In a Git repository that does not ignore the folder DVC's settings are committed with it; else
    DVC works without Git.

    Args:
        names: of the configuration and its parts, see `configuration`.

    Raises:
        SightlineError: DVC is not installed, there is no such configuration, or the folder is a
            file.
    """
    require("dvc", "a project")
    params = to_yaml(configuration(*names, graph_file=GRAPH), names)
    if folder.exists() and not folder.is_dir():
        raise SightlineError(f"{folder}: a file; give a folder for the project")
    folder.mkdir(parents=True, exist_ok=True)
    file, config, graph = folder / ".dvcignore", ".dvc/config", GRAPH.read_text(encoding="utf-8")
    lines = read_text(file).splitlines() if file.exists() else []
    own_graph = read_text(folder / GRAPH_FILE) if (folder / GRAPH_FILE).exists() else graph
    project = NewProject([], [config])
    if not (folder / ".dvc").is_dir():
        _initialise_dvc(folder, config)
        project = NewProject([config], [])
    if BESIDE_RUNS not in lines:  # `evaluate` depends on runs, not on locks and curves in there
        write_bytes(file, "\n".join([*lines, BESIDE_RUNS, ""]).encode())
    for name, text in {
        ".dvc/plots/curves.json": PLOT.read_text(encoding="utf-8"),
        ".gitignore": _IGNORED,
        str(GRAPH_FILE): graph,
        FILE_NAME: params,
        "data/README.md": _DATA,
    }.items():
        if (folder / name).exists():
            project.kept.append(name)
            continue
        write_bytes(folder / name, text.encode())
        project.created.append(name)
    project.outdated = own_graph.replace("\r\n", "\n") != graph
    return project


def _initialise_dvc(folder: Path, config: str) -> None:
    """Make DVC's own files."""
    root = _git_root(folder)
    flags = ["--no-scm"] if root is None else ["--subdir"] if root != folder.resolve() else []
    command = [sys.executable, "-P", "-m", "dvc", "init", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().removeprefix("ERROR: ").partition("\n")[0]
        raise SightlineError(f"{folder}: DVC cannot be set up here: {reason}")
    with (folder / config).open("a", encoding="utf-8") as file:
        file.write("" if root is None else "[core]\n")
        file.write("    analytics = false\n")


def _git_root(folder: Path) -> Path | None:
    """The root of the Git repository that ``folder`` would be committed to; None without one."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )

    try:
        answer = git("rev-parse", "--show-toplevel")
        if answer.returncode or git("check-ignore", "-q", ".").returncode == 0:
            return None
    except FileNotFoundError:
        return None
    return Path(answer.stdout.rstrip("\n")).resolve()
