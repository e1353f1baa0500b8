"""A diagnosis as a document: findings, then a section for each question, with its figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from train.diagnose.checks import Distribution, SetChecks
from train.diagnose.diagnosis import SCHEMA, Diagnosis
from train.diagnose.findings import findings, percent
from train.diagnose.pairs import Cosines, CrossChecks, Ranks
from train.diagnose.thresholds import Filter
from train.report.charts import COLOURS, FAINT, INK, STYLE, clean, to_svg
from train.report.grid import (
    Document,
    Drawing,
    Grid,
    GridCell,
    GridRow,
    Section,
    number,
    number_cell,
    printable,
    text_cell,
)

_MATCHED, _MISMATCHED, _THIRD = COLOURS[1], COLOURS[0], COLOURS[2]
_WIDTH = 9.0  # inches
_LEAST_SHARE = 1e-5  # the bottom of a logarithmic axis of shares
_MOST_SHARE = 0.25  # thresholds that would remove more are not shown
_PERCENT = FuncFormatter(lambda value, _: percent(value))
_TERMS = {
    "image": "Image term",
    "teacher_text": "Teacher-text term",
    "released": "Both terms, variant: released",
}
_DRAWN = {
    "all": "all captions of an image",
    "random": "one caption of each image",
    "longest": "the longest caption of each image",
}
_COSINES = (
    "If the two peaks hardly overlap, the features show what belongs together. If they coincide, "
    "they do not. A second, small peak of mismatched pairs where the matched ones are holds "
    "negatives as similar as true pairs, which a threshold is meant to remove (KDMCSE, figure 6). "
    "Each histogram is scaled to the same height."
)
_RANKS = (
    "The higher the curve rises at the left, the better. KDMCSE's figure 5 counts the worst-placed "
    "caption of each image among all captions: on Flickr30k most are within the first 100, quite a "
    "few beyond 200. Equally similar rows rank before the match."
)
_REMOVALS = (
    "Look for a threshold that removes negatives as similar as true pairs and few others: where "
    "the blue curve is flat, moving the threshold changes little."
)
_SETS = "Cosines leave out rows that are not finite or all zeros. KDMCSE: Nguyen et al. 2024."


def document_of(diagnosis: Diagnosis, *, page: bool = False) -> Document:
    """The diagnosis for any format; on a page also its figures."""

    def drawing(caption: str, note: str, draw: Callable[[], Figure | None]) -> tuple[Drawing, ...]:
        figure = draw() if page else None
        return () if figure is None else (Drawing(caption, note, to_svg(figure)),)

    settings, filters, cross = diagnosis.settings, diagnosis.filters, diagnosis.cross
    sections = [_findings(diagnosis)]
    if cross is not None or diagnosis.captions is not None:
        title = "Do pairs that belong together stand out?"
        figure = drawing(title, _COSINES, lambda: cosine_figure(diagnosis))
        sections.append(Section(title, (_cosines(diagnosis),), figure, _about_pairs(diagnosis)))
    if cross is not None:
        title = "Where does the true match rank?"
        figure = drawing(title, _RANKS, lambda: rank_figure(cross))
        sections.append(Section(title, (_ranks(cross),), figure))
    if filters:
        title = "What would a threshold remove?"
        figure = drawing(title, _REMOVALS, lambda: removal_figure(filters, settings.whose))
        grids = tuple(_removals(each, diagnosis) for each in filters)
        notes = _about_thresholds(diagnosis)
        sections.append(Section(title, tuple(g for g in grids if g.rows), figure, notes))
    notes = (*map(_provenance, diagnosis.sets), _SETS)
    sections.append(Section("Sets", (_sets(diagnosis.sets),), notes=notes))
    title = "Features: " + " and ".join(each.path for each in diagnosis.sets)
    return Document(title, SCHEMA, tuple(sections), vars(diagnosis))


def _findings(diagnosis: Diagnosis) -> Section:
    rows = []
    for finding in findings(diagnosis):
        where = "" if finding.about in ("pairs", "threshold", "all") else f"{finding.about}: "
        text = text_cell(f"{where}{finding.text}")
        rows.append(GridRow(finding.level, (text,), warn=finding.level == "problem"))
    return Section("Findings", (Grid("Findings", ("", "finding"), tuple(rows), left=2),))


def _cosines(diagnosis: Diagnosis) -> Grid:
    rows = []
    for kind in _kinds(diagnosis):
        cosines = kind.cosines
        for name, values in ((kind.alike, cosines.matched), (kind.unlike, cosines.mismatched)):
            separation = cosines.separation if values is cosines.matched else None
            numbers = (values.mean, values.sd, values.quantiles["1"], values.median)
            numbers = (*numbers, values.quantiles["99"], values.greatest, separation)
            cells = (_count(values.count), *(number_cell(each, ".3f") for each in numbers))
            rows.append(GridRow(name, cells))
    header = ("cosine of", "pairs", "mean", "sd", "1 %", "median", "99 %", "highest", "separation")
    return Grid("Cosines", header, tuple(rows))


class _Kind(NamedTuple):
    """A kind of pairs: its cosines, the term that compares such, and what its pairs are called."""

    title: str
    cosines: Cosines
    term: str
    alike: str
    unlike: str


def _kinds(diagnosis: Diagnosis) -> list[_Kind]:
    kinds = []
    if diagnosis.cross is not None:
        names = "an image and its caption", "an image and another's caption"
        kinds.append(_Kind("image and caption", diagnosis.cross.cosines, "image", *names))
    if diagnosis.captions is not None:
        names = "two captions of one image", "captions of two images"
        kinds.append(_Kind("two captions", diagnosis.captions, "teacher_text", *names))
    return kinds


def _about_pairs(diagnosis: Diagnosis) -> tuple[str, ...]:
    settings, counts, cosines = diagnosis.settings, diagnosis.pairs, _kinds(diagnosis)[0].cosines
    assert counts is not None
    run = settings.run
    whose = f" Batch size, captions and thresholds are those of run {run}." if run else ""
    sampled = f"all {cosines.images:,}"
    if cosines.sampled < cosines.images:
        sampled = f"a sample of {cosines.sampled:,} of {cosines.images:,}"
    return (
        f"{counts.compared:,} training pairs of {counts.images:,} images, from "
        f"{diagnosis.manifests['captions']}. Samples and batches are drawn with seed "
        f"{settings.seed}.{whose}",
        "Separation: the probability that a pair that belongs together has a higher cosine than "
        "one that does not; 0.5 is chance. Mismatched pairs, and pairs of captions, are those of "
        f"{sampled} images, one caption each against all others.",
    )


def _ranks(cross: CrossChecks) -> Grid:
    rows = []
    for name, ranks in (
        ("best-placed caption of an image", cross.best_caption),
        ("worst-placed caption of an image", cross.worst_caption),
        ("image of a caption", cross.image),
    ):
        sample = f"{ranks.queries:,}" + (f" of {ranks.of:,}" if ranks.queries < ranks.of else "")
        shares = (*ranks.within.values(), ranks.chance)
        cells = (
            GridCell((sample,), value=ranks.queries),
            _count(ranks.pool),
            number_cell(ranks.median, ",.0f"),
            *map(_share, shares),
        )
        rows.append(GridRow(name, cells))
    within = (f"within {rank}" for rank in cross.best_caption.within)
    header = ("true match", "queries", "among", "median rank", *within, "first by chance")
    return Grid("Ranks", header, tuple(rows))


def _removals(filter_: Filter, diagnosis: Diagnosis) -> Grid:
    settings = diagnosis.settings
    rows = []
    for removal in filter_.removals:
        if removal.share <= _MOST_SHARE or removal.configured or settings.thresholds:
            marks = (settings.whose,) if removal.configured else ()
            shares = [removal.share, removal.sd, removal.least, removal.greatest]
            shares += [] if filter_.term == "released" else [removal.matched]
            rows.append(GridRow(f"{removal.threshold:g}", tuple(map(_share, shares)), marks=marks))
    header = ("threshold", "negatives removed", "sd of a batch", "least", "most")
    header += () if filter_.term == "released" else ("true pairs at or above",)
    return Grid(f"{_TERMS[filter_.term]}: {filter_.score}", header, tuple(rows))


def _about_thresholds(diagnosis: Diagnosis) -> tuple[str, ...]:
    settings, first = diagnosis.settings, diagnosis.filters[0]
    notes = [
        "KDMCSE removes a negative that its teacher finds at least as similar as the threshold. "
        f"These are the first {first.batches:,} paired batches of {first.batch_size} that a "
        f"training with seed {settings.seed} draws ({_DRAWN[settings.caption]}): "
        f"{first.negatives:,} negatives, {percent(first.same_image)} of them captions of the "
        "query's own image."
    ]
    for each in diagnosis.filters:
        form = ".1f" if each.term == "released" else ".3f"
        at = "; ".join(f"{percent(float(s))}: {number(v, form)}" for s, v in each.at_share.items())
        notes.append(
            f"{_TERMS[each.term]}: the highest score of a negative is "
            f"{number(each.highest, '.3f')}. "
            f"Threshold that removes {at}."
        )
    if not settings.thresholds:
        notes.append("Thresholds that would remove more than a quarter are left out.")
    return tuple(notes)


def _sets(sets: Sequence[SetChecks]) -> Grid:
    """A column for each set, a row for each check."""

    def row(name: str, text: Callable[[SetChecks], str]) -> GridRow:
        return GridRow(name, tuple(text_cell(text(each)) for each in sets))

    def norms(each: SetChecks) -> str:
        values = each.norms
        if values is None:
            return ""
        return (
            f"{values.mean:.4g} ± {values.sd:.3g}, from {values.least:.4g} to {values.greatest:.4g}"
        )

    rows = (
        row("rows × width", lambda each: f"{each.rows:,} × {each.spec.dim:,} {each.spec.dtype}"),
        row("norms: mean ± sd", norms),
        row("not finite", lambda each: f"{each.not_finite.count:,}"),
        row("all zeros", lambda each: f"{each.zero.count:,}"),
        row("failed inputs", lambda each: f"{sum(each.failed.values()):,}"),
        row("equal rows of different inputs", lambda each: f"{each.copies.count:,}"),
        row(
            "mean cosine of two rows (1: one direction)",
            lambda each: "" if each.mean_cosine is None else number(each.mean_cosine, ".3f"),
        ),
    )
    header = ("", *(printable(each.path) for each in sets))
    return Grid("Sets", header, rows, left=len(header))


def _provenance(checks: SetChecks) -> str:
    encoder = checks.spec.encoder
    untrained = " (untrained weights)" if encoder.untrained else ""
    return (
        f"{checks.path}: kind {checks.spec.kind}, made by {encoder.name} with weights "
        f"{encoder.source}{untrained}; {checks.provenance}. Fingerprint `{checks.fingerprint}`, "
        f"content `{checks.content_digest}`."
    )


def _count(value: int) -> GridCell:
    return GridCell((f"{value:,}",), value=value)


def _share(value: float | None) -> GridCell:
    return GridCell(("–",)) if value is None else GridCell((percent(value),), value=value)


def cosine_figure(diagnosis: Diagnosis) -> Figure:
    """Histograms of matched and mismatched cosines, one panel per kind (KDMCSE, figure 6)."""
    kinds = _kinds(diagnosis)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 3.3), layout="constrained")
        axes = figure.subplots(1, len(kinds), squeeze=False).flat
        for axis, kind in zip(axes, kinds, strict=True):
            _outline(axis, kind.cosines.mismatched, _MISMATCHED, kind.unlike)
            _outline(axis, kind.cosines.matched, _MATCHED, kind.alike)
            _mark_thresholds(axis, diagnosis.filters, kind.term, diagnosis.settings.whose)
            axis.set_title(kind.title, loc="left", fontsize=10, fontweight="bold")
            axis.set_xlabel("cosine")
            axis.set_yticks([])
            axis.set_ylim(bottom=0)
            clean(axis, keep=("bottom",))
            _legend_below(axis)
    return figure


def rank_figure(cross: CrossChecks) -> Figure:
    """Share of queries whose true match is within a rank (KDMCSE, figure 5, cumulated)."""
    lines: list[tuple[str, Ranks, str, str]] = [
        ("best caption of an image", cross.best_caption, "-", _MATCHED),
        ("worst caption of an image", cross.worst_caption, "--", _MATCHED),
        ("image of a caption", cross.image, "-", _THIRD),
    ]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 4.0), layout="constrained")
        axis = figure.subplots()
        for name, ranks, style, colour in lines:
            at, shares = zip(*ranks.curve, strict=True)
            label = f"{name}, among {ranks.pool:,}"
            axis.plot(at, shares, style, color=colour, linewidth=1.8, label=label)
        for rank in (100, 200):
            if rank < cross.worst_caption.pool:
                axis.axvline(rank, color=FAINT, linewidth=0.9, linestyle=":")
        by_chance = np.geomspace(1, cross.image.pool, 100)
        label = "image of a caption by chance"
        axis.plot(by_chance, by_chance / cross.image.pool, color=FAINT, linewidth=1.2, label=label)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlim(left=1)
        axis.set_ylim(0, 1.02)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        axis.set_xlabel("rank (dotted: 100 and 200)")
        axis.set_ylabel("share within that rank")
        clean(axis, lines="y")
        _legend_below(axis, columns=2)
    return figure


def removal_figure(filters: Sequence[Filter], whose: str) -> Figure | None:
    """Share of the negatives that a threshold removes, and of matched pairs it recognises.

    Args:
        whose: configured or default, for the legend.
    """
    cosine_terms = [each for each in filters if each.term != "released"]
    if not cosine_terms:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
        axes = figure.subplots(1, len(cosine_terms), squeeze=False, sharey=True).flat
        for axis, each in zip(axes, cosine_terms, strict=True):
            _removal_panel(axis, each)
            axis.set_title(_TERMS[each.term].lower(), loc="left", fontsize=10, fontweight="bold")
            _mark_thresholds(axis, filters, each.term, whose)
            _legend_below(axis)
        figure.axes[0].set_ylabel("share (logarithmic)")
    return figure


def _removal_panel(axis: Axes, each: Filter) -> None:
    at = [removal.threshold for removal in each.removals]
    floor = _LEAST_SHARE
    low = [max(removal.least, floor) for removal in each.removals]
    high = [max(removal.greatest, floor) for removal in each.removals]
    axis.fill_between(at, low, high, color=_MISMATCHED, alpha=0.18, linewidth=0)
    shown = [(r.threshold, r.share) for r in each.removals if r.share >= floor]
    if shown:
        label = "negatives removed (band: least and most in a batch)"
        axis.plot(*zip(*shown, strict=True), "o-", color=_MISMATCHED, ms=3.2, label=label)
    matched = [(r.threshold, r.matched) for r in each.removals if r.matched and r.matched >= floor]
    if matched:
        label = "pairs that belong together, at or above it"
        axis.plot(*zip(*matched, strict=True), "o--", color=_MATCHED, ms=3.2, label=label)
    axis.set_yscale("log")
    axis.set_ylim(floor, 1.6)
    axis.yaxis.set_major_locator(LogLocator(numticks=8))
    axis.yaxis.set_major_formatter(_PERCENT)
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("threshold (cosine)")
    clean(axis, lines="y")


def _outline(axis: Axes, values: Distribution, colour: str, label: str) -> None:
    """A histogram scaled to a height of 1: a narrow one would flatten the other."""
    heights = np.array(values.counts) / max(values.counts)
    axis.stairs(heights, values.edges, color=colour, linewidth=1.4, fill=False, label=label)
    axis.stairs(heights, values.edges, color=colour, alpha=0.15, fill=True)


def _mark_thresholds(axis: Axes, filters: Sequence[Filter], term: str, whose: str) -> None:
    of_term = [removal for each in filters if each.term == term for removal in each.removals]
    for removal in (removal for removal in of_term if removal.configured):
        label = f"{whose} threshold {removal.threshold:g}"
        axis.axvline(removal.threshold, color=INK, linewidth=1, linestyle="--", label=label)


def _legend_below(axis: Axes, columns: int = 1) -> None:
    """Under the panel, where no line is."""
    axis.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        frameon=False,
        fontsize=8.5,
        handlelength=1.6,
        ncols=columns,
    )
