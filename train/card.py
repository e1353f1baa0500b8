"""The model card: what a model was trained on, how, what it scored, and how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import StrictUndefined, Template

from sightline.errors import SightlineError
from train.records import RunSummary

if TYPE_CHECKING:
    from train.evaluate.results import RunResult

FOLDER = "path/to/this/folder"
"""Stands for the model folder, or its name on a hub, in the card's examples."""

_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "sightline")
_POOLED = {
    "cls": "embeddings = hidden[:, 0]",
    "mean": 'mask = batch["attention_mask"][..., None]\n'
    "embeddings = (hidden * mask).sum(dim=1) / mask.sum(dim=1)",
    "lasttoken": 'last = batch["attention_mask"].sum(dim=1) - 1\n'
    "embeddings = hidden[torch.arange(len(hidden)), last]",
}


def model_card(
    summary: RunSummary, source: str, pooling: str, result: RunResult | None = None
) -> str:
    """README.md of an exported model, with YAML front matter that hubs read.

    Args:
        source: the objective's paper.
        pooling: how a sentence embedding is made.
        result: scores of this model; None: only the dev score is known.
    """
    metrics = card_metrics(summary, result)
    # no path of this machine
    student = summary.base_model or Path(str(summary.student["model"])).name
    text = str(summary.student.get("prompt", "")) + "A dog runs on the beach."
    parameters = {
        "objective": {"name": summary.objective, **summary.parameters},
        "student": {**summary.student, "model": student},
        "train": summary.train,
        "seed": summary.seed,
    }
    template = Template(
        (Path(__file__).parent / "card.md.j2").read_text(encoding="utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return template.render(
        front_matter=front_matter(summary, metrics),
        title=_title(summary),
        run=summary,
        student=student,
        source=source,
        pooling=pooling,
        folder=FOLDER,
        text=json.dumps(text, ensure_ascii=False),
        pooled=_POOLED[pooling],
        metrics=metrics,
        parameters=json.dumps(parameters, indent=2, ensure_ascii=False),
    )


def card_with_scores(folder: Path, results: Path) -> str:
    """The card of the finished run in ``folder``, with the scores in the file ``results``."""
    from train.evaluate.results import load_result
    from train.objectives import make_objective

    summary, result = RunSummary.read(folder), load_result(results)
    if not result.is_of(folder):
        raise SightlineError(
            f"{results}: its scores are of another training than {folder}, of its model folder "
            "alone, or of another pooling or precision; evaluate the run again, with "
            f"`--model {folder}` and another --out"
        )
    source = make_objective(summary.objective, summary.parameters).source
    return model_card(summary, source, summary.student["pooling"], result)


def card_metrics(summary: RunSummary, result: RunResult | None = None) -> list[EvalResult]:
    """The dev score of the exported weights, then every score of ``result``; None: not defined."""
    metrics = []
    if summary.dev is not None and summary.best_step is not None:
        dev = summary.dev, summary.dev_sha256, "dev"
        metrics.append(_metric("Spearman × 100", summary.best_dev, *dev))
    for name, task in result.tasks.items() if result is not None else ():
        metrics += [
            _metric(metric, score, name, task.evaluated_on[metric].sha256)
            for metric, score in task.scores.items()
        ]
    return metrics


def _metric(
    name: str, value: float | None, data: str, sha256: str, split: str | None = None
) -> EvalResult:
    return EvalResult(
        task_type="sentence-similarity",
        dataset_type=_slug(data),
        dataset_name=data,
        dataset_split=split,
        dataset_args={"sha256": sha256} if sha256 else None,
        metric_type=_slug(name),
        metric_name=name,
        metric_value=value,
    )


def front_matter(summary: RunSummary, metrics: Sequence[EvalResult]) -> str:
    """The YAML between the two lines ``---``, without them."""
    tags = [*_TAGS, summary.objective]
    if any(used.untrained for used in summary.features.values()):
        tags.append("untrained-features")
    doubts = {used.doubt for used in summary.features.values() if used.doubt}
    tags += sorted(doubt.replace(", ", "-").replace(" ", "-") for doubt in doubts)
    scores = [
        replace(metric, metric_value=round(metric.metric_value, 4))
        for metric in metrics
        if metric.metric_value is not None
    ]
    data = ModelCardData(
        base_model=summary.base_model or None,
        license=None if isinstance(summary.licence, tuple) else summary.licence or None,
        license_name=summary.licence_name or None,
        license_link=summary.licence_link or None,
        datasets=list(summary.hub_datasets) or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=tags,
        model_name=_title(summary),
        eval_results=scores or None,
    )
    if isinstance(summary.licence, tuple):
        data["license"] = [*summary.licence]
    return data.to_yaml()


def _slug(name: str) -> str:
    """``name`` as an identifier: `Spearman × 100` → ``spearman-100``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def _title(summary: RunSummary) -> str:
    return f"{summary.run}, seed {summary.seed}"
