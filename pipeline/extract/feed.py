"""From decoded batches to features, on the encoder's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.encoders.protocols import ImageEncoder
from pipeline.extract.batches import Failure, Reader, decoded_batches

Result = Callable[[], np.ndarray]
"""Waits for the features of one call: float32 [n, dim]."""


class Feed:
    """Decode processes fit the images to uint8; they are normalised where the encoder is.

    On a GPU the batches are pinned, and copied by a stream of their own while the batch before is
    computed.

    Attributes:
        ahead: batches that may be launched before the first one's result is read.
    """

    def __init__(self, encoder: ImageEncoder, read: Reader) -> None:
        self._encoder, self._read = encoder, read
        self._on_gpu = encoder.device.type == "cuda"
        self._copies = torch.cuda.Stream(encoder.device) if self._on_gpu else None
        self._buffer = torch.empty(0)
        self.ahead = int(self._on_gpu)

    def decoded(
        self, batches: Iterator[Sequence[Any]], batch_size: int, workers: int
    ) -> Iterator[tuple[Tensor, list[Failure]]]:
        """The inputs of every batch of entries, in order, and its failures."""
        return decoded_batches(batches, batch_size, self._read, workers, pinned=self._on_gpu)

    def launch(self, inputs: Tensor, start: int, stop: int) -> Result:
        """Encode rows ``start`` to ``stop - 1`` of a batch; rows that it lacks are padding."""
        shape = stop - start, 3, *self._read.size
        rows = inputs[start:stop]
        if self._copies is None:
            features = self._encoder.encode(self._normalised_here(rows, shape)).numpy()
            return lambda: features
        with torch.inference_mode():
            with torch.cuda.stream(self._copies):
                pixels = rows.to(self._encoder.device, non_blocking=True)
            computing = torch.cuda.current_stream(self._encoder.device)
            computing.wait_stream(self._copies)
            pixels.record_stream(computing)
            images = torch.zeros(shape, device=self._encoder.device)
            self._read.preprocessing.normalised(pixels, out=images[: len(rows)])
            features_there = self._encoder.encode(images)
            here = torch.empty(features_there.shape, dtype=torch.float32, pin_memory=True)
            here.copy_(features_there, non_blocking=True)
            done = computing.record_event()

        def result() -> np.ndarray:
            done.synchronize()
            return here.numpy()

        return result

    def _normalised_here(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self._buffer.shape != shape:
            self._buffer = torch.empty(shape)
        for row, pixels in enumerate(rows):  # one at a time: they stay in the processor's cache
            self._read.preprocessing.normalised(pixels, out=self._buffer[row])
        self._buffer[len(rows) :] = 0
        return self._buffer
