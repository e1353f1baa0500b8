"""The golden world for all tests here, and the sets that the pipeline makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from golden_world import (
    ANNOTATED,
    PHRASES_FILE,
    PINNING,
    World,
    encoder_cases,
    grounding_cases,
    uniform,
)

from sightline import read_phrases
from sightline.cache import PHRASES, write_manifest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The images and captions with their annotated objects, and the student."""
    torch.set_num_threads(1)
    made = World(tmp_path_factory.mktemp("golden") / "world")
    annotated = made.ground(
        ANNOTATED, grounding_cases(made.models, made.boxes)[ANNOTATED], made.root / "cutouts"
    )
    if PINNING and not PHRASES_FILE.exists():
        write_manifest(PHRASES_FILE, read_phrases(annotated), PHRASES)
    made.add_student()
    return made


@pytest.fixture(scope="session")
def sets(world):
    """Name → folder of every feature set, grounding, token set and so on."""
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    world.add_models()
    made = {"cut-outs": world.root / "cutouts"}
    for name, settings in grounding_cases(world.models, world.boxes).items():
        made[name] = world.ground(name, settings)
    for name, (kind, encoder, options) in encoder_cases(world.models).items():
        made[name] = world.extract(name, kind, encoder, **options).path
    return {**made, "tokens": world.tokens, "phrase tokens": world.phrase_tokens}


@pytest.fixture(scope="session")
def features(world):
    """Rows of one image share most of what they are, in every set of a width."""
    kinds = {"clip-image": "image", "clip-text": "text", "clip-object": "object"}
    kinds |= {"first": "teacher", "second": "teacher"}
    folders = {}
    for seed, (name, kind) in enumerate(kinds.items()):
        dim, count = (9 if kind == "teacher" else 7), len(world.keys(kind))
        images = uniform(dim, len(world.data.images), dim)
        shared = np.repeat(images, count // len(images), axis=0)
        rows = shared + 0.7 * uniform(seed, count, dim)
        folders[name] = world.write_features(name, kind, rows)
    return folders
