"""The contract: every on-disk schema, with its reader and writer.

Both rooms stand on it: the pipeline fills a cache, the trainer reads one.
"""

from sightline.cache.errors import CacheError, MissingKeys
from sightline.cache.feature_set import FeatureSet
from sightline.cache.feature_writer import FeatureSetWriter
from sightline.cache.keys import as_keys, key_of_bytes, key_of_file, key_of_text, keys_of_texts
from sightline.cache.manifest import (
    CAPTIONS,
    IMAGES,
    PHRASE_TOKENS,
    PHRASES,
    SENTENCES,
    TOKENS,
    TRAINED_SPLITS,
    key_array,
    key_column,
    read_manifest,
    write_manifest,
)
from sightline.cache.phrase_token_set import (
    PhraseTokenHeader,
    PhraseTokens,
    RaggedPhrases,
    pair_keys,
    write_phrase_tokens,
)
from sightline.cache.place import Place, places_of, whole_files
from sightline.cache.ranges import ranges
from sightline.cache.record import EncoderRecord, FeatureSetRecord, FeatureSpec
from sightline.cache.token_set import TokenHeader, TokenSet, write_tokens
from sightline.cache.verify import verify

__all__ = [
    "CAPTIONS",
    "IMAGES",
    "PHRASES",
    "PHRASE_TOKENS",
    "SENTENCES",
    "TOKENS",
    "TRAINED_SPLITS",
    "CacheError",
    "EncoderRecord",
    "FeatureSet",
    "FeatureSetRecord",
    "FeatureSetWriter",
    "FeatureSpec",
    "MissingKeys",
    "PhraseTokenHeader",
    "PhraseTokens",
    "Place",
    "RaggedPhrases",
    "TokenHeader",
    "TokenSet",
    "as_keys",
    "key_array",
    "key_column",
    "key_of_bytes",
    "key_of_file",
    "key_of_text",
    "keys_of_texts",
    "pair_keys",
    "places_of",
    "ranges",
    "read_manifest",
    "verify",
    "whole_files",
    "write_manifest",
    "write_phrase_tokens",
    "write_tokens",
]
