"""When a device's memory does not suffice: fewer rows a call, for the rest of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from torch import Tensor


class RowsPerCall:
    """How many rows an encoder is given at once: a whole batch, or half as often as need be.

    A row's value may depend on this number, so every call has exactly that many rows, padding
    included, and the number goes into the blocks and into the record of the shards.

    Args:
        count: rows to begin with.
        title: whose rows, for the message.
    """

    def __init__(self, count: int, title: str) -> None:
        self.count = count
        self._title = title

    def encode(self, rows: int, call: Callable[[int, int], Tensor]) -> np.ndarray:
        """The first ``rows`` rows of a batch: float32 [rows, dim].

        Args:
            call: gives rows ``start`` to ``stop - 1`` of the batch, padded where it has no more.

        Raises:
            SightlineError: the device has no room for a single row.
        """
        while True:
            try:
                parts = [
                    call(start, start + self.count).numpy() for start in range(0, rows, self.count)
                ]
                return np.concatenate(parts)[:rows]
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                reason = str(error).split(". ")[0]
            self._halve(reason)  # out here: the error above holds on to what filled the memory

    def _halve(self, reason: str) -> None:
        import torch

        if self.count == 1:
            raise SightlineError(
                f"{self._title}: the device has no room for one row at a time ({reason}); end what "
                "else runs on it, or use precision bf16, a smaller encoder or --device cpu"
            )
        before, self.count = self.count, self.count // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(
            f"{self._title}: out of memory with {before} rows a call; going on with {self.count}, "
            "which is recorded",
            file=sys.stderr,
            flush=True,
        )


def _out_of_memory(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)
