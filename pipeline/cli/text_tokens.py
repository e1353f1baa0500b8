"""`sightline tokens`: tokenise texts for one student, with explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, OUT, print_json


def tokens(
    texts: Annotated[
        list[Path],
        typer.Option(help="A captions or sentences manifest, or a text file; repeatable."),
    ],
    student: Annotated[str, typer.Option(help="Folder of an encoder, or its hub name.")],
    out: OUT,
    max_length: Annotated[
        int, typer.Option(min=3, help="Maximum tokens per training text, special tokens included.")
    ] = 32,
    as_json: JSON = False,
) -> None:
    """Tokenise training texts, once.

    Example: sightline tokens --texts data/mine/captions.parquet --student bert-base-uncased
    --out data/tokens/bert
    """
    from pipeline.extract.inputs import texts_in
    from pipeline.tokenize_texts import tokenize

    every = [text for path in texts for text in texts_in(path)]
    count = tokenize(every, student, max_length, out, texts)
    if as_json:
        print_json({"out": out.as_posix(), "texts": count})
    else:
        print(f"{out}: {count:,} distinct texts")
