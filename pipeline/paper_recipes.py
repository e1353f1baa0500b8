"""What produces a table or figure of a paper: configurations and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline import layout
from pipeline.configure import configuration
from pipeline.params import Params, validate_params
from train.report.published import Entry

if TYPE_CHECKING:
    from train.report.paper import ExpectedRun

APART = (
    "Configurations share names of runs: give each a clone of its own, and name all their results: "
    "`sightline compare --paper mcse:1 one/results other/results`."
)


class PaperRecipes:
    """How entries are produced; every configuration and evaluation set is read once.

    A configuration is one name, or several separated by spaces, as `sightline configure` takes it.
    """

    def __init__(self) -> None:
        self._params: dict[str, Params] = {}

    def params(self, name: str) -> Params:
        """A configuration of this project, or one that comes with Sightline."""
        if name not in self._params:
            values = configuration(*name.split())
            self._params[name] = validate_params(values, name)
        return self._params[name]

    def expected(self, name: str, run: str) -> ExpectedRun:
        """What results of a run record; the same for every seed."""
        from train.objectives import make_objective
        from train.report.paper import ExpectedRun

        params = self.params(name)
        spec = layout.run_spec(params, run, params.graph.seeds[0])
        data = {} if spec.pairs is None else {"pairs": spec.pairs.name}
        if spec.sentences is not None:
            data["text"] = spec.sentences.name
        parameters: dict[str, Any] = {
            "objective": make_objective(spec.objective, spec.parameters).describe(),
            "student": spec.student.model_dump(mode="json"),
            "train": spec.train.model_dump(mode="json"),
        }
        return ExpectedRun(parameters, data)

    def about(self, entry: Entry) -> dict[str, Any]:
        """Everything that follows about an entry, as a JSON object."""
        return {
            "configurations": self.configurations(entry),
            "commands": self.commands(entry),
            "reason": entry.reason or None,
        }

    def lines(self, entry: Entry, short: bool = False) -> list[str]:
        """The same for people.

        Args:
            short: the commands of all configurations on one line, without `APART`.
        """
        if entry.reason:
            return [f"not produced: {entry.reason}"]
        names, commands = self.configurations(entry), self.commands(entry)
        lines = [f"configurations: {', '.join(names)}"] if names else []
        trained = _trained(entry)
        if short and len(trained) > 1:
            lines.append("sightline configure NAME && sightline repro --pull, for each of them")
            commands = commands[2 * len(trained) :]
        lines += commands
        if not short and trained and len(names) > 1:
            lines.append(APART)
        return lines

    def configurations(self, entry: Entry) -> list[str]:
        """Those that an entry needs, each once."""
        of_runs = (name for name, _ in entry.trainings)
        return list(dict.fromkeys([*of_runs, *entry.configurations]))

    def commands(self, entry: Entry) -> list[str]:
        """What produces an entry, in order; each configuration in a folder of its own."""
        commands: list[str] = []
        for name in _trained(entry):
            commands += [f"sightline configure {name}", "sightline repro --pull"]
        commands += dict.fromkeys(row.command for row in entry.rows if row.command)
        return [*commands, *entry.commands]


def _trained(entry: Entry) -> list[str]:
    """Configurations that are trained for an entry; settings are only read."""
    if entry.kind == "settings":
        return []
    return list(dict.fromkeys(name for name, _ in entry.trainings))
