"""What produces a table or figure of a paper: configurations and commands.

`python -m pipeline.paper_recipes > docs/papers.md` writes that page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import graph
from pipeline.configure import CONFIGS, GRAPH_FILE, configuration
from pipeline.params import Params, validate_params
from train.report.published import Entry, PaperRow, every_row, load_papers

if TYPE_CHECKING:
    from train.report.paper_table import ExpectedRun

APART = (
    "Configurations share names of runs: give each a clone of its own, and name all their results: "
    "`sightline compare --paper mcse:1 one/results other/results`."
)
_PAGE = Path(__file__).with_suffix(".md")
"""The prose of docs/papers.md, with {{rows}} and {{entries}} where the tables go."""


class Recipes:
    """How entries are produced; every configuration and evaluation set is read once.

    A configuration is one name, or several separated by spaces, as `sightline configure` takes it.
    """

    def __init__(self) -> None:
        here = CONFIGS.is_dir()
        root = Path() if here else Path(__file__).parents[1]
        self._configs, self._graph_file = root / CONFIGS, root / GRAPH_FILE
        self._params: dict[str, Params] = {}

    def params(self, name: str) -> Params:
        """A configuration of this folder, or else of the clone that Sightline runs from."""
        if name not in self._params:
            values = configuration(*name.split(), folder=self._configs, graph_file=self._graph_file)
            self._params[name] = validate_params(values, name)
        return self._params[name]

    def expected(self, name: str, run: str) -> ExpectedRun:
        """What results of a run record; the same for every seed."""
        from train.objectives import make_objective
        from train.report.paper_table import ExpectedRun

        params = self.params(name)
        spec = graph.run_spec(params, run, params.graph.seeds[0])
        data = {} if spec.pairs is None else {"pairs": spec.pairs.captions.parent.name}
        if spec.text is not None:
            data["text"] = spec.text.sentences.parent.name
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

    def made_by(self, row: PaperRow) -> str:
        """The stages that train the seeds of a row, or the command that scores its model."""
        if not row.configuration:
            return row.command
        return f"train-{self.params(row.configuration).run(row.run).system}@{row.run}-*"


def page() -> str:
    """docs/papers.md: rows with configuration and command, and every table and figure."""
    recipes = Recipes()
    text = _PAGE.read_text(encoding="utf-8")
    return text.replace("{{rows}}", _rows(recipes)).replace("{{entries}}", _entries(recipes))


def _rows(recipes: Recipes) -> str:
    """Rows outside of studies, each once, by data set and configuration."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for row in every_row():
        if not row.reason and "/" not in row.configuration:
            group = groups.setdefault((row.data, row.configuration), {})
            group.setdefault(row.model, f"{row.model}: `{recipes.made_by(row)}`")
    data = list(dict.fromkeys(data for data, _ in groups))
    ordered = sorted(groups.items(), key=lambda item: data.index(item[0][0]))
    return "\n".join(
        f"- {of}, {_code(name) if name else 'no training'}: {'; '.join(group.values())}"
        for (of, name), group in ordered
    )


def _entries(recipes: Recipes) -> str:
    lines = []
    for paper in load_papers().values():
        lines += [f"### {paper.title}", "", f"{paper.source}.", ""]
        absent: dict[str, list[str]] = {}
        for entry in paper.entries:
            names = ", ".join(map(_code, recipes.configurations(entry)))
            if entry.reason:
                absent.setdefault(entry.reason, []).append(_code(entry.id))
            else:
                lines.append(f"- `{entry.id}`: {entry.shows} ({names})")
        lines += [f"- Not produced: {', '.join(ids)}: {why}." for why, ids in absent.items()]
        lines.append("")
    return "\n".join(lines).rstrip()


def _code(text: str) -> str:
    return f"`{text}`"


def _trained(entry: Entry) -> list[str]:
    """Configurations that are trained for an entry; settings are only read."""
    if entry.kind == "settings":
        return []
    return list(dict.fromkeys(name for name, _ in entry.trainings))


if __name__ == "__main__":
    print(page(), end="")
