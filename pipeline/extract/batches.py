"""Batches of pixels from worker processes; an unusable entry costs only its own row."""

from __future__ import annotations

import math
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract.decode import MAX_PIXELS, ImageError, load_image
from sightline.cache import Place
from sightline.errors import SightlineError

_SIGNAL_GRACE = 0.5  # seconds


class Failure(NamedTuple):
    """An unusable entry of a batch: its row, an error code, the reason."""

    row: int
    code: str
    reason: str


class Preprocessing(Protocol):
    """From a decoded image or cut-out to a model's input, on any device."""

    def fitted(self, image: Tensor, /) -> Tensor:
        """uint8 [channels, H, W] → uint8 [channels, h, w]."""
        ...

    def normalised(self, pixels: Tensor, out: Tensor | None = None) -> Tensor:
        """uint8 [..., channels, h, w] → float32 [..., 3, h, w], in ``out`` if given."""
        ...


class Reader(Protocol):
    """Turns a manifest entry into the pixels of a model's input. Picklable."""

    @property
    def channels(self) -> int:
        """Channels of the pixels: 3, or 4 with alpha."""
        ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the input in pixels."""
        ...

    def __call__(self, entry: Any) -> Tensor:
        """uint8 [channels, h, w], determined by ``entry`` alone.

        Raises:
            ImageError: the entry cannot be used.
        """
        ...


class ImageReader:
    """Reads whole images from entries of place and key.

    Args:
        preprocessing: the encoder's preprocessing.
        max_pixels: largest width × height, of the file and after resizing.
    """

    def __init__(self, preprocessing: ImagePreprocessing, max_pixels: int = MAX_PIXELS) -> None:
        self._preprocessing = preprocessing
        self._max_pixels = max_pixels

    channels = 3

    @property
    def preprocessing(self) -> ImagePreprocessing:
        return self._preprocessing

    @property
    def size(self) -> tuple[int, int]:
        return self._preprocessing.crop

    def __call__(self, entry: tuple[Place, bytes]) -> Tensor:
        return self._preprocessing.fitted(self._image(entry))

    def _image(self, entry: tuple[Place, bytes]) -> Tensor:
        place, key = entry
        image = load_image(place, key, self._max_pixels)
        resized = self._preprocessing.resized(image.shape[1], image.shape[2])
        if resized[0] * resized[1] > self._max_pixels:
            # A one-pixel-wide strip grows to billions of pixels when its short side is scaled up.
            raise ImageError(
                "too_many_pixels",
                f"{image.shape[2]} × {image.shape[1]} pixels would be resized to "
                f"{resized[1]} × {resized[0]}; at most {self._max_pixels:,} are allowed",
            )
        return image


def decode_batch(
    entries: Sequence[Any], batch_size: int, read: Reader
) -> tuple[Tensor, list[Failure]]:
    """Read the entries of one batch, at most `batch_size`.

    Returns:
        uint8 [batch_size, channels, h, w], zeros for failed or missing entries; and the failures,
        in order. In a worker process the pixels are in shared memory.
    """
    if len(entries) > batch_size:
        raise ValueError(f"{len(entries)} entries do not fit a batch of {batch_size}")
    batch = _shared_zeros(batch_size, read.channels, *read.size)
    failures: list[Failure] = []
    for row, entry in enumerate(entries):
        try:
            batch[row] = read(entry)
        except ImageError as error:
            failures.append(Failure(row, error.code, error.reason))
    return batch, failures


def _shared_zeros(*shape: int) -> Tensor:
    """uint8 zeros; in a worker process in shared memory, where a `DataLoader` would copy them."""
    if get_worker_info() is None or not math.prod(shape):
        return torch.zeros(*shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(math.prod(shape))  # new pages are zero
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(*shape)


class BatchDecoder(Dataset[tuple[Tensor, list[Failure]]]):
    """Applies `decode_batch` to the entries of a batch, for a `DataLoader`.

    An item depends only on its entries, so the number of worker processes changes no byte, and
    requests can be decided at the last moment.
    """

    def __init__(self, batch_size: int, read: Reader) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected at least 1")
        self._batch_size = batch_size
        self._read = read

    def __getitem__(self, entries: Sequence[Any]) -> tuple[Tensor, list[Failure]]:
        return decode_batch(entries, self._batch_size, self._read)


def decoded_batches(
    batches: Iterator[Sequence[Any]],
    batch_size: int,
    read: Reader,
    workers: int,
    *,
    pinned: bool = False,
) -> Iterator[tuple[Tensor, list[Failure]]]:
    """Decode every batch of entries, in order, in ``workers`` processes (0: in this one).

    Args:
        batches: at most ``batch_size`` entries each, requested a few batches ahead.
        pinned: put them into memory that a GPU copies from while it computes.

    Raises:
        SightlineError: a decode process died, or cannot send its batches.
    """
    first = next(batches, None)
    if first is None:
        return  # without starting a process
    if workers:
        _require_sockets()
    # the number is the user's choice, and containers often report too few cores
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    loader = DataLoader(
        BatchDecoder(batch_size, read),
        batch_size=None,
        sampler=chain([first], batches),
        num_workers=workers,
        pin_memory=pinned,
        worker_init_fn=decode_worker_init if workers else None,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        time.sleep(_SIGNAL_GRACE)  # a signal to the process group may reach a worker first
        raise SightlineError(
            f"a decode process died: {str(error).splitlines()[0]} Finished work is kept; rerun "
            "the same command, with fewer workers if memory was short (--workers 0: none)"
        ) from error


def _require_sockets() -> None:
    """Refuse a temporary folder that holds no sockets, over which batches are handed on.

    A decode process without one drops its batches, so the command would hang.
    The usual reason: the path of a socket has at most 107 bytes (103 on macOS).
    """
    folder = tempfile.gettempdir()
    try:
        # a path as long as those of `multiprocessing`
        with (
            tempfile.TemporaryDirectory(prefix="pymp-", dir=folder) as made,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            probe.bind(f"{made}/listener-12345678")
    except OSError as error:
        raise SightlineError(
            f"{folder}: decode processes cannot open a socket in this temporary folder: {error}; "
            "set TMPDIR to a folder on a local disk with a path of at most 70 bytes, or decode "
            "without processes (--workers 0)"
        ) from error


def decode_worker_init(worker_id: int) -> None:
    """`worker_init_fn` of decode processes: one thread each, in a separate process group.

    Thread pools in several workers would compete for the cores that the encoder needs. A signal
    to the command's process group (Ctrl-C, `timeout`) would end the workers first, and the command
    could only report that they died. They end with it, or within seconds if it is killed.
    """
    torch.set_num_threads(1)
    os.setpgid(0, 0)
