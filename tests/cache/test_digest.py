"""Digests that are on disk: in fingerprints, names of encoders, token sets and runs."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st
from stub_set import SPEC

from sightline.cache.record import TableSpec
from sightline.digest import digest
from sightline.encoder_folder import tokenizer_sha256

VALUE = {"b": [1, 2.5, None, True], "a": {"ü": "é", "z": 1e-05}}


def test_a_digest_has_not_changed():
    expected = "c874b0801717ddd1fc976eea2556f5bb9682d2baac704b6257bff0fff5feb29b"
    assert digest(VALUE) == expected


def test_fingerprints_have_not_changed():
    assert SPEC.fingerprint == "80f79693d040d286b9b0acceb7c6788d774079145e48c8bd48e092c89d8e4fc6"
    spec = TableSpec(kind="tokens", description=VALUE)
    assert spec.fingerprint == "c57bb4bc2eefb500f1b4302b6253cd611c4b59631fee0f0726b2f8b5e2d20271"


class Tokenizer:
    """A slow one: a vocabulary and special tokens."""

    all_special_tokens = ("[SEP]", "[CLS]")

    def get_vocab(self) -> dict[str, int]:
        return {"é": 1, "a": 0}


def test_the_digest_of_a_tokenizer_has_not_changed():
    expected = "51115bfb7e773200bdcef5c054a93f3e03941153415fb851ce1186914ff71329"
    assert tokenizer_sha256(Tokenizer()) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('aé"\n'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("aé"), inner),
    )
)
def test_a_digest_is_that_of_sorted_json(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest(value) == hashlib.sha256(text.encode()).hexdigest()
