"""A frozen model on its device: weights cast once, memory layout, compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.encoders.protocols import EncoderIdentity
from sightline.devices import AUTOCAST, check_precision, computing
from sightline.errors import SightlineError

_COMPILED, _CHANNELS_LAST = "compiled", "channels last"


class FrozenModel:
    """Runs a module without gradients, in evaluation mode, at one precision.

    Below fp32 the weights are cast once, which saves casting them in every call: rows keep a
    cosine of 0.999 or more to those of fp32, as under autocast (0.9999 for a ViT-B/32). Batch
    normalisation keeps float32 weights and statistics, as under autocast: cast, they moved a
    ResNet-50 further from fp32 (a cosine of 0.99995 instead of 0.99997).

    Args:
        model: the module; it is changed in place.
        channels_last: keep images and convolutions in this memory layout.
        compiled: compile the forward pass with ``torch.compile`` for each shape of a batch.
        cast_buffers: cast buffers too. transformers keeps them in float32: tables of rotary
            positions lose their meaning in bfloat16.

    Attributes:
        device: where it runs.
        dtype: dtype of its weights, and of floating-point inputs.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: str,
        *,
        channels_last: bool = False,
        compiled: bool = False,
        cast_buffers: bool = True,
    ) -> None:
        self.device = device
        self.dtype = getattr(torch, AUTOCAST.get(check_precision(precision), "float32"))
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._compiled = compiled
        self._options = (_CHANNELS_LAST,) * channels_last + (_COMPILED,) * compiled
        self.model: Any = cast_weights(model.eval(), self.dtype, cast_buffers).to(device)
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self._calls: dict[Any, Callable[..., Any]] = {}

    def identity(self, loaded: EncoderIdentity) -> EncoderIdentity:
        """The identity of the ``loaded`` weights, with how they are run here."""
        return replace(loaded, casts_weights=True, options=self._options)

    def images(self, images: Tensor) -> Tensor:
        """float32 [n, 3, h, w] anywhere → the model's input on its device."""
        there = images.to(self.device, non_blocking=True)
        return there.to(self.dtype).contiguous(memory_format=self._layout)

    def __call__(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """``forward(*inputs, **options)``, a method of the model or the model itself.

        Raises:
            SightlineError: it cannot be compiled here.
        """
        with computing(self.device, "fp32"):  # the weights' dtype decides, not autocast
            if not self._compiled:
                return forward(*inputs, **options)
            return self._run_compiled(forward, *inputs, **options)

    def _run_compiled(self, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        if forward not in self._calls:
            self._calls[forward] = torch.compile(forward, dynamic=False)
        try:
            return self._calls[forward](*inputs, **options)
        except TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise SightlineError(
                f"torch.compile failed on {self.device.type} ({reason}); install what it names, or "
                "leave out `compile`. Finished work is kept"
            ) from error


def cast_weights(model: nn.Module, dtype: torch.dtype, buffers: bool = True) -> nn.Module:
    """``model`` with floating-point weights in ``dtype``, except batch normalisation's.

    Args:
        buffers: cast buffers too.

    Raises:
        SightlineError: a value is beyond float16's range (65,504).
    """
    if dtype == torch.float32:
        return model
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        stored = {**module._parameters, **(module._buffers if buffers else {})}
        for name, tensor in stored.items():
            if tensor is None or not tensor.is_floating_point():
                continue
            cast = tensor.detach().to(dtype)
            if not torch.isfinite(cast).all() and torch.isfinite(tensor).all():
                largest = float(tensor.detach().abs().max())
                raise SightlineError(
                    f"weight {name!r} has values up to {largest:.3g}, which "
                    f"{str(dtype).removeprefix('torch.')} cannot hold; use precision bf16 or fp32"
                )
            if name in module._parameters:
                module._parameters[name] = nn.Parameter(cast, requires_grad=False)
            else:
                module._buffers[name] = cast
    return model
