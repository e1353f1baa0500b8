"""What the numbers mean, in sentences: what is wrong, how much, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from train.diagnose.checks import Rows, SetChecks
from train.diagnose.diagnosis import Diagnosis
from train.diagnose.pairs import Cosines, CrossChecks
from train.diagnose.thresholds import Filter, Removal
from train.report.grid import number

Level = Literal["problem", "notice", "fine"]
"""`problem`: a training on it would be wrong or worth little; `notice`: read it before training."""
Said = tuple[Level, str]

ONE_DIRECTION = 0.9
"""Mean cosine of random rows above which a set is reported as nearly one direction."""
MUCH_REMOVED = 0.1
"""Share of the negatives above which a threshold is reported as removing many."""
LITTLE_APART = 0.75
"""Separation below which matched and mismatched pairs are reported as hard to tell apart."""
CHANCE_LIKE = 0.6
"""Separation below which they are reported as unrelated, and no threshold means anything."""

_NAMED = 4  # rows that a sentence names; the JSON has more
_TERM = {"image": "image term", "teacher_text": "teacher-text term", "released": "both terms"}


@dataclass(frozen=True)
class Finding:
    """One sentence or two about what was found.

    Attributes:
        about: the set, or `pairs` or `threshold`.
    """

    level: Level
    about: str
    text: str


def findings(diagnosis: Diagnosis) -> list[Finding]:
    """What to know before training, problems first."""
    said = [(checks.path, _of_set(checks)) for checks in diagnosis.sets]
    said.append(("pairs", _of_pairs(diagnosis)))
    said += [("threshold", _of_filter(filter_, diagnosis)) for filter_ in diagnosis.filters]
    every = [Finding(level, about, text) for about, own in said for level, text in own]
    order = ("problem", "notice", "fine")
    every.sort(key=lambda finding: order.index(finding.level))
    if not any(finding.level == "problem" for finding in every):
        every.insert(0, Finding("fine", "all", "No problem found."))
    return every


def percent(share: float) -> str:
    """A share in percent: two significant digits, and never 0 for more than none."""
    if share == 0:
        return "0 %"
    value = 100 * share
    if value < 0.001:
        return "< 0.001 %"
    if value < 1:
        return f"{float(f'{value:.2g}'):g} %"
    return f"{round(value, 1):g} %" if value < 99.95 else f"{value:.4g} %"


def _of_set(checks: SetChecks) -> Iterator[Said]:
    encoder, doubt = checks.spec.encoder, checks.provenance.doubt
    if encoder.untrained:
        yield (
            "problem",
            f"The weights are untrained ({encoder.source}): cosines, ranks and thresholds on this "
            "page say nothing about a trained encoder. Extract again with trained weights.",
        )
    if doubt == "imported, differs when recomputed":
        yield (
            "problem",
            f"The rows were {checks.provenance}: they are not what this encoder makes of these "
            "inputs. Extract them again, or check with the encoder that made them.",
        )
    elif doubt:
        yield (
            "notice",
            "The rows were imported and never recomputed. `sightline extract … --check 20` encodes "
            "some again and compares.",
        )
    if checks.spec.normalised:
        yield (
            "notice",
            "Every row has length 1, as its record says. Sightline stores rows as the encoder "
            "returned them, so a run on these is not comparable with one on extracted features.",
        )
    if checks.failed:
        codes = ", ".join(f"{code} {count:,}" for code, count in checks.failed.items())
        yield (
            "notice",
            f"Inputs without a row: {sum(checks.failed.values()):,} ({codes}). A training leaves "
            "out pairs with such an image; failures.jsonl beside the set names them.",
        )
    if checks.not_finite.count:
        yield (
            "problem",
            f"{_rows(checks.not_finite, checks.rows)} contain NaN or infinity, and one such row "
            "makes the loss of its batch NaN. Extract or import them again, or remove them.",
        )
    if checks.zero.count:
        yield (
            "problem",
            f"{_rows(checks.zero, checks.rows)} are all zeros and have no direction. Check what "
            "the encoder made of these inputs.",
        )
    if checks.mean_cosine is not None and checks.mean_cosine > ONE_DIRECTION:
        yield (
            "problem",
            f"All rows point almost one way: the mean cosine of two rows is "
            f"{checks.mean_cosine:.3f}. Cosine thresholds cannot tell them apart.",
        )
    if checks.copies.count:
        yield (
            "notice",
            f"{_rows(checks.copies, checks.rows)} equal another row exactly, although their inputs "
            "differ: as negatives of each other they cannot be told apart.",
        )


def _of_pairs(diagnosis: Diagnosis) -> Iterator[Said]:
    counts = diagnosis.pairs
    if counts is None:
        return
    lost = {"image": counts.without_image, "text": counts.without_text}
    every = counts.compared + sum(lost.values())
    for kind, count in lost.items():
        if count:
            yield (
                "problem",
                f"{count:,} of {every:,} training pairs ({percent(count / every)}) are left out "
                f"here: the {kind} set lacks their row, or it is not finite or zero. A training "
                "stops at a missing row; rerun the stage of the set over this data set.",
            )
    copies = {
        "Images of the manifest with the bytes of another": counts.repeated_images,
        "Captions that belong to more than one image": counts.shared_captions,
    }
    for what, count in copies.items():
        if count:
            yield (
                "notice",
                f"{what}: {count:,}. In one batch they are negatives of their own copies.",
            )
    if diagnosis.cross is not None:
        yield from _of_ranks(diagnosis.cross)
    if diagnosis.captions is not None:
        yield _of_captions(diagnosis.captions)


def _of_ranks(cross: CrossChecks) -> Iterator[Said]:
    best, worst, cosines = cross.best_caption, cross.worst_caption, cross.cosines
    said = (
        f"A true caption ranks first for {percent(best.within['1'])} of the images (chance: "
        f"{percent(best.chance)}); its median rank is {best.median:,.0f} of {best.pool:,}. "
        f"A matched image–text cosine exceeds a mismatched one with probability "
        f"{cosines.separation:.2f} (chance: 0.50)"
    )
    if cosines.separation < CHANCE_LIKE:
        yield (
            "problem",
            f"{said}: the two sets may not be from the same model, the captions not of "
            "these images, or the weights untrained. Compare `sightline cache info` of both.",
        )
        return
    yield "notice" if cosines.separation < LITTLE_APART else "fine", f"{said}."
    yield (
        "fine",
        f"Even the worst-placed caption of an image is within the first 100 of {worst.pool:,} "
        f"for {percent(worst.within['100'])} of the images, and beyond 200 for "
        f"{percent(1 - worst.within['200'])} (KDMCSE, figure 5).",
    )


def _of_captions(cosines: Cosines) -> Said:
    return (
        "notice" if cosines.separation < LITTLE_APART else "fine",
        f"Two captions of one image have a median cosine of {number(cosines.matched.median)}, "
        f"those of different images {number(cosines.mismatched.median)}; the former is higher with "
        f"probability {cosines.separation:.2f} (chance: 0.50).",
    )


def _of_filter(filter_: Filter, diagnosis: Diagnosis) -> Iterator[Said]:
    term = _TERM[filter_.term].capitalize()
    for removal in filter_.removals:
        if removal.configured:
            yield _of_threshold(filter_, removal, f"{term}: the {diagnosis.settings.whose}")
    cross = diagnosis.cross
    cosines = cross.cosines if filter_.term == "image" and cross else diagnosis.captions
    if filter_.term == "released" or cosines is None or cosines.separation < CHANCE_LIKE:
        return
    what = "an image and its caption" if filter_.term == "image" else "two captions of one image"
    at = {share: number(threshold) for share, threshold in filter_.at_share.items()}
    yield (
        "fine",
        f"{term}: the median cosine of {what} is {number(cosines.matched.median)}. A threshold of "
        f"{at['0.001']} removes 0.1 % of the negatives, {at['0.01']} removes 1 %, {at['0.05']} "
        "removes 5 %.",
    )


def _of_threshold(filter_: Filter, removal: Removal, whose: str) -> Said:
    said = f"{whose} threshold {removal.threshold:g}"
    if removal.share == 0:
        return (
            "notice",
            f"{said} removes no negative in {filter_.batches:,} batches; the highest score is "
            f"{number(filter_.highest, '.3f')}. Lower it to filter, or set it to null.",
        )
    text = (
        f"{said} removes {percent(removal.share)} of the negatives in batches of "
        f"{filter_.batch_size} ({percent(removal.least)} to {percent(removal.greatest)} in a batch)"
    )
    if removal.share > MUCH_REMOVED:
        return "notice", f"{text}: many of them are likely to be true negatives. Raise it."
    return "fine", f"{text}."


def _rows(rows: Rows, of: int) -> str:
    named = [f"“{name}”" for name in rows.examples[:_NAMED]]
    more = ", …" if rows.count > len(named) else ""
    return f"{rows.count:,} of {of:,} rows ({', '.join(named)}{more})"
