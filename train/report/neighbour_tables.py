"""Neighbours of sentences under several models side by side, as a document or a part of a page."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sightline.html_pages import Thumbnail, html_templates
from train.evaluate.ranking import DECIMALS
from train.evaluate.results import Hits, ModelNeighbours, Neighbour, RunResult
from train.report.tables import Cell, Column, Document, Row, Section, Table, number

SCHEMA = "sightline.neighbours/2"
OWN = "•"
"""Marks a caption of the query's own image, or that image."""

Models = Mapping[str, ModelNeighbours]
"""Name → what the model finds; all were asked the same."""
Marks = Mapping[str, Sequence[str]]
"""Name of a model → what a reader must know of it, such as that its weights are untrained."""
Thumbnails = Mapping[str, Thumbnail]
Photographer = Callable[[str, Sequence[str], Mapping[str, bytes]], Thumbnails | str]
"""(evaluation task, ids of images, id → SHA-256) → their pictures, or why there are none."""


def document_of(
    models: Models, title: str, marks: Marks, thumbnails: Thumbnails | None = None
) -> Document:
    """Them for any format; see `section_of`."""
    notes = notes_of(models, marks)
    body = {"models": models, "notes": notes}
    return Document(title, SCHEMA, (section_of(models, title, thumbnails, notes),), body)


def section_of(
    models: Models, title: str, thumbnails: Thumbnails | None, notes: Sequence[str]
) -> Section:
    """A column for each model.

    Args:
        thumbnails: image id → its picture, for every one of `shown_images`; None for a page
            without pictures. Each is in the page once, as the background of a class of the style
            sheet.
        notes: how to read it.
    """
    classes: dict[str, str] = {}
    style: list[str] = []
    thumbnails = thumbnails or {}
    for image in shown_images(models) if thumbnails else ():
        uri = thumbnails[image].uri
        # the same in every section of a page
        classes[image] = hashlib.sha256(uri.encode()).hexdigest()[:16]
        if uri:
            assert re.fullmatch(r"data:image/\w+;base64,[\w+/=]*", uri), image
            style.append(f'.picture.of-{classes[image]} {{ background-image: url("{uri}") }}\n')
    environment = html_templates(Path(__file__).parent)
    environment.filters["cosines"] = cosine_texts
    first = next(iter(models.values()))
    html = environment.get_template("neighbours.html.j2").render(
        models=models, first=first, own=OWN, classes=classes, thumbnails=thumbnails
    )
    tables = tuple(
        table
        for place in range(len(first.queries))
        for kind in ("captions", "pictures")
        for table in _answers(models, place, kind)
    )
    return Section(title, tables, notes=tuple(notes), html=html, style="".join(style))


def neighbours_in(
    results: Sequence[RunResult], photographer: Photographer | None = None
) -> tuple[Section, ...]:
    """What evaluation tasks found nearest under each run, a section for each task.

    A run stands there with its lowest seed. Runs that were asked something else than the first one
    are left out, and a note names them.

    Args:
        photographer: makes the pictures; None for a page without them.
    """
    sections = []
    for task in dict.fromkeys(task for result in results for task in result.tasks):
        lowest: dict[str, RunResult] = {}
        neighbours: dict[str, ModelNeighbours] = {}
        for result in sorted(results, key=lambda result: result.seed):
            answer = result.tasks[task].neighbours if task in result.tasks else None
            if answer is not None and result.run not in lowest:
                lowest[result.run], neighbours[result.run] = result, answer
        runs = [run for run in dict.fromkeys(result.run for result in results) if run in lowest]
        if not runs:
            continue
        question = neighbours[runs[0]].query_set
        models = {run: neighbours[run] for run in runs if neighbours[run].query_set == question}
        thumbnails, notes = None, notes_of(models, {run: lowest[run].marks for run in models})
        if photographer is not None:
            keys = {
                image: bytes.fromhex(key)
                for model in reversed(models.values())
                for image, key in model.keys.items()
            }
            pictures = photographer(task, shown_images(models), keys)
            if isinstance(pictures, str):
                notes.append(f"Photographs are not shown: {pictures}.")
            else:
                thumbnails = pictures
        if left_out := [run for run in runs if run not in models]:
            notes.append(f"Left out, as they were asked something else: {', '.join(left_out)}.")
        used = sorted({lowest[run].seed for run in models})
        notes.append(f"Each run with seed {' or '.join(map(str, used))}, its lowest.")
        title = "Neighbours" if task == "neighbours" else f"Neighbours: {task}"
        sections.append(section_of(models, title, thumbnails, notes))
    return tuple(sections)


def shown_images(models: Models) -> list[str]:
    """Ids of the images that a page shows, each once, in the order of their appearance.

    Of a caption that several images share, it is the first.
    """
    shown: dict[str, None] = {}
    for place, images in enumerate(next(iter(models.values())).images):
        shown.update(dict.fromkeys(images[:1]))
        for kind in ("captions", "pictures"):
            for answers in _found(models, kind).values():
                for neighbour in answers.neighbours[place] if answers.neighbours else ():
                    shown.update(dict.fromkeys(neighbour.images[:1]))
    return list(shown)


def notes_of(models: Models, marks: Marks) -> list[str]:
    """How to read the neighbours."""
    first = next(iter(models.values()))
    notes = [f"Among {first.pool}, by cosine; equal cosines in the order of the file."]
    if any(first.images):
        notes.append(
            ("A caption equal to the query is left out. " if first.captions else "")
            + f"{OWN} marks a caption of the query's own image"
            + f"{', or that image' if _found(models, 'pictures') else ''}."
        )
    for name, kind in (("captions", "captions"), ("images", "pictures")):
        for model, answers in _found(models, kind).items():
            texts = (answers.reason, answers.warning)
            notes += [f"{model}, {name}: {text}." for text in texts if text]
    return notes + [f"{model}: {mark}." for model in models for mark in marks.get(model, ())]


def _found(models: Models, kind: str) -> dict[str, Hits]:
    """Model → its captions or pictures, if it was asked for them."""
    answers = {name: getattr(model, kind) for name, model in models.items()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def _answers(models: Models, place: int, kind: str) -> tuple[Table, ...]:
    """The nearest captions or images of one query, a column for each model that finds any."""
    first = next(iter(models.values()))
    rows_of = {
        name: answers.neighbours[place]
        for name, answers in _found(models, kind).items()
        if not answers.reason
    }
    if not rows_of:
        return ()
    images = f" ({', '.join(first.images[place])})" if first.images[place] else ""
    name = "captions" if kind == "captions" else "images"
    title = f"{first.queries[place]}{images}: nearest {name}"
    cells_of = {name: _cells(nearest, kind) for name, nearest in rows_of.items()}
    rows = []
    for rank in range(max(map(len, cells_of.values()))):
        cells = {name: column[rank] for name, column in cells_of.items() if rank < len(column)}
        rows.append(Row(str(rank + 1), cells))
    columns = tuple(Column(name, run=name) for name in rows_of)
    return (Table(title, "", columns, tuple(rows)),)


def _cells(nearest: Sequence[Neighbour], kind: str) -> list[Cell]:
    """A cell for each neighbour of a query."""
    cells = []
    for neighbour, cosine in zip(nearest, cosine_texts(nearest), strict=True):
        mark = f" {OWN}" if neighbour.own else ""
        name = neighbour.images[0] if kind == "pictures" else ""
        text = ": ".join(filter(None, (name, neighbour.text)))
        cells.append(Cell(text=f"{cosine}{mark} {text}", strong=neighbour.own))
    return cells


def cosine_texts(nearest: Sequence[Neighbour]) -> list[str]:
    """Cosines of a query's neighbours, with the decimals that tell them apart, at least three."""
    cosines = [neighbour.cosine for neighbour in nearest]
    for decimals in range(3, DECIMALS + 1):
        texts = [number(cosine, f".{decimals}f") for cosine in cosines]
        if len(set(texts)) == len(set(cosines)):
            break
    return texts
