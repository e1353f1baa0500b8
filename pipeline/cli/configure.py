"""`sightline configure`: params.yaml from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_NAME = Annotated[
    str | None, typer.Argument(help="A file in configs/, without suffix; omit to list them.")
]
_OUT = Annotated[Path, typer.Option("--out", help="Parameter file to write.")]
_DIFF = Annotated[bool, typer.Option("--diff", help="Show what would change; write nothing.")]
_OVERWRITE = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file that you have edited.")
]


def configure(
    name: _NAME = None,
    out: _OUT = Path("params.yaml"),
    diff: _DIFF = False,
    overwrite: _OVERWRITE = False,
) -> None:
    """Write params.yaml, the parameters of `dvc repro`, from a configuration.

    Example: sightline configure flickr30k
    """
    from pipeline.configure import (
        configuration,
        configurations,
        differences,
        keeping_engine,
        origin,
        to_yaml,
        without_engine,
    )
    from pipeline.params import ParamsError, read_yaml
    from sightline.files import write_bytes

    if name is None:
        described = configurations()
        width = max(map(len, described), default=0)
        for each, line in described.items():
            print(f"{each:{width}}  {line}")
        return
    old = read_yaml(out) if out.is_file() else {}
    new = keeping_engine(configuration(name), old)
    if diff:
        for line in differences(old, new) or [f"{out}: nothing differs from {name}"]:
            print(line)
        return
    if old == new:
        print(f"{out}: already {name}")
        return
    if old and not overwrite and origin(without_engine(old)) is None:
        raise ParamsError(
            f"{out}: you have edited this file, and this would overwrite your edits (`sightline "
            f"configure {name} --diff` shows them); keep a copy, or pass --overwrite"
        )
    write_bytes(out, to_yaml(new, name).encode())
    print(f"{out}: {name}{', with the engine it had' if 'engine' in old else ''}")
