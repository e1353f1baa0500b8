"""`sightline init`: a folder in which the graph runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="Folder of the project, such as `.`; made if it is not there."
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIGURATION",
            help="A configuration and parts that change it (`sightline configure` lists them); "
            "default: scenes, the demo.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a project: dvc.yaml, params.yaml, DVC's settings and a folder for data.

    What is there is kept.

    Example: sightline init mine own
    """
    from pipeline.new_project import make_project
    from pipeline.params import FILE_NAME as PARAMS

    project = make_project(folder, names or ["scenes"])
    if project.created:
        print(f"{folder}: made {', '.join(project.created)}")
    if project.kept:
        print(f"{folder}: kept {', '.join(project.kept)}")
    if project.outdated:
        print(
            f"{folder}: dvc.yaml is not that of this version of Sightline; move it away and run "
            "this again for the new one, or, if it is of another pipeline, make the project in a "
            "folder of its own"
        )
    place = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    if names and PARAMS in project.kept:
        print(f"{folder}: {PARAMS} was there; `sightline configure {' '.join(names)}` replaces it")
    data = "" if names in (None, ["scenes"]) else "put your data where params.yaml says, then "
    print(f"Next: {data}{place}sightline repro report")
