"""`sightline tokens`: training texts and phrases as token ids, once per student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.model_options import takes
from pipeline.cli.options import JSON, OUT, of_dataset, option, print_json
from train.run_spec import StudentConfig


@takes(
    "student",
    StudentConfig,
    panel="Model",
    only={"model", "revision", "max_length", "prompt"},
    names={"model": "student"},
)
def tokens(
    student: StudentConfig,
    out: OUT,
    data: Annotated[
        Path | None, of_dataset("Prepared data set of images and captions, or its URL.")
    ] = None,
    text: Annotated[
        Path | None,
        of_dataset("Prepared data set of sentences, or its URL; or a text file, one a line."),
    ] = None,
    phrases: Annotated[
        Path | None,
        option("Data", "A grounding of the data set: write the tokens of its phrases instead."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Tokenise training texts, or find the tokens of phrases.

    Example: sightline tokens --data data/mine --student bert-base-uncased --out tokens/bert
    """
    from pipeline.tokenize_texts import texts_of, tokenize
    from sightline.cache.prepared import PreparedDataset
    from sightline.cache.record import read_record

    encoder, length, prompt = student.source, student.max_length, student.prompt
    if phrases is None:
        if not (sets := [path for path in (data, text) if path is not None]):
            raise typer.BadParameter("give --data, --text, or both")
        count = tokenize(texts_of(sets), encoder, length, out, sets, prompt)
        record = read_record(out)
        about = {"texts": count, "cut": record.cut}
        told = ", ".join(filter(None, (f"{count:,} distinct texts", record.cut_in_words)))
    elif data is None or text is not None:
        raise typer.BadParameter(
            "belong to captions: give their data set as --data alone", param_hint="--phrases"
        )
    else:
        from pipeline.tokenize_phrases import summary, tokenize_phrases

        captions = PreparedDataset.open(data).captions_manifest
        header = tokenize_phrases(phrases, captions, encoder, length, out, prompt)
        about = {"phrases": header.phrases, "dropped": header.dropped}
        told = summary(header)
    print_json({"out": out.as_posix(), **about}) if as_json else print(f"{out}: {told}")
