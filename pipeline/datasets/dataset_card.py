"""README.md of a prepared data set, by which `datasets` opens its manifests and hubs show them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.datasets.source import PrepareReport
from sightline.cache.prepared import LICENCE
from sightline.output import Output

NAME = "README.md"
_OURS = "# Written by `sightline prepare`, which replaces this file while it has this line."
_TABLES = ("captions", "sentences", "images", "phrases")
"""The first that has rows is the default."""
_TEXT = """\
---
{ours}
configs:
{configs}---

# A data set of kind {kind}

One configuration for each manifest, with all its rows in the split `train`: {counts}.

```python
from datasets import load_dataset

{first} = load_dataset("path/to/this/folder", "{first}", split="train")
```

{images}Licence of the data: {licence}.
"""
_IMAGES = """\
The column `split` has the splits of the data. A `key` is the SHA-256 of an image's bytes, as 32
bytes. """
_CONFIG = """\
- config_name: {name}
{default}  data_files:
  - split: train
    path: {name}.parquet
"""


def write_card(output: Output, folder: Path, report: PrepareReport) -> None:
    """Write the card of the manifests in ``folder``, unless one of the user's is in ``output``."""
    path = output.folder / NAME
    if (folder / NAME).exists():
        return  # the source has written its own
    if os.path.lexists(path) and not (NAME in output.owned and _is_ours(path)):
        output.owned.discard(NAME)
        return
    counts = {
        name: pq.read_metadata(file.absolute()).num_rows
        for name in _TABLES
        if (file := folder / f"{name}.parquet").is_file()
    }
    names = [name for name, rows in counts.items() if rows]
    if not names:
        return
    configs = (
        _CONFIG.format(name=name, default="" if i else "  default: true\n")
        for i, name in enumerate(names)
    )
    text = _TEXT.format(
        ours=_OURS,
        configs="".join(configs),
        kind=report.kind,
        counts=", ".join(f"{counts[name]:,} {name}" for name in names),
        first=names[0],
        images=_IMAGES if "images" in names else "",
        licence=report.facts.get(LICENCE, "not known"),
    )
    (folder / NAME).write_text(text, "utf-8")


def _is_ours(path: Path) -> bool:
    return not path.is_file() or _OURS.encode() in path.read_bytes()
