"""Where to compute and in what, for frozen models, training and evaluation alike."""

from __future__ import annotations

import torch

from pipeline.cache import SightlineError

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What a precision below fp32 computes in, under autocast."""


def pick_device(name: str) -> torch.device:
    """The device called `name`: ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    ``auto`` is CUDA, then MPS, then the CPU. Every other name is taken at its word.

    Raises:
        SightlineError: no such device here, or no such name.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, separator, number = name.partition(":")
    plain = not separator
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise SightlineError("device 'mps' was asked for, but there is none here; use auto")
        return torch.device("mps")
    if kind == "cuda" and (plain or number.isdecimal()):
        index = 0 if plain else int(number)
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            found = f"this machine has {count} CUDA devices" if count else "there is no CUDA here"
            raise SightlineError(
                f"device {name!r} was asked for, but {found} "
                f"(PyTorch {torch.__version__}); use --device auto or cpu, or install a driver "
                "and a PyTorch build that fit the card"
            )
        return torch.device("cuda", index)
    raise SightlineError(f"unknown device {name!r}; use auto, cpu, cuda, cuda:1 or mps")
