"""Where the commands compute: the section `machine` of params.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings

OF_TRAINING = frozenset({"track"})
"""Fields of `Machine` that only a training has a use for."""
_ENGINE = re.compile(r"ray(?:@([^\s,]+))?(?:,([1-9]\d{0,5}))?")


class Machine(Settings):
    """Where a command computes. No stage depends on it, and it changes no row beyond rounding.

    Attributes:
        devices: where to compute: auto, cpu, mps, or GPUs such as 0 or cuda:1; several, such as
            0,1,2,3, take one worker each. ``cpu`` may appear several times.
        threads: CPU threads of a process, on which the last bits of what it computes depend; None:
            all cores, or a worker's share of them.
        workers: processes that decode images (0: none besides this one), or threads of a grounding.
        engine: what starts the workers: ``local``, or ``ray`` for those of a Ray cluster, as
            ``ray@HOST:PORT`` of its head, ``ray@auto`` (the cluster of this machine), or with their
            number ``ray,8`` and ``ray@HOST:PORT,8``. Without an address RAY_ADDRESS is taken, else
            Ray is started here (``ray@local``); without a number there are as many as have room.
            Each worker has one device of the sort that `devices` names.
        track: what shows a training while it runs: tensorboard, wandb, mlflow or another tracker of
            accelerate or of another package; several, such as ``tensorboard,wandb``.
    """

    devices: tuple[str, ...] = ()
    threads: int | None = Field(default=None, ge=1)
    workers: int = Field(default=2, ge=0, le=256)
    engine: str = "local"
    track: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The device of this process: the first of `devices`."""
        return self.devices[0] if self.devices else "auto"

    def gpus(self, visible: Sequence[str]) -> list[str]:
        """Those of the GPUs ``visible`` to this process that `devices` names; none on a CPU.

        Raises:
            SightlineError: there is no such GPU.
        """
        if not self.devices or self.devices == ("cuda",):
            return list(visible)
        numbers = [int(name[5:]) for name in self.devices if name.startswith("cuda:")]
        if numbers and max(numbers) >= len(visible):
            raise SightlineError(f"cuda:{max(numbers)}: no such GPU here; there are {len(visible)}")
        return [visible[number] for number in numbers]

    def among(self, visible: Sequence[str]) -> Self:
        """The same for a process that sees only the GPUs ``visible``, chosen for it.

        Without any, devices stay as they are, so that a GPU that is not there is an error.
        """
        if not visible or not any(name.startswith("cuda:") for name in self.devices):
            return self
        devices = tuple(f"cuda:{index}" for index in range(min(len(visible), len(self.devices))))
        return self.model_copy(update={"devices": devices})

    @property
    def starts_workers(self) -> bool:
        """Whether other processes compute."""
        return self.on_cluster or len(self.devices) > 1

    @property
    def on_cluster(self) -> bool:
        """Whether Ray runs the workers."""
        return self.engine != "local"

    @property
    def ray(self) -> tuple[str, int | None]:
        """Address of the Ray cluster, empty if none is given, and the number of workers."""
        form = _ENGINE.fullmatch(self.engine)
        address, workers = form.groups() if form else (None, None)
        return address or "", int(workers) if workers else None

    @field_validator("engine")
    @classmethod
    def _known(cls, engine: str) -> str:
        if engine != "local" and not _ENGINE.fullmatch(engine):
            raise ValueError(
                f"found {engine!r}, expected local, ray, ray@HOST:PORT or ray@HOST:PORT,WORKERS"
            )
        return engine

    @field_validator("track", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        return [part.strip() for word in values for part in str(word).split(",")]

    @field_validator("devices", mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> tuple[str, ...]:
        """Full names, each once: ``0`` is ``cuda:0``, and ``0,1`` a list; none is ``auto``."""
        values = value if isinstance(value, list | tuple) else [value]
        words = [part for word in values for part in str(word).split(",")]
        names: list[str] = []
        for device in words:
            word = device.strip()
            if word == "auto" and len(words) == 1:
                continue
            numbered = re.fullmatch(r"(?:cuda:)?(\d{1,4})|(cuda)|(cpu|mps)", word, re.ASCII)
            if numbered is None:
                raise ValueError(
                    f"found {word!r}, expected auto, or devices such as 0,1 or cuda:0,cuda:1, mps, "
                    "or cpu"
                )
            alone = numbered[3] or (numbered[2] if len(words) == 1 else None)
            name = alone or f"cuda:{int(numbered[1] or 0)}"
            if name in names and name != "cpu":
                raise ValueError(
                    f"{name} appears twice; two workers on one device compute no faster, so name "
                    "each device once"
                )
            names.append(name)
        return tuple(names)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.on_cluster and any(name not in ("cpu", "cuda") for name in self.devices):
            raise ValueError(
                "devices: are those of one machine; Ray gives each of its workers one: name only "
                "the sort, cuda or cpu"
            )
        if self.on_cluster and len(self.devices) > 1:
            raise ValueError("devices: with Ray, ray,2 is for two workers; name one sort")
        return self
