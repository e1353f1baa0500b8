"""A diagnosis as one self-contained HTML page: no script, no link, all text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from sightline.output import write_file
from train.diagnose.diagnosis import Diagnosis
from train.diagnose.figures import cosine_figure, rank_figure, removal_figure, set_figure
from train.diagnose.findings import findings, percent
from train.report.drawing import to_svg
from train.report.html import inline_svg, page_templates, shell

_GENERATOR = "Sightline diagnosis"
MARK = f'<meta name="generator" content="{_GENERATOR}">'.encode()
"""The start of a page, which marks it as replaceable by another."""

_HERE = Path(__file__).parent


def write_page(diagnosis: Diagnosis, out: Path, inputs: Sequence[Path] = ()) -> None:
    """Write the page; equal diagnoses give equal bytes.

    Args:
        inputs: the sets and manifests that were read.

    Raises:
        SightlineError: ``out`` is a folder, an input, or not a page written by this command.
    """
    write_file(out, to_html(diagnosis).encode(), MARK, inputs)


def _sentence(text: str) -> Markup:
    """A finding as HTML: commands as code, and no line break before %."""
    kept = str(escape(text)).replace(" %", "\u00a0%")
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", kept))


def to_html(diagnosis: Diagnosis) -> str:
    """The page as one HTML document."""
    environment = page_templates(_HERE)
    environment.filters |= {"percent": percent, "sentence": _sentence}
    cosines, removals = (
        cosine_figure(diagnosis),
        removal_figure(diagnosis.filters, diagnosis.settings.whose),
    )
    return environment.get_template("page.html.j2").render(
        title="Features: " + " and ".join(each.path for each in diagnosis.sets),
        diagnosis=diagnosis,
        settings=diagnosis.settings,
        findings=findings(diagnosis),
        cosines=inline_svg(to_svg(cosines)) if cosines else None,
        ranks=inline_svg(to_svg(rank_figure(diagnosis.cross))) if diagnosis.cross else None,
        removals=inline_svg(to_svg(removals)) if removals else None,
        sets=[(each, inline_svg(to_svg(set_figure(each)))) for each in diagnosis.sets],
        **shell(_GENERATOR, (_HERE / "page.css").read_text(encoding="utf-8")),
    )
