"""The command `sightline paper`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import FORMAT, JSON, print_json

if TYPE_CHECKING:
    from pipeline.cli.paper.plan import Plans
    from train.report.papers import Entry

LIST = "list"
"""In place of an entry: show what there is."""


def paper(
    entry: Annotated[
        str,
        typer.Argument(
            help="`list`; a paper (mcse, kdmcse, dalr, mcseo), to list it; or a table or figure: "
            "mcse:1, mcse:table-1, mcse:figure-2."
        ),
    ] = LIST,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of results, one folder per run; repeatable: a row takes its run from the "
            "one where it is the row's training.",
            show_default="results",
        ),
    ] = None,
    format_: FORMAT = "terminal",
    as_json: JSON = False,
) -> None:
    """List the papers' tables and figures, or show one: published beside measured rows.

    The list has the configurations, commands and cost of each, and the data that is missing here.

    Example: sightline paper mcse:1
    """
    from pipeline.cli.paper.plan import Plans
    from train.report.papers import every_entry, find_entries

    plans = Plans()
    found = list(every_entry()) if entry == LIST else find_entries(entry)
    if ":" not in entry:
        _list(found, plans, as_json)
        return
    from pipeline import graph
    from train.report.paper_table import compare_entry, document_of
    from train.report.render import show

    entries = compare_entry(found[0], results or [graph.results_folder()], plans.expected)
    facts = _facts(found[0], plans)
    if format_ == "terminal" and not as_json:
        if not entries:
            print(f"{found[0].id}: {found[0].shows}")
        show(document_of(found[0], entries), format_)
        _print_takes(found[0], plans)
    else:
        show(document_of(found[0], entries, **facts), "json" if as_json else format_)


def _facts(entry: Entry, plans: Plans) -> dict[str, Any]:
    cost = plans.cost(entry)
    return {
        "configurations": plans.configurations(entry),
        "commands": plans.commands(entry),
        "reason": entry.reason or None,
        "missing": plans.missing(entry),
        "cost": {
            "runs": cost.runs,
            "trainings": cost.trainings,
            "steps": cost.steps,
            "published_minutes": dict(cost.minutes),
        },
    }


def _list(entries: list[Entry], plans: Plans, as_json: bool) -> None:
    from pipeline.cli.paper.plan import APART, HOW

    if as_json:
        about = [
            {"id": e.id, "kind": e.kind, "shows": e.shows, **_facts(e, plans)} for e in entries
        ]
        print_json({"entries": about, "cost": HOW})
        return
    for entry in entries:
        print(f"{entry.id} ({entry.kind}): {entry.shows}")
        for line in _takes(entry, plans, short=True):
            print(f"    {line}")
    print(f"\n{HOW}\n{APART}")


def _takes(entry: Entry, plans: Plans, short: bool = False) -> list[str]:
    """What an entry takes, a line for each command and fact.

    Args:
        short: the commands of all configurations on one line.
    """
    if entry.reason:
        return [f"not produced: {entry.reason}"]
    lines = []
    if names := plans.configurations(entry):
        lines.append(f"configurations: {', '.join(names)}")
    trained = dict.fromkeys(name for name, _ in entry.trainings)
    if short and len(trained) > 1 and entry.kind != "settings":
        lines.append("sightline configure NAME && sightline repro --pull, for each of them")
        lines += plans.commands(entry)[2 * len(trained) :]
    else:
        lines += plans.commands(entry)
    if missing := plans.missing(entry):
        lines.append(f"missing here: {', '.join(missing)}")
    lines.append(f"cost: {plans.cost(entry)}")
    return lines


def _print_takes(entry: Entry, plans: Plans) -> None:
    from pipeline.cli.paper.plan import APART, HOW

    for line in _takes(entry, plans):
        print(line)
    if plans.cost(entry).runs:
        print(f"{HOW}\n{APART}" if len(plans.configurations(entry)) > 1 else HOW)
