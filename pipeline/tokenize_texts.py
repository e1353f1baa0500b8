"""Tokenise training texts, once per student."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.extract.inputs import text_array
from sightline.cache import SetWriter, TokenHeader, TokenSet, keys_of_texts
from sightline.cache.keys import Keys, at, find_keys, unique_sorted
from sightline.cache.prepared import RECORD, PreparedDataset
from sightline.cache.record import TableSpec, set_output
from sightline.cache.table_sets import described
from sightline.cache.tables import TOKENS
from sightline.errors import CacheError, SightlineError
from sightline.files.atomic_files import model_paths
from sightline.machine.progress import progress
from sightline.tables.arrow_arrays import number_array

_CHUNK = 10_000


def texts_of(data: Iterable[Path]) -> pa.ChunkedArray:
    """The training texts of data sets: captions and sentences; or of files, see `text_array`."""
    chunks: list[pa.Array] = []
    for path in data:
        if (path / RECORD).is_file():
            prepared = PreparedDataset.open(path)
            for table in (prepared.captions, prepared.sentences):
                chunks += table["text"].chunks
        else:
            chunks += text_array(path).chunks
    return pa.chunked_array(chunks, pa.large_string())


def tokenize(
    texts: Sequence[str] | pa.ChunkedArray,
    student: Path | str,
    max_length: int,
    out: Path | str,
    inputs: Sequence[Path] = (),
    prompt: str | None = None,
) -> int:
    """Make ``out`` hold the tokens of exactly ``texts`` for ``student``; new ones are tokenised.

    Args:
        student: folder of a Hugging Face encoder or its hub name, also NAME@REVISION.
        max_length: maximum tokens per row, special tokens included; longer texts are truncated.
        inputs: source files of the texts.
        prompt: text before every text; None: the student's default one; empty: none.

    Returns:
        The number of distinct texts.

    Raises:
        SightlineError: the tokenizer cannot be loaded, has no padding token, the prompt leaves no
            room for a text, or ``out`` cannot be written to (`sightline.files.output`).
    """
    student, out = str(student), Path(out)
    set_output(out, [*inputs, *model_paths(student)], kind="tokens").check_place()
    from sightline.models.sentence_transformers_folder import (
        check_room,
        count_longer,
        load_tokenizer,
        prompt_of,
        read_recipe,
        token_ids,
        tokenizer_sha256,
    )

    tokenizer = load_tokenizer(student, read_recipe(student, bare=True))
    prompt = prompt_of(student, prompt)
    check_room(student, tokenizer, prompt, max_length)
    pad = tokenizer.pad_token_id
    if not isinstance(pad, int):
        raise SightlineError(f"{student}: its tokenizer has no padding token; give it one")
    header = TokenHeader(
        tokenizer_sha256=tokenizer_sha256(tokenizer),
        max_length=max_length,
        pad_token_id=pad,
        vocabulary_size=len(tokenizer),
        prompt=prompt,
    )

    column = texts if isinstance(texts, pa.ChunkedArray) else pa.array(texts, pa.large_string())
    table = pa.table({"text": column})
    keys = keys_of_texts(text.as_py() for text in table["text"])
    places = unique_sorted(keys)
    keys = at(keys, places)
    new, cut = np.zeros(len(keys), dtype=bool), 0

    spec = TableSpec(kind="tokens", description=described(header))
    with SetWriter(out, spec, [*inputs, *model_paths(student)]) as writer:
        batches, counts = writer.plan(keys, batch_size=_CHUNK), writer.counts
        title = f"tokens for {Path(student).name}"
        with progress(title, counts.planned, "texts", counts.resumed) as advance:
            for batch in batches:
                rows = find_keys(keys, batch.keys)
                new[rows] = True
                part = _texts(table, places[rows], prompt)
                ids = token_ids(tokenizer, part, max_length)
                full = [text for text, row in zip(part, ids, strict=True) if len(row) == max_length]
                cut += count_longer(tokenizer, full, max_length)
                writer.add(batch, pa.table([pa.array(ids, TOKENS.field(0).type)], TOKENS))
                advance(len(batch.keys))
        earlier = np.flatnonzero(~new & _may_be_cut(out, keys))
        for start in range(0, len(earlier), _CHUNK):
            part = _texts(table, places[earlier[start : start + _CHUNK]], prompt)
            cut += count_longer(tokenizer, part, max_length)
        del texts, column, table, places  # publishing needs the memory
        return writer.publish(cut=cut).rows


def _texts(table: pa.Table, rows: NDArray[np.int64], prompt: str) -> list[str]:
    """The texts of ``rows``, each after the prompt."""
    return [prompt + text for text in table.take(number_array(rows))["text"].to_pylist()]


def _may_be_cut(out: Path, keys: Keys) -> NDArray[np.bool_]:
    """Whether each text has the maximum of tokens in the set ``out``, or is not in it."""
    may = np.ones(len(keys), dtype=bool)
    with suppress(CacheError):  # a set that is not there, or damaged
        tokens = TokenSet.open(out)
        short = tokens.keys[tokens.lengths < tokens.header.max_length]
        may[find_keys(short, keys) >= 0] = False
    return may
