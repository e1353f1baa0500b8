"""Batches that fit: a batch that runs out of memory is halved, and no row is lost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from sightline.errors import SightlineError

Item = TypeVar("Item")
Result = TypeVar("Result")


class HalvingBatches:
    """Runs a model over items in batches of at most ``size``, which halves where memory ends.

    Args:
        size: of a batch to begin with.
        what: is run, for the message.
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = self._begun_with = size
        self._what = what

    @property
    def halved_to(self) -> int | None:
        """The size that is left, once memory did not suffice; None as long as it did."""
        return self.size if self.size < self._begun_with else None

    def run(
        self, items: Sequence[Item], call: Callable[[Sequence[Item]], Sequence[Result]]
    ) -> list[Result]:
        """One result for each item, in order.

        Raises:
            SightlineError: one item by itself does not fit.
        """
        results: list[Result] = []
        while len(results) < len(items):
            batch = items[len(results) : len(results) + self.size]
            try:
                some = call(batch)
            except torch.OutOfMemoryError as error:
                if len(batch) == 1:
                    raise SightlineError(
                        f"{self._what}: out of memory with a single item; use a smaller model or "
                        "image size, precision bf16, or a device with more memory. What was "
                        "finished is kept"
                    ) from error
                self.size = len(batch) // 2
                print(
                    f"{self._what}: out of memory with {len(batch)} a batch; going on with "
                    f"{self.size}, which is recorded",
                    file=sys.stderr,
                    flush=True,
                )
            else:
                results.extend(some)
                continue
            # outside of `except`, so that the error no longer holds the batch's tensors
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return results
