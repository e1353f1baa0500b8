"""From decoded batches to features: on the CPU, or ahead of time on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.encoders.protocols import ImageEncoder, ImageEncoderOnDevice
from pipeline.extract.batches import Failure, Raw, Reader, decoded_batches

Result = Callable[[], np.ndarray]
"""Waits for the features of one call: float32 [n, dim]."""


class Feed(Protocol):
    """Decodes batches and launches calls of the encoder.

    Attributes:
        ahead: batches that may be launched before the first one's result is read.
    """

    ahead: int

    def decoded(
        self, batches: Iterator[Sequence[Any]], batch_size: int, workers: int
    ) -> Iterator[tuple[Any, list[Failure]]]:
        """The inputs of every batch of entries, in order, and its failures."""
        ...

    def launch(self, inputs: Any, start: int, stop: int) -> Result:
        """Encode rows ``start`` to ``stop - 1`` of a batch; rows that it lacks are padding."""
        ...


def feed_for(encoder: ImageEncoder, read: Reader) -> Feed:
    """On a GPU, the feed that computes there what it can; otherwise the CPU's."""
    if isinstance(encoder, ImageEncoderOnDevice) and encoder.device.type == "cuda":
        return DeviceFeed(encoder, read)
    return HostFeed(encoder, read)


class HostFeed:
    """Workers fit the images, and this process normalises them, in a buffer that it keeps."""

    ahead = 0

    def __init__(self, encoder: ImageEncoder, read: Reader) -> None:
        self._encoder, self._read = encoder, read
        self._buffer = torch.empty(0)

    def decoded(
        self, batches: Iterator[Sequence[Any]], batch_size: int, workers: int
    ) -> Iterator[tuple[Tensor, list[Failure]]]:
        return decoded_batches(batches, batch_size, self._read, workers)

    def launch(self, inputs: Tensor, start: int, stop: int) -> Result:
        shape = stop - start, 3, *self._read.size
        if self._buffer.shape != shape:
            self._buffer = torch.empty(shape)
        rows = inputs[start:stop]
        for row, pixels in enumerate(rows):  # one at a time: they stay in the processor's cache
            self._read.preprocessing.normalised(pixels, out=self._buffer[row])
        self._buffer[len(rows) :] = 0
        features = self._encoder.encode(self._buffer).numpy()
        return lambda: features


class DeviceFeed:
    """Sends decoded images as uint8; fits, normalises and encodes them on the encoder's device.

    Copies have a stream of their own, so that a batch is on its way while the one before it is
    computed. An image is fitted alone, so its row depends on nothing else in its batch.
    """

    ahead = 1

    def __init__(self, encoder: ImageEncoderOnDevice, read: Reader) -> None:
        self._encoder, self._read = encoder, read
        self._device = encoder.device
        self._on_gpu = self._device.type == "cuda"
        self._copies = torch.cuda.Stream(self._device) if self._on_gpu else None
        self._sent: tuple[Raw, Tensor] | None = None

    def decoded(
        self, batches: Iterator[Sequence[Any]], batch_size: int, workers: int
    ) -> Iterator[tuple[Raw, list[Failure]]]:
        return decoded_batches(
            batches, batch_size, self._read, workers, raw=True, pinned=self._on_gpu
        )

    def launch(self, inputs: Raw, start: int, stop: int) -> Result:
        with torch.inference_mode():
            pixels = self._fitted(inputs, start, stop)
            images = self._read.preprocessing.normalised(pixels)
            features = self._encoder.features(images)
            if not self._on_gpu:
                return features.numpy
            here = torch.empty(features.shape, dtype=features.dtype, pin_memory=True)
            here.copy_(features, non_blocking=True)
            done = torch.cuda.current_stream(self._device).record_event()

        def result() -> np.ndarray:
            done.synchronize()
            return here.numpy()

        return result

    def _fitted(self, inputs: Raw, start: int, stop: int) -> Tensor:
        """uint8 [stop - start, channels, h, w] on the device; zeros where there is no image."""
        values = self._on_device(inputs)
        shape = stop - start, self._read.channels, *self._read.size
        pixels = torch.zeros(shape, dtype=torch.uint8, device=self._device)
        first = 0
        for row, channels, height, width, fitted in inputs.shapes:
            end = first + channels * height * width
            if start <= row < stop:
                image = values[first:end].view(channels, height, width)
                pixels[row - start] = image if fitted else self._fit(image)
            first = end
        return pixels

    def _fit(self, image: Tensor) -> Tensor:
        return self._read.preprocessing.fitted(image, in_float=True)

    def _on_device(self, inputs: Raw) -> Tensor:
        """The batch on the device, copied once however many calls it takes."""
        if self._sent is not None and self._sent[0] is inputs:
            return self._sent[1]
        if self._copies is None:
            values = inputs.values.to(self._device)
        else:
            with torch.cuda.stream(self._copies):
                values = inputs.values.to(self._device, non_blocking=True)
            computing = torch.cuda.current_stream(self._device)
            computing.wait_stream(self._copies)
            values.record_stream(computing)
        self._sent = inputs, values
        return values
