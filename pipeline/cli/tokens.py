"""`sightline tokens`: training texts and phrases as token ids, once per student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, OUT, print_json
from sightline.errors import SightlineError


def tokens(
    data: Annotated[
        list[Path],
        typer.Option(
            help="Folder that `sightline prepare` wrote, or a text file, one a line; repeatable.",
            show_default=False,
        ),
    ],
    student: Annotated[
        str, typer.Option(help="Folder of an encoder, or NAME or NAME@REVISION on the hub.")
    ],
    out: OUT,
    max_length: Annotated[
        int, typer.Option(min=3, help="Maximum tokens per training text, special tokens included.")
    ] = 32,
    phrases: Annotated[
        Path | None,
        typer.Option(help="A grounding of the data set: write the tokens of its phrases instead."),
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text before every text, as in training.")] = "",
    as_json: JSON = False,
) -> None:
    """Tokenise training texts, or find the tokens of phrases.

    Example: sightline tokens --data data/mine --student bert-base-uncased --out tokens/bert
    """
    from pipeline.tokenize_texts import texts_of, tokenize
    from sightline.cache.prepared import PreparedDataset
    from sightline.cache.record import read_record

    if phrases is None:
        count = tokenize(texts_of(data), student, max_length, out, data, prompt)
        record = read_record(out)
        about = {"texts": count, "cut": record.cut}
        text = ", ".join(filter(None, (f"{count:,} distinct texts", record.cut_in_words)))
    elif len(data) > 1:
        raise SightlineError("--phrases: belong to one data set; give --data once")
    else:
        from pipeline.tokenize_phrases import summary, tokenize_phrases

        captions = PreparedDataset.open(data[0]).captions_manifest
        header = tokenize_phrases(phrases, captions, student, max_length, out, prompt)
        about = {"phrases": header.phrases, "dropped": header.dropped}
        text = summary(header)
    print_json({"out": out.as_posix(), **about}) if as_json else print(f"{out}: {text}")
