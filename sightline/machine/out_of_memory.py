"""What happens when a device runs out of memory: batches are halved, and the record says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sightline.errors import OUT_OF_MEMORY, SightlineError
from sightline.machine.progress import to_stderr

Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device has no room for what was asked of it."""
    import torch

    is_memory_error = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_memory_error or (
        isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))
    )


class HalvingCalls:
    """The number of items per model call: a whole batch, halved as often as necessary.

    An item's result may depend on this number, so a batch that ran out of memory is recomputed
    from its start, and the number is stored in the blocks and in the record of the shards.

    Args:
        title: the model, for messages.
        items: name of the items, in the plural.
        part: name of the model in ``halved_to`` if a run has several; empty if it has one.
        most: items per call; 0: as many as the batches of the plan have rows.

    Attributes:
        begun_with: items per call before memory ran out.
    """

    def __init__(self, title: str, items: str = "rows", part: str = "", most: int = 0) -> None:
        self.count = self.begun_with = 1
        self.part = part
        self._title, self._items, self._most = title, items, most

    def begin(self, batch_size: int, earlier: Mapping[str, Any] | None) -> None:
        """Start with as many items per call as there may be, or as an interrupted run had reached.

        Args:
            batch_size: rows per batch of the plan.
            earlier: how the last block of that run was computed.
        """
        self.count = self.begun_with = self._most or batch_size
        halved = (earlier or {}).get("halved_to")
        size = halved.get(self.part) if isinstance(halved, Mapping) else halved
        self.count = min(self.count, size or self.count)

    @property
    def halved_to(self) -> int | None:
        """The reduced number, after memory ran out; None if it never did."""
        return self.count if self.count < self.begun_with else None

    def run(self, items: int, call: Callable[[int, int], Result]) -> list[Result]:
        """The results of the calls for ``items`` items, in order.

        Args:
            call: computes items ``start`` to ``stop - 1``; there may be fewer.
        """
        while True:
            try:
                return [call(start, start + self.count) for start in range(0, items, self.count)]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).split(". ")[0]
            self._halve(reason)  # outside the handler: the error keeps the full memory alive

    def _halve(self, reason: str) -> None:
        import torch

        if self.count == 1:
            gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
            elsewhere = ", or --devices cpu" if gpu else ""
            raise SightlineError(
                f"{self._title}: the device has no room for one of its {self._items} at a time "
                f"({reason}); stop other jobs on it, or use --precision bf16 or a smaller model"
                f"{elsewhere}. Finished work is kept"
            )
        before, self.count = self.count, self.count // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        elif torch.backends.mps.is_available():
            torch.mps.empty_cache()
        to_stderr(
            f"{self._title}: out of memory with {before} {self._items} per call; continuing with "
            f"{self.count}, which is recorded"
        )
