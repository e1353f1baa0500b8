"""The Python API (docs/python.md), and below it what pipeline, trainer and cache share.

The names in `__all__` are the API, with the losses in `train.losses` and what docs/extending.md
builds on. Nothing else is promised: other names may move or change in any version.
"""

from sightline.lazy_names import lazy_names

TYPE_CHECKING = False  # `typing` takes 7 ms, in which Ctrl-C would be a traceback
if TYPE_CHECKING:
    from pipeline.datasets.prepare import prepare_dataset
    from pipeline.encoders.config import EncoderConfig
    from pipeline.encoders.names import named_encoder
    from pipeline.extract.encode_missing import extract_features
    from pipeline.extract.workers import run_workers
    from pipeline.grounding.ground import ground_captions
    from pipeline.interchange.export import to_dataset
    from pipeline.machine import Machine
    from pipeline.tokenize_texts import tokenize
    from sightline.cache import CacheError, FeatureSet, key_of_file, keys_of_texts
    from sightline.cache.groundings import read_phrases
    from sightline.cache.prepared import PreparedDataset
    from sightline.errors import SightlineError, Transient
    from train.embed import Embedder
    from train.evaluate.evaluation import Evaluation, evaluate_model
    from train.evaluate.models import EvaluatedModel
    from train.evaluate.results import RunResult
    from train.objectives import OBJECTIVES, Objective, make_objective
    from train.records import RunSummary
    from train.train_run import train_model

_PLACES = {
    "OBJECTIVES": "train.objectives",
    "CacheError": "sightline.cache",
    "Embedder": "train.embed",
    "EncoderConfig": "pipeline.encoders.config",
    "EvaluatedModel": "train.evaluate.models",
    "Evaluation": "train.evaluate.evaluation",
    "FeatureSet": "sightline.cache",
    "Machine": "pipeline.machine",
    "Objective": "train.objectives",
    "PreparedDataset": "sightline.cache.prepared",
    "RunResult": "train.evaluate.results",
    "RunSummary": "train.records",
    "SightlineError": "sightline.errors",
    "Transient": "sightline.errors",
    "evaluate_model": "train.evaluate.evaluation",
    "extract_features": "pipeline.extract.encode_missing",
    "ground_captions": "pipeline.grounding.ground",
    "key_of_file": "sightline.cache",
    "keys_of_texts": "sightline.cache",
    "make_objective": "train.objectives",
    "named_encoder": "pipeline.encoders.names",
    "prepare_dataset": "pipeline.datasets.prepare",
    "read_phrases": "sightline.cache.groundings",
    "run_workers": "pipeline.extract.workers",
    "to_dataset": "pipeline.interchange.export",
    "tokenize": "pipeline.tokenize_texts",
    "train_model": "train.train_run",
}

__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]

_load = lazy_names(__name__, _PLACES)


def __getattr__(name: str):  # any type: `typing` is not imported
    if name in _PLACES:
        from sightline.hidden_packages import require_not_hidden

        require_not_hidden(_PLACES[name].partition(".")[0])
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def console() -> None:
    """The entry point of the `sightline` command; a hidden package is one error of it."""
    from sightline.errors import SightlineError, Transient
    from sightline.hidden_packages import require_not_hidden

    try:
        require_not_hidden("pipeline")
    except SightlineError as error:
        raise SystemExit(f"error: {error}") from None
    from pipeline.cli import console

    console()
