"""What the numbers of a diagnosis mean, and the tables that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from train.diagnose.diagnosis import Numbers
from train.report.tables import Cell, Column, Document, Row, Section, Table, form_of, number

SCHEMA = "sightline.diagnosis/4"

ONE_DIRECTION = 0.9
"""Mean cosine of random rows above which a set is reported as nearly one direction."""
MUCH_REMOVED = 0.1
"""Share of the negatives above which a threshold is reported as removing many."""
LITTLE_APART = 0.75
"""Separation below which matched and mismatched pairs are reported as hard to tell apart."""
CHANCE_LIKE = 0.6
"""Separation below which they are reported as unrelated, and no threshold means anything."""
TERMS = {"image": "Image term", "teacher_text": "Teacher-text term"}
"""Terms of KDMCSE's loss, as readers know them: a caption with images, and with captions."""
IMAGES_AND_CAPTIONS = "an image and its caption", "an image and another's caption"
TWO_CAPTIONS = "two captions of one image", "captions of two images"
"""Pairs that belong together, and pairs that do not."""


class Finding(NamedTuple):
    """A sentence or two; `level` is problem (a training would be wrong or worth little), notice."""

    level: str
    text: str


def findings(numbers: Numbers) -> list[Finding]:
    """What to know before training, problems first."""
    lines = sorted(_findings(numbers), key=lambda finding: finding.level != "problem")
    if not any(finding.level == "problem" for finding in lines):
        lines.insert(0, Finding("fine", "No problem found."))
    return lines


def _findings(numbers: Numbers) -> Iterator[Finding]:
    for checks in numbers["sets"]:
        for text in _about_a_set(checks):
            yield Finding("problem", f"{checks['path']}: {text}")
    counts = numbers["pairs"]
    if counts is not None and counts["without_image"] + counts["without_text"] > 0:
        yield Finding(
            "problem",
            f"Of the training pairs, {counts['without_image']:,} are left out here for their image "
            f"and {counts['without_text']:,} for their text, beside the {counts['compared']:,} "
            "compared: the set lacks their row, or it is not finite or zero. A training stops at a "
            "missing row; rerun the stage of the set over this data set.",
        )
    for apart, (positives, negatives) in _cosines_in(numbers):
        separation = apart["separation"]
        if separation < CHANCE_LIKE:
            yield Finding(
                "problem",
                f"With probability {separation:.2f} only (chance: 0.50) {positives} have a higher "
                f"cosine than {negatives}: two sets may not be from the same model, the captions "
                "not of these images, or the weights untrained. Compare `sightline cache info` of "
                "both.",
            )
        elif separation < LITTLE_APART:
            yield Finding(
                "notice",
                f"With probability {separation:.2f} (chance: 0.50) {positives} have a higher "
                f"cosine than {negatives}, so they are hard to tell apart.",
            )
    how, whose = numbers["settings"], _whose(numbers)
    for tried in numbers["filters"]:
        for removal in (removal for removal in tried["removals"] if removal["configured"]):
            about = f"{TERMS[tried['term']]}: the {whose} threshold {removal['threshold']:g}"
            if removal["share"] == 0:
                yield Finding(
                    "notice",
                    f"{about} removes no negative in {how['batches']:,} batches; the highest "
                    f"cosine is {tried['highest']:.3f}. Lower it to filter, or set it to null.",
                )
            elif removal["share"] > MUCH_REMOVED:
                yield Finding(
                    "notice",
                    f"{about} removes {percent(removal['share'])} of the negatives in batches of "
                    f"{how['batch_size']}: many of them are likely to be true negatives. Raise it.",
                )


def _about_a_set(checks: Numbers) -> Iterator[str]:
    encoder = checks["spec"]["encoder"]
    if encoder["untrained"]:
        yield (
            f"The weights are untrained ({encoder['source']}): cosines, ranks and thresholds here "
            "say nothing about a trained encoder. Extract again with trained weights."
        )
    of_rows = f"Of {checks['rows']:,} rows"
    if checks["not_finite"]["count"]:
        yield (
            f"{of_rows}, NaN or infinity is in {_named(checks['not_finite'])}: one such row makes "
            "the loss of its batch NaN. Extract or import them again, or remove them."
        )
    if checks["zero"]["count"]:
        yield (
            f"{of_rows}, only zeros are in {_named(checks['zero'])}: they have no direction. Check "
            "what the encoder made of these inputs."
        )
    if checks["mean_cosine"] is not None and checks["mean_cosine"] > ONE_DIRECTION:
        yield (
            "All rows point almost one way: the mean cosine of two rows is "
            f"{checks['mean_cosine']:.3f}. Cosine thresholds cannot tell them apart."
        )


def _named(rows: Numbers) -> str:
    names = ", ".join(f"“{name}”" for name in rows["examples"])
    return f"{rows['count']:,} ({names}{', …' if rows['count'] > len(rows['examples']) else ''})"


def _cosines_in(numbers: Numbers) -> list[tuple[Numbers, tuple[str, str]]]:
    """The cosines that were compared, and what they are of."""
    of_images = [(numbers["cross"]["cosines"], IMAGES_AND_CAPTIONS)] if numbers["cross"] else []
    of_captions = [(numbers["captions"], TWO_CAPTIONS)] if numbers["captions"] else []
    return [*of_images, *of_captions]


def _whose(numbers: Numbers) -> str:
    """Of the thresholds that are configured: a run's, or KDMCSE's own."""
    return "default" if numbers["settings"]["run"] is None else "configured"


def percent(share: float) -> str:
    """A share in percent: two significant digits below 1 %, and never 0 for more than none."""
    value = 100 * share
    if 0 < value < 0.001:
        return "< 0.001 %"
    return f"{float(f'{value:.2g}'):g} %" if value < 1 else f"{round(value, 1):g} %"


_COSINES = (
    "Separation: the probability that the former have a higher cosine than the latter; 0.5 is "
    "chance. KDMCSE's figure 6 has such cosines."
)
_THRESHOLDS = (
    "KDMCSE removes a negative that its teacher finds at least as similar as the threshold. Tried "
    "on the first {batches:,} paired batches of {batch_size} that a training with seed {seed} "
    "draws (captions: {caption})."
)
_RANKS = (
    "Equally similar rows rank before the match. KDMCSE's figure 5 has the worst-placed caption."
)
_COUNT, _COSINE = form_of(",.0f"), form_of(".3f")


def document_of(numbers: Numbers) -> Document:
    """Findings, then a table for each question."""
    rows = (
        Row(level, {"finding": Cell(text=text)}, doubtful=level == "problem")
        for level, text in findings(numbers)
    )
    table = Table("Findings", "", (Column("finding"),), tuple(rows))
    sections = [Section("Findings", (table,))]
    if numbers["cross"] or numbers["captions"]:
        title = "Do pairs that belong together stand out?"
        sections.append(Section(title, (_cosine_table(numbers),), notes=_about_pairs(numbers)))
    if numbers["cross"]:
        title = "Where does the true match rank?"
        sections.append(Section(title, (_rank_table(numbers["cross"]),), notes=(_RANKS,)))
    if numbers["filters"]:
        tables = tuple(_removal_table(tried, _whose(numbers)) for tried in numbers["filters"])
        notes = (_THRESHOLDS.format(**numbers["settings"]),)
        sections.append(Section("What would a threshold remove?", tables, notes=notes))
    sections.append(Section("Sets", (_set_table(numbers["sets"]),)))
    title = "Features: " + " and ".join(checks["path"] for checks in numbers["sets"])
    return Document(title, SCHEMA, tuple(sections), numbers)


def _about_pairs(numbers: Numbers) -> tuple[str, ...]:
    settings, counts = numbers["settings"], numbers["pairs"]
    whose = f" Settings are those of run {settings['run']}." if settings["run"] else ""
    return (
        f"{counts['compared']:,} training pairs of {counts['images']:,} images, from "
        f"{numbers['manifest']}. Cosines and ranks are of "
        f"{min(counts['images'], settings['sample']):,} of these, drawn with seed "
        f"{settings['seed']}; mismatched pairs have one caption each.{whose}",
        _COSINES,
    )


def _cosine_table(numbers: Numbers) -> Table:
    shown = {"1": "1 %", "50": "median", "99": "99 %", "100": "highest"}
    names = ("mean", "sd", *shown.values(), "separation")
    rows = []
    for apart, labels in _cosines_in(numbers):
        for label, values in zip(labels, (apart["matched"], apart["mismatched"]), strict=True):
            figures = {name: values["quantiles"][percent] for percent, name in shown.items()}
            figures |= {"pairs": values["count"], "mean": values["mean"], "sd": values["sd"]}
            if label == labels[0]:
                figures["separation"] = apart["separation"]
            rows.append(Row(label, {name: Cell(value) for name, value in figures.items()}))
    columns = (Column("pairs", _COUNT), *(Column(name, _COSINE) for name in names))
    return Table("Cosines", "cosine of", columns, tuple(rows))


def _rank_table(cross: Numbers) -> Table:
    rows = []
    for label, ranks in (
        ("best-placed caption of an image", cross["best_caption"]),
        ("worst-placed caption of an image", cross["worst_caption"]),
    ):
        figures = {name: ranks[key] for name, key in _RANK_COLUMNS.items()}
        figures |= {f"within {rank}": share for rank, share in ranks["within"].items()}
        rows.append(Row(label, {name: Cell(value) for name, value in figures.items()}))
    columns = (
        *(Column(name, _COUNT) for name in _RANK_COLUMNS),
        *(Column(f"within {rank}", percent) for rank in cross["best_caption"]["within"]),
    )
    return Table("Ranks", "true match", columns, tuple(rows))


_RANK_COLUMNS = {"queries": "queries", "among": "pool", "median rank": "median"}


def _removal_table(tried: Numbers, whose: str) -> Table:
    rows = (
        Row(
            f"{removal['threshold']:g}",
            {
                "negatives removed": Cell(removal["share"]),
                "true pairs at or above": Cell(removal["matched"]),
            },
            marks=(whose,) if removal["configured"] else (),
        )
        for removal in tried["removals"]
    )
    title = f"{TERMS[tried['term']]}: the highest cosine is {number(tried['highest'], '.3f')}"
    names = ("negatives removed", "true pairs at or above")
    return Table(title, "threshold", tuple(Column(name, percent) for name in names), tuple(rows))


def _set_table(sets: Sequence[Numbers]) -> Table:
    """A column for each set, a row for each check."""
    texts = {
        checks["path"]: {
            "encoder": "{name} ({source})".format(**checks["spec"]["encoder"]),
            "rows × width": f"{checks['rows']:,} × {checks['spec']['dim']:,}",
            "not finite": f"{checks['not_finite']['count']:,}",
            "all zeros": f"{checks['zero']['count']:,}",
            "mean cosine of two rows": (
                "" if checks["mean_cosine"] is None else number(checks["mean_cosine"], ".3f")
            ),
        }
        for checks in sets
    }
    names = next(iter(texts.values()))
    rows = (Row(name, {path: Cell(text=of[name]) for path, of in texts.items()}) for name in names)
    return Table("Sets", "", tuple(map(Column, texts)), tuple(rows))
