"""A diagnosis as a document: findings, then a table for each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from train.report.tables import Cell, Column, Document, Row, Section, Table, form_of, number

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
        tables = tuple(_removals(tried, diagnosis) for tried in diagnosis.filters)
        notes = (_THRESHOLDS.format(diagnosis.settings),)
        sections.append(Section("What would a threshold remove?", tables, notes=notes))
    sections.append(Section("Sets", (_sets(diagnosis.sets),)))
    title = "Features: " + " and ".join(checks.path for checks in diagnosis.sets)
    return Document(title, SCHEMA, tuple(sections), vars(diagnosis))


def _findings(diagnosis: Diagnosis) -> Section:
    rows = []
    for finding in findings(diagnosis):
        where = "" if finding.about in ("pairs", "threshold", "all") else f"{finding.about}: "
        text = Cell(text=f"{where}{finding.text}")
        rows.append(Row(finding.level, {"finding": text}, doubtful=finding.level == "problem"))
    return Section("Findings", (Table("Findings", "", (Column("finding"),), tuple(rows)),))


def _table(
    title: str,
    heading: str,
    columns: Sequence[Column],
    rows: Sequence[tuple[str, Sequence[float | None]]],
) -> Table:
    """A table of numbers: (label, a value for each column)."""
    return Table(
        title,
        heading,
        tuple(columns),
        tuple(
            Row(
                label,
                {each.name: Cell(value) for each, value in zip(columns, values, strict=True)},
            )
            for label, values in rows
        ),
    )


_COUNT, _COSINE = form_of(",.0f"), form_of(".3f")


def _cosines(diagnosis: Diagnosis) -> Table:
    kinds = []
    if diagnosis.cross is not None:
        kinds.append((diagnosis.cross.cosines, IMAGES_AND_CAPTIONS))
    if diagnosis.captions is not None:
        kinds.append((diagnosis.captions, TWO_CAPTIONS))
    rows = []
    for cosines, names in kinds:
        for name, values in zip(names, (cosines.matched, cosines.mismatched), strict=True):
            separation = cosines.separation if values is cosines.matched else None
            shown = (values.quantiles[percent] for percent in ("1", "50", "99", "100"))
            rows.append((name, (values.count, values.mean, values.sd, *shown, separation)))
    names = ("mean", "sd", "1 %", "median", "99 %", "highest", "separation")
    columns = [Column("pairs", _COUNT), *(Column(name, _COSINE) for name in names)]
    return _table("Cosines", "cosine of", columns, rows)


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


def _ranks(cross: CrossChecks) -> Table:
    rows = [
        (name, (ranks.queries, ranks.pool, ranks.median, *ranks.within.values()))
        for name, ranks in (
            ("best-placed caption of an image", cross.best_caption),
            ("worst-placed caption of an image", cross.worst_caption),
        )
    ]
    columns = [Column(name, _COUNT) for name in ("queries", "among", "median rank")]
    columns += [Column(f"within {rank}", percent) for rank in cross.best_caption.within]
    return _table("Ranks", "true match", columns, rows)


def _removals(tried: Filter, diagnosis: Diagnosis) -> Table:
    title = f"{TERMS[tried.term]}: the highest cosine is {number(tried.highest, '.3f')}"
    names = ("negatives removed", "true pairs at or above")
    rows = [(f"{each.threshold:g}", (each.share, each.matched)) for each in tried.removals]
    table = _table(title, "threshold", [Column(name, percent) for name in names], rows)
    marks = [(diagnosis.settings.whose,) if each.configured else () for each in tried.removals]
    marked = (replace(row, marks=own) for row, own in zip(table.rows, marks, strict=True))
    return replace(table, rows=tuple(marked))


def _sets(sets: Sequence[SetChecks]) -> Table:
    """A column for each set, a row for each check."""
    texts = {
        checks.path: {
            "encoder": f"{checks.spec.encoder.name} ({checks.spec.encoder.source})",
            "rows × width": f"{checks.rows:,} × {checks.spec.dim:,}",
            "not finite": f"{checks.not_finite.count:,}",
            "all zeros": f"{checks.zero.count:,}",
            "mean cosine of two rows": (
                "" if checks.mean_cosine is None else number(checks.mean_cosine, ".3f")
            ),
        }
        for checks in sets
    }
    names = next(iter(texts.values()))
    rows = (Row(name, {path: Cell(text=of[name]) for path, of in texts.items()}) for name in names)
    return Table("Sets", "", tuple(map(Column, texts)), tuple(rows))
