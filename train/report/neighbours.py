"""Neighbours of sentences under several models side by side, as JSON and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.evaluate.results import Found, ModelNeighbours, Neighbour
from train.report.grid import printable

_NARROWEST = 30  # characters of a column before the models are put below each other
OWN = "•"
"""Marks a caption of the query's own image, or that image."""


@dataclass(frozen=True)
class Sides:
    """Several models side by side.

    Attributes:
        queries: q sentences.
        images: of each query, the images that it is a caption of; often empty.
        models: names in the order of the columns.
        captions: model → nearest captions.
        pictures: model → nearest images; empty if none were asked for.
        pool: what the captions were found among, in words.
        k: neighbours asked for.
    """

    queries: tuple[str, ...]
    images: tuple[tuple[str, ...], ...]
    models: tuple[str, ...]
    captions: Mapping[str, Found]
    pictures: Mapping[str, Found]
    pool: str
    k: int

    @classmethod
    def of(cls, models: Mapping[str, ModelNeighbours]) -> Sides:
        """Models, by name, that were asked the same."""
        first = next(iter(models.values()))
        return cls(
            first.queries,
            first.images,
            tuple(models),
            {name: each.captions for name, each in models.items()},
            {name: each.pictures for name, each in models.items() if each.pictures},
            first.pool,
            first.k,
        )

    @property
    def notes(self) -> list[str]:
        """How to read the neighbours."""
        notes = [f"Among {self.pool}, by cosine; equal cosines in the order of the file."]
        if any(self.images):
            notes.append(
                "A caption equal to the query is left out. "
                f"{OWN} marks a caption of the query's own image"
                f"{', or that image' if self.pictures else ''}."
            )
        for what, found in (("captions", self.captions), ("images", self.pictures)):
            for model in found:
                said = (found[model].reason, found[model].warning)
                notes += [f"{model}, {what}: {each}." for each in said if each]
        return notes

    def own_first(self, found: Mapping[str, Found]) -> dict[str, tuple[int, int]]:
        """Model → (queries whose nearest neighbour shares their image, queries with an image)."""
        counts = {}
        for model in self.models:
            if model in found and not found[model].reason:
                pairs = zip(self.images, found[model].neighbours, strict=True)
                firsts = [bool(row and row[0].own) for images, row in pairs if images]
                counts[model] = (sum(firsts), len(firsts))
        return counts

    def to_json(self) -> dict[str, object]:
        """Everything, as JSON."""
        return {
            "schema": "sightline.neighbours/1",
            "pool": self.pool,
            "k": self.k,
            "models": list(self.models),
            "queries": [
                {
                    "text": query,
                    "images": list(images),
                    "captions": self._json_of(self.captions, number),
                    **(
                        {"nearest_images": self._json_of(self.pictures, number)}
                        if self.pictures
                        else {}
                    ),
                }
                for number, (query, images) in enumerate(
                    zip(self.queries, self.images, strict=True)
                )
            ],
            "notes": self.notes,
            "reasons": {
                model: found.reason for model, found in self.pictures.items() if found.reason
            },
        }

    def _json_of(self, found: Mapping[str, Found], number: int) -> dict[str, object]:
        return {
            model: None
            if found[model].reason
            else [
                {
                    **({"text": each.text, "captions": list(each.captions)} if each.text else {}),
                    "images": list(each.images),
                    "cosine": each.cosine,
                    "own_image": each.own,
                }
                for each in found[model].neighbours[number]
            ]
            for model in self.models
        }


def print_neighbours(sides: Sides, console: Console) -> None:
    """A table for each query: a column per model, or a table per model on a narrow terminal."""
    columns = len(sides.models)
    groups = [sides.models]
    if columns > 1 and console.width // columns < _NARROWEST:
        groups = [(model,) for model in sides.models]
    for number, query in enumerate(sides.queries):
        images = ", ".join(sides.images[number])
        title = Text(printable(query), style="bold")
        title.append(f"  ({printable(images)})" if images else "", style="dim")
        console.print(title)
        for what, found in (("captions", sides.captions), ("images", sides.pictures)):
            for group in groups:
                models = [model for model in group if model in found and not found[model].reason]
                if models:
                    console.print()
                    console.print(_table(f"nearest {what}", found, models, number))
        console.print()
    for what, found in (("caption", sides.captions), ("image", sides.pictures)):
        for model, (hits, of) in sides.own_first(found).items():
            if of:
                of_image = "is" if what == "image" else "is of"
                console.print(
                    Text(
                        f"{printable(model)}: the nearest {what} {of_image} the query's own image "
                        f"for {hits} of {of} queries."
                    )
                )
    for note in sides.notes:
        console.print(Text(printable(note), style="dim"))


def _table(title: str, found: Mapping[str, Found], models: Sequence[str], number: int) -> Table:
    if len(models) == 1:
        title = f"{printable(models[0])}: {title}"
    table = Table(
        title=Text(title, style="dim"),
        title_justify="left",
        show_header=len(models) > 1,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        expand=len(models) > 1,
    )
    table.add_column("", justify="right", no_wrap=True)
    for model in models:
        table.add_column(Text(printable(model)), ratio=1, overflow="fold")
    rows = [found[model].neighbours[number] for model in models]
    for rank in range(max(map(len, rows))):
        cells = [_cell(row[rank]) if rank < len(row) else Text("") for row in rows]
        table.add_row(Text(str(rank + 1), style="dim"), *cells)
    return table


def _cell(each: Neighbour) -> Text:
    cell = Text()
    cell.append(f"{each.cosine:.3f} ", style="cyan")
    cell.append(f"{OWN} " if each.own else "", style="bold green")
    cell.append(printable(each.text or each.images[0]), style="bold" if each.own else "")
    return cell


def shown_images(sides: Sides) -> list[str]:
    """Ids of the images that a page shows, each once, in the order of their appearance.

    Of a caption that several images share, it is the first.
    """
    shown: dict[str, None] = {}
    for number, images in enumerate(sides.images):
        shown.update(dict.fromkeys(images[:1]))
        for found in (*sides.captions.values(), *sides.pictures.values()):
            for each in found.neighbours[number] if found.neighbours else ():
                shown.update(dict.fromkeys(each.images[:1]))
    return list(shown)
