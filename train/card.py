"""The model card: what a model was trained on, how, and what it scored."""

from __future__ import annotations

import json

from train.run_summary import RunSummary

_FRONT = """\
---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- feature-extraction
- sentence-similarity
- sightline
---
"""


def model_card(summary: RunSummary, source: str, pooling: str) -> str:
    """README.md of an exported model.

    Args:
        source: the objective's paper.
        pooling: how a sentence embedding is made.
    """
    title = f"# {summary.run}, seed {summary.seed}"
    parts = [
        _FRONT + title,
        f"A sentence encoder: `{summary.student['model']}` fine-tuned with the objective "
        f"`{summary.objective}` — {source}. The embedding is the `{pooling}` vector of the last "
        "layer; similarity is the cosine.",
        "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
        'model = SentenceTransformer("path/to/this/folder")\n'
        'embeddings = model.encode(["A dog runs on the beach."])\n```',
        "## Data\n" + "\n".join(f"- {stream}: `{path}`" for stream, path in summary.data.items()),
    ]
    if summary.dropped_pairs:
        parts.append(
            f"{summary.dropped_pairs} pairs were left out: their image could not be extracted."
        )
    if summary.features:
        lines = ["## Cached features", "", "| slot | encoder | weights | fingerprint |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {slot} | {used.encoder} | {'**untrained**' if used.untrained else used.source} "
            f"| `{used.fingerprint}` |"
            for slot, used in summary.features.items()
        ]
        parts.append("\n".join(lines))
    if any(used.untrained for used in summary.features.values()):
        parts.append(
            "**Untrained weights**: at least one feature set comes from an encoder with random "
            "weights. Scores of this model say nothing about the value of grounding."
        )
    for slot, used in summary.features.items():
        if used.provenance != "computed here":
            parts.append(f"**Imported features**: `{slot}` is {used.provenance}.")
    parts.append(_scores(summary))
    parts.append(
        "## Parameters\n```json\n"
        + json.dumps(
            {
                "objective": {"name": summary.objective, **summary.parameters},
                "student": summary.student,
                "train": summary.train,
                "seed": summary.seed,
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n```"
    )
    return "\n\n".join(parts) + "\n"


def _scores(summary: RunSummary) -> str:
    if summary.best_step is None:
        return f"## Scores\nTrained for {summary.steps} steps without a dev set; the last weights."
    best = max(score for _, score in summary.dev_history)
    return (
        f"## Scores\nDev (`{summary.dev}`): Spearman × 100 = {best:.2f} at step "
        f"{summary.best_step} of {summary.steps}; these are the weights of that step."
    )
