"""Where workers compute: in this process, on several devices of this machine, or on a Ray cluster.

Every engine starts the same workers, which share the blocks of one plan through the run folder
(`pipeline.cache.set_writer`); engines differ only in who starts them and who restarts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from pipeline.extract.account import SetSummary
from pipeline.extract.runner import Invocation
from sightline.errors import SightlineError

Work = Callable[[Invocation], SetSummary]
"""One run, as any worker can do it: picklable, reads its inputs and builds its models itself."""


def _listed(given: Any) -> Any:
    """``0,1`` and a single number as a list of names."""
    if isinstance(given, str):
        return [each.strip() for each in given.split(",")]
    if isinstance(given, int) and not isinstance(given, bool):
        return [str(given)]
    return [str(each) for each in given] if isinstance(given, list | tuple) else given


class Engine(BaseModel):
    """How the workers of a run are started. It changes no row, file or digest.

    Attributes:
        name: ``local``, or ``ray`` for a Ray cluster.
        devices: one local worker on each, such as ``0,1`` or ``cuda:0,cuda:1``; ``cpu`` may
            appear several times. Empty: one worker, in this process.
        ray_address: ``host:port`` of a cluster's head, ``auto`` (the cluster of this machine) or
            ``local``; None: RAY_ADDRESS, else ``local``, which starts Ray on this machine.
        actors: number of workers on the cluster; None: as many as have room.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["local", "ray"] = "local"
    devices: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    ray_address: str | None = Field(default=None, min_length=1)
    actors: int | None = Field(default=None, ge=1)

    @field_validator("devices")
    @classmethod
    def _distinct(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        return named(devices)

    @model_validator(mode="after")
    def _fits(self) -> Engine:
        if self.name == "ray" and self.devices:
            raise ValueError(
                "devices are those of one machine; Ray gives each of its workers one (`device: "
                "cuda` or `cpu` chooses the sort)"
            )
        for option in ("ray_address", "actors"):
            if self.name != "ray" and getattr(self, option) is not None:
                raise ValueError(f"{option} is given, but the engine is {self.name}; use ray")
        return self


def named(devices: Sequence[str]) -> tuple[str, ...]:
    """Full names of ``devices``: ``0`` is ``cuda:0``.

    Raises:
        ValueError: not a device, or a device other than the CPU appears twice.
    """
    names: list[str] = []
    for given in devices:
        found = re.fullmatch(r"(?:cuda:)?(\d{1,4})|(cuda)|(cpu|mps)", given, re.ASCII)
        if found is None:
            raise ValueError(
                f"found {given!r}, expected devices such as 0,1 or cuda:0,cuda:1, mps, or cpu"
            )
        name = found[3] or f"cuda:{int(found[1] or 0)}"
        if name in names and name != "cpu":
            raise ValueError(
                f"{name} appears twice; two workers on one device compute no faster, so name "
                "each device once"
            )
        names.append(name)
    return tuple(names)


def run_work(work: Work, how: Invocation, engine: Engine) -> SetSummary:
    """Do ``work`` with the workers of ``engine``.

    Raises:
        SightlineError: as ``work``; a device is absent, a worker died, or the cluster does not
            answer. Finished blocks are kept in each case.
    """
    if how.dry_run:  # made here, as if one worker did everything
        return work(replace(how, device=engine.devices[0]) if engine.devices else how)
    if engine.name == "ray":
        from pipeline.extract.ray_cluster import run_on_ray

        if how.worker is not None:
            raise SightlineError(
                f"{how.worker}: Ray numbers its own workers; leave out --worker, or use --engine "
                "local"
            )
        return run_on_ray(work, how, engine.ray_address, engine.actors)
    if engine.devices:
        from pipeline.extract.local_group import run_on_devices

        return run_on_devices(work, how, engine.devices)
    return work(how)
