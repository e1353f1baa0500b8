"""How figures look, and how they become files: the same figure gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT, PLAIN = "#1f2933", "#9aa5b1", "#e4e7eb"
COLOURS = ("#2f6f9f", "#d9773f", "#3f8f6b", "#8a63b0", "#b8495c", "#8c7a2b", "#3d9aa8", "#5b6770")

MARK = b"Sightline figure"
"""Begins every figure, so that a later command may replace it."""
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a run may be called "$x$"
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "sightline",
}
"""For `matplotlib.rc_context`."""


def clean(axis: Axes, keep: Sequence[str] = ("left", "bottom")) -> None:
    """Hide the axis lines except those to ``keep``."""
    for side in ("top", "right", "left", "bottom"):
        axis.spines[side].set_visible(side in keep)


def to_svg(figure: Figure) -> str:
    """The figure as SVG text without a date."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": MARK.decode()})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG at 180 dots per inch."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="png", dpi=180, metadata={"Software": MARK.decode()})
    return buffer.getvalue()
