"""Generates docs/papers.md: `python -m pipeline.cli.paper.page > docs/papers.md`."""

from __future__ import annotations

from pathlib import Path

from pipeline.cli.paper.plan import Plans
from train.report.papers import Entry, PaperRow, every_row, load_papers

TEMPLATE = Path(__file__).with_name("page.md")
"""The page's prose, with {{rows}} and {{entries}} where the tables go."""


def page() -> str:
    """Rows with their configuration and command, and every table and figure, as Markdown."""
    plans = Plans()
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{{rows}}", _rows(plans)).replace("{{entries}}", _entries(plans))


def _rows(plans: Plans) -> str:
    """Rows outside of studies, each once, by data set."""
    found: dict[tuple[str, str], PaperRow] = {}
    for row in every_row():
        if not row.reason and "/" not in row.configuration:
            found.setdefault((row.model, row.data), row)
    data = list(dict.fromkeys(data for _, data in found))
    return "\n".join(
        f"| {model} | {of} | {_code(row.configuration)} | `{plans.command_of(row)}` |"
        for (model, of), row in sorted(found.items(), key=lambda each: data.index(each[0][1]))
    )


def _entries(plans: Plans) -> str:
    lines = []
    for paper in load_papers().values():
        lines += [f"### {paper.title}", "", f"{paper.source}.", ""]
        lines += ["| | shows | configurations | commands |", "|---|---|---|---|"]
        lines += [_entry(entry, plans) for entry in paper.entries]
        lines.append("")
    return "\n".join(lines).rstrip()


def _entry(entry: Entry, plans: Plans) -> str:
    names = "<br>".join(map(_code, plans.configurations(entry))) or "–"
    rows = {row.command for row in entry.rows}
    own = "<br>".join(_code(each) for each in entry.commands if each not in rows)
    if entry.reason:
        own = f"none: {entry.reason}"
    return f"| `{entry.id}` | {entry.shows} | {names} | {own or 'as above'} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else "–"


if __name__ == "__main__":
    print(page(), end="")
