"""Imported by a `StageServer`: what grounding imports, and sets of several blocks and shards."""

from __future__ import annotations

import torchvision.ops  # noqa: F401

import pipeline.grounding.annotations
import pipeline.grounding.block_grounder
import pipeline.grounding.ground
import pipeline.grounding.segmenters.box  # noqa: F401
from pipeline.grounding import cutouts
from sightline.cache.tables import SHARD_ROWS

SHARD_ROWS |= {"grounding": 3, "cutouts": 20}
cutouts._BLOCK = 12
