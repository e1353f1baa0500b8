"""How exactly an encoder computes: the numerics of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from pipeline.encoders.base import EncoderError
from train.device import AUTOCAST

PRECISIONS = ("fp32", *AUTOCAST)


def check_precision(precision: str) -> str:
    """`precision` if there is one of that name; EncoderError lists them otherwise."""
    if precision not in PRECISIONS:
        raise EncoderError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    return precision


@contextmanager
def computing(device: torch.device, precision: str) -> Iterator[None]:
    """The context of one forward pass: no gradients, `precision`, the same sums every time.

    ``fp32`` means float32 throughout: TensorFloat-32, which cuDNN uses unless told otherwise, is
    off. ``bf16`` and ``fp16`` are autocast. On CUDA cuDNN must choose deterministic algorithms
    without trying several, so that one batch gives one answer. Flags are put back afterwards.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if precision in AUTOCAST:
            stack.enter_context(torch.autocast(device.type, dtype=AUTOCAST[precision]))
        if device.type == "cuda":
            flags = torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            )
            stack.enter_context(flags)
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, before)
        yield
