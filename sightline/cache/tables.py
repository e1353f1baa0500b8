"""What the sets hold that are not features: one row per key, as nested lists, never null.

A grounding has a row per image, with its phrases (which words of which caption name which pixels)
and its drops (what did not become a phrase, and why); cut-outs have a row per object, tokens per
text, phrase tokens per pair of image and caption.
"""

from __future__ import annotations

import pyarrow as pa

from sightline.cache.manifest import KEY, PHRASES
from sightline.cache.record import TableKind

DROPS = pa.schema(
    [
        ("image_key", KEY),
        ("caption_key", KEY),
        ("phrase", pa.large_string()),  # as written in the caption or by the grounder; may be empty
        ("reason", pa.large_string()),  # one of `pipeline.grounding.protocols.Reason`
        ("detail", pa.large_string()),
    ],
    metadata={"sightline": "drops/1"},
)
"""One row per phrase, or box of a phrase, that did not become a record."""

GROUNDED = pa.schema(
    [
        ("image_key", KEY),
        ("captions", pa.int32()),  # number grounded
        ("phrases", pa.large_list(pa.struct(list(PHRASES)[1:]))),  # without the image's key
        ("drops", pa.large_list(pa.struct(list(DROPS)[1:]))),
    ]
)
"""A grounded image; its key is the SHA-256 of the image's key and its captions' keys."""

CUTOUTS = pa.schema(
    [
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("png", pa.large_binary()),  # RGBA: the box of the mask; alpha is 0 or 255
    ]
)
"""A cut-out; its key is the `cutout_key` of the phrases."""

TOKENS = pa.schema([("input_ids", pa.large_list(pa.int32()))])
"""A text; its key is the text's. Ids include special tokens and are truncated."""

PHRASE_TOKENS = pa.schema(
    [
        (
            "phrases",
            pa.large_list(
                pa.struct(
                    [
                        ("token_start", pa.int32()),  # span of the phrase in the caption's tokens
                        ("token_end", pa.int32()),
                        ("cutout_key", KEY),
                    ]
                )
            ),
        )
    ]
)
"""The phrases that the student sees whole, of one pair, whose key is `pair_keys`."""

ROWS_OF: dict[TableKind, pa.Schema] = {
    "grounding": GROUNDED,
    "cutouts": CUTOUTS,
    "tokens": TOKENS,
    "phrase-tokens": PHRASE_TOKENS,
}
"""Columns of a row, besides its key."""

SHARD_ROWS: dict[TableKind, int] = {
    "grounding": 8192,
    "cutouts": 4096,
    "tokens": 1 << 19,
    "phrase-tokens": 1 << 18,
}
"""Rows of a shard of about 64 MiB."""
