"""Turn the character spans of phrases into token spans, once per student."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sightline.cache import (
    CAPTIONS,
    PhraseTokenHeader,
    as_keys,
    key_column,
    keys_of_texts,
    pair_keys,
    read_manifest,
    write_phrase_tokens,
)
from sightline.cache.groundings import read_phrases
from sightline.cache.record import set_output
from sightline.errors import SightlineError
from sightline.files.atomic_files import model_paths
from sightline.machine.progress import progress

TRUNCATED = "truncated"
NO_TOKEN = "no_token"
_CHUNK = 10_000


def tokenize_phrases(
    phrases: Path,
    captions: Path,
    student: str,
    max_length: int,
    out: Path,
    prompt: str | None = None,
) -> PhraseTokenHeader:
    """Write the phrase tokens of ``phrases`` for ``student`` to ``out``.

    Drops phrases with tokens beyond the truncation of their caption (reason ``truncated``), and
    phrases without any token (``no_token``).

    Args:
        phrases: a phrases manifest, or the records of a grounding.
        captions: the captions manifest with their texts.
        student: folder of a Hugging Face encoder or its hub name.
        max_length: maximum tokens of a caption, as in its token set.
        prompt: text before every caption, as in its token set; None: the student's default one.

    Raises:
        SightlineError: a manifest is missing, a phrase belongs to a missing caption or is outside
            its text, the tokenizer cannot be loaded or has no character offsets, or ``out`` cannot
            be written to (`sightline.files.output`).
    """
    inputs = [phrases, captions, *model_paths(student)]
    set_output(out, inputs, kind="phrase-tokens").check_place()
    table = read_phrases(phrases)
    texts = _texts_of(table.column("caption_key").to_pylist(), captions, phrases)
    spans = list(zip(table["char_start"].to_pylist(), table["char_end"].to_pylist(), strict=True))
    rows_of: dict[str, list[int]] = {}
    for row, (text, (start, end)) in enumerate(zip(texts, spans, strict=True)):
        if not 0 <= start < end <= len(text):
            raise SightlineError(
                f"{phrases}: row {row}: characters {start} to {end} are outside the caption "
                f"{text[:60]!r}, which has {len(text)}; recreate the phrases of these captions"
            )
        rows_of.setdefault(text, []).append(row)
    from sightline.models.sentence_transformers_folder import (
        check_room,
        load_tokenizer,
        prompt_of,
        read_recipe,
        tokenizer_sha256,
    )

    tokenizer = load_tokenizer(student, read_recipe(student, bare=True))
    prompt = prompt_of(student, prompt)
    check_room(student, tokenizer, prompt, max_length)
    if not tokenizer.is_fast:
        raise SightlineError(f"{student}: its tokenizer has no character offsets; use a fast one")
    digest = tokenizer_sha256(tokenizer)
    token_spans = np.full((len(texts), 2), -1, dtype=np.int32)
    dropped: Counter[str] = Counter()
    distinct = list(rows_of)
    with progress(f"phrase tokens for {Path(student).name}", len(distinct), "captions") as advance:
        for first in range(0, len(distinct), _CHUNK):
            part = distinct[first : first + _CHUNK]
            encoded: Any = tokenizer(
                [prompt + text for text in part],
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                verbose=False,
            )
            columns = encoded["offset_mapping"], encoded["special_tokens_mask"]
            for text, offsets, special in zip(part, *columns, strict=True):
                visible = _tokens_seen(special, max_length)
                for row in rows_of[text]:
                    start, end = (len(prompt) + place for place in spans[row])
                    span = token_span(offsets, special, start, end)
                    if span is None:
                        dropped[NO_TOKEN] += 1
                    elif span[1] > visible:
                        dropped[TRUNCATED] += 1
                    else:
                        token_spans[row] = span
            advance(len(part))
    kept = np.flatnonzero(token_spans[:, 0] >= 0)
    keys = {name: key_column(table.column(name)) for name in ("image_key", "caption_key")}
    header = PhraseTokenHeader(
        digest, max_length, len(texts), dict(sorted(dropped.items())), prompt
    )
    write_phrase_tokens(
        out,
        header,
        pair_keys(keys["image_key"][kept], keys["caption_key"][kept]),
        key_column(table.column("cutout_key"))[kept],
        *token_spans[kept].T.tolist(),
    )
    return header


def token_span(
    offsets: Iterable[tuple[int, int]], special: Iterable[int], start: int, end: int
) -> tuple[int, int] | None:
    """The tokens that hold any of the characters ``start`` … ``end`` − 1, as [first, last + 1).

    Args:
        offsets: characters of each token, from a fast tokenizer's offset mapping.
        special: 1 for tokens that the tokenizer added, such as [CLS].

    Returns:
        None if no token holds any of them.
    """
    inside = [
        position
        for position, ((begin, stop), added) in enumerate(zip(offsets, special, strict=True))
        if not added and begin < end and stop > start and stop > begin
    ]
    return (inside[0], inside[-1] + 1) if inside else None


def _tokens_seen(special: list[int], max_length: int) -> int:
    """How many tokens of a caption stay in place when it is truncated to ``max_length``.

    Truncation keeps the added tokens at the end, so fewer of the others remain.
    """
    if len(special) <= max_length:
        return len(special)
    last = max((i for i, added in enumerate(special) if not added), default=-1)
    return max_length - (len(special) - 1 - last)


def _texts_of(keys: list[bytes], captions: Path, phrases: Path) -> list[str]:
    """The caption of each key."""
    every = list(dict.fromkeys(read_manifest(captions, CAPTIONS).column("text").to_pylist()))
    text_of = dict(zip(map(bytes, as_keys(keys_of_texts(every))), every, strict=True))
    absent = [key for key in keys if key not in text_of]
    if absent:
        raise SightlineError(
            f"{phrases}: {len(absent):,} of {len(keys):,} phrases belong to captions that "
            f"{captions} does not have, such as {absent[0].hex()[:16]}; recreate the phrases of "
            "these captions"
        )
    return [text_of[key] for key in keys]


def summary(header: PhraseTokenHeader) -> str:
    """One line: the number of phrases, and how many were dropped and why."""
    kept = header.phrases - sum(header.dropped.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in header.dropped.items())
    return f"{kept:,} of {header.phrases:,} phrases" + (f" · dropped: {reasons}" if reasons else "")
