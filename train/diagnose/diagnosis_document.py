"""A diagnosis as a document: findings, then a table for each question."""

from __future__ import annotations

from collections.abc import Sequence

from train.diagnose.checks import SetChecks
from train.diagnose.diagnosis import SCHEMA, Diagnosis
from train.diagnose.findings import (
    IMAGES_AND_CAPTIONS,
    TERMS,
    TWO_CAPTIONS,
    findings,
    percent,
)
from train.diagnose.pair_cosines import CrossChecks
from train.diagnose.thresholds import Filter
from train.report.grid import (
    Document,
    Grid,
    GridCell,
    GridRow,
    Section,
    number,
    number_cell,
    printable,
    text_cell,
)

_COSINES = (
    "Separation: the probability that the former have a higher cosine than the latter; 0.5 is "
    "chance. KDMCSE's figure 6 has such cosines."
)
_THRESHOLDS = (
    "KDMCSE removes a negative that its teacher finds at least as similar as the threshold. Tried "
    "on the first {0.batches:,} paired batches of {0.batch_size} that a training with seed "
    "{0.seed} draws (captions: {0.caption})."
)
_RANKS = (
    "Equally similar rows rank before the match. KDMCSE's figure 5 has the worst-placed caption."
)


def document_of(diagnosis: Diagnosis) -> Document:
    """The diagnosis for any format."""
    sections = [_findings(diagnosis)]
    if diagnosis.cross is not None or diagnosis.captions is not None:
        title = "Do pairs that belong together stand out?"
        notes = _about_pairs(diagnosis)
        sections.append(Section(title, (_cosines(diagnosis),), notes=notes))
    if diagnosis.cross is not None:
        title = "Where does the true match rank?"
        sections.append(Section(title, (_ranks(diagnosis.cross),), notes=(_RANKS,)))
    if diagnosis.filters:
        grids = tuple(_removals(tried, diagnosis) for tried in diagnosis.filters)
        notes = (_THRESHOLDS.format(diagnosis.settings),)
        sections.append(Section("What would a threshold remove?", grids, notes=notes))
    sections.append(Section("Sets", (_sets(diagnosis.sets),)))
    title = "Features: " + " and ".join(checks.path for checks in diagnosis.sets)
    return Document(title, SCHEMA, tuple(sections), vars(diagnosis))


def _findings(diagnosis: Diagnosis) -> Section:
    rows = []
    for finding in findings(diagnosis):
        where = "" if finding.about in ("pairs", "threshold", "all") else f"{finding.about}: "
        text = text_cell(f"{where}{finding.text}")
        rows.append(GridRow(finding.level, (text,), warn=finding.level == "problem"))
    return Section("Findings", (Grid("Findings", ("", "finding"), tuple(rows), left=2),))


def _cosines(diagnosis: Diagnosis) -> Grid:
    kinds = []
    if diagnosis.cross is not None:
        kinds.append((diagnosis.cross.cosines, IMAGES_AND_CAPTIONS))
    if diagnosis.captions is not None:
        kinds.append((diagnosis.captions, TWO_CAPTIONS))
    rows = []
    for cosines, names in kinds:
        for name, values in zip(names, (cosines.matched, cosines.mismatched), strict=True):
            separation = cosines.separation if values is cosines.matched else None
            numbers = (values.mean, values.sd, values.quantiles["1"], values.quantiles["50"])
            numbers = (*numbers, values.quantiles["99"], values.quantiles["100"], separation)
            cells = (
                number_cell(values.count, ",.0f"),
                *(number_cell(value, ".3f") for value in numbers),
            )
            rows.append(GridRow(name, cells))
    header = ("cosine of", "pairs", "mean", "sd", "1 %", "median", "99 %", "highest", "separation")
    return Grid("Cosines", header, tuple(rows))


def _about_pairs(diagnosis: Diagnosis) -> tuple[str, ...]:
    settings, counts = diagnosis.settings, diagnosis.pairs or {}
    sampled = min(counts["images"], settings.sample)
    whose = f" Settings are those of run {settings.run}." if settings.run else ""
    return (
        f"{counts['compared']:,} training pairs of {counts['images']:,} images, from "
        f"{diagnosis.manifest}. Cosines and ranks are of {sampled:,} of these, drawn with seed "
        f"{settings.seed}; mismatched pairs have one caption each.{whose}",
        _COSINES,
    )


def _ranks(cross: CrossChecks) -> Grid:
    rows = []
    for name, ranks in (
        ("best-placed caption of an image", cross.best_caption),
        ("worst-placed caption of an image", cross.worst_caption),
    ):
        cells = (
            *(number_cell(n, ",.0f") for n in (ranks.queries, ranks.pool, ranks.median)),
            *map(_share, ranks.within.values()),
        )
        rows.append(GridRow(name, cells))
    within = (f"within {rank}" for rank in cross.best_caption.within)
    header = ("true match", "queries", "among", "median rank", *within)
    return Grid("Ranks", header, tuple(rows))


def _removals(tried: Filter, diagnosis: Diagnosis) -> Grid:
    rows = []
    for removal in tried.removals:
        marks = (diagnosis.settings.whose,) if removal.configured else ()
        cells = _share(removal.share), _share(removal.matched)
        rows.append(GridRow(f"{removal.threshold:g}", cells, marks=marks))
    header = ("threshold", "negatives removed", "true pairs at or above")
    title = f"{TERMS[tried.term]}: the highest cosine is {number(tried.highest, '.3f')}"
    return Grid(title, header, tuple(rows))


def _sets(sets: Sequence[SetChecks]) -> Grid:
    """A column for each set, a row for each check."""
    rows = [
        (
            f"{checks.spec.encoder.name} ({checks.spec.encoder.source})",
            f"{checks.rows:,} × {checks.spec.dim:,}",
            f"{checks.not_finite.count:,}",
            f"{checks.zero.count:,}",
            "" if checks.mean_cosine is None else number(checks.mean_cosine, ".3f"),
        )
        for checks in sets
    ]
    names = ("encoder", "rows × width", "not finite", "all zeros", "mean cosine of two rows")
    columns = zip(names, zip(*rows, strict=True), strict=True)
    grid = tuple(GridRow(name, tuple(map(text_cell, texts))) for name, texts in columns)
    header = ("", *(printable(checks.path) for checks in sets))
    return Grid("Sets", header, grid, left=len(header))


def _share(value: float) -> GridCell:
    return GridCell((percent(value),), value=value)
