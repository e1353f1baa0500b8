"""A feature set as a data set of the library `datasets`, without files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.prepared import PreparedDataset
from pipeline.interchange.export import names_in
from pipeline.interchange.row_files import Source, row_schema, row_tables
from sightline.cache import FeatureSet
from sightline.cache.keys import Keys
from sightline.extras import require

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(features: FeatureSet, data: PreparedDataset | None = None) -> Dataset:
    """The rows of ``features`` in memory: ``key`` (hexadecimal), names, and ``features``.

    For a set larger than memory, export it and open the folder with `datasets.load_dataset`.

    Args:
        data: adds the column ``image_path`` or ``caption``.

    Raises:
        SightlineError: the library `datasets` is not installed, or ``data`` has none of the rows.
    """
    library = require("datasets", "to_dataset")

    def read(rows: range) -> tuple[Keys, NDArray]:
        return features.keys[rows.start : rows.stop], features.gather(np.asarray(rows))

    names = {} if data is None else names_in(data.folder, features)
    texts = features.record.spec.kind in ("text", "teacher")
    source = Source(read, len(features), features.dim, features.dtype, texts, names)
    tables = row_tables(source, range(len(features)))
    return library.Dataset(
        pa.Table.from_batches(
            [batch for table in tables for batch in table.to_batches()], row_schema(source)
        )
    )
