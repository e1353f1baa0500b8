"""A requested device that is not available is an error, never replaced by another."""

from __future__ import annotations

import pytest
import torch

from sightline.devices import pick_device
from sightline.errors import SightlineError


def test_a_missing_device_is_an_error(monkeypatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(
            SightlineError, match=f"device '{name}' was requested.*CUDA is not available"
        ):
            pick_device(name)
    with pytest.raises(SightlineError, match="'mps' was requested"):
        pick_device("mps")
    for name in ("gpu", "cuda:x", "cuda:", "cpu:0x"):
        with pytest.raises(SightlineError, match="unknown device"):
            pick_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("auto") == torch.device("cuda", 0)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(SightlineError, match="has 2 CUDA devices"):
        pick_device("cuda:2")
