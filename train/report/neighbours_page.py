"""Neighbours as a page of their own or a section of another: nothing fetched, all text escaped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from sightline.html_pages import Thumbnail, html_templates
from train.evaluate.results import ModelNeighbours, RunResult
from train.report.grid import Grid, GridCell, GridRow, printable
from train.report.html import Included, Section, to_page
from train.report.neighbours import OWN, Sides, shown_images

_GENERATOR = "Sightline neighbours"
MARK = f'<meta name="generator" content="{_GENERATOR}">'.encode()
"""The start of a page, which marks it as replaceable by another."""


Thumbnails = Mapping[str, Thumbnail]
Photographer = Callable[[str, Sequence[str], Mapping[str, bytes]], Thumbnails | str]
"""(evaluation task, ids of images, id → SHA-256) → their pictures, or why there are none."""


def page_of(sides: Sides, title: str, thumbnails: Thumbnails | None = None) -> bytes:
    """The page as UTF-8; equal input gives equal bytes. See `section_of`."""
    section, style = section_of(sides, title, thumbnails)
    return to_page(title, [section], _GENERATOR, style=style).encode()


def section_of(
    sides: Sides,
    title: str,
    thumbnails: Thumbnails | None = None,
    notes: Sequence[str] | None = None,
) -> tuple[Section, str]:
    """The section, and the style sheet of its pictures.

    Args:
        thumbnails: image id → its picture, for every one of `shown_images`; None for a page
            without pictures. Their data URIs are the only input that is not escaped. Each is in
            the page once, as the background of a class of the style sheet.
        notes: how to read it; None: those of ``sides``.
    """
    section = Section(title, _counts(sides), notes=tuple(sides.notes if notes is None else notes))
    classes: dict[str, str] = {}
    style = ""
    for image in shown_images(sides) if thumbnails is not None else ():
        assert thumbnails is not None
        uri = thumbnails[image].uri
        # the same in every section of a page
        classes[image] = hashlib.sha256(uri.encode()).hexdigest()[:16]
        if uri:
            assert re.fullmatch(r"data:image/\w+;base64,[\w+/=]*", uri), image
            rule = f'.picture.of-{classes[image]} {{ background-image: url("{uri}") }}\n'
            style += "" if rule in style else rule
    environment = html_templates(Path(__file__).parent)
    template = environment.get_template("neighbours.html.j2")
    body = template.render(sides=sides, own=OWN, classes=classes, thumbnails=thumbnails or {})
    return replace(section, body=Markup(body)), style


def neighbours_in(
    results: Sequence[RunResult], photographer: Photographer | None = None
) -> Included:
    """What evaluation tasks found nearest under each run, a section for each task.

    A run stands there with its lowest seed. Runs that were asked something else than the first one
    are left out, and a note names them.

    Args:
        photographer: makes the pictures; None for a page without them.
    """
    tasks = dict.fromkeys(task for result in results for task in result.neighbours)
    sections, style = [], ""
    for task in tasks:
        seeds: dict[str, tuple[int, ModelNeighbours]] = {}
        marks: dict[str, tuple[str, ...]] = {}
        for result in sorted(results, key=lambda each: each.seed):
            if task in result.neighbours:
                seeds.setdefault(result.run, (result.seed, result.neighbours[task]))
                marks.setdefault(result.run, result.marks)
        in_order = dict.fromkeys(result.run for result in results if result.run in seeds)
        found = {run: seeds[run][1] for run in in_order}
        first = next(iter(found.values()))
        asked = {run: each for run, each in found.items() if each.question == first.question}
        sides = Sides.of(asked)
        thumbnails, notes = None, list(sides.notes)
        if photographer is not None:
            keys = {
                image: bytes.fromhex(key)
                for each in reversed(asked.values())
                for image, key in each.keys.items()
            }
            made = photographer(task, shown_images(sides), keys)
            if isinstance(made, str):
                notes.append(f"Photographs are not shown: {made}.")
            else:
                thumbnails = made
        for run in asked:
            notes += [f"{run}: {mark}." for mark in marks[run]]
        if others := [run for run in found if run not in asked]:
            notes.append(f"Left out, as they were asked something else: {', '.join(others)}.")
        used = sorted({seeds[run][0] for run in asked})
        notes.append(f"Each run with seed {' or '.join(map(str, used))}, its lowest.")
        title = "Neighbours" if task == "neighbours" else f"Neighbours: {task}"
        section, pictures = section_of(sides, title, thumbnails, notes)
        sections.append(section)
        style += "".join(rule for rule in pictures.splitlines(True) if rule not in style)
    return Included(tuple(sections), style)


def _counts(sides: Sides) -> tuple[Grid, ...]:
    """How often the nearest shares the query's image; nothing where queries have none."""
    if not any(sides.images):
        return ()
    columns = {"caption": sides.own_first(sides.captions), "image": sides.own_first(sides.pictures)}
    columns = {name: counts for name, counts in columns.items() if counts}
    rows = [
        GridRow(
            printable(model),
            tuple(
                GridCell((f"{counts[model][0]} of {counts[model][1]}",), value=counts[model][0])
                if model in counts
                else GridCell(("–",))
                for counts in columns.values()
            ),
            runs=(model,),
        )
        for model in sides.models
    ]
    header = ("the nearest is of the query's own image", *columns)
    return (Grid("Nearest of the query's own image", header, tuple(rows)),)
