"""A frozen model on its device: weights cast once, memory layout, compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.encoders.encoder import ImageEncoder, TextEncoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from sightline.cache.record import EncoderRecord
from sightline.devices import AUTOCAST, check_precision, computing
from sightline.errors import SightlineError


class FrozenModel:
    """Runs a module without gradients, in evaluation mode, at one precision.

    Below fp32 the weights are cast once, which saves casting them in every call: rows keep a
    cosine of 0.999 or more to those of fp32, as under autocast (0.9999 for a ViT-B/32). Batch
    normalisation keeps float32 weights and statistics, as under autocast: cast, they moved a
    ResNet-50 further from fp32 (a cosine of 0.99995 instead of 0.99997).

    Args:
        model: the module; it is changed in place.
        forward: what is run and compiled; default: the module itself.
        channels_last: keep images and convolutions in this memory layout.
        compiled: compile `forward` with ``torch.compile`` for each shape of a batch.
        cast_buffers: cast buffers too. transformers keeps them in float32: tables of rotary
            positions lose their meaning in bfloat16.

    Attributes:
        device: where it runs.
        dtype: dtype of its weights, and of floating-point inputs.
        options: of the encoder (`ImageEncoder`).
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        precision: str,
        forward: Callable[..., Any] | None = None,
        *,
        channels_last: bool = False,
        compiled: bool = False,
        cast_buffers: bool = True,
    ) -> None:
        self.device = device
        self.dtype = getattr(torch, AUTOCAST.get(check_precision(precision), "float32"))
        self.options = ("channels last",) * channels_last + ("compiled",) * compiled
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model: Any = cast_weights(model.eval(), self.dtype, cast_buffers).to(device)
        if channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)
        self._forward = forward or self.model
        self._compiler_errors: tuple[type[Exception], ...] = ()
        if compiled:
            from torch._dynamo.exc import TorchDynamoException

            self._compiler_errors = (TorchDynamoException,)
            self._forward = torch.compile(self._forward, dynamic=False)

    def image_encoder(
        self,
        identity: EncoderRecord,
        dim: int,
        preprocessing: ImagePreprocessing,
        configuration: Mapping[str, object] | None = None,
    ) -> ImageEncoder:
        """The encoder of images that runs this model; see `ImageEncoder` for the arguments."""
        return ImageEncoder(
            identity,
            dim,
            preprocessing,
            self.device,
            self,
            casts_weights=True,
            options=self.options,
            configuration=configuration or {},
        )

    def text_encoder(
        self,
        identity: EncoderRecord,
        dim: int,
        preprocessing: dict[str, object],
        lengths: Callable[[Sequence[str]], list[int]],
        inputs: Callable[[Sequence[str], int], Sequence[Tensor]],
        count_cut: Callable[[Sequence[str]], int],
    ) -> TextEncoder:
        """The encoder of texts that runs this model; see `TextEncoder` for the other arguments.

        Args:
            inputs: what the model takes of n texts, padded to a length: [n, length] each.
        """

        def encode(texts: Sequence[str], length: int) -> Tensor:
            return self(*inputs(texts, length)).cpu()

        return TextEncoder(
            identity,
            dim,
            preprocessing,
            lengths,
            encode,
            casts_weights=True,
            options=self.options,
            count_cut=count_cut,
        )

    def input(self, tensor: Tensor) -> Tensor:
        """``tensor``, from anywhere, on the device; images in the model's dtype and layout."""
        moved = tensor.to(self.device, non_blocking=True)
        if not moved.is_floating_point():
            return moved
        return moved.to(self.dtype).contiguous(memory_format=self._layout)

    def __call__(self, *tensors: Tensor) -> Tensor:
        """What `forward` makes of the `input` of ``tensors``, as float32 on the device.

        Raises:
            SightlineError: it cannot be compiled here.
        """
        inputs = map(self.input, tensors)
        with computing(self.device, "fp32"):  # the weights' dtype decides, not autocast
            try:
                return self._forward(*inputs).float()
            except self._compiler_errors as error:
                reason = str(error).strip().splitlines()[0]
                raise SightlineError(
                    f"torch.compile failed on {self.device.type} ({reason}); install what it "
                    "names, or leave out `compile`. Finished work is kept"
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
