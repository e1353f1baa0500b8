"""Where to find each evaluation task by name. Imports no torch."""

from __future__ import annotations

from sightline.settings import Registry

TASKS = Registry(
    "evaluation task",
    "sightline.tasks",
    {
        "sts": "train.evaluate.tasks.sts:Sts",
        "similarity": "train.evaluate.tasks.similarity:Similarity",
        "geometry": "train.evaluate.tasks.geometry:Geometry",
        "transfer": "train.evaluate.tasks.transfer:Transfer",
        "retrieval": "train.evaluate.tasks.retrieval:RetrievalTask",
        "neighbours": "train.evaluate.tasks.neighbours:NeighboursTask",
        "mteb": "train.evaluate.tasks.mteb:Mteb",
    },
)
"""Name → `train.evaluate.task.Task`."""
