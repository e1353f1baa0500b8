"""Workers as tasks of a Ray cluster: each runs the command as a process on its node.

The cluster needs the folder of the set, and that of the inputs, at the same path on every node.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.extract.children import DEATHS, LEAVE, Child, Ended, of_worker, stop
from pipeline.extract.worker_number import WorkerNumber
from pipeline.machine import Machine
from sightline.errors import SightlineError
from sightline.machine.progress import to_stderr
from sightline.machine.signals import killed_by
from sightline.optional_imports import require

if TYPE_CHECKING:
    from pipeline.extract.workers import Watch

_POLL = 0.5  # seconds
_ANSWER = 5.0  # seconds that the head has to accept a connection
_PATIENCE = 30.0  # seconds until a run says that it may be waiting for room on the cluster
_HANDED_DOWN = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "PYTHONPATH")
"""Environment variables that nodes need as the command has them: where models are, offline."""


class Killed(Exception):
    """The process of a worker was killed by a signal; Ray starts the task again."""


def on_ray(
    command: Sequence[str], machine: Machine, threads: int, watch: Watch
) -> Generator[Ended | None]:
    """Run ``command`` as workers on a cluster; a worker whose node or process dies runs again.

    Yields the workers that have ended, and None every moment; closing it ends those that are left.

    Raises:
        SightlineError: Ray is missing, the address does not answer, or no node has room for a
            worker.
    """
    ray = _imported()
    address, most = machine.ray
    with _connected(ray, address or os.environ.get("RAY_ADDRESS") or "local"):
        resources, device, room = _room(ray, machine.device, threads)
        count = min(most or room, room)
        task = ray.remote(max_retries=DEATHS, retry_exceptions=[Killed], **resources)(_worker)
        inherited = {k: v for k, v in os.environ.items() if k.startswith(_HANDED_DOWN)}
        names = {}
        for index in range(count):
            worker = WorkerNumber(index, count)
            words = of_worker(command, worker, device)
            names[task.remote(f"{worker} on {device}", words, str(Path.cwd()), inherited)] = worker
        left, begun, warned = list(names), time.monotonic(), False
        with redirect_stdout(sys.stderr):  # Ray prints what it retries, where our result belongs
            try:
                while left:
                    ended, left = ray.wait(left, num_returns=1, timeout=_POLL)
                    for ref in ended:
                        yield _end_of(ray, ref, names[ref])
                    yield None
                    if not watch.done and not warned and time.monotonic() - begun > _PATIENCE:
                        warned = True
                        to_stderr(
                            "no row is done yet: workers are starting, or wait for room on the "
                            "Ray cluster (`ray status`)"
                        )
            finally:
                _cancel(ray, left)


def _end_of(ray: Any, ref: Any, worker: WorkerNumber) -> Ended:
    """How a task has ended."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        line = str(error).strip().splitlines()[-1]
        return Ended(str(worker), 1, "", f"error: {worker}: Ray: {line}")


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """Cancel tasks, and wait until they have ended their processes."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=LEAVE)


def _worker(name: str, command: list[str], folder: str, environment: dict[str, str]) -> Ended:
    """One worker, on its node. If the task is cancelled, or this process dies, it ends too."""
    os.environ.update(environment)
    try:
        os.chdir(folder)
    except OSError:
        message = (
            f"error: {folder}: node {socket.gethostname()} of the cluster has no such folder; "
            "every node needs the folders of inputs and outputs at the same path"
        )
        return Ended(name, 1, "", message)
    with TemporaryDirectory(prefix="sightline-") as scratch:
        child = Child(name, command, Path(scratch, "worker"))
        try:
            status = child.process.wait()
        finally:
            stop([child])
        if status < 0:
            raise Killed(f"{name} {killed_by(-status)}")
        return child.ended()


def _imported() -> Any:
    """Ray, without its usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # of an address; each takes 40 s
    # it hides the GPUs from actors that ask for none, as it will by default
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return require("ray", "--engine ray")


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster.

    Raises:
        SightlineError: it does not answer.
    """
    _check_address(address)
    to_stderr(
        "starting Ray on this machine, which takes up to a minute"
        if address == "local"
        else f"connecting to the Ray cluster at {address}"
    )
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
        raise _no_answer(address, reason) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    try:
        yield
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
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except OSError as error:
        raise _no_answer(address, f"no connection within {_ANSWER:.0f} s") from error


def _no_answer(address: str, reason: str) -> SightlineError:
    return SightlineError(
        f"no Ray cluster answers at {address}: {reason}. Start it (`ray start --head`), give the "
        "head's host:port with --engine ray@HOST:PORT or RAY_ADDRESS, and run the command on one "
        "of its nodes; nothing has been computed"
    )


def _room(ray: Any, device: str, threads: int) -> tuple[dict[str, float], str, int]:
    """Resources of a worker, its device, and how many the cluster has room for.

    Raises:
        SightlineError: no node has room for one.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
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
    room = sum(int(node.get("CPU", 0) // threads) for node in nodes)
    if not room:
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        raise SightlineError(
            f"a worker uses {threads} threads (--threads), but the largest of the {len(nodes)} "
            f"nodes of the Ray cluster has {most} CPUs; give a smaller number"
        )
    return {"num_cpus": threads}, "cpu", room
