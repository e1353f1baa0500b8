"""Manifests and token sets round-trip, and errors say what is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    PHRASES,
    SENTENCES,
    CacheError,
    MissingKeys,
    PhraseTokenHeader,
    PhraseTokens,
    TokenHeader,
    TokenSet,
    key_column,
    key_of_text,
    keys_of_texts,
    pair_keys,
    read_manifest,
    verify,
    whole_files,
    write_manifest,
    write_phrase_tokens,
    write_tokens,
)

HEADER = TokenHeader("tiny", "0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(), max_size=20))
def test_any_sentence_round_trips(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("m") / "sentences.parquet"
    write_manifest(path, pa.table({"text": texts}, schema=SENTENCES), SENTENCES)
    assert read_manifest(path, SENTENCES).column("text").to_pylist() == texts


def test_the_same_rows_give_the_same_bytes(tmp_path):
    table = pa.table({"text": ["a", "b"]}, schema=SENTENCES)
    for name in ("one", "two"):
        write_manifest(tmp_path / name, table, SENTENCES)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


PHRASE = {
    **dict.fromkeys(("image_key", "caption_key", "cutout_key"), key_of_text("a")),
    **{"phrase": "a", "char_start": 0, "char_end": 1, "box": [0.0] * 4, "score": 1.0},
    "mask": {"size": [1, 1], "counts": "01"},
}
IMAGE = {"image_id": "a", "path": "a", "key": key_of_text("a"), "width": 1, "height": 1}
IMAGE |= {"split": ""}


@pytest.mark.parametrize(
    ("schema", "row", "change", "fault"),
    [
        *((PHRASES, PHRASE, {name: None}, f"{name}: found null") for name in PHRASES.names),
        *((IMAGES, IMAGE, {name: None}, f"{name}: found null") for name in IMAGE),
        (PHRASES, PHRASE, {"box": [0.0, None, 1.0, 1.0]}, "box[1]: found null"),
        (PHRASES, PHRASE, {"mask": {"size": [1, 1], "counts": None}}, "mask.counts: found null"),
        (PHRASES, PHRASE, {"mask": {"size": None, "counts": "01"}}, "mask.size: found null"),
        (PHRASES, PHRASE, {"mask": {"size": [1, None], "counts": ""}}, "mask.size[1]: found null"),
        (PHRASES, PHRASE, {"char_start": -1}, "char_start: found -1, expected a non-negative"),
        (IMAGES, IMAGE, {"offset": -5, "length": 1}, "offset: found -5, expected a non-negative"),
        (IMAGES, IMAGE, {"offset": 1, "length": -(2**63)}, "length: found -9223372036854775808"),
        (IMAGES, IMAGE, {"height": -1}, "height: found -1"),
    ],
)
def test_a_null_or_negative_value_is_named_with_its_row(tmp_path, schema, row, change, fault):
    path = tmp_path / "rows.parquet"
    rows = [row, row, {**row, **change}, row]
    write_manifest(path, pa.Table.from_pylist([row], schema), schema)
    read_manifest(path, schema)
    write_manifest(path, pa.Table.from_pylist(rows, schema), schema)
    with pytest.raises(CacheError) as caught:
        read_manifest(path, schema)
    assert f"rows.parquet: row 2: {fault}" in str(caught.value)


def test_two_images_with_one_id_are_refused_with_their_rows(tmp_path):
    path = tmp_path / "images.parquet"
    rows = [IMAGE, {**IMAGE, "image_id": "b"}, {**IMAGE, "path": "c"}]
    write_manifest(path, pa.Table.from_pylist(rows, IMAGES), IMAGES)
    with pytest.raises(CacheError, match="row 2: image_id: found 'a', as in row 0, expected an id"):
        read_manifest(path, IMAGES)


def test_keys_of_a_manifest_come_back_as_an_array(tmp_path):
    keys = [key_of_text(name) for name in "abc"]
    columns = {"image_id": list("abc"), "path": list("abc"), "key": keys, **whole_files(3)}
    sizes = {"width": [1] * 3, "height": [1] * 3, "split": [""] * 3}
    write_manifest(tmp_path / "i", pa.table({**columns, **sizes}, schema=IMAGES), IMAGES)
    column = read_manifest(tmp_path / "i", IMAGES).column("key")
    np.testing.assert_array_equal(key_column(column), keys_of_texts("abc"))
    np.testing.assert_array_equal(key_column(column.slice(1)), keys_of_texts("bc"))


def test_a_manifest_of_another_kind_is_refused(tmp_path):
    write_manifest(tmp_path / "s", pa.table({"text": ["a"]}, schema=SENTENCES), SENTENCES)
    with pytest.raises(CacheError, match="not a manifest of kind captions/1"):
        read_manifest(tmp_path / "s", CAPTIONS)
    for junk in (b"", b"junk", b"PAR1" + b"\xff" * 60 + b"PAR1"):
        (tmp_path / "junk").write_bytes(junk)
        with pytest.raises(CacheError, match="not a readable Parquet file"):
            read_manifest(tmp_path / "junk", CAPTIONS)
    with pytest.raises(CacheError, match="no such manifest"):
        read_manifest(tmp_path / "none", CAPTIONS)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=8), min_size=1, max_size=12), st.data())
def test_token_rows_are_gathered_in_the_requested_order(tmp_path_factory, ids, data):
    folder = tmp_path_factory.mktemp("tokens")
    keys = keys_of_texts([str(i) for i in range(len(ids))])
    write_tokens(folder, HEADER, keys, ids)
    tokens = TokenSet.open(folder)
    asked = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=20))
    flat, lengths = tokens.gather(tokens.rows(keys[asked]))
    assert lengths.tolist() == [len(ids[i]) for i in asked]
    assert flat.tolist() == [token for i in asked for token in ids[i]]


def test_a_repeated_text_is_tokenised_once(tmp_path):
    assert write_tokens(tmp_path, HEADER, keys_of_texts(["a", "b", "a"]), [[1], [2], [1]]) == 2
    assert len(TokenSet.open(tmp_path)) == 2
    with pytest.raises(MissingKeys, match="sightline tokens"):
        TokenSet.open(tmp_path).rows(keys_of_texts(["c"]))


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    write_tokens(tmp_path, HEADER, keys_of_texts(["a"]), [[100]])
    with pytest.raises(CacheError, match="outside the vocabulary of 100"):
        TokenSet.open(tmp_path)


def test_phrases_written_again_replace_those_of_the_same_pair(tmp_path):
    header = PhraseTokenHeader("tiny", "0" * 64, max_length=8, phrases=1)
    images, captions = keys_of_texts(["image"]), keys_of_texts(["caption"])
    for cutout, start in (("before", 1), ("after", 3)):
        cutouts = keys_of_texts([cutout])
        pairs = pair_keys(images, captions)
        write_phrase_tokens(tmp_path / "set", header, pairs, cutouts, [start], [start + 1])
    found = PhraseTokens.open(tmp_path / "set").of_pairs(images, captions)
    assert (found.starts.tolist(), found.ends.tolist()) == ([3], [4])
    assert (found.cutouts == cutouts).all()
    assert verify(tmp_path / "set") == []
