"""When a device's memory does not suffice: fewer items a call, for the rest of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sightline.errors import SightlineError

Result = TypeVar("Result")


class HalvingCalls:
    """How many items a model is given at once: a whole batch, or half as often as need be.

    What comes out for an item may depend on this number, so a batch that ran out of memory is
    computed again from its beginning, and the number goes into the blocks and into the record of
    the shards.

    Args:
        title: whose items, for the messages.
        items: what they are, in the plural.
        part: name of the model in ``halved_to`` where a run has several; empty where it has one.
    """

    def __init__(self, title: str, items: str = "rows", part: str = "") -> None:
        self.count = self._begun_with = 1
        self.part = part
        self._title, self._items = title, items

    def begin(self, count: int, earlier: Iterable[Mapping[str, Any]]) -> None:
        """Begin with ``count`` items a call, or what was left to an interrupted run.

        Args:
            earlier: how the finished blocks were computed.
        """
        self.count = self._begun_with = count
        for computed in earlier:
            halved = computed.get("halved_to")
            size = halved.get(self.part) if isinstance(halved, Mapping) else halved
            self.count = min(self.count, size or count)

    @property
    def halved_to(self) -> int | None:
        """The number that is left, once memory did not suffice; None as long as it did."""
        return self.count if self.count < self._begun_with else None

    def run(self, items: int, call: Callable[[int, int], Result]) -> list[Result]:
        """What the calls for ``items`` items give, in order.

        Args:
            call: gives what becomes of items ``start`` to ``stop - 1``; there may be fewer.

        Raises:
            SightlineError: the device has no room for a single item.
        """
        while True:
            try:
                return [call(start, start + self.count) for start in range(0, items, self.count)]
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                reason = str(error).split(". ")[0]
            self._halve(reason)  # out here: the error above holds on to what filled the memory

    def _halve(self, reason: str) -> None:
        import torch

        if self.count == 1:
            raise SightlineError(
                f"{self._title}: the device has no room for one of its {self._items} at a time "
                f"({reason}); end what else runs on it, or use precision bf16, a smaller model or "
                "--device cpu. What was finished is kept"
            )
        before, self.count = self.count, self.count // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(
            f"{self._title}: out of memory with {before} {self._items} a call; going on with "
            f"{self.count}, which is recorded",
            file=sys.stderr,
            flush=True,
        )


def halved_to(calls: Iterable[HalvingCalls]) -> dict[str, int]:
    """Of each model the number that is left, where memory did not suffice."""
    return {each.part: each.halved_to for each in calls if each.halved_to is not None}


def _out_of_memory(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError)
