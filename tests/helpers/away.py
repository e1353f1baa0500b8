"""A device that is not the CPU, for machines without one: it refuses what Apple's refuses.

Inside `away`, ``mps`` is there. Its tensors lie in ordinary memory, but cannot become NumPy's, meet
tensors of the CPU, or hold float64. So a `.cpu()` that is missing is seen on Linux.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # before `is_available` is patched, whose wrapper it looks into
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("mps")
_HOST = torch.device("cpu")
_NAMES = ("mps", DEVICE)
_TO_NUMPY = {torch.Tensor.numpy, torch.Tensor.__array__}
_MIXED = {  # takes tensors of two devices: copies, indices of the host, and what holds both
    torch.Tensor.copy_,
    torch.Tensor.__getitem__,
    torch.Tensor.__setitem__,
    torch.Tensor.grad.__set__,  # pyright: ignore[reportAttributeAccessIssue]
}
_DEVICE_OF = torch.Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]


class Away(torch.Tensor):
    """A tensor on the stand-in."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})

    def __reduce_ex__(self, protocol):
        with torch._C.DisableTorchFunction():  # saved with its place, which a reader may map
            return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        with torch._C.DisableTorchFunction():
            copy = self.detach().clone().as_subclass(Away).requires_grad_(self.requires_grad)
        copy._is_param = getattr(self, "_is_param", False)  # as `Parameter` marks a subclass
        return memo.setdefault(id(self), copy)


def _moved(func: Any, values: tuple, options: dict) -> torch.device | None:
    """The device that a call asks for, if it does."""
    named = [value for value in (*values[1:], options.get("device")) if value is not None]
    if func is torch.Tensor.cpu:
        return _HOST
    if func is torch.Tensor.to or "device" in options:
        for value in named:
            if isinstance(value, torch.device) or (
                isinstance(value, str) and value in ("cpu", "mps")
            ):
                return torch.device(value)
            if isinstance(value, torch.Tensor):
                return DEVICE if isinstance(value, Away) else _HOST
    return None


def _call(func: Any, args: tuple, options: dict) -> Any:
    tensors = [v for v in tree_flatten((args, options))[0] if isinstance(v, torch.Tensor)]
    away = any(isinstance(tensor, Away) for tensor in tensors)
    if away and func == _DEVICE_OF:
        return DEVICE
    if func is torch._has_compatible_shallow_copy_type:
        return all(isinstance(tensor, Away) == away for tensor in tensors)
    if away and func in _TO_NUMPY:
        raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() first")
    target = _moved(func, args, options)
    host = any(not isinstance(t, Away) and t.dim() for t in tensors)
    if away and host and target is None and func not in _MIXED:
        raise RuntimeError(f"{func.__name__}: expected all tensors to be on the same device")
    if not away and target != DEVICE:
        return func(*args, **options)  # for other modes too, such as that of the meta device
    if target is not None:
        args, options = tree_map(
            lambda v: _HOST if isinstance(v, str | torch.device) and v in _NAMES else v,
            (args, options),
        )
        away = target == DEVICE

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if away and value.dtype == torch.float64 and value.dim():
            raise TypeError("cannot convert a MPS tensor to float64")
        if away and not isinstance(value, Away):
            return value.as_subclass(Away)
        return value if away or not isinstance(value, Away) else value.as_subclass(torch.Tensor)

    with torch._C.DisableTorchFunction():
        return tree_map(placed, func(*args, **options))


class _Calls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return _call(func, args, kwargs or {})


@contextmanager
def away() -> Iterator[torch.device]:
    """``mps`` is available, in every thread of a pool that is asked for work inside."""
    submit = ThreadPoolExecutor.submit

    def inside(self, function, *args, **options):
        def run(*args, **options):
            with _Calls():
                return function(*args, **options)

        return submit(self, run, *args, **options)

    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with (
            patch.object(torch.backends.mps, "is_available", lambda: True),
            patch.object(torch.mps, "get_rng_state", torch.get_rng_state),
            patch.object(torch.mps, "set_rng_state", torch.set_rng_state),
            patch.object(ThreadPoolExecutor, "submit", inside),
            _Calls(),
        ):
            yield DEVICE
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
