"""The contract: every on-disk schema, with its reader and writer.

Both rooms stand on it: the pipeline fills a cache, the trainer reads one.
"""

from sightline.cache.features import FeatureSet
from sightline.cache.keys import as_keys, key_of_bytes, key_of_file, key_of_text, keys_of_texts
from sightline.cache.manifest import (
    CAPTIONS,
    IMAGES,
    PHRASES,
    SENTENCES,
    TRAINED_SPLITS,
    Place,
    key_array,
    key_column,
    places_of,
    read_manifest,
    whole_files,
    write_manifest,
)
from sightline.cache.phrase_tokens import (
    PhraseTokenHeader,
    PhraseTokens,
    RaggedPhrases,
    pair_keys,
    write_phrase_tokens,
)
from sightline.cache.record import EncoderRecord, FeatureSpec, SetRecord
from sightline.cache.table_sets import ranges
from sightline.cache.tokens import TokenHeader, TokenSet, write_tokens
from sightline.cache.verify import verify
from sightline.cache.writer import SetWriter
from sightline.errors import CacheError, MissingKeys
