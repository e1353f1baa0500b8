"""Names of folders that a library could take for something else than a folder."""

from __future__ import annotations

BUILDERS = ("parquet", "arrow", "csv", "json", "text", "imagefolder", "webdataset", "generator")
"""Readers of `datasets`."""

PATTERNS = ("a*", "a[bc]", "a{b,c}")
ADDRESSES = ("hf:", "a::b", "s3:x", "%41")
ODD_NAMES = (*BUILDERS, *PATTERNS, *ADDRESSES, "squad", "x.py", "test", ".hidden", "a b")
