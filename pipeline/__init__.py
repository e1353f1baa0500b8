"""Everything that makes the cache: data sets, frozen encoders, extraction, stages and the CLI.

The names in `__all__` are the Python API (docs/python.md), with what docs/extending.md builds on.
Nothing else in this package is promised: other names may move or change in any version.
"""

from sightline.lazy_names import lazy_names

TYPE_CHECKING = False  # `typing` takes 7 ms, in which Ctrl-C would be a traceback
if TYPE_CHECKING:
    from pipeline.datasets.kinds import prepare_dataset
    from pipeline.encoders.config import EncoderConfig, named_encoder
    from pipeline.extract.encode_missing import extract_features
    from pipeline.extract.engine import Engine
    from pipeline.extract.workers import run_workers
    from pipeline.grounding.ground import ground_captions
    from pipeline.interchange.export import to_dataset
    from pipeline.tokenize_texts import tokenize
    from sightline.cache import CacheError, FeatureSet, key_of_file, keys_of_texts
    from sightline.cache.groundings import read_phrases
    from sightline.cache.prepared import PreparedDataset
    from sightline.errors import SightlineError

__all__ = [
    "CacheError",
    "EncoderConfig",
    "Engine",
    "FeatureSet",
    "PreparedDataset",
    "SightlineError",
    "extract_features",
    "ground_captions",
    "key_of_file",
    "keys_of_texts",
    "named_encoder",
    "prepare_dataset",
    "read_phrases",
    "run_workers",
    "to_dataset",
    "tokenize",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CacheError": "sightline.cache",
        "EncoderConfig": "pipeline.encoders.config",
        "Engine": "pipeline.extract.engine",
        "FeatureSet": "sightline.cache",
        "PreparedDataset": "sightline.cache.prepared",
        "SightlineError": "sightline.errors",
        "extract_features": "pipeline.extract.encode_missing",
        "ground_captions": "pipeline.grounding.ground",
        "key_of_file": "sightline.cache",
        "keys_of_texts": "sightline.cache",
        "named_encoder": "pipeline.encoders.config",
        "prepare_dataset": "pipeline.datasets.kinds",
        "read_phrases": "sightline.cache.groundings",
        "run_workers": "pipeline.extract.workers",
        "to_dataset": "pipeline.interchange.export",
        "tokenize": "pipeline.tokenize_texts",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
