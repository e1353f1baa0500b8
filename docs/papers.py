"""Writes the page of the papers' tables and figures: `python docs/papers.py > docs/papers.md`."""

from __future__ import annotations

from pathlib import Path

from pipeline.paper_recipes import PaperRecipes
from train.report.published import PaperRow, every_row, load_papers

PROSE = Path(__file__).with_name("papers.md.in")
"""With {{rows}} and {{entries}} where the tables go."""


def page() -> str:
    """docs/papers.md: rows with configuration and command, and every table and figure."""
    recipes = PaperRecipes()
    text = PROSE.read_text(encoding="utf-8")
    return text.replace("{{rows}}", _rows(recipes)).replace("{{entries}}", _entries(recipes))


def _rows(recipes: PaperRecipes) -> str:
    """Rows outside of studies, each once, by data set and configuration."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for row in every_row():
        if not row.reason and "/" not in row.configuration:
            group = groups.setdefault((row.data, row.configuration), {})
            group.setdefault(row.model, f"{row.model}: `{_made_by(recipes, row)}`")
    data = list(dict.fromkeys(data for data, _ in groups))
    ordered = sorted(groups.items(), key=lambda item: data.index(item[0][0]))
    return "\n".join(
        f"- {of}, {_code(name) if name else 'no training'}: {'; '.join(group.values())}"
        for (of, name), group in ordered
    )


def _made_by(recipes: PaperRecipes, row: PaperRow) -> str:
    """The stages that train the seeds of a row, or the command that scores its model."""
    if not row.configuration:
        return row.command
    return f"train-{recipes.params(row.configuration).run(row.run).system}@{row.run}-*"


def _entries(recipes: PaperRecipes) -> str:
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


if __name__ == "__main__":
    print(page(), end="")
