"""Tokenise training texts, once per student."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.extract.inputs import texts_in
from sightline.atomic_files import model_paths
from sightline.cache import TokenHeader, keys_of_texts, write_tokens
from sightline.cache.keys import key_of_file
from sightline.cache.prepared import RECORD, PreparedDataset
from sightline.cache.record import set_output
from sightline.errors import SightlineError
from sightline.progress import progress

_CHUNK = 10_000


def texts_of(data: Iterable[Path]) -> list[str]:
    """The training texts of data sets: captions and sentences; or of files, see `texts_in`."""
    texts: list[str] = []
    for path in data:
        if (path / RECORD).is_file():
            texts += PreparedDataset.open(path).texts
        else:
            texts += texts_in(path)
    return texts


def tokenize(
    texts: Sequence[str],
    student: Path | str,
    max_length: int,
    out: Path | str,
    inputs: Sequence[Path] = (),
) -> int:
    """Write the token set of ``texts`` for ``student`` to ``out``; repeated texts count once.

    Args:
        student: folder of a Hugging Face encoder or its hub name, also NAME@REVISION.
        max_length: maximum tokens per row, special tokens included; longer texts are truncated.
        inputs: source files of the texts.

    Returns:
        The number of distinct texts.

    Raises:
        SightlineError: the tokenizer cannot be loaded, has no padding token, or ``out`` cannot be
            written to (`sightline.output`).
    """
    student, out = str(student), Path(out)
    set_output(out, [*inputs, *model_paths(student)], kind="tokens").check_place()
    from sightline.sentence_transformers_folder import (
        load_tokenizer,
        read_recipe,
        token_ids,
        tokenizer_sha256,
    )

    tokenizer = load_tokenizer(student, read_recipe(student, bare=True))
    pad = tokenizer.pad_token_id
    if not isinstance(pad, int):
        raise SightlineError(f"{student}: its tokenizer has no padding token; use BERT or RoBERTa")
    texts = list(dict.fromkeys(texts))
    input_ids: list[list[int]] = []
    with progress(f"tokens for {Path(student).name}", len(texts), "texts") as advance:
        for start in range(0, len(texts), _CHUNK):
            part = list(texts[start : start + _CHUNK])
            input_ids += token_ids(tokenizer, part, max_length)
            advance(len(part))
    header = TokenHeader(
        student=Path(student).name,
        tokenizer_sha256=tokenizer_sha256(tokenizer),
        max_length=max_length,
        pad_token_id=pad,
        vocabulary_size=len(tokenizer),
        weights=weights_identity(student),
    )
    return write_tokens(out, header, keys_of_texts(texts), input_ids)


def weights_identity(student: str) -> str:
    """The student's initial weights: SHA-256 of its folder's files, or a hub commit."""
    from sightline.sentence_transformers_folder import files_of

    folder = Path(student)
    if folder.is_dir():
        files = files_of(folder)
        return "sha256:" + hashlib.sha256(b"".join(map(key_of_file, files))).hexdigest()
    from sightline.pretrained import Pretrained

    return f"hub:{getattr(Pretrained(student).config(), '_commit_hash', None)}"
