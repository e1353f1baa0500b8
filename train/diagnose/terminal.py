"""A diagnosis on a terminal: a table for each question, then the findings."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.diagnose.diagnosis import Diagnosis, Settings
from train.diagnose.filter_checks import Filter
from train.diagnose.findings import MUCH_REMOVED, findings, percent
from train.diagnose.set_checks import SetChecks

_NAMES = {"image": "image term", "teacher_text": "teacher-text term", "released": "both (released)"}
_STYLES = {"problem": "bold red", "notice": "yellow", "fine": "green"}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print the summary."""
    console.print(_sets(diagnosis.sets))
    if diagnosis.captions is not None or diagnosis.cross is not None:
        console.print()
        console.print(_cosines(diagnosis))
    if diagnosis.cross is not None:
        console.print()
        console.print(_ranks(diagnosis))
    for each in diagnosis.filters:
        if each.removals:
            console.print()
            console.print(_removals(each, diagnosis.settings))
    console.print()
    for found in findings(diagnosis):
        line = Text(f"{found.level}: ", style=_STYLES[found.level])
        where = f"{found.about}: " if found.about not in ("pairs", "threshold", "all") else ""
        console.print(line.append(where + found.text, style="default"), soft_wrap=True)


def _sets(sets: tuple[SetChecks, ...]) -> Table:
    table = _table("", *(each.path for each in sets))

    def row(name: str, *cells: str) -> None:
        table.add_row(*map(Text, (name, *cells)))

    row("rows × width", *(f"{each.rows:,} × {each.dim:,}" for each in sets))
    row(
        "not finite, zero, failed",
        *(
            f"{each.not_finite.count:,}, {each.zero.count:,}, {sum(each.failed.values()):,}"
            for each in sets
        ),
    )
    row("constant columns", *(f"{each.constant.count:,}" for each in sets))
    row(
        "norm: mean ± sd",
        *(f"{e.norms.mean:.4g} ± {e.norms.sd:.2g}" if e.norms else "–" for e in sets),
    )
    row(
        "mean cosine of two rows",
        *("–" if e.mean_cosine is None else f"{e.mean_cosine:.3f}" for e in sets),
    )
    row(
        "effective rank, centred",
        *(f"{e.spectrum.centred:.1f} of {e.spectrum.most:,}" if e.spectrum else "–" for e in sets),
    )
    row("equal rows", *(f"{each.copies.count:,}" for each in sets))
    row(
        "near-duplicates",
        *(
            f"{e.neighbours.above:,} of {e.neighbours.compared:,} from {e.neighbours.bound:g}"
            if e.neighbours
            else "–"
            for e in sets
        ),
    )
    return table


def _cosines(diagnosis: Diagnosis) -> Table:
    table = _table("cosine", "belonging together", "not", "separation")
    drawn = {
        "image and caption": diagnosis.cross.cosines if diagnosis.cross else None,
        "two captions": diagnosis.captions,
    }
    for name, found in drawn.items():
        if found is not None:
            both = found.matched, found.mismatched
            cells = (f"{each.mean:.3f} ± {each.sd:.3f}" for each in both)
            table.add_row(name, *cells, f"{found.separation:.3f}")
    return table


def _ranks(diagnosis: Diagnosis) -> Table:
    cross = diagnosis.cross
    assert cross is not None
    table = _table("true match", "median rank", "among", "first", "within 10", "within 100")
    for name, ranks in {
        "best caption of an image": cross.best_caption,
        "worst caption of an image": cross.worst_caption,
        "image of a caption": cross.image,
    }.items():
        shares = (percent(ranks.within[at]) for at in ("1", "10", "100"))
        table.add_row(name, f"{ranks.median:,.0f}", f"{ranks.pool:,}", *shares)
    return table


def _removals(found: Filter, settings: Settings) -> Table:
    columns = "negatives removed", "in a batch", "true pairs"
    table = _table(f"threshold, {_NAMES[found.term]}", *columns)
    for each in found.removals:
        if not (settings.thresholds or each.configured or 0 < each.share <= MUCH_REMOVED):
            continue  # the page and the JSON have all
        name = f"{each.threshold:g}" + (f" ({settings.whose})" if each.configured else "")
        between = f"{percent(each.least)} to {percent(each.greatest)}"
        matched = "–" if each.matched is None else percent(each.matched)
        table.add_row(name, percent(each.share), between, matched)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(Text(first))
    for name in others:
        table.add_column(Text(name), justify="right")
    return table
