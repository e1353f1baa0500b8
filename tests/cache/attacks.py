"""Every attack on a feature set, by name."""

from __future__ import annotations

from attacks_by_name import NAMES
from attacks_on_shards import HDF5
from attacks_on_the_index import PARQUET
from attacks_on_the_record import JSON

ATTACKS = HDF5 | NAMES | JSON | PARQUET
