"""Batches of pixels from decode processes, and their features from the encoder's device.

An unusable entry costs only its own row.
"""

from __future__ import annotations

import ast
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import MAX_PIXELS, ImagePreprocessing
from pipeline.extract.decode import ImageError
from pipeline.extract.objects import CutoutPreprocessing
from sightline.cache.parts import Failure
from sightline.errors import SightlineError
from sightline.files.places import is_url
from sightline.files.storage import StorageError, reading_ahead
from sightline.wording import in_bytes

NEARLY_BLACK = 16
"""Of 255: 12 bits in a file of 16 reach it and no more."""

_AHEAD = 2  # batches of each decode process
_SHARED = Path("/dev/shm")
_LOST = ("DataLoader worker (pid", "Pin memory thread exited", "Too many open files")


class EntryDecoder:
    """Turns an entry into the pixels of a model's input, by it alone. Picklable.

    Args:
        load: an entry's picture: uint8 [channels, H, W].
        preprocessing: of the encoder, for such pictures.
    """

    def __init__(
        self,
        load: Callable[[Any], Tensor],
        preprocessing: ImagePreprocessing | CutoutPreprocessing,
    ) -> None:
        self._load, self.preprocessing = load, preprocessing
        self.channels, self.size = preprocessing.channels, preprocessing.size

    def __call__(self, entry: Any) -> Tensor:
        """uint8 [channels, h, w] with (h, w) = `size`.

        Raises:
            ImageError: those of ``load``; ``too_many_pixels`` also once resized or padded.
        """
        picture = self._load(entry)
        height, width = picture.shape[1:]
        larger = self.preprocessing.resized(height, width)
        if larger[0] * larger[1] > MAX_PIXELS:
            # A one-pixel-wide strip grows to billions of pixels when its short side is scaled up.
            raise ImageError(
                "too_many_pixels",
                f"{width} × {height} pixels would become {larger[1]} × {larger[0]}; at most "
                f"{MAX_PIXELS:,} are allowed",
            )
        return self.preprocessing.fitted(picture)


class Decoded(NamedTuple):
    """A batch of pictures.

    Attributes:
        pixels: uint8 [batch_size, channels, h, w], zeros for failed or missing entries.
        failed: the failed ones by key, in order.
        dark: places of pictures without a value above `NEARLY_BLACK`.
    """

    pixels: Tensor
    failed: dict[bytes, Failure]
    dark: list[str]


def decode_batch(entries: Sequence[Any], batch_size: int, read: EntryDecoder) -> Decoded:
    """Read the entries of one batch, at most `batch_size`; each has a ``place`` and a ``key``."""
    if len(entries) > batch_size:
        raise ValueError(f"{len(entries)} entries do not fit a batch of {batch_size}")
    batch = torch.zeros(batch_size, read.channels, *read.size, dtype=torch.uint8)
    failed: dict[bytes, Failure] = {}
    dark: list[str] = []
    with reading_ahead([entry.place.span for entry in entries if is_url(entry.place.path)]):
        for row, entry in enumerate(entries):
            try:
                picture = read(entry)
            except ImageError as error:
                failed[entry.key] = error.at(entry.place)
                continue
            batch[row] = picture
            if picture.max() <= NEARLY_BLACK:
                dark.append(str(entry.place))
    return Decoded(batch, failed, dark)


@dataclass(frozen=True)
class _BatchDecoder(Dataset[tuple[Tensor, Tensor]]):
    """Applies `decode_batch` to the entries of a batch, for a `DataLoader`.

    What is said of the pictures is pickled: uint8 [n]. A batch's message then holds two handles,
    which a pipe takes whole or not at all; of a longer one a killed process may leave a half, and
    its parent wait.

    An item depends only on its entries, so the number of worker processes changes no byte, and
    requests can be decided at the last moment. A decode process shares its batch here, where it can
    say that there is no room: the thread that hands it on would drop it, and its parent wait.
    """

    batch_size: int
    read: EntryDecoder

    def __getitem__(self, entries: Sequence[Any]) -> tuple[Tensor, Tensor]:
        outcome: Sequence[object] | StorageError
        try:
            pixels, *outcome = decode_batch(entries, self.batch_size, self.read)
        except StorageError as error:  # PyTorch would hand it on as text
            pixels, outcome = torch.empty(0, dtype=torch.uint8), error
        pickled = torch.frombuffer(bytearray(pickle.dumps(outcome)), dtype=torch.uint8)
        if get_worker_info() is not None:
            try:
                pixels.share_memory_()
                pickled.share_memory_()
            except (RuntimeError, OSError) as error:
                raise _NotShared(str(error)) from error
        return pixels, pickled

    def needed(self, workers: int) -> int:
        """Bytes of the batches that are decoded ahead, and of the one that is encoded."""
        a_batch = self.batch_size * self.read.channels * math.prod(self.read.size)
        return (_AHEAD * workers + 1) * a_batch


class _NotShared(Exception):
    """A decode process could not put a batch into shared memory."""


def decoded_batches(
    batches: Iterator[Sequence[Any]],
    batch_size: int,
    read: EntryDecoder,
    workers: int,
    *,
    pinned: bool = False,
) -> Iterator[Decoded]:
    """Decode every batch of entries, in order, in ``workers`` processes (0: in this one).

    Args:
        batches: at most ``batch_size`` entries each, requested a few batches ahead.
        pinned: put them into memory that a GPU copies from while it computes.

    Raises:
        SightlineError: a decode process died, or cannot hand on its batches.
        StorageError: a server does not give an image.
    """
    first = next(batches, None)
    if first is None:
        return  # without starting a process
    decoder = _BatchDecoder(batch_size, read)
    if workers:
        _require_sockets()
        _require_main_guard()
        _require_shared_memory(decoder.needed(workers), workers)
    # the number is the user's choice, and containers often report too few cores
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    loader = DataLoader(
        decoder,
        batch_size=None,
        sampler=chain([first], batches),
        num_workers=workers,
        prefetch_factor=_AHEAD if workers else None,
        pin_memory=pinned,
        worker_init_fn=decode_worker_init if workers else None,
    )
    try:
        for pixels, pickled in _watched(loader):
            outcome = pickle.loads(pickled.numpy().data)
            if isinstance(outcome, StorageError):
                raise outcome
            yield Decoded(pixels, *outcome)
    except _NotShared as error:
        reason = str(error).splitlines()[-1]  # below the traceback of the decode process
        raise _too_little_shared(decoder.needed(workers), workers, reason) from error
    except RuntimeError as error:
        if not str(error).startswith(_LOST):
            raise
        raise SightlineError(
            f"a decode process died, or its batches did not arrive: {str(error).splitlines()[0]} "
            "Finished work is kept; rerun the same command, with fewer workers if memory was short "
            "(--workers 0: none)"
        ) from error


def _watched(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; the end of a decode process is noticed here, within seconds.

    PyTorch's handler of SIGCHLD would raise in whatever the main thread does at that moment.
    """
    before = signal.getsignal(signal.SIGCHLD)
    decoded = iter(loader)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    yield from decoded


def _require_shared_memory(needed: int, workers: int) -> None:
    """Refuse a machine that has less shared memory than the batches take, as many containers do."""
    if _SHARED.is_dir() and shutil.disk_usage(_SHARED).free < needed:
        raise _too_little_shared(needed, workers)


def _too_little_shared(needed: int, workers: int, reason: str = "") -> SightlineError:
    problem = "cannot be used"
    if _SHARED.is_dir():
        usage = shutil.disk_usage(_SHARED)
        problem = f"has {in_bytes(usage.free)} free of {in_bytes(usage.total)}"
    return SightlineError(
        f"{_SHARED} {problem}, and the batches of the decode processes ({workers}) need "
        f"{in_bytes(needed)}{reason and f' ({reason})'}; give the container more shared memory "
        "(docker run --shm-size or --ipc=host), take smaller batches (--batch-size), or decode "
        "without processes (--workers 0)"
    )


def _require_sockets() -> None:
    """Refuse a temporary folder that holds no sockets, over which batches are handed on.

    A decode process without one drops its batches, so the command would hang.
    The usual reason: the path of a socket has at most 107 bytes (103 on macOS).
    """
    folder = tempfile.gettempdir()
    try:
        # a path as long as those of `multiprocessing`
        with (
            tempfile.TemporaryDirectory(prefix="pymp-", dir=folder) as created,
            socket.socket(socket.AF_UNIX) as probe,
        ):
            probe.bind(f"{created}/listener-12345678")
    except OSError as error:
        raise SightlineError(
            f"{folder}: decode processes cannot open a socket in this temporary folder: {error}; "
            "set TMPDIR to a folder on a local disk with a path of at most 70 bytes, or decode "
            "without processes (--workers 0)"
        ) from error


def _require_main_guard() -> None:
    """Refuse a script whose own lines would start the decode processes' run again, in each of them.

    Where processes are not forked (macOS, Windows, Python 3.14), each imports the script again.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    method = multiprocessing.get_start_method()
    path = None if frame is None else frame.f_globals.get("__file__")
    if frame is None or path is None or method == "fork" or _is_guarded(path, frame.f_lineno):
        return
    raise SightlineError(
        f"{path}: line {frame.f_lineno} starts decode processes, which ({method}) import this "
        'script and would run that line again; put it below `if __name__ == "__main__":`, or '
        "decode without processes (workers=0)"
    )


def _is_guarded(path: str, line: int) -> bool:
    """Whether a line of a script is inside ``if __name__ == …:``, or the script cannot be read."""
    try:
        lines = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    return any(
        isinstance(part, ast.If)
        and "__name__" in ast.unparse(part.test)
        and part.lineno <= line <= (part.end_lineno or part.lineno)
        for part in lines
    )


def decode_worker_init(worker_id: int) -> None:
    """`worker_init_fn` of decode processes: one thread each, in a separate process group.

    Thread pools in several workers would compete for the cores that the encoder needs. A signal
    to the command's process group (Ctrl-C, `timeout`) would end the workers first, and the command
    could only report that they died. They end with it, or within seconds if it is killed.
    """
    torch.set_num_threads(1)
    os.setpgid(0, 0)


PendingFeatures = Callable[[], np.ndarray]
"""Waits for the features of one call: float32 [n, dim]."""


class EncoderFeed:
    """Encodes decoded batches, which are normalised where the encoder is.

    On a GPU the batches should be pinned: a stream of its own copies them while the batch before
    is computed.
    """

    def __init__(self, encoder: ImageEncoder, read: EntryDecoder) -> None:
        self._encoder, self._read = encoder, read
        self.on_gpu = encoder.device.type == "cuda"
        self._copies = torch.cuda.Stream(encoder.device) if self.on_gpu else None

    def launch(self, inputs: Tensor, start: int, stop: int) -> PendingFeatures:
        """Encode rows ``start`` to ``stop - 1`` of a batch; rows that it lacks are padding."""
        shape = stop - start, 3, *self._read.size
        rows = inputs[start:stop]
        if self._copies is None:
            images = torch.zeros(shape)
            for row, pixels in enumerate(rows):  # one at a time: they stay in the processor's cache
                self._read.preprocessing.normalised(pixels, out=images[row])
            features = self._encoder.encode(images).cpu().numpy()
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
            on_host = torch.empty(features_there.shape, dtype=torch.float32, pin_memory=True)
            on_host.copy_(features_there, non_blocking=True)
            done = computing.record_event()

        def result() -> np.ndarray:
            done.synchronize()
            return on_host.numpy()

        return result
