"""What the numbers mean, in sentences: what is wrong, how much, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from train.diagnose.checks import OUTLYING, Rows, SetChecks
from train.diagnose.diagnosis import Diagnosis
from train.diagnose.pairs import Cosines, CrossChecks
from train.diagnose.thresholds import Filter, Removal
from train.report.grid import number

Level = Literal["problem", "notice", "fine"]
"""`problem`: a training on it would be wrong or worth little; `notice`: read it before training."""

ONE_DIRECTION = 0.9
"""Mean cosine of random rows above which a set is reported as nearly one direction."""
FEW_DIRECTIONS = 0.05
"""Centred effective rank, as a share of what the shape allows, below which it is reported."""
MUCH_REMOVED = 0.1
"""Share of the negatives above which a threshold is reported as removing many."""
LITTLE_APART = 0.75
"""Separation below which matched and mismatched pairs are reported as hard to tell apart."""

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
    found = [finding for each in diagnosis.sets for finding in _of_set(each)]
    found += _of_pairs(diagnosis)
    if diagnosis.cross is not None:
        found += _of_ranks(diagnosis.cross)
    if diagnosis.captions is not None:
        found += _of_captions(diagnosis.captions)
    for each in diagnosis.filters:
        found += _of_filter(each, diagnosis)
    order = ("problem", "notice", "fine")
    found.sort(key=lambda each: order.index(each.level))
    if not any(each.level == "problem" for each in found):
        found.insert(0, Finding("fine", "all", "No problem found."))
    return found


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


def _of_set(checks: SetChecks) -> Iterator[Finding]:
    about = checks.path
    encoder, doubt = checks.spec.encoder, checks.provenance.doubt
    if encoder.untrained:
        yield Finding(
            "problem",
            about,
            f"The weights are untrained ({encoder.source}): cosines, ranks and thresholds on this "
            "page say nothing about a trained encoder. Extract again with trained weights.",
        )
    if doubt == "imported, differs when recomputed":
        yield Finding(
            "problem",
            about,
            f"The rows were {checks.provenance}: they are not what this encoder makes of these "
            "inputs. Extract them again, or check with the encoder that made them.",
        )
    elif doubt:
        yield Finding(
            "notice",
            about,
            "The rows were imported and never recomputed. `sightline cache verify --recompute 20` "
            "encodes some again and compares.",
        )
    if checks.spec.normalised:
        yield Finding(
            "notice",
            about,
            "Every row has length 1, as its record says. Sightline stores rows as the encoder "
            "returned them, so a run on these is not comparable with one on extracted features.",
        )
    if checks.failed:
        codes = ", ".join(f"{code} {count:,}" for code, count in checks.failed.items())
        yield Finding(
            "notice",
            about,
            f"Inputs without a row: {sum(checks.failed.values()):,} ({codes}). A training leaves "
            "out pairs with such an image; failures.jsonl beside the set names them.",
        )
    if checks.not_finite.count:
        yield Finding(
            "problem",
            about,
            f"{_rows(checks.not_finite, checks.rows)} contain NaN or infinity, and one such row "
            "makes the loss of its batch NaN. Extract or import them again, or remove them.",
        )
    if checks.zero.count:
        yield Finding(
            "problem",
            about,
            f"{_rows(checks.zero, checks.rows)} are all zeros and have no direction. Check what "
            "the encoder made of these inputs.",
        )
    if checks.outlying.count and checks.norms is not None:
        yield Finding(
            "notice",
            about,
            f"{_rows(checks.outlying, checks.rows)} are longer than {OUTLYING} times the median "
            f"norm ({checks.norms.median:.3g}). Cosines do not change, but heads see the raw rows.",
        )
    if checks.constant.count:
        columns = ", ".join(checks.constant.examples)
        more = ", …" if checks.constant.count > len(checks.constant.examples) else ""
        yield Finding(
            "problem" if checks.constant.count == checks.spec.dim else "notice",
            about,
            f"{checks.constant.count:,} of {checks.spec.dim:,} columns are constant "
            f"({columns}{more}) and hold nothing. A few are harmless; many point to the encoder's "
            "last layer, or to the file that the rows were imported from.",
        )
    yield from _of_directions(checks)


def _of_directions(checks: SetChecks) -> Iterator[Finding]:
    about, spectrum, neighbours = checks.path, checks.spectrum, checks.neighbours
    if checks.mean_cosine is not None and checks.mean_cosine > ONE_DIRECTION:
        yield Finding(
            "problem",
            about,
            f"All rows point almost one way: the mean cosine of two rows is "
            f"{checks.mean_cosine:.3f}. Cosine thresholds cannot tell them apart.",
        )
    if spectrum is not None and spectrum.centred < FEW_DIRECTIONS * spectrum.most:
        yield Finding(
            "notice",
            about,
            f"The rows use few directions: effective rank {spectrum.centred:.1f} of "
            f"{spectrum.most:,} once the mean is subtracted.",
        )
    if checks.copies.count:
        yield Finding(
            "notice",
            about,
            f"{_rows(checks.copies, checks.rows)} equal another row exactly, although their inputs "
            "differ: as negatives of each other they cannot be told apart.",
        )
    if neighbours is not None and neighbours.above > checks.copies.count:
        share = percent(neighbours.above / neighbours.compared)
        yield Finding(
            "notice",
            about,
            f"{neighbours.above:,} of {neighbours.compared:,} rows ({share}) have a "
            f"near-duplicate: another row with a cosine of {neighbours.bound:g} or more.",
        )


def _of_pairs(diagnosis: Diagnosis) -> Iterator[Finding]:
    counts = diagnosis.pairs
    if counts is None:
        return
    lost = {"image": counts.without_image, "text": counts.without_text}
    for kind, count in lost.items():
        if count:
            every = counts.compared + sum(lost.values())
            yield Finding(
                "problem",
                "pairs",
                f"{count:,} of {every:,} training pairs ({percent(count / every)}) are left out "
                f"here: the {kind} set lacks their row, or it is not finite or zero. A training "
                "stops at a missing row; rerun the stage of the set over this data set.",
            )

    for count, what in (
        (counts.repeated_images, "Images of the manifest with the bytes of another"),
        (counts.shared_captions, "Captions that belong to more than one image"),
    ):
        if count:
            text = f"{what}: {count:,}. In one batch they are negatives of their own copies."
            yield Finding("notice", "pairs", text)


def _of_ranks(cross: CrossChecks) -> Iterator[Finding]:
    best, worst, cosines = cross.best_caption, cross.worst_caption, cross.cosines
    first = best.within["1"]
    said = (
        f"A true caption ranks first for {percent(first)} of the images (chance: "
        f"{percent(best.chance)}); its median rank is {best.median:,.0f} of {best.pool:,}."
    )
    apart = (
        f"A matched image–text cosine exceeds a mismatched one with probability "
        f"{cosines.separation:.2f} (chance: 0.50)"
    )
    chance_like = cosines.separation < 0.6
    if chance_like:
        yield Finding(
            "problem",
            "pairs",
            f"{said} {apart}: the two sets may not be from the same model, the captions not of "
            "these images, or the weights untrained. Compare `sightline cache info` of both.",
        )
    else:
        level: Level = "notice" if cosines.separation < LITTLE_APART else "fine"
        yield Finding(level, "pairs", f"{said} {apart}.")
    if not chance_like:
        yield Finding(
            "fine",
            "pairs",
            f"Even the worst-placed caption of an image is within the first 100 of {worst.pool:,} "
            f"for {percent(worst.within['100'])} of the images, and beyond 200 for "
            f"{percent(1 - worst.within['200'])} (KDMCSE, figure 5).",
        )


def _of_captions(cosines: Cosines) -> Iterator[Finding]:
    level: Level = "notice" if cosines.separation < LITTLE_APART else "fine"
    yield Finding(
        level,
        "pairs",
        f"Two captions of one image have a median cosine of {number(cosines.matched.median)}, "
        f"those of different images {number(cosines.mismatched.median)}; the former is higher with "
        f"probability {cosines.separation:.2f} (chance: 0.50).",
    )


def _of_filter(found: Filter, diagnosis: Diagnosis) -> Iterator[Finding]:
    term = _TERM[found.term]
    for removal in found.removals:
        if removal.configured:
            yield _of_threshold(found, removal, term, diagnosis.settings.whose)
    if found.term == "released":
        return
    matched = (
        diagnosis.cross.cosines if found.term == "image" and diagnosis.cross else diagnosis.captions
    )
    if matched is None or matched.separation < 0.6:
        return  # no threshold means anything
    what = "image and its caption" if found.term == "image" else "two captions of one image"
    yield Finding(
        "fine",
        "threshold",
        f"{term.capitalize()}: the median cosine of {what} is "
        f"{number(matched.matched.median)}. A threshold of {number(found.at_share['0.001'])} "
        f"removes 0.1 % of the negatives, {number(found.at_share['0.01'])} removes 1 %, "
        f"{number(found.at_share['0.05'])} removes 5 %.",
    )


def _of_threshold(found: Filter, removal: Removal, term: str, whose: str) -> Finding:
    said = f"{term.capitalize()}: the {whose} threshold {removal.threshold:g}"
    if removal.share == 0:
        return Finding(
            "notice",
            "threshold",
            f"{said} removes no negative in {found.batches:,} batches; the highest score is "
            f"{number(found.highest, '.3f')}. Lower it to filter, or set it to null.",
        )
    text = (
        f"{said} removes {percent(removal.share)} of the negatives in batches of "
        f"{found.batch_size} ({percent(removal.least)} to {percent(removal.greatest)} in a batch)"
    )
    if removal.share > MUCH_REMOVED:
        return Finding(
            "notice",
            "threshold",
            f"{text}: many of them are likely to be true negatives. Raise it.",
        )
    return Finding("fine", "threshold", f"{text}.")


def _rows(rows: Rows, of: int) -> str:
    named = [f"“{name}”" for name in rows.examples[:_NAMED]]
    more = ", …" if rows.count > len(named) else ""
    return f"{rows.count:,} of {of:,} rows ({', '.join(named)}{more})"
