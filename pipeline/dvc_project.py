"""What DVC says of the graph: its stages, what they need, and what brings each up to date."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.params import FILE_NAME
from sightline.errors import SightlineError, first_lines
from sightline.optional_imports import require
from sightline.settings import unknown

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage
    from networkx import DiGraph

DVC = (sys.executable, "-P", "-m", "dvc", "--wait-for-lock")
"""Waits where another DVC process holds the project's lock, as our own children do."""


_ADD_ON = re.compile(r"(\w+) is supported, but requires '([\w-]+)'")
"""A protocol, and the package that brings it to DVC, in DVC's error."""


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


class Due(NamedTuple):
    """A stage that would run: its command, and those of the others like it that it needs."""

    name: str
    command: str
    needs: Sequence[str]


def stages_due(
    targets: Sequence[str], options: Options, changed: Collection[Path] = ()
) -> list[Due]:
    """The stages that `repro` would run, in an order in which it may; nothing is run.

    `dvc repro --dry` stops at the first stage whose inputs are not made yet. A stage that always
    runs is no reason for others, but for those that read what it would change.

    Args:
        changed: files that such a stage would write otherwise than they are.

    Raises:
        SightlineError: as for `Project`.
    """
    project, due = Project(targets, options), dict[str, Due]()
    for name, stage in project.stages.items():
        needs = [n for n in project.needs[name] if n in due]
        causes = [n for n in needs if not project.stages[n].always_changed]
        if causes or project.reads(name, changed) or project.commands(name):
            due[name] = Due(name, str(stage.cmd), needs)
    return [*due.values()]


def why_not() -> str:
    """Why DVC cannot run the graph of the current folder; empty if it can."""
    from dvc.repo import Repo

    try:
        with _said_by_dvc():
            _require_parameters_here(Repo().index.graph)
    except SightlineError as error:
        return str(error)
    return ""


class Project:
    """DVC's view of the graph.

    Attributes:
        stages: name → stage, of all that the targets need, in the order of `dvc repro`.
        needs: name → the names of the stages that it needs.
        targets: names of the targets that were given.
        beside: name → the commands of the stages of the whole graph that may run at the same time,
            as neither needs the other.

    Raises:
        SightlineError: DVC refuses the graph, or a target is no stage of it.
    """

    def __init__(self, targets: Sequence[str], options: Options) -> None:
        from dvc.repo import Repo

        self._options = options
        with _said_by_dvc():
            self._repo: Repo = Repo()
            with self._locked():
                self._read(targets)

    def _read(self, targets: Sequence[str]) -> None:
        from dvc.dvcfile import PROJECT_FILE
        from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro
        from dvc.stage.exceptions import StageNotFound

        requested: list[Stage] = []
        patterns = any(character in target for target in targets for character in "*?[")
        for target in targets or [PROJECT_FILE]:
            stages: list[Stage] = []
            with contextlib.suppress(StageNotFound):
                stages = collect_stages(self._repo, [target], glob=patterns) if target else []
            if targets and not stages:  # DVC would run the whole graph
                names = [stage.addressing for stage in self._repo.index.stages]
                raise SightlineError(
                    f"dvc.yaml, with these parameters: {unknown(target, names, 'stage')}"
                )
            requested += stages
        _require_parameters_here(self._repo.index.graph)
        whole = self._repo.index.graph
        graph = get_active_graph(whole)
        self.stages: dict[str, Stage] = {
            stage.addressing: stage for stage in plan_repro(graph, requested)
        }
        self.needs = {
            name: [successor.addressing for successor in graph.successors(stage)]
            for name, stage in self.stages.items()
        }
        self.targets = {stage.addressing for stage in requested} if targets else set()
        self.beside = {name: _beside(whole, stage) for name, stage in self.stages.items()}

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

    def require_inputs(self) -> None:
        """Check, before anything runs, that what no stage makes is here.

        With ``pull`` or ``allow_missing`` a stage may do without.

        Raises:
            SightlineError: something is not: names all of it, and what needs it.
        """
        if self._options.pull or self._options.allow_missing:
            return
        outputs = [out.fs_path for stage in self._repo.index.stages for out in stage.outs]
        missing: dict[str, list[str]] = {}
        for name, stage in self.stages.items():
            for dep in stage.deps:
                place, within = dep.fs_path, dep.fs.isin_or_eq
                is_made = any(within(place, out) or within(out, place) for out in outputs)
                if not is_made and not dep.exists:
                    missing.setdefault(str(dep), []).append(name)
        if missing:
            lines = [
                f"{path}: is not here{_near(path, outputs)}; {first} "
                + (f"and {len(dependents)} more need it" if dependents else "needs it")
                for path, (first, *dependents) in missing.items()
            ]
            remedy = f"put it there, or give its place in {FILE_NAME}; nothing was run"
            raise SightlineError("\n".join([*lines, remedy]))

    def reads(self, name: str, files: Collection[Path]) -> bool:
        """Whether a stage depends on one of these files, or on a folder with one."""
        places = [os.path.abspath(file) for file in files]  # noqa: PTH100  (links stay)
        deps = self.stages[name].deps
        return any(dep.fs.isin_or_eq(place, dep.fs_path) for dep in deps for place in places)

    def commands(self, name: str) -> list[list[str]]:
        """What brings a stage up to date that needs nothing more, in order; empty: it is.

        A `--single-item` does not look at the stages before it. So what a stage needs is fetched
        beforehand if they have made it anew: DVC would take missing data for unchanged data.
        """
        stage, options = self.stages[name], self._options
        upstream = [self.stages[needed] for needed in self.needs[name]]
        with _said_by_dvc(), self._locked():
            due = (
                options.force
                or stage.changed(options.allow_missing, upstream)
                or (options.pull and name in self.targets and stage.changed_outs())
            )
            if not due:
                return []
            run = [*DVC, "repro", "--single-item", *options.flags("force", "pull"), name]
            runs_anew = options.force or stage.changed(True, upstream)
            absent = self._absent(stage) if options.pull and runs_anew else []
            return [[*DVC, "pull", *absent], run] if absent else [run]

    def _absent(self, stage: Stage) -> list[str]:
        """The outputs of other stages that a stage needs and that are not here, or not whole.

        Part of a folder would be a changed folder to DVC.
        """
        outs = [out for needed in self.needs[stage.addressing] for out in self.stages[needed].outs]
        paths = [
            os.path.relpath(out.fs_path)
            for dep in stage.deps
            if not dep.exists
            for out in outs
            if dep.fs.isin_or_eq(dep.fs_path, out.fs_path)
        ]
        return list(dict.fromkeys(paths))


def _beside(graph: DiGraph, stage: Stage) -> list[str]:
    """The commands of the stages that neither need ``stage`` nor are needed by it."""
    from networkx import ancestors, descendants

    related = {stage, *ancestors(graph, stage), *descendants(graph, stage)}
    return [str(node.cmd) for node in graph if node not in related and node.cmd]


def _require_parameters_here(stages: Iterable[Stage]) -> None:
    """Check that Sightline's stages run here, and depend on the parameters that they read."""
    from dvc.dependency.param import ParamsDependency

    for stage in stages:
        if "sightline stage " not in str(stage.cmd):
            continue
        params = [dep.fs_path for dep in stage.deps if isinstance(dep, ParamsDependency)]
        files = list(map(os.path.relpath, params))
        where, reads = os.path.relpath(stage.wdir), f"but `sightline stage` reads {FILE_NAME} here"
        if where != ".":
            raise SightlineError(
                f"dvc.yaml: {stage.addressing} runs in {where}, {reads}; remove its `wdir`, or "
                "make that folder a DVC project of its own"
            )
        if files and FILE_NAME not in files:
            raise SightlineError(
                f"dvc.yaml: {stage.addressing} takes parameters from {files[0]}, {reads}; move "
                "them there"
            )


@contextlib.contextmanager
def _said_by_dvc() -> Iterator[None]:
    """What DVC refuses is one error, in its own words."""
    from dvc.exceptions import DvcException
    from dvc.scm import SCMError
    from dvc.utils.serialize import ParseError

    try:
        yield
    except DvcException as error:
        remedy = ""
        if isinstance(error, SCMError) and "not a git repository" in str(error):
            remedy = ", which DVC needs: run `git init`, or `dvc config core.no_scm true`"
        elif isinstance(error, ParseError):
            why = first_lines(error.__cause__ or error).rstrip(":")
            remedy = f" ({why}); mend it, or delete a dvc.lock: stages keep what is done here"
        raise SightlineError(f"DVC: {error}{remedy}") from error
    except ImportError as error:
        if (match := _ADD_ON.match(str(error))) is None:
            raise
        protocol, package = match.groups()
        user = f"a graph that reads {protocol}://"
        if protocol == "s3":
            require("dvc_s3", user)
        raise SightlineError(
            f"{package} is not installed, but {user} needs it; run: pip install {package}"
        ) from error


def _near(path: str, outputs: Iterable[str]) -> str:
    """The output whose name is nearest to that of a path, of those that stages make beside it."""
    place = Path(os.path.abspath(path))  # noqa: PTH100  (links stay)
    beside = [out.name for out in map(Path, outputs) if out.parent == place.parent]
    near = difflib.get_close_matches(place.name, beside, n=1)
    return f" (the graph makes {near[0]!r} beside it)" if near else ""
