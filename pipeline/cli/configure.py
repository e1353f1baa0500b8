"""`sightline configure`: params.yaml from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def configure(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="A configuration and parts that change it, in this order; omit to list them.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Parameter file to write.")] = Path("params.yaml"),
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what would change; write nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that you have edited.")
    ] = False,
) -> None:
    """Write params.yaml, the parameters of `dvc repro`, from configurations.

    Example: sightline configure flickr30k roberta
    """
    from difflib import unified_diff

    from pipeline.configure import configuration, edits, to_yaml
    from pipeline.params import ParamsError, read_yaml
    from sightline.files.atomic_files import write_bytes

    if not names:
        _list()
        return
    words = " ".join(names)
    old = read_yaml(out) if out.is_file() else {}
    new = configuration(*names)
    edited, machine = edits(out) if old else (False, None)
    if old == (new | {"machine": machine} if machine else new) and not (edited and overwrite):
        print(f"{out}: already {words}")
        return
    text = to_yaml(new, names, machine)
    if diff:
        before = out.read_text(encoding="utf-8") if old else ""
        for line in unified_diff(
            before.splitlines(), text.splitlines(), str(out), words, "", "", 1, ""
        ):
            print(line)
        return
    if edited and not overwrite:
        raise ParamsError(
            f"{out}: is not as `sightline configure` wrote it, and this would overwrite your edits "
            "(--diff shows them); keep a copy, or pass --overwrite"
        )
    write_bytes(out, text.encode())
    print(f"{out}: {words}{', with the section `machine` it had' if machine else ''}")


def _list() -> None:
    from pipeline.configure import configurations, first_line, parts

    whole, changes = configurations(), parts()
    width = max(map(len, [*whole, *changes]), default=0)
    for name, path in whole.items():
        print(f"{name:{width}}  {first_line(path)}")
    print(
        "\nParts change the configuration before them: `sightline configure flickr30k roberta`.\n"
    )
    for name, path in changes.items():
        print(f"{name:{width}}  {first_line(path)}")
