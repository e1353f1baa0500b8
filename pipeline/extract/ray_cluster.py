"""Workers as Ray actors: each reads, encodes and writes blocks itself, and returns a few numbers.

The cluster needs the folder of the set, and that of the inputs, at the same path on every node; the
only thing that travels through Ray is the description of the run.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cache.worker import Worker
from pipeline.extract.account import SetSummary
from pipeline.extract.engine import Work
from pipeline.extract.group import Ended, Group
from pipeline.extract.reporting import Message, Sent
from pipeline.extract.runner import Invocation
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.signals import Stopped
from sightline.threads import threads_here

_POLL = 0.5  # seconds
_ANSWER = 5.0  # seconds that the head has to accept a connection
_SILENT = 20.0  # seconds after which a head that accepts none is dead
_PATIENCE = 30.0  # seconds until a run says that it waits for room on the cluster
_DEATHS = 5  # in a row, without a row in between
_LEASE = 120.0  # seconds in which a file server releases the locks of a dead node (NFS: 90)
_HANDED_DOWN = ("HF_", "TRANSFORMERS_", "TOKENIZERS_")
"""Environment variables that nodes need as the command has them: where models are, offline."""


@dataclass(frozen=True)
class _Started:
    """A worker's process runs: first, or again after its predecessor died."""

    node: str


class _Board:
    """An actor beside the driver that holds messages until the driver takes them."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, Any]] = []

    def put(self, index: int, message: Any) -> None:
        self._messages.append((index, message))

    def take(self) -> list[tuple[int, Any]]:
        taken, self._messages = self._messages, []
        return taken


class _RayWorker:
    """An actor that does the work as one worker. Ray restarts it, and `run`, if it dies."""

    def run(
        self, packed: bytes, index: int, folder: str, environment: dict[str, str], board: Any
    ) -> Ended:
        """Do the packed work in ``folder``."""
        os.environ.update(environment)  # before libraries are imported that read it
        node = socket.gethostname()
        board.put.remote(index, _Started(node))

        def send(message: Message) -> None:
            board.put.remote(index, message)

        def work() -> SetSummary:
            try:
                os.chdir(folder)
            except OSError as error:
                raise SightlineError(
                    f"{folder}: node {node} of the cluster has no such folder; every node needs "
                    "the folders of inputs and outputs at the same path"
                ) from error
            try:
                run, how = pickle.loads(packed)
            except ModuleNotFoundError as error:
                raise SightlineError(
                    f"node {node} of the cluster: {error}; install the same packages on every node"
                ) from error
            return run(replace(how, reporter=Sent(send)))

        return Ended.of(work)


def run_on_ray(work: Work, how: Invocation, address: str | None, actors: int | None) -> SetSummary:
    """Do ``work`` with actors of a Ray cluster, as workers that share the set.

    A dead actor is replaced, and its block computed again.

    Args:
        address: ``host:port``, ``auto`` or ``local``; None: RAY_ADDRESS, else ``local``.
        actors: how many; None: as many as have room.

    Raises:
        SightlineError: as ``work``; Ray is missing, the address does not answer, no node has room
            for a worker, or workers die again and again.
    """
    ray = _imported()
    # Ray sets OMP_NUM_THREADS in its workers; the plan's number must be that of the other engines
    how = replace(how, threads=how.threads or threads_here())
    with _connected(ray, address or os.environ.get("RAY_ADDRESS") or "local") as head:
        return _Run(ray, work, how, actors, head).result()


class _Run:
    """One run on a cluster."""

    def __init__(
        self, ray: Any, work: Work, how: Invocation, actors: int | None, head: tuple[str, int]
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._head = ray, head
        resources, device, room = _room(ray, how)
        self._count = min(actors or room, room)
        self._given = [
            pickle.dumps((work, replace(how, device=device, worker=Worker(i, self._count))))
            for i in range(self._count)
        ]
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(num_cpus=0, max_restarts=-1)(_Board)
        self._board = board.options(scheduling_strategy=here).remote()
        self._worker = ray.remote(max_restarts=-1, max_task_retries=-1, **resources)(_RayWorker)
        self._starts: dict[int, int] = {}
        self._deaths, self._died = 0, False
        self._group = Group()
        self._begun = time.monotonic()
        self._waiting_said = False
        self._answered = self._asked = time.monotonic()

    def result(self) -> SetSummary:
        """Wait for the workers, replace dead ones, and return the sum of their results."""
        with self._group as group:
            try:
                self._go(range(self._count))
                end = time.monotonic() + _LEASE
                while self._lost() and time.monotonic() < end:
                    time.sleep(_ANSWER)
                    self._starts.clear()  # which is not a replacement
                    self._go([0])
            except Stopped as stop:
                self._take_messages()
                stop.add_note(group.kept())
                raise
            return group.summary()

    def _lost(self) -> bool:
        """Whether nobody has published, perhaps because a dead node's locks are still held."""
        return self._died and not self._group.published and not self._group.failed

    def _go(self, indices: range | list[int]) -> None:
        environment = {k: v for k, v in os.environ.items() if k.startswith(_HANDED_DOWN)}
        actors: dict[Any, tuple[int, Any]] = {}
        for index in indices:
            actor = self._worker.remote()
            ref = actor.run.remote(
                self._given[index], index, str(Path.cwd()), environment, self._board
            )
            actors[ref] = index, actor
        try:
            end: float | None = None  # of the wait for those that are ending too
            while actors and (end is None or time.monotonic() < end):
                done, _ = self._ray.wait(list(actors), num_returns=1, timeout=_POLL)
                self._take_messages()
                for ref in done:
                    index, actor = actors.pop(ref)
                    self._group.end(f"worker {index}/{self._count}", self._ended(ref))
                    self._ray.kill(actor)  # which makes room for one that waits
                if self._group.published and end is None:
                    started = any(index in self._starts for index, _ in actors.values())
                    end = time.monotonic() + (_ANSWER if started else 0.0)
                self._group.announce_failures()
                self._check()
        finally:
            for _, actor in actors.values():
                with suppress(Exception):
                    self._ray.kill(actor)

    def _ended(self, ref: Any) -> Ended:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return Ended(error=f"Ray: {str(error).strip().splitlines()[0]}")

    def _take_messages(self) -> None:
        before = self._group.rows
        try:
            messages = self._ray.get(self._board.take.remote(), timeout=_ANSWER)
        except self._ray.exceptions.RayError:
            return
        for index, message in messages:
            if not isinstance(message, _Started):
                self._group.take(message)
                continue
            self._starts[index] = self._starts.get(index, 0) + 1
            if self._starts[index] > 1:
                self._deaths, self._died = self._deaths + 1, True
                print(
                    f"worker {index}/{self._count} died; its replacement is on {message.node}",
                    file=sys.stderr,
                    flush=True,
                )
        if self._group.rows > before:
            self._deaths = 0

    def _check(self) -> None:
        """End a run that cannot come to an end.

        Raises:
            SightlineError: the head is dead, or workers die without computing anything.
        """
        now = time.monotonic()
        if self._deaths >= _DEATHS:
            raise SightlineError(
                f"workers on the cluster died {self._deaths} times without finishing a row, the "
                "last ones perhaps for lack of memory; see Ray's logs (`ray logs`). "
                f"{self._group.kept()}"
            )
        if not self._starts and not self._waiting_said and now - self._begun > _PATIENCE:
            self._waiting_said = True
            print("waiting for room on the Ray cluster (`ray status`)", file=sys.stderr, flush=True)
        if now - self._asked < _ANSWER:
            return
        self._asked = now
        if _accepts(*self._head):
            self._answered = now
        elif now - self._answered > _SILENT:
            # Ray itself would end this process, without a word about what is kept
            raise SightlineError(
                f"the head of the Ray cluster, {self._head[0]}:{self._head[1]}, no longer answers. "
                f"{self._group.kept()}, on this cluster once it is back, on another, or without Ray"
            )


def _imported() -> Any:
    """Ray, without its usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # of an address; each takes 40 s
    # it hides the GPUs from actors that ask for none, as it will by default
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return require("ray", "--engine ray")


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[tuple[str, int]]:
    """A connection to a cluster; yields host and port of its head.

    Raises:
        SightlineError: it does not answer.
    """
    _check_address(address)
    # Ray replaces them, and a signal would end the command without a word
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, SystemExit) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SightlineError(
            f"no Ray cluster answers at {address}: {reason}. Start it (`ray start --head`), give "
            "the head's host:port with --ray-address or RAY_ADDRESS, and run the command on one of "
            "its nodes; nothing has been computed"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        yield host, int(port)
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Try a plain connection first: Ray takes minutes to give up."""
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise SightlineError(
            f"Ray address {address!r}: expected the head's host:port, such as 10.0.0.1:6379, auto "
            "or local (Ray Client's ray:// is not used: run the command on a node of the cluster, "
            "or with `ray job submit`)"
        )
    if not _accepts(host, int(port)):
        raise SightlineError(
            f"no Ray cluster answers at {address}: no connection within {_ANSWER:.0f} s. Start it "
            "(`ray start --head`), or give the head's host:port with --ray-address or RAY_ADDRESS; "
            "nothing has been computed"
        )


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=_ANSWER):
            return True
    except OSError:
        return False


def _room(ray: Any, how: Invocation) -> tuple[dict[str, float], str, int]:
    """Resources of a worker, its device, and how many the cluster has room for.

    Raises:
        SightlineError: no node has room for one.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    device = how.device or "auto"
    if device not in ("auto", "cpu", "cuda"):
        raise SightlineError(
            f"device {device!r}: Ray gives each worker a device; use auto, cuda or cpu"
        )
    if device == "cuda" and not gpus:
        raise SightlineError(
            f"device 'cuda' was requested, but none of the {len(nodes)} nodes of the Ray cluster "
            "has a GPU; use auto or cpu"
        )
    if device == "cuda" or (device == "auto" and gpus):
        return {"num_gpus": 1, "num_cpus": 1}, "cuda", gpus
    threads = how.threads or 1
    room = sum(int(node.get("CPU", 0) // threads) for node in nodes)
    if not room:
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        raise SightlineError(
            f"a worker uses {threads} threads (--threads), but the largest of the {len(nodes)} "
            f"nodes of the Ray cluster has {most} CPUs; give a smaller number"
        )
    return {"num_cpus": threads}, "cpu", room
