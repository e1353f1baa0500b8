"""Models behind an API: several calls at a time, tried again, and rows that are abandoned."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from typing import Any, TypeVar

from pydantic import SecretStr

from sightline.cache.plan import Batch
from sightline.errors import SightlineError, Transient

Result = TypeVar("Result")

_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds between two tries, doubled each time
_PATIENCE = 300.0  # seconds that the tries of one call may take
_LEAVE = 30.0  # seconds that calls have to end after a stop
_GIVEN_UP = 3  # calls in a row, or as many as there are at a time, after which no more are made


def secret(variable: str) -> SecretStr:
    """The key of a service, from the environment; ``get_secret_value()`` is for its calls alone.

    Printed, or in a message, it is ``**********``; a description that holds it is refused.

    Raises:
        SightlineError: the variable is not set.
    """
    value = os.environ.get(variable, "")
    if not value:
        raise SightlineError(f"{variable} is not set; put the key of the service there")
    return SecretStr(value)


class Service:
    """Makes the calls of one run in threads.

    Args:
        concurrency: tasks at a time.

    Attributes:
        abandoned: why the last task that was given up is left to do; None: none was.
    """

    def __init__(self, concurrency: int) -> None:
        self.abandoned: Transient | None = None
        self._concurrency = concurrency
        self._running, self._ending = 0, Event()
        self._done: SimpleQueue[tuple[Batch, Any]] = SimpleQueue()

    def with_retries(
        self, call: Callable[..., Result], concurrency: int | None = None
    ) -> Callable[..., Result]:
        """``call``, which is made again after a `Transient` error, later each time.

        Args:
            concurrency: calls at a time; None: as many as tasks.
        """
        turns = BoundedSemaphore(concurrency or self._concurrency)

        def retried(*args: Any) -> Result:
            began, wait = time.monotonic(), _FIRST_WAIT
            for tried in range(1, _TRIES + 1):
                try:
                    with turns:
                        return call(*args)
                except Transient as error:
                    pause = wait * random.uniform(0.5, 1.0)
                    if error.retry_after is not None:
                        pause = error.retry_after * random.uniform(1.0, 1.25)
                    late = time.monotonic() + pause - began > _PATIENCE
                    if tried == _TRIES or late or self._ending.wait(pause):
                        raise
                wait = min(2 * wait, _LONGEST_WAIT)
            raise AssertionError("unreachable")

        return retried

    def results(
        self,
        batches: Iterator[Batch],
        inputs_of: Callable[[Batch], Any],
        answer: Callable[[Batch, Any], Result],
        advance: Callable[[int], None],
    ) -> Iterator[Result]:
        """The results of batches, each as soon as it is there.

        A batch whose ``answer`` raises `Transient` is abandoned: it has no result. After several
        in a row the service counts as down, and no more are begun.

        Args:
            inputs_of: what ``answer`` needs of a batch, made in this thread.
            answer: asks for a batch, in another thread.
            advance: receives the number of rows that are done.
        """
        todo: SimpleQueue[tuple[Batch, Any] | None] = SimpleQueue()

        def work() -> None:
            while (task := todo.get()) is not None:
                try:
                    self._done.put((task[0], answer(*task)))
                except BaseException as error:
                    self._done.put((task[0], error))

        # a call that hangs must not keep the process, which waits for the threads of a pool
        for _ in range(self._concurrency):
            Thread(target=work, daemon=True).start()
        in_a_row, most_in_a_row = 0, max(_GIVEN_UP, self._concurrency)
        try:
            while True:
                while self._running < self._concurrency and in_a_row < most_in_a_row:
                    if (new := next(batches, None)) is None:
                        break
                    todo.put((new, inputs_of(new)))
                    self._running += 1
                if not self._running:
                    return
                batch, result = self._done.get()
                self._running -= 1
                if isinstance(result, Transient):
                    self.abandoned, in_a_row = result, in_a_row + 1
                elif isinstance(result, BaseException):
                    raise result
                else:
                    in_a_row = 0
                    yield result
                    advance(len(batch.keys))
        finally:
            for _ in range(self._concurrency):
                todo.put(None)

    def drain(self) -> Iterator[Any]:
        """When a run ends early: the results of the calls that are being made."""
        self._ending.set()
        until = time.monotonic() + _LEAVE
        while self._running:
            try:
                _, result = self._done.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return
            self._running -= 1
            if not isinstance(result, BaseException):
                yield result
