"""Training from the cache: data, losses, objectives, the trainer, evaluation and reports.

The names in `__all__` are the Python API (docs/python.md), with the losses in `train.losses`
and what docs/extending.md builds on. Nothing else in this package is promised: other names may
move or change in any version.
"""

from typing import TYPE_CHECKING

from sightline.lazy_names import lazy_names

if TYPE_CHECKING:
    from train.embed import Embedder
    from train.evaluate.evaluation import Evaluation, evaluate_model
    from train.evaluate.models import EvaluatedModel
    from train.evaluate.results import RunResult
    from train.objectives import OBJECTIVES, Objective, make_objective
    from train.records import RunSummary
    from train.train_run import train_model

__all__ = [
    "OBJECTIVES",
    "Embedder",
    "EvaluatedModel",
    "Evaluation",
    "Objective",
    "RunResult",
    "RunSummary",
    "evaluate_model",
    "make_objective",
    "train_model",
]

__getattr__ = lazy_names(
    __name__,
    {
        "OBJECTIVES": "train.objectives",
        "Embedder": "train.embed",
        "EvaluatedModel": "train.evaluate.models",
        "Evaluation": "train.evaluate.evaluation",
        "Objective": "train.objectives",
        "RunResult": "train.evaluate.results",
        "RunSummary": "train.records",
        "evaluate_model": "train.evaluate.evaluation",
        "make_objective": "train.objectives",
        "train_model": "train.train_run",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
