"""The contract: every on-disk schema, with its reader and writer.

Both the pipeline, which fills a cache, and the trainer, which reads one, use it. Within the
project it imports only the base layer (`sightline`).
"""

from pipeline.cache.errors import CacheError, MissingKeys
from pipeline.cache.feature_set import FeatureSet
from pipeline.cache.feature_writer import FeatureSetWriter
from pipeline.cache.keys import as_keys, key_of_bytes, key_of_file, key_of_text, keys_of_texts
from pipeline.cache.manifest import (
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
from pipeline.cache.phrase_token_set import (
    PhraseTokenHeader,
    PhraseTokens,
    RaggedPhrases,
    pair_keys,
    write_phrase_tokens,
)
from pipeline.cache.place import Place, places_of, whole_files
from pipeline.cache.ranges import ranges
from pipeline.cache.record import EncoderRecord, FeatureSetRecord, FeatureSpec
from pipeline.cache.token_set import TokenHeader, TokenSet, write_tokens
from pipeline.cache.verify import verify

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
