"""A feature set as a data set of the library `datasets`, without files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.datasets.prepared import PreparedDataset
from pipeline.interchange.export import names_in
from pipeline.interchange.rows import Rows
from sightline.cache import FeatureSet
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
    rows = Rows(features, {} if data is None else names_in(data.folder, features))
    tables = [rows.schema.empty_table(), *rows.tables(range(len(features)))]
    return library.Dataset(pa.concat_tables(tables))
