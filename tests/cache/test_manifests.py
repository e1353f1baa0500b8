"""Manifests, places of images, masks and token sets round-trip, and errors say what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stub_set import HEADER, SPANS

from pipeline.datasets.prepare import building
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    PHRASES,
    SENTENCES,
    CacheError,
    MissingKeys,
    PhraseTokens,
    Place,
    TokenSet,
    key_column,
    key_of_text,
    keys_of_texts,
    pair_keys,
    places_of,
    read_manifest,
    verify,
    whole_files,
    write_manifest,
    write_phrase_tokens,
    write_tokens,
)
from sightline.cache.cutout_identity import cutout_key
from sightline.cache.rle import (
    compress_counts,
    decode_mask,
    encode_mask,
    expand_counts,
    run_lengths,
)

NAME = Path("images.parquet")
PHRASE = {
    **dict.fromkeys(("image_key", "caption_key", "cutout_key"), key_of_text("a")),
    **{"phrase": "a", "char_start": 0, "char_end": 1, "box": [0.0] * 4, "score": 1.0},
    "mask": {"size": [1, 1], "counts": "01"},
}
IMAGE = {"image_id": "a", "path": "a.tar", "key": key_of_text("a"), "width": 1, "height": 1}
IMAGE |= {"split": ""}


def images(*changes):
    """A manifest of one image for each of the ``changes``."""
    return pa.Table.from_pylist([{**IMAGE, **change} for change in changes], IMAGES)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(), max_size=20))
def test_any_sentence_round_trips_to_the_same_bytes(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("m")
    for name in ("one", "two"):
        write_manifest(folder / name, pa.table({"text": texts}, schema=SENTENCES), SENTENCES)
    assert read_manifest(folder / "one", SENTENCES).column("text").to_pylist() == texts
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


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
        (IMAGES, IMAGE, {"image_id": "a"}, "image_id: found 'a', as in row 0, expected an id of"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_row(tmp_path, schema, row, change, fault):
    path = tmp_path / "rows.parquet"
    rows = [row, {**row, "image_id": "b"}, {**row, "image_id": "c", **change}]
    write_manifest(path, pa.Table.from_pylist(rows[:2], schema), schema)
    read_manifest(path, schema)
    write_manifest(path, pa.Table.from_pylist(rows, schema), schema)
    with pytest.raises(CacheError) as caught:
        read_manifest(path, schema)
    assert f"rows.parquet: row 2: {fault}" in str(caught.value)


def test_keys_and_places_of_a_manifest_come_back(tmp_path):
    keys = [key_of_text(name) for name in "abc"]
    columns = {name: [value] * 3 for name, value in IMAGE.items()} | whole_files(3)
    table = pa.table({**columns, "image_id": list("abc"), "key": keys}, schema=IMAGES)
    write_manifest(tmp_path / NAME, table, IMAGES)
    found = read_manifest(tmp_path / NAME, IMAGES)
    np.testing.assert_array_equal(key_column(found["key"]), keys_of_texts("abc"))
    np.testing.assert_array_equal(key_column(found["key"].slice(1)), keys_of_texts("bc"))
    assert places_of(NAME, found) == [Place("a.tar")] * 3


def test_a_manifest_of_another_kind_is_refused(tmp_path):
    write_manifest(tmp_path / "s", pa.table({"text": ["a"]}, schema=SENTENCES), SENTENCES)
    with pytest.raises(CacheError, match=r"(?s)of kind captions/1.*Run `sightline prepare`"):
        read_manifest(tmp_path / "s", CAPTIONS)
    for junk in (b"", b"junk", b"PAR1" + b"\xff" * 60 + b"PAR1"):
        (tmp_path / "junk").write_bytes(junk)
        with pytest.raises(CacheError, match="not a readable Parquet file"):
            read_manifest(tmp_path / "junk", CAPTIONS)
    with pytest.raises(CacheError, match="no such manifest"):
        read_manifest(tmp_path / "none", CAPTIONS)


def test_preparing_again_replaces_a_manifest_of_an_older_kind(tmp_path):
    old = pa.schema([IMAGES.field(name) for name in IMAGE], metadata={"sightline": "images/1"})
    for schema in (old, IMAGES):
        with building("pairs", tmp_path / "out", [tmp_path / "photos"]) as (folder, _):
            write_manifest(folder / NAME, images({}).select(schema.names).cast(schema), schema)
    assert places_of(NAME, read_manifest(tmp_path / "out" / NAME, IMAGES)) == [Place("a.tar")]


# --- places


NUMBERS = st.integers(0, 2**63 - 1)


@given(st.lists(st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS))))
def test_a_place_matches_its_row(found):
    table = images(*({} if n is None else {"offset": n[0], "length": n[1]} for n in found))
    expected = [Place("a.tar", *(each or ())) for each in found]
    assert places_of(NAME, table) == expected
    assert places_of(NAME, table.select(IMAGES.names[::-1])) == expected


def test_a_place_is_shown_as_a_byte_range_of_its_file():
    assert str(Place("a/b.jpg")) == f"{Place('a/b.jpg')}" == "a/b.jpg"
    assert str(Place("a/b.tar", 1024, 5000)) == "a/b.tar[1024:+5000]"
    assert str(Place("b.tar", 0, 0).below(Path("/photos"))) == "/photos/b.tar[0:+0]"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"offset": 5}, "has offset 5 and length null"),
        ({"length": 5}, "has offset null and length 5"),
        ({"offset": 0}, "has offset 0 and length null"),
    ],
)
def test_a_row_with_an_invalid_place_is_named(row, says):
    expected = re.escape("images.parquet: row 1: image 'b' ") + ".*" + re.escape(says)
    with pytest.raises(CacheError, match=expected):
        places_of(NAME, images({}, {"image_id": "b", **row}, {}))


# --- masks, in COCO's run-length encoding


@given(hnp.arrays(bool, st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_any_mask_survives(mask):
    code = encode_mask(mask)
    assert (decode_mask(code["size"], code["counts"]) == mask).all()


@given(st.lists(st.integers(0, 2**31)))
def test_any_run_lengths_survive(runs):
    assert expand_counts(compress_counts(runs)) == runs


def test_known_strings_whose_runs_go_down_the_columns_and_start_with_background():
    """Worked by hand from rleToString of COCO's maskApi.c."""
    mask = np.array([[1, 0, 0], [1, 1, 0]], dtype=bool)
    assert run_lengths(mask) == [0, 2, 1, 1, 2]
    known = {"021O1": [0, 2, 1, 1, 2], "?`0o0": [15, 16, 31], "Xo0": [1000], "": []}
    for counts, runs in known.items():
        assert compress_counts(runs) == counts
        assert expand_counts(counts) == runs


@pytest.mark.parametrize(
    ("size", "counts", "message"),
    [
        ((2, 3), "04", "4 pixels for 2 × 3; expected 6"),
        ((2, 3), "0~", "'~' is not valid"),
        ((2, 3), "0h", "ends inside a number"),
        ((1, 1), "0O2", "expected 1"),
    ],
)
def test_a_damaged_code_is_refused(size, counts, message):
    with pytest.raises(CacheError, match=message):
        decode_mask(size, counts)


def test_a_cutout_key_depends_on_each_of_its_parts():
    parts = (b"i" * 32, [2, 3], "021O1", "rule/1")
    others = (b"j" * 32, [3, 2], "024", "rule/2")
    keys = {cutout_key(*parts)}
    for i, other in enumerate(others):
        keys.add(cutout_key(*parts[:i], other, *parts[i + 1 :]))
    assert len(keys) == 5
    assert {len(key) for key in keys} == {32}


# --- tokens


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
    images, captions = keys_of_texts(["image"]), keys_of_texts(["caption"])
    for cutout, start in (("before", 1), ("after", 3)):
        cutouts = keys_of_texts([cutout])
        pairs = pair_keys(images, captions)
        write_phrase_tokens(tmp_path / "set", SPANS, pairs, cutouts, [start], [start + 1])
    found = PhraseTokens.open(tmp_path / "set").of_pairs(images, captions)
    assert (found.starts.tolist(), found.ends.tolist()) == ([3], [4])
    assert (found.cutouts == cutouts).all()
    assert verify(tmp_path / "set") == []
