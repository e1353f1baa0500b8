"""What `train.precision: auto` measured; without torch, so that a report can read it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from train.run_spec import Precision

_CLEARLY = 1.05
"""How much faster bf16 must be; less may be the noise of other processes."""


class PrecisionProbe(BaseModel):
    """What both precisions took.

    Attributes:
        machine: device, processor and threads.
        fp32, bf16: seconds of the fastest step.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    fp32: float = Field(gt=0, allow_inf_nan=False)
    bf16: float = Field(gt=0, allow_inf_nan=False)

    @property
    def choice(self) -> Precision:
        """The faster one; fp32 unless bf16 is clearly faster."""
        return "bf16" if self.gain >= _CLEARLY else "fp32"

    @property
    def gain(self) -> float:
        """How many times as fast as fp32 bf16 is."""
        return self.fp32 / self.bf16

    def __str__(self) -> str:
        return f"{self.choice} ({self.machine}: bf16 steps run {self.gain:.2f} x as fast as fp32)"
