"""What a grounding run did, in one line; what failed, in a list; and when that is too much."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cache import SightlineError
from pipeline.cache.atomic import write_bytes


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


class FailureList:
    """Code, path and reason of every image in error, in ``failures.jsonl``.

    New ones are added before the records are published and old ones taken out after, so that no
    kill can leave an image in error without its reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self._by_key = {each["key"]: each for each in map(json.loads, lines)}

    @property
    def entries(self) -> list[dict[str, str]]:
        """Key (hex), code, path and reason of each image, sorted by key."""
        return [self._by_key[key] for key in sorted(self._by_key)]

    def add(self, failures: Iterable[dict[str, str]]) -> None:
        """List these, too; what is known of the same image is replaced."""
        self._by_key.update((failure["key"], failure) for failure in failures)
        self._write()

    def keep(self, keys: Set[str]) -> None:
        """Forget all but the images of these keys."""
        self._by_key = {key: each for key, each in self._by_key.items() if key in keys}
        self._write()

    def _write(self) -> None:
        lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in self.entries)
        write_bytes(self.path, lines.encode())


def check_failures(
    counts: Mapping[str, Any], failures: FailureList, out: Path, max_failed: float
) -> None:
    """SightlineError where more images failed than ``max_failed`` allows, with an example."""
    failed, total = counts["failed"], counts["images"]
    if failed < total and failed <= max_failed * total:
        return
    # a set that was pulled comes without the list
    shown = [f"  for example: {each['path']}: {each['reason']}\n" for each in failures.entries[:1]]
    raise SightlineError(
        f"{out}: {failed:,} of {total:,} images failed, more than max_failed = {max_failed:g} "
        f"allows; the {total - failed:,} good ones are published.\n"
        f"{''.join(shown)}  all of them: {failures.path}\n"
        "  Mend or remove these files and prepare the data set again, or raise max_failed."
    )
