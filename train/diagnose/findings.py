"""What the numbers mean: a table of conditions, each with the sentences that it is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from train.diagnose.diagnosis import Diagnosis

Level = Literal["problem", "notice", "fine"]
"""`problem`: a training on it would be wrong or worth little; `notice`: read it before training."""

ONE_DIRECTION = 0.9
"""Mean cosine of random rows above which a set is reported as nearly one direction."""
MUCH_REMOVED = 0.1
"""Share of the negatives above which a threshold is reported as removing many."""
LITTLE_APART = 0.75
"""Separation below which matched and mismatched pairs are reported as hard to tell apart."""
CHANCE_LIKE = 0.6
"""Separation below which they are reported as unrelated, and no threshold means anything."""

TERMS = {"image": "Image term", "teacher_text": "Teacher-text term"}
"""Terms of KDMCSE's loss, as readers know them."""
IMAGES_AND_CAPTIONS = "an image and its caption", "an image and another's caption"
TWO_CAPTIONS = "two captions of one image", "captions of two images"
"""Pairs that belong together, and pairs that do not."""


@dataclass(frozen=True)
class Finding:
    """One sentence or two about what was found.

    Attributes:
        about: the set, or `pairs`, `threshold` or `all`.
    """

    level: Level
    about: str
    text: str


class Rule(NamedTuple):
    """A line of the table.

    Attributes:
        applies: whether the numbers deserve it.
        text: a format string over them.
    """

    level: Level
    applies: Callable[[Any], bool]
    text: str


_OF_A_SET = (
    Rule(
        "problem",
        lambda checks: checks.spec.encoder.untrained,
        "The weights are untrained ({0.spec.encoder.source}): cosines, ranks and thresholds here "
        "say nothing about a trained encoder. Extract again with trained weights.",
    ),
    Rule(
        "problem",
        lambda checks: checks.not_finite.count > 0,
        "Of {0.rows:,} rows, NaN or infinity is in {0.not_finite}: one such row makes the loss of "
        "its batch NaN. Extract or import them again, or remove them.",
    ),
    Rule(
        "problem",
        lambda checks: checks.zero.count > 0,
        "Of {0.rows:,} rows, only zeros are in {0.zero}: they have no direction. Check what the "
        "encoder made of these inputs.",
    ),
    Rule(
        "problem",
        lambda checks: checks.mean_cosine is not None and checks.mean_cosine > ONE_DIRECTION,
        "All rows point almost one way: the mean cosine of two rows is {0.mean_cosine:.3f}. Cosine "
        "thresholds cannot tell them apart.",
    ),
)
_OF_THE_PAIRS = (
    Rule(
        "problem",
        lambda counts: counts["without_image"] + counts["without_text"] > 0,
        "Of the training pairs, {0[without_image]:,} are left out here for their image and "
        "{0[without_text]:,} for their text, beside the {0[compared]:,} compared: the set lacks "
        "their row, or it is not finite or zero. A training stops at a missing row; rerun the "
        "stage of the set over this data set.",
    ),
)
_OF_COSINES = (
    Rule(
        "problem",
        lambda cosines: cosines.separation < CHANCE_LIKE,
        "With probability {0.separation:.2f} only (chance: 0.50) {of[0]} have a higher cosine than "
        "{of[1]}: two sets may not be from the same model, the captions not of these "
        "images, or the weights untrained. Compare `sightline cache info` of both.",
    ),
    Rule(
        "notice",
        lambda cosines: CHANCE_LIKE <= cosines.separation < LITTLE_APART,
        "With probability {0.separation:.2f} (chance: 0.50) {of[0]} have a higher cosine than "
        "{of[1]}, so they are hard to tell apart.",
    ),
)
_OF_A_THRESHOLD = (
    Rule(
        "notice",
        lambda removal: removal.share == 0,
        "{whose} {0.threshold:g} removes no negative in {how.batches:,} batches; the highest "
        "cosine is {highest:.3f}. Lower it to filter, or set it to null.",
    ),
    Rule(
        "notice",
        lambda removal: removal.share > MUCH_REMOVED,
        "{whose} {0.threshold:g} removes {share} of the negatives in batches of {how.batch_size}: "
        "many of them are likely to be true negatives. Raise it.",
    ),
)


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """What to know before training, problems first."""
    lines = [*_findings(diagnosis)]
    order = ("problem", "notice", "fine")
    lines.sort(key=lambda finding: order.index(finding.level))
    if not any(finding.level == "problem" for finding in lines):
        lines.insert(0, Finding("fine", "all", "No problem found."))
    return lines


def _findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    for checks in diagnosis.sets:
        yield from _of(_OF_A_SET, checks.path, checks)
    if diagnosis.pairs is not None:
        yield from _of(_OF_THE_PAIRS, "pairs", diagnosis.pairs)
    if diagnosis.cross is not None:
        yield from _of(_OF_COSINES, "pairs", diagnosis.cross.cosines, of=IMAGES_AND_CAPTIONS)
    if diagnosis.captions is not None:
        yield from _of(_OF_COSINES, "pairs", diagnosis.captions, of=TWO_CAPTIONS)
    for tried in diagnosis.filters:
        whose = f"{TERMS[tried.term]}: the {diagnosis.settings.whose} threshold"
        for removal in (removal for removal in tried.removals if removal.configured):
            fills = {"whose": whose, "share": percent(removal.share), "highest": tried.highest}
            yield from _of(_OF_A_THRESHOLD, "threshold", removal, how=diagnosis.settings, **fills)


def _of(rules: Sequence[Rule], about: str, numbers: Any, **fills: Any) -> Iterator[Finding]:
    for level, applies, text in rules:
        if applies(numbers):
            yield Finding(level, about, text.format(numbers, **fills))


def percent(share: float) -> str:
    """A share in percent: two significant digits below 1 %, and never 0 for more than none."""
    value = 100 * share
    if 0 < value < 0.001:
        return "< 0.001 %"
    return f"{float(f'{value:.2g}'):g} %" if value < 1 else f"{round(value, 1):g} %"
