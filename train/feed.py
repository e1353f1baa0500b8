"""Where the batches of a run come from: the device itself, or a thread that reads ahead."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from train.batch import Batch
from train.data import TrainingData

Feed = Callable[[int], Batch]
"""Micro-batch k, on the device."""


def make_feed(data: TrainingData, device: torch.device, share: float) -> Feed:
    """The micro-batches of ``data``, on ``device``.

    Token ids and features move to a GPU if they take at most ``share`` of its memory; otherwise a
    thread reads the next batch while a step runs. A CPU reads the cache as it is.
    """
    if device.type == "cpu":
        return data.__getitem__
    if device.type == "cuda" and data.nbytes > share * torch.cuda.mem_get_info(device)[1]:
        return ReadAhead(data, device)
    data.move_to(device)
    return lambda k: data[k].to(device)


class ReadAhead:
    """Micro-batches in order, the next one read and on its way while the caller uses one."""

    def __init__(self, data: TrainingData, device: torch.device) -> None:
        self._data, self._device = data, device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._next: tuple[int, Future[Batch]] | None = None

    def __call__(self, k: int) -> Batch:
        expected, self._next = self._next, None
        future = self._read(k) if expected is None or expected[0] != k else expected[1]
        self._next = k + 1, self._read(k + 1)
        return future.result()

    def _read(self, k: int) -> Future[Batch]:
        return self._pool.submit(lambda: self._data[k].to(self._device))
