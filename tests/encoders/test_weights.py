"""Weights: one digest for every file format, and one clear error if they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.encoders.config import WeightsSpec
from pipeline.encoders.weights import (
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.errors import SightlineError

STATE = {
    "b.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a.scale": torch.tensor(1.5),
    "a.half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
}


def test_the_digest_does_not_depend_on_the_format(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in STATE.items()}}, tmp_path / "b.pt")
    save_file(STATE, tmp_path / "c.safetensors")
    digests = {
        state_dict_sha256(read_state_dict(tmp_path / name))
        for name in ("a.pt", "b.pt", "c.safetensors")
    }
    assert digests == {state_dict_sha256(dict(reversed(STATE.items())))}


def test_the_digest_sees_names_shapes_types_and_values() -> None:
    weight = STATE["b.weight"]
    others = [
        {**STATE, "b.weight": weight.view(3, 2)},
        {**STATE, "b.weight": weight.view(torch.int32)},
        {**STATE, "b.weight": weight + torch.eye(2, 3) * 1e-7},
        {**{k: v for k, v in STATE.items() if k != "b.weight"}, "b.weights": weight},
    ]
    assert len({state_dict_sha256(state) for state in [STATE, *others]}) == 5


def test_building_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with seeded(7):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(7):
        assert torch.equal(torch.rand(4), first)
    with seeded(8):
        assert not torch.equal(torch.rand(4), first)


def test_a_file_that_does_not_fit_is_one_error() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = dict(module.state_dict())
    del state["1.num_batches_tracked"]  # early checkpoints have none
    load_exactly(module, state, "w.pt", "tiny")
    state["0.weight"] = torch.zeros(2, 4)
    del state["0.bias"]
    state["head"] = torch.zeros(1)
    with pytest.raises(SightlineError) as caught:
        load_exactly(module, state, "w.pt", "tiny")
    message = str(caught.value)
    assert "w.pt does not fit tiny" in message
    assert "1 missing (0.bias)" in message
    assert "1 unexpected (head)" in message
    assert "0.weight is [2, 4], expected [2, 3]" in message


class _Evil:
    def __reduce__(self):
        raise_if_run = "assert False, 'code in a weights file was run'"
        return exec, (raise_if_run,)


def test_unreadable_files(tmp_path: Path) -> None:
    torch.save({"a": _Evil()}, tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (tmp_path / "text.pt").write_text("no weights")
    for name, words in {
        "evil.pt": "never unpickles",
        "list.pt": "expected a state dict",
        "cut.safetensors": "neither readable safetensors nor",
        "text.pt": "neither readable safetensors nor a state dict|contains more than tensors",
        "gone.pt": "no such weights file",
    }.items():
        with pytest.raises(SightlineError, match=words) as caught:
            read_state_dict(tmp_path / name)
        assert name in str(caught.value)


def test_the_source_never_reveals_a_path(tmp_path: Path) -> None:
    def source(*spec: str, folder: Path | None = None) -> str:
        return identity_of(nn.Linear(1, 1), "tiny", WeightsSpec(*spec), folder=folder).source

    file = str(tmp_path / "clip.safetensors")
    assert source("file", file) == "file:clip.safetensors"
    (tmp_path / "provenance.json").write_text(json.dumps({"source": "trained on scenes"}))
    assert source("file", file) == "file:clip.safetensors (trained on scenes)"
    (tmp_path / "clip.provenance.json").write_text(json.dumps({"source": "a CLIP of scenes"}))
    assert source("file", file) == "file:clip.safetensors (a CLIP of scenes)"
    assert source("file", str(tmp_path / "other.pt")) == "file:other.pt (trained on scenes)"
    assert source("pretrained", "", folder=tmp_path) == "pretrained (trained on scenes)"
    assert source("random", "0", folder=tmp_path) == "random:0"
    assert source("pretrained", "V2") == "pretrained:V2"
