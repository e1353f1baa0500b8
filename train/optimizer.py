"""AdamW as in the published runs or as in PyTorch, and the learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from train.run_spec import TrainConfig

_BETAS = (0.9, 0.999)


def make_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """The optimiser of a run; biases and the weights of layer norms do not decay."""
    released = config.optimizer == "released"
    make = ReleasedAdamW if released else AdamW
    return make(
        list(_groups(model, config.weight_decay)),
        lr=config.learning_rate,
        betas=_BETAS,
        eps=config.epsilon or (1e-6 if released else 1e-8),
        fused=config.precision != "fp16",  # a fused step skips overflows itself, uncounted
    )


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """Learning rate after ``step`` steps: rises from 0 over the warm-up, then decays to 0."""
    warmup = math.ceil(config.warmup * steps)
    if step < warmup:
        return config.learning_rate * (step / max(1, warmup))
    return config.learning_rate * max(0.0, (steps - step) / max(1, steps - warmup))


class ReleasedAdamW(AdamW):
    """AdamW of transformers 4 on torch 1.7, as used by the releases of MCSE, KDMCSE and DALR.

    Two things differ from `torch.optim.AdamW` (METHODS, section 6):

    - ε is added to √v before the bias correction, so it equals torch's with
      ε_t = ε / √(1 − β₂^t), t counting the steps of a parameter.
    - Gradients are cleared by filling in zeros. A parameter that a batch does not reach, such as
      the image head on a batch of plain sentences, still moves by its momentum, and its second
      moment decays. Before its first gradient it has no momentum and is left alone.

    A fused step works for parameters with one t, so each group is split by it for the step.
    """

    def __init__(self, params: Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__(params, **settings)
        self._steps: dict[Tensor, int] = {}  # t; here, as that of AdamW's state is on the device

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Fill every existing gradient with zeros."""
        super().zero_grad(set_to_none=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of every parameter that has had a gradient."""
        whole, parted = self.param_groups, []
        for group in whole:
            parts: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    t = self._steps[parameter] = self._steps.get(parameter, 0) + 1
                    parts.setdefault(t, []).append(parameter)
            for t, parameters in parts.items():
                epsilon = group["eps"] / math.sqrt(1 - group["betas"][1] ** t)
                parted.append({**group, "params": parameters, "eps": epsilon})
        self.param_groups = parted
        try:
            return super().step(closure)
        finally:
            self.param_groups = whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the moments; what has moved has a gradient from then on."""
        super().load_state_dict(state_dict)
        self._steps = {parameter: int(moments["step"]) for parameter, moments in self.state.items()}
        for parameter in self._steps:
            parameter.grad = torch.zeros_like(parameter)


def _groups(model: nn.Module, weight_decay: float) -> Iterator[dict[str, Any]]:
    """Trained parameters that decay, and those that do not."""
    fixed = {
        f"{name}.{part}".lstrip(".")
        for name, module in model.named_modules()
        for part, _ in module.named_parameters(recurse=False)
        if isinstance(module, nn.LayerNorm) or part.endswith("bias")
    }
    for decays in (True, False):
        chosen = [
            parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (name not in fixed) == decays
        ]
        if chosen:
            yield {"params": chosen, "weight_decay": weight_decay if decays else 0.0}
