"""Where a command computes: in this process, on several devices of this machine, or on Ray."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sightline.settings import Settings


class Engine(Settings):
    """How the workers of a run are started. It changes no row, file or digest.

    Attributes:
        name: ``local``, or ``ray`` for a Ray cluster.
        devices: one local worker on each, such as ``0,1`` or ``cuda:0,cuda:1``; ``cpu`` may
            appear several times. One or none: this process computes.
        ray_address: ``host:port`` of a cluster's head, ``auto`` (the cluster of this machine) or
            ``local``; None: RAY_ADDRESS, else ``local``, which starts Ray on this machine.
        actors: number of workers on the cluster; None: as many as have room.
    """

    name: Literal["local", "ray"] = "local"
    devices: tuple[str, ...] = ()
    ray_address: str | None = Field(default=None, min_length=1)
    actors: int | None = Field(default=None, ge=1)

    @property
    def starts_workers(self) -> bool:
        """Whether other processes compute."""
        return self.name == "ray" or len(self.devices) > 1

    @field_validator("devices", mode="before")
    @classmethod
    def _in_full(cls, given: Any) -> tuple[str, ...]:
        """Full names, each once: ``0`` is ``cuda:0``, and ``0,1`` a list."""
        if isinstance(given, str):
            given = given.split(",")
        names: list[str] = []
        for device in given if isinstance(given, list | tuple) else [given]:
            word = str(device).strip()
            found = re.fullmatch(r"(?:cuda:)?(\d{1,4})|(cuda)|(cpu|mps)", word, re.ASCII)
            if found is None:
                raise ValueError(
                    f"found {word!r}, expected devices such as 0,1 or cuda:0,cuda:1, mps, or cpu"
                )
            name = found[3] or f"cuda:{int(found[1] or 0)}"
            if name in names and name != "cpu":
                raise ValueError(
                    f"{name} appears twice; two workers on one device compute no faster, so name "
                    "each device once"
                )
            names.append(name)
        return tuple(names)

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
