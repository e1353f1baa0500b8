"""Out of memory: the compute batch is halved, the run continues, and the record says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.encoders.encoder import TextEncoder
from pipeline.extract.encode_missing import encode
from pipeline.extract.inputs import FeatureInputs
from pipeline.extract.settings import RunSettings
from sightline.cache import EncoderRecord, FeatureSet, keys_of_texts, verify
from sightline.errors import SightlineError

TEXTS = [f"text {i}" for i in range(50)]
INPUTS = FeatureInputs("text", TEXTS)
SETTINGS = RunSettings(batch_size=8, dtype="float32")


class Limited:
    """The text encoder of a device with room for a given number of rows, and the sizes of calls."""

    def __init__(self, room: int, dies_after: int | None = None) -> None:
        self.room = room
        self.calls: list[int] = []
        self._dies_after = dies_after
        torch.manual_seed(0)
        self._model = nn.Linear(32, 16)
        digest = "0" * 64
        self.encoder = TextEncoder(
            EncoderRecord(name="limited", source="random:0", weights_sha256=digest, untrained=True),
            dim=16,
            preprocessing={},
            lengths=lambda texts: [1] * len(texts),
            encode=self.encode,
        )

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        self.calls.append(len(texts))
        if len(self.calls) == self._dies_after:
            raise SightlineError("the power is gone")
        if len(texts) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        with torch.inference_mode():
            return self._model(torch.tensor(keys_of_texts(texts)).float() / 255)


def test_the_batch_is_halved_until_it_fits_and_that_is_recorded(tmp_path: Path, capsys) -> None:
    encode(INPUTS, Limited(room=8).encoder, tmp_path / "wide", SETTINGS)
    device = Limited(room=3)
    encode(INPUTS, device.encoder, tmp_path / "narrow", SETTINGS)
    assert device.calls[:4] == [8, 4, 2, 2]
    assert set(device.calls[4:]) == {2}
    said = capsys.readouterr().err
    assert "out of memory with 8 rows per call; continuing with 4" in said
    assert "out of memory with 4 rows per call; continuing with 2" in said
    wide, narrow = (FeatureSet.open(tmp_path / name) for name in ("wide", "narrow"))
    computed = [features.record.shards[0].computed for features in (wide, narrow)]
    assert [about["batch_size"] for about in computed] == [8, 8]
    assert [about.get("halved_to") for about in computed] == [None, 2]
    assert wide.fingerprint == narrow.fingerprint
    assert verify(tmp_path / "narrow") == []
    keys = keys_of_texts(TEXTS)
    one, other = (features.take(keys).astype(np.float64) for features in (wide, narrow))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert ((one * other).sum(axis=1) / norms).min() >= 0.9999


def test_a_run_resumes_with_the_smaller_number(tmp_path: Path) -> None:
    dying = Limited(room=4, dies_after=6)
    with pytest.raises(SightlineError, match="power"):
        encode(INPUTS, dying.encoder, tmp_path / "set", SETTINGS)
    device = Limited(room=8)
    encode(INPUTS, device.encoder, tmp_path / "set", SETTINGS)
    assert set(device.calls) == {4}
    (shard,) = FeatureSet.open(tmp_path / "set").record.shards
    assert shard.computed["halved_to"] == 4
    encode(INPUTS, Limited(room=4).encoder, tmp_path / "whole", SETTINGS)
    assert (tmp_path / "set" / shard.name).read_bytes() == (
        tmp_path / "whole" / shard.name
    ).read_bytes()


def test_no_room_for_one_row_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(SightlineError, match=r"no room for one of its rows at a time .* cpu"):
        encode(INPUTS, Limited(room=0).encoder, tmp_path / "set", SETTINGS)


def test_other_device_errors_are_not_treated_as_out_of_memory(tmp_path: Path) -> None:
    def fails(texts: Sequence[str], length: int) -> Tensor:
        raise RuntimeError("cuDNN error")

    encoder = replace(Limited(room=8).encoder, encode=fails)
    with pytest.raises(RuntimeError, match="cuDNN"):
        encode(INPUTS, encoder, tmp_path / "set", SETTINGS)


@pytest.mark.gpu
def test_a_full_real_device(tmp_path: Path) -> None:
    class Greedy(Limited):
        def encode(self, texts: Sequence[str], length: int) -> Tensor:
            free, _ = torch.cuda.mem_get_info()
            if len(texts) > self.room:
                torch.empty(2 * free, dtype=torch.uint8, device="cuda")
            return super().encode(texts, length)

    encode(INPUTS, Greedy(room=2).encoder, tmp_path / "set", SETTINGS)
    (shard,) = FeatureSet.open(tmp_path / "set").record.shards
    assert shard.computed["halved_to"] == 2
