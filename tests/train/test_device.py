"""A requested device that is not available is an error, never replaced by another."""

from __future__ import annotations

import pytest
import torch

from sightline.devices import pick_device
from sightline.errors import SightlineError
from train.distributed import Processes


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


def test_a_process_has_the_gpu_of_its_number_on_its_machine(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")  # the second of the second machine
    assert [Processes(3, 4).device("cuda")] == chosen == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(SightlineError, match="process 3 is number 2 on this machine, which has 2"):
        Processes(3, 4).device("auto")
