"""`sightline evaluate`: score an encoder, with explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import DEVICE, JSON, print_json

if TYPE_CHECKING:
    from train.embed import Embedder

app = typer.Typer(help="Score a sentence encoder.", no_args_is_help=True)

_MODEL = Annotated[str, typer.Option(help="A model folder, or a name on the hub.")]
_POOLING = Annotated[
    str | None,
    typer.Option(help="cls, pooler, mean or first_last_mean; default: from the folder."),
]


@app.command()
def sts(
    model: _MODEL,
    data: Annotated[Path, typer.Option(help="SentEval's `downstream` folder.")],
    pooling: _POOLING = None,
    device: DEVICE = "auto",
    as_json: JSON = False,
) -> None:
    """STS12-16, STS-B and SICK-R: Spearman ×100 in the "all" setting.

    Example: sightline evaluate sts --model runs/mcse-clip/seed-0/model --data senteval/downstream
    """
    from train.evaluate.sts import evaluate_sts, load_sts

    sets = load_sts(data)  # before the model, so that a missing file fails fast
    scores = evaluate_sts(_embedder(model, pooling, device).encode, sets)
    if as_json:
        print_json(scores.to_json())
        return
    for warning in scores.warnings:
        print(f"warning: {warning}")
    columns = {**scores.scores, "Avg": scores.average}
    print("  ".join(f"{name:>6}" for name in columns))
    print(
        "  ".join(f"{value:6.2f}" if value is not None else "  none" for value in columns.values())
    )
    for task, each in scores.tasks.items():
        if each.overall.reason:
            print(f"{task}: not defined: {each.overall.reason}")


@app.command()
def similarity(
    model: _MODEL,
    pairs: Annotated[Path, typer.Option(help="TSV with header score, sentence1, sentence2.")],
    pooling: _POOLING = None,
    device: DEVICE = "auto",
    as_json: JSON = False,
) -> None:
    """Spearman ×100, alignment and uniformity on any file of graded pairs.

    Example: sightline evaluate similarity --model runs/mcse-clip/seed-0/model
    --pairs data/datasets/scenes/similarity/test.tsv
    """
    from train.evaluate.geometry import evaluate_geometry
    from train.evaluate.similarity import evaluate_pairs, load_pairs

    graded = load_pairs(pairs)
    encode = _embedder(model, pooling, device).encode
    correlation, geometry = evaluate_pairs(encode, graded), evaluate_geometry(encode, graded)
    if as_json:
        print_json({"similarity": correlation.to_json(), "geometry": geometry.to_json()})
        return
    for name, value, reason in [
        ("Spearman", correlation.spearman, correlation.reason),
        ("alignment", geometry.alignment, "; ".join(geometry.reasons)),
        ("uniformity", geometry.uniformity, "; ".join(geometry.reasons)),
        ("alignment, as released", geometry.alignment_released, "; ".join(geometry.reasons)),
        ("uniformity, as released", geometry.uniformity_released, "; ".join(geometry.reasons)),
    ]:
        print(
            f"{name:23} {value:8.3f}" if value is not None else f"{name:23} not defined: {reason}"
        )


def _embedder(model: str, pooling: str | None, device: str) -> Embedder:
    from train.embed import Embedder

    return Embedder.load(model, pooling, device=device)  # pyright: ignore[reportArgumentType]
