"""Character spans become token spans: every tokenizer's quirks, truncation, bad phrases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from flat_tables import rows_with_keys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from pipeline.tokenize_phrases import summary, token_span, tokenize_phrases
from sightline.cache import (
    CAPTIONS,
    PHRASES,
    CacheError,
    PhraseTokenHeader,
    PhraseTokens,
    as_keys,
    key_column,
    key_of_text,
    keys_of_texts,
    write_manifest,
    write_phrase_tokens,
)
from sightline.cache.verify import verify
from sightline.errors import SightlineError

IMAGE, OTHER = b"i" * 32, b"o" * 32
DOG, GIRL, TWO = (
    "a brown dog runs with a red ball",
    "Ein Mädchen   mit grünem Eis",
    "two dogs , two dogs",
)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    pieces = ["a", "brown", "dog", "##s", "runs", "with", "red", "ba", "##ll", "two", ",", "ein"]
    pieces += ["mad", "##chen", "mit", "gr", "##unem", "eis"]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *pieces]))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return folder


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    """Byte-level BPE with a leading space inside the token, as RoBERTa's is."""
    folder = tmp_path_factory.mktemp("roberta")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))  # pyright: ignore
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", cls_token="<s>", sep_token="</s>"
    ).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return folder


def tokenized(
    out: Path,
    student: Path,
    *phrases: tuple[str, int, int],
    max_length: int = 32,
    image: bytes = IMAGE,
) -> PhraseTokenHeader:
    """Tokenise phrases (caption, start, end) of one image; the manifests lie beside ``out``."""
    captions = [
        {"caption_id": f"{i}#0", "image_id": str(i), "text": text, "split": ""}
        for i, text in enumerate((DOG, GIRL, TWO))
    ]
    rows = [
        {
            "image_key": image,
            "caption_key": key_of_text(text),
            "phrase": text[start:end],
            "char_start": start,
            "char_end": end,
            "box": [0.0, 0.0, 1.0, 1.0],
            "score": 1.0,
            "mask": {"size": [1, 1], "counts": "01"},
            "cutout_key": bytes([number]) * 32,
        }
        for number, (text, start, end) in enumerate(phrases)
    ]
    files = [out.with_name(f"{name}.parquet") for name in ("phrases", "captions")]
    for file, table, schema in zip(files, (rows, captions), (PHRASES, CAPTIONS), strict=True):
        write_manifest(file, pa.Table.from_pylist(table, schema), schema)
    return tokenize_phrases(*files, str(student), max_length, out)


def span(text: str, phrase: str, nth: int = 0) -> tuple[str, int, int]:
    start = -1
    for _ in range(nth + 1):
        start = text.index(phrase, start + 1)
    return text, start, start + len(phrase)


def spans_of(folder: Path, text: str) -> list[tuple[int, int, int]]:
    """First token, last + 1 and number of the phrase, as written."""
    found = PhraseTokens.open(folder).of_pairs(as_keys([IMAGE]), keys_of_texts([text]))
    cutouts = [int(key[0]) for key in found.cutouts]
    return list(zip(found.starts.tolist(), found.ends.tolist(), cutouts, strict=True))


def test_spans_of_word_pieces(bert, tmp_path):
    phrases = [
        span(DOG, "a brown dog"),
        span(DOG, "a red ball"),
        span(GIRL, "Mädchen"),
        span(GIRL, "grünem Eis"),
        span(TWO, "two dogs", nth=1),
    ]
    out, again = tmp_path / "out", tmp_path / "again"
    header = tokenized(out, bert, *phrases)
    # [CLS] a brown dog runs with a red ba ##ll [SEP]
    assert spans_of(out, DOG) == [(1, 4, 0), (6, 10, 1)]
    # [CLS] ein mad ##chen mit gr ##unem eis [SEP]: accents stripped, spaces folded
    assert spans_of(out, GIRL) == [(2, 4, 2), (5, 8, 3)]
    # [CLS] two dog ##s , two dog ##s [SEP]
    assert spans_of(out, TWO) == [(5, 8, 4)]
    assert (header.phrases, header.dropped) == (5, {})
    assert verify(out) == []
    tokenized(again, bert, *phrases)
    for file in out.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes()


def test_spans_of_byte_pairs(roberta, tmp_path):
    tokenized(tmp_path / "out", roberta, span(DOG, "brown"), span(GIRL, "ä"), max_length=99)
    # <s> a Ġ b r o w n …: a byte a token; the space before the word is not part of it
    assert spans_of(tmp_path / "out", DOG) == [(3, 8, 0)]
    # <s> E i n Ġ M (two bytes of ä) d …
    assert spans_of(tmp_path / "out", GIRL) == [(6, 8, 1)]


@pytest.mark.parametrize(("max_length", "kept"), [(11, 2), (10, 1), (5, 1), (4, 0)], ids=str)
def test_a_phrase_that_loses_a_token_is_dropped(bert, tmp_path, max_length, kept):
    """The caption has 11 tokens; the first phrase ends with the fourth, [SEP] follows."""
    phrases = span(DOG, "a brown dog"), span(DOG, "a red ball")
    header = tokenized(tmp_path / "out", bert, *phrases, max_length=max_length)
    assert len(spans_of(tmp_path / "out", DOG)) == kept
    assert header.dropped == ({"truncated": 2 - kept} if kept < 2 else {})
    assert summary(header).startswith(f"{kept} of 2 phrases")


def test_a_phrase_of_white_space_has_no_token(bert, tmp_path):
    phrases = span(DOG, "a red ball"), (GIRL, 11, 13), span(GIRL, "Ein")
    header = tokenized(tmp_path / "out", bert, *phrases, max_length=10)
    assert list(header.dropped.items()) == [("no_token", 1), ("truncated", 1)]  # in this order
    assert spans_of(tmp_path / "out", GIRL) == [(1, 2, 2)]


def test_an_added_token_never_belongs_to_a_phrase():
    assert token_span([(0, 0), (0, 3), (0, 0)], [1, 0, 1], 0, 3) == (1, 2)
    assert token_span([(0, 0), (0, 3), (3, 3)], [1, 0, 0], 1, 3) == (1, 2)
    assert token_span([(0, 0), (0, 0)], [1, 1], 0, 1) is None


def test_phrases_are_of_an_image_and_a_caption(bert, tmp_path):
    tokenized(tmp_path / "out", bert, span(DOG, "a brown dog"), image=OTHER)
    opened = PhraseTokens.open(tmp_path / "out")
    found = opened.of_pairs(as_keys([IMAGE, OTHER, OTHER]), keys_of_texts([DOG, DOG, TWO]))
    assert found.offsets.tolist() == [0, 0, 1, 1]
    assert found.starts.dtype == np.int32


@pytest.mark.parametrize(
    ("phrase", "fault"),
    [
        ((DOG, 5, 90), "row 0: characters 5 to 90 are outside the caption"),
        ((DOG, -1, 3), "row 0: char_start: found -1, expected a non-negative"),
        ((DOG, 4, 4), "row 0: characters 4 to 4 are outside the caption"),
        ((DOG, 6, 2), "row 0: characters 6 to 2 are outside the caption"),
        (("not in there", 7, 12), "1 of 1 phrases belong to captions that"),
    ],
)
def test_a_phrase_that_no_caption_has_is_an_error(bert, tmp_path, phrase, fault):
    with pytest.raises(SightlineError, match=rf"phrases.parquet: {fault}"):
        tokenized(tmp_path / "out", bert, phrase)
    assert not (tmp_path / "out").exists()


def test_damaged_phrase_tokens_are_refused(bert, tmp_path):
    out = tmp_path / "out"
    header = tokenized(out, bert, span(DOG, "dog"), span(TWO, "two"))
    pairs = key_column(rows_with_keys(out, "phrase-tokens").column("key"))
    write_phrase_tokens(tmp_path / "wild", header, pairs, pairs, [1, 2], [2, 999])
    with pytest.raises(CacheError, match=r"phrase \d has tokens \d to 999 of at most"):
        PhraseTokens.open(tmp_path / "wild")
