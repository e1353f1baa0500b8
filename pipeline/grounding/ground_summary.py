"""What a grounding run did, in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GroundSummary:
    """What a run did, and what there is now.

    Attributes:
        counts: ``images``, ``captions``, ``pairs``, ``failed``, and ``dropped`` by reason.
        computed: images of this run.
        resumed: images taken over from an interrupted run.
        halved_to: batch size of grounder and segmenter that is left, where memory did not suffice.
        seconds: wall time, model loading excluded.
    """

    counts: dict[str, Any]
    computed: int
    resumed: int
    halved_to: dict[str, int]
    seconds: float

    def __str__(self) -> str:
        counts = self.counts
        per_image = counts["pairs"] / max(counts["images"] - counts["failed"], 1)
        parts = [
            f"{counts['images']:,} images, {counts['captions']:,} captions, "
            f"{counts['pairs']:,} pairs ({per_image:.1f} an image)"
        ]
        if self.computed:
            rate = self.computed / max(self.seconds, 1e-9)
            parts.append(f"{self.computed:,} grounded in {self.seconds:.1f} s ({rate:,.1f} a s)")
        else:
            parts.append("nothing to ground")
        if self.resumed:
            parts.append(f"{self.resumed:,} taken over from an interrupted run")
        if counts["dropped"]:
            parts.append(f"{sum(counts['dropped'].values()):,} phrases or boxes dropped")
        if counts["failed"]:
            parts.append(f"{counts['failed']:,} images failed")
        if self.halved_to:
            sizes = ", ".join(f"{name} {size}" for name, size in self.halved_to.items())
            parts.append(f"batches halved for memory: {sizes}")
        return " · ".join(parts)
