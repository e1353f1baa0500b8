"""Every job on a device that is not the CPU: the same rows, phrases and weights as on it.

The stand-in (`away`) computes as the CPU does, and refuses what Apple's GPU refuses.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from away import away
from golden_world import encoder_cases, grounding_cases
from safetensors.torch import load_file
from test_trained_weights import SYSTEMS, spec_of

from sightline import FeatureSet, ground_captions, read_phrases
from sightline.cache.groundings import grounding_counts
from train.embed import Embedder
from train.train_run import train_run


@pytest.fixture
def device():
    with away() as chosen:
        yield chosen


def test_the_stand_in_refuses_what_apples_gpu_refuses(device):
    host = torch.arange(4.0).reshape(2, 2)
    there = host.to(device)
    assert (there.device, there.cpu().device) == (device, torch.device("cpu"))
    assert torch.equal(there.cpu(), host)
    for wrong in (
        lambda: there.numpy(),
        lambda: np.asarray(there),
        lambda: there + host,
        lambda: there.double(),
        lambda: torch.zeros(2, device="mps") + host,
        lambda: torch.nn.Linear(2, 2).to(device)(host),
    ):
        with pytest.raises((TypeError, RuntimeError)):
            wrong()


@pytest.mark.parametrize("name", [name for name in encoder_cases(Path()) if "bf16" not in name])
def test_rows_are_those_of_the_cpu(world, sets, device, name):
    kind, encoder, options = encoder_cases(world.models)[name]
    made = world.extract(f"away, {name}", kind, encoder, device="mps", **options)
    assert "mps" in {shard.computed["device"] for shard in made.record.shards}
    there = FeatureSet.open(sets[name])
    rows, expected = (each.take(there.keys).astype(np.float64) for each in (made, there))
    assert np.abs(rows - expected).max() <= 2e-3 * np.abs(expected).max()  # other sums


@pytest.mark.parametrize("name", grounding_cases(Path(), Path()))
def test_phrases_are_those_of_the_cpu(world, sets, device, name):
    settings = {"captions": "all", **grounding_cases(world.models, world.boxes)[name]}
    out = world.root / "away" / name
    found = read_phrases(sets[name])
    cutouts = out.with_suffix(".cutouts") if len(found) else None  # without any, there is an error
    ground_captions(world.data, settings, out, cutouts=cutouts, device="mps")
    assert read_phrases(out).equals(found)
    assert grounding_counts(out) == grounding_counts(sets[name])


WHOLE, IN_GROUPS = {}, {"chunk": 4}
QUICK = [("simcse", WHOLE), ("mcse", IN_GROUPS), ("dalr", WHOLE)]


@pytest.mark.parametrize(
    ("system", "cached"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(SYSTEMS, (WHOLE, IN_GROUPS))
    ],
)
def test_weights_and_scores_are_those_of_the_cpu(world, features, system, cached):
    weights, scores = {}, {}
    for name in ("cpu", "mps"):
        spec = spec_of(world, features, system, dropout=False)
        out = world.root / "runs" / f"{name}, {system}, {len(cached)}"
        train = spec.train.model_copy(update={"max_steps": 3, **cached})
        spec = spec.model_copy(update={"device": name, "out": out, "train": train})
        with away() if name == "mps" else nullcontext():
            train_run(spec, say=lambda line: None)
            embedder = Embedder.load(out / "model", device=name)
            scores[name] = embedder.encode(["a red circle", "the field"])
        weights[name] = load_file(out / "model/model.safetensors")
    for tensor, expected in weights["cpu"].items():
        torch.testing.assert_close(weights["mps"][tensor], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(scores["mps"], scores["cpu"], rtol=1e-2, atol=1e-3)
