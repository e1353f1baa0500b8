"""What DVC says of the graph: its stages, what they need, and what brings each up to date."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage

DVC = (sys.executable, "-P", "-m", "dvc", "--wait-for-lock")
"""Waits where another DVC process holds the project's lock, as our own children do."""


@dataclass(frozen=True)
class Options:
    """What `dvc repro` calls by the same names; see its documentation.

    Attributes:
        force: run every stage, changed or not.
        pull: fetch what is missing from the remote instead of computing it.
        allow_missing: a stage that has not changed is up to date although its data are missing.
            With ``pull``, what the targets themselves make is fetched nevertheless.
    """

    force: bool = False
    pull: bool = False
    allow_missing: bool = False

    def flags(self, *names: str) -> list[str]:
        """DVC's options for those of ``names`` that are set."""
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]


class Commands(NamedTuple):
    """What brings a stage up to date; none: it is.

    Attributes:
        first: one command after another.
        instead: what to run if one of these fails; None: then the stage has failed.
    """

    first: Sequence[Sequence[str]] = ()
    instead: Sequence[Sequence[str]] | None = None


def dry_run(targets: Sequence[str], options: Options) -> bool:
    """Print what `dvc repro --dry` prints; False if that is why DVC refuses."""
    flags = options.flags("force", "pull", "allow_missing")
    glob = ["--glob"] if _patterns(targets) else []
    return subprocess.call([*DVC, "repro", "--dry", *flags, *glob, *targets]) == 0


class Project:
    """DVC's view of the graph.

    Attributes:
        stages: name → stage, of all that the targets need, in the order of `dvc repro`.
        needs: name → the names of the stages that it needs.
        targets: names of the targets that were given.
    """

    def __init__(self, targets: Sequence[str], options: Options) -> None:
        from dvc.repo import Repo
        from dvc.stage.cache import RunCacheNotSupported

        self._options = options
        with _said_by_dvc():
            self._repo: Repo = Repo()
            with self._locked():
                self._read(targets)
                if options.pull:
                    with contextlib.suppress(RunCacheNotSupported):
                        self._repo.stage_cache.pull(None)

    def _read(self, targets: Sequence[str]) -> None:
        from dvc.dvcfile import PROJECT_FILE
        from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro

        wanted = collect_stages(self._repo, targets or [PROJECT_FILE], glob=_patterns(targets))
        graph = get_active_graph(self._repo.index.graph)
        self.stages: dict[str, Stage] = {
            stage.addressing: stage for stage in plan_repro(graph, wanted)
        }
        self.needs = {
            name: [other.addressing for other in graph.successors(stage)]
            for name, stage in self.stages.items()
        }
        self.targets = {stage.addressing for stage in wanted} if targets else set()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold DVC's lock, however long a stage's outputs are being hashed under it."""
        from dvc.lock import LockError

        while True:
            with contextlib.suppress(LockError):
                self._repo.lock.lock()
                break
        try:
            yield
        finally:
            self._repo.lock.unlock()

    def commands(self, name: str) -> Commands:
        """What brings a stage up to date that needs nothing more.

        DVC decides alike in `Stage.reproduce`, with the stages before it in view, which a
        `--single-item` does not have.
        """
        stage, options = self.stages[name], self._options
        upstream = [self.stages[other] for other in self.needs[name]]
        with _said_by_dvc(), self._locked():
            if options.force:
                return Commands(self._run(stage, options))
            changed = stage.changed(options.allow_missing, upstream)
            if changed:
                fetch = options.pull and not stage.changed(True, upstream)
            else:
                fetch = options.pull and name in self.targets and stage.changed_outs()
            if fetch:  # what the remote lacks is computed
                computing = replace(options, allow_missing=False)
                return Commands([[*DVC, "pull", name]], self._run(stage, computing))
            return Commands(self._run(stage, options)) if changed else Commands()

    def _run(self, stage: Stage, options: Options) -> list[list[str]]:
        flags = options.flags("force", "allow_missing")
        run = [[*DVC, "repro", "--single-item", *flags, stage.addressing]]
        absent = self._absent(stage) if options.pull else []
        return [[*DVC, "pull", *absent], *run] if absent else run

    def _absent(self, stage: Stage) -> list[str]:
        """What a stage needs and is not here; of a folder that has only a part, the whole folder.

        Part of a folder would be a changed folder to DVC.
        """
        outs = [out for other in self.needs[stage.addressing] for out in self.stages[other].outs]
        paths = []
        for dep in stage.deps:
            if not dep.exists:
                owners = [out for out in outs if dep.fs.isin_or_eq(dep.fs_path, out.fs_path)]
                paths.append(os.path.relpath((owners or [dep])[0].fs_path))
        return list(dict.fromkeys(paths))


def _patterns(targets: Sequence[str]) -> bool:
    """Whether some are patterns of names, as for `dvc repro --glob`."""
    return any(character in target for target in targets for character in "*?[")


@contextlib.contextmanager
def _said_by_dvc() -> Iterator[None]:
    """What DVC refuses is one error, in its own words."""
    from dvc.exceptions import DvcException

    try:
        yield
    except DvcException as error:
        raise SightlineError(f"DVC: {error}") from error
