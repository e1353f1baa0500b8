"""The model card: what a model was trained on, how, what it scored, and how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCardData

from sightline.cache import key_of_file
from sightline.errors import SightlineError
from train.records import FILE_NAME, RunSummary

if TYPE_CHECKING:
    from train.evaluate.results import RunResult

FOLDER = "path/to/this/folder"
"""Stands for the model folder, or its name on a hub, in the card's examples."""

_TAGS = ("sentence-transformers", "feature-extraction", "sentence-similarity", "sightline")
_SENTENCE_TRANSFORMERS = f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{FOLDER}")
embeddings = model.encode(["A dog runs on the beach."])"""
_TRANSFORMERS = f"""\
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")
model = AutoModel.from_pretrained("{FOLDER}")
batch = tokenizer([TEXT], padding=True, truncation=True, return_tensors="pt")
with torch.inference_mode():
    hidden = model(**batch).last_hidden_state  # [n, tokens, d]
"""
_POOLED = {
    "cls": "embeddings = hidden[:, 0]",
    "mean": 'mask = batch["attention_mask"][..., None]\n'
    "embeddings = (hidden * mask).sum(dim=1) / mask.sum(dim=1)",
    "lasttoken": 'last = batch["attention_mask"].sum(dim=1) - 1\n'
    "embeddings = hidden[torch.arange(len(hidden)), last]",
}
_UNTRAINED = (
    "**Untrained weights**: at least one feature set comes from an encoder with random weights. "
    "Scores of this model say nothing about the value of grounding."
)


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
    untrained = any(used.untrained for used in summary.features.values())
    parts = [
        f"---\n{front_matter(summary, metrics)}\n---\n\n# {_title(summary)}",
        f"A sentence encoder: `{_student(summary)}`{_pinned(summary)} fine-tuned with the "
        f"objective `{summary.objective}` — {source}. An embedding is the `{pooling}` vector of "
        f"the last layer; similarity is the cosine.{_how_trained(summary)}",
        *([_UNTRAINED] if untrained else []),
        *(
            f"**Imported features**: `{name}` is {used.provenance}."
            for name, used in summary.features.items()
            if used.provenance != "computed here"
        ),
        f"## Use\n\n```python\n{_SENTENCE_TRANSFORMERS}\n```",
        f"Without sentence-transformers:\n\n```python\n{_without(summary, pooling)}\n```",
        "## Data\n\n"
        + "\n".join(f"- {name}: `{data}`" for name, data in summary.data_sets.items()),
    ]
    if summary.dropped_pairs:
        parts.append(
            f"{summary.dropped_pairs} pairs were left out: their image could not be extracted."
        )
    if summary.dropped_phrases:
        parts.append(
            f"{summary.dropped_phrases} phrases were left out: their object could not be extracted."
        )
    if summary.features:
        parts.append(_features(summary))
    parts += ["## Scores", *_scores(summary, metrics)]
    parameters = {
        "objective": {"name": summary.objective, **summary.parameters},
        "student": {**summary.student, "model": _student(summary)},
        "train": summary.train,
        "seed": summary.seed,
    }
    text = json.dumps(parameters, indent=2, ensure_ascii=False)
    parts.append(f"## Parameters\n\n```json\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _without(summary: RunSummary, pooling: str) -> str:
    """The lines that use the model by transformers alone."""
    text = str(summary.student.get("prompt", "")) + "A dog runs on the beach."
    return _TRANSFORMERS.replace("TEXT", json.dumps(text, ensure_ascii=False)) + _POOLED[pooling]


def _how_trained(summary: RunSummary) -> str:
    """Sentences on the prompt and the adapters, where there are any."""
    student, words = summary.student, ""
    if student.get("prompt"):
        words += f" Every text follows the prompt {student['prompt']!r}."
    if student.get("lora_rank"):
        words += f" Adapters (LoRA) of rank {student['lora_rank']} were trained, and are merged."
    return words


def card_with_scores(folder: Path, results: Path) -> str:
    """The card of the finished run in ``folder``, with the scores in the file ``results``.

    Raises:
        SightlineError: the run is not finished, there are no results, or they are of another
            training.
    """
    from train.evaluate.results import load_result
    from train.objectives import make_objective

    summary, result = RunSummary.read(folder), load_result(results)
    if result.run_sha256 != key_of_file(folder / FILE_NAME).hex():
        raise SightlineError(
            f"{results}: its scores are of another training than {folder}, or of its model folder "
            f"alone; evaluate the run again, with `--model {folder}`"
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
        tags.append("untrained-weights")
    doubts = {used.doubt for used in summary.features.values() if used.doubt}
    tags += sorted(doubt.replace(", ", "-").replace(" ", "-") for doubt in doubts)
    scores = [
        replace(metric, metric_value=round(metric.metric_value, 4))
        for metric in metrics
        if metric.metric_value is not None
    ]
    data = ModelCardData(
        base_model=summary.base_model or None,
        license=summary.licence or None,
        datasets=list(summary.hub_datasets) or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=tags,
        model_name=_title(summary),
        eval_results=scores or None,
    )
    return data.to_yaml()


def _student(summary: RunSummary) -> str:
    """Its name on the hub, or that of its folder; a card holds no path of this machine."""
    return summary.base_model or Path(str(summary.student["model"])).name


def _pinned(summary: RunSummary) -> str:
    """Which student that was, such as `` (commit 86b5e09…, weights SHA-256 1234567890ab)``."""
    pinned = summary.pinned
    commit = [f"commit {pinned.revision}"] if pinned.revision else []
    sha256 = [f"weights SHA-256 `{pinned.weights_sha256[:12]}`"] if pinned.weights_sha256 else []
    words = ", ".join([*commit, *sha256])
    return f" ({words})" if words else ""


def _slug(name: str) -> str:
    """``name`` as an identifier: `Spearman × 100` → ``spearman-100``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def _title(summary: RunSummary) -> str:
    return f"{summary.run}, seed {summary.seed}"


def _features(summary: RunSummary) -> str:
    lines = ["## Cached features", "", "| name | set | encoder | weights | rows | fingerprint |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, used in summary.features.items():
        weights = "**untrained**" if used.untrained else used.source
        doubt = f" ({used.doubt})" if used.doubt else ""
        lines.append(
            f"| {name} | {used.name} | {used.encoder} | {weights}{doubt} | {used.rows:,} "
            f"| `{used.fingerprint}` |"
        )
    return "\n".join(lines)


def _scores(summary: RunSummary, metrics: Sequence[EvalResult]) -> list[str]:
    if summary.best_step is None:
        paragraphs = [f"Trained for {summary.steps} steps without a dev set; the last weights."]
    else:
        paragraphs = [
            f"Dev (`{summary.dev}`): Spearman × 100 = {summary.best_dev:.2f} at step "
            f"{summary.best_step} of {summary.steps}; these are the weights of that step, chosen "
            "by this score."
        ]
    if metrics:
        lines = ["| metric | score | data | SHA-256 of the data |", "|---|---:|---|---|"]
        for metric in metrics:
            score, args = metric.metric_value, metric.dataset_args or {}
            shown = "not defined" if score is None else f"{score:.2f}"
            split = f" ({metric.dataset_split})" if metric.dataset_split else ""
            data = f"{metric.dataset_name}{split} | `{args.get('sha256', '')}`"
            lines.append(f"| {metric.metric_name} | {shown} | {data} |")
        paragraphs.append("\n".join(lines))
    return paragraphs
