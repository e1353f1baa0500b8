"""Which data sets on a hub a prepared data set came from, for the cards of what is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

HUB_DATASET = "hub_dataset"
"""Field of `dataset.json`: the data set's name on the hub, or several names with commas."""


def hub_datasets(prepared: Iterable[Path]) -> tuple[str, ...]:
    """Names on the hub that are recorded in the folders of prepared data sets.

    A folder without a record, or of data from elsewhere, has none.
    """
    found: list[str] = []
    for folder in dict.fromkeys(prepared):
        try:
            record = json.loads((folder / "dataset.json").read_bytes())
        except (OSError, ValueError):
            continue  # a manifest may lie anywhere
        names = record.get(HUB_DATASET) if isinstance(record, dict) else None
        found += names.split(",") if isinstance(names, str) else []
    return tuple(dict.fromkeys(found))
