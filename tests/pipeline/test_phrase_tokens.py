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
    PhraseTokens,
    TokenSet,
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
CAPTIONS_USED = (
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


def write_captions(folder: Path, texts: tuple[str, ...] = CAPTIONS_USED) -> Path:
    rows = [
        {"caption_id": f"{i}#0", "image_id": str(i), "text": text, "split": ""}
        for i, text in enumerate(texts)
    ]
    write_manifest(folder / "captions.parquet", pa.Table.from_pylist(rows, CAPTIONS), CAPTIONS)
    return folder / "captions.parquet"


def write_phrases(folder: Path, *phrases: tuple[str, int, int], image: bytes = IMAGE) -> Path:
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
    path = folder / "phrases.parquet"
    write_manifest(path, pa.Table.from_pylist(rows, PHRASES), PHRASES)
    return path


def span(text: str, phrase: str, nth: int = 0) -> tuple[str, int, int]:
    start = -1
    for _ in range(nth + 1):
        start = text.index(phrase, start + 1)
    return text, start, start + len(phrase)


def spans_of(folder: Path, text: str) -> list[tuple[int, int, int]]:
    """First token, last + 1 and number of the phrase, as written."""
    opened = PhraseTokens.open(folder)
    found = opened.of_pairs(as_keys([IMAGE]), keys_of_texts([text]))
    cutouts = [int(key[0]) for key in found.cutouts]
    return list(zip(found.starts.tolist(), found.ends.tolist(), cutouts, strict=True))


def test_spans_of_word_pieces(bert, tmp_path):
    dog, girl, two = CAPTIONS_USED
    phrases = write_phrases(
        tmp_path,
        span(dog, "a brown dog"),
        span(dog, "a red ball"),
        span(girl, "Mädchen"),
        span(girl, "grünem Eis"),
        span(two, "two dogs", nth=1),
    )
    header = tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 32, tmp_path / "out")
    # [CLS] a brown dog runs with a red ba ##ll [SEP]
    assert spans_of(tmp_path / "out", dog) == [(1, 4, 0), (6, 10, 1)]
    # [CLS] ein mad ##chen mit gr ##unem eis [SEP]: accents stripped, spaces folded
    assert spans_of(tmp_path / "out", girl) == [(2, 4, 2), (5, 8, 3)]
    # [CLS] two dog ##s , two dog ##s [SEP]
    assert spans_of(tmp_path / "out", two) == [(5, 8, 4)]
    assert (header.phrases, header.dropped) == (5, {})


def test_spans_of_byte_pairs(roberta, tmp_path):
    dog, girl, _ = CAPTIONS_USED
    phrases = write_phrases(tmp_path, span(dog, "brown"), span(girl, "ä"))
    tokenize_phrases(phrases, write_captions(tmp_path), str(roberta), 99, tmp_path / "out")
    # <s> a Ġ b r o w n …: a byte a token; the space before the word is not part of it
    assert spans_of(tmp_path / "out", dog) == [(3, 8, 0)]
    # <s> E i n Ġ M (two bytes of ä) d …
    assert spans_of(tmp_path / "out", girl) == [(6, 8, 1)]


@pytest.mark.parametrize(
    ("max_length", "kept"), [(32, 2), (11, 2), (10, 1), (5, 1), (4, 0)], ids=str
)
def test_a_phrase_that_loses_a_token_is_dropped(bert, tmp_path, max_length, kept):
    text = CAPTIONS_USED[0]  # 11 tokens; the first phrase ends with the fourth, [SEP] follows
    phrases = write_phrases(tmp_path, span(text, "a brown dog"), span(text, "a red ball"))
    captions = write_captions(tmp_path)
    header = tokenize_phrases(phrases, captions, str(bert), max_length, tmp_path / "out")
    assert len(spans_of(tmp_path / "out", text)) == kept
    assert header.dropped == ({"truncated": 2 - kept} if kept < 2 else {})
    assert summary(header).startswith(f"{kept} of 2 phrases")


def test_a_phrase_of_white_space_has_no_token(bert, tmp_path):
    phrases = write_phrases(tmp_path, (CAPTIONS_USED[1], 11, 13), span(CAPTIONS_USED[1], "Ein"))
    captions = write_captions(tmp_path)
    header = tokenize_phrases(phrases, captions, str(bert), 32, tmp_path / "out")
    assert header.dropped == {"no_token": 1}
    assert spans_of(tmp_path / "out", CAPTIONS_USED[1]) == [(1, 2, 1)]


def test_an_added_token_never_belongs_to_a_phrase():
    assert token_span([(0, 0), (0, 3), (0, 0)], [1, 0, 1], 0, 3) == (1, 2)
    assert token_span([(0, 0), (0, 3), (3, 3)], [1, 0, 0], 1, 3) == (1, 2)
    assert token_span([(0, 0), (0, 0)], [1, 1], 0, 1) is None


def test_phrases_are_of_an_image_and_a_caption(bert, tmp_path):
    text = CAPTIONS_USED[0]
    phrases = write_phrases(tmp_path, span(text, "a brown dog"), image=OTHER)
    tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 32, tmp_path / "out")
    opened = PhraseTokens.open(tmp_path / "out")
    images = as_keys([IMAGE, OTHER, OTHER])
    found = opened.of_pairs(images, keys_of_texts([text, text, CAPTIONS_USED[2]]))
    assert found.offsets.tolist() == [0, 0, 1, 1]
    assert found.starts.dtype == np.int32


def test_the_same_input_gives_the_same_bytes(bert, tmp_path):
    phrases = write_phrases(tmp_path, span(CAPTIONS_USED[0], "dog"), span(CAPTIONS_USED[2], "two"))
    captions = write_captions(tmp_path)
    for name in ("one", "other"):
        tokenize_phrases(phrases, captions, str(bert), 32, tmp_path / name)
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "other")
    )
    assert one == other
    assert verify(tmp_path / "one") == []


@pytest.mark.parametrize(("start", "end"), [(5, 90), (-1, 3), (4, 4), (6, 2)])
def test_a_span_outside_its_caption_is_an_error(bert, tmp_path, start, end):
    phrases = write_phrases(tmp_path, (CAPTIONS_USED[0], start, end))
    outside = f"characters {start} to {end} are outside the caption"
    fault = outside if start >= 0 else f"char_start: found {start}, expected a non-negative"
    expected = rf"phrases.parquet: row 0: {fault}"
    with pytest.raises(SightlineError, match=expected):
        tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 32, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_phrase_of_an_unknown_caption_is_an_error(bert, tmp_path):
    phrases = write_phrases(tmp_path, span("not in there", "there"))
    with pytest.raises(SightlineError, match="1 of 1 phrases belong to captions that"):
        tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 32, tmp_path / "out")


def test_damaged_phrase_tokens_are_refused(bert, tmp_path):
    texts = CAPTIONS_USED[0], CAPTIONS_USED[2]
    phrases = write_phrases(tmp_path, span(texts[0], "dog"), span(texts[1], "two"))
    out = tmp_path / "out"
    tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 32, out)
    header = PhraseTokens.open(out).header
    pairs = key_column(rows_with_keys(out, "phrase-tokens").column("key"))
    write_phrase_tokens(tmp_path / "wild", header, pairs, pairs, [1, 2], [2, 999])
    with pytest.raises(CacheError, match=r"phrase \d has tokens \d to 999 of at most"):
        PhraseTokens.open(tmp_path / "wild")


def test_reasons_are_in_alphabetical_order(bert, tmp_path):
    dog, girl, _ = CAPTIONS_USED
    phrases = write_phrases(tmp_path, span(dog, "a red ball"), (girl, 11, 13))
    header = tokenize_phrases(phrases, write_captions(tmp_path), str(bert), 10, tmp_path / "out")
    assert list(header.dropped.items()) == [("no_token", 1), ("truncated", 1)]


def test_the_stage_truncates_captions_as_their_tokens_are(finished):
    tokens = TokenSet.open(finished / "data/tokens/scenes-bert").header
    spans = PhraseTokens.open(finished / "data/phrase-tokens/scenes/scenes-bert").header
    assert spans.max_length == tokens.max_length
    assert spans.tokenizer_sha256 == tokens.tokenizer_sha256
