"""`sightline phrase-tokens`: token spans of phrases for one student, with explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, OUT, print_json


def phrase_tokens(
    phrases: Annotated[Path, typer.Option(help="Phrases manifest.")],
    captions: Annotated[Path, typer.Option(help="Captions manifest.")],
    student: Annotated[str, typer.Option(help="Folder of an encoder, or its hub name.")],
    out: OUT,
    max_length: Annotated[
        int, typer.Option(min=3, help="Maximum tokens per training text, special tokens included.")
    ] = 32,
    as_json: JSON = False,
) -> None:
    """Find the token span of every phrase, once.

    Example: sightline phrase-tokens --phrases data/mine/phrases.parquet
    --captions data/mine/captions.parquet --student bert-base-uncased --out data/phrases/bert
    """
    from pipeline.tokenize_phrases import summary, tokenize_phrases

    header = tokenize_phrases(phrases, captions, student, max_length, out)
    if as_json:
        print_json({"out": out.as_posix(), "phrases": header.phrases, "dropped": header.dropped})
    else:
        print(f"{out}: {summary(header)}")
