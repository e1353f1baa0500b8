"""Makes a folder of hand-written manifests a prepared data set, as `sightline prepare` would."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sightline.cache.prepared import RECORD, SCHEMA


def as_prepared(folder: Path, images: Path | None = None) -> Path:
    """Write the record of the data set in ``folder``; returns the folder.

    Args:
        images: base folder of its image paths; None: the folder ``images`` beside the manifests.
    """
    record = {"schema": SCHEMA}
    if images is not None:
        record["images"] = Path(os.path.relpath(images, folder)).as_posix()
    (folder / RECORD).write_text(json.dumps(record))
    return folder
