"""Remedies of params.yaml and its stages, provoked and applied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from cures import PREPARE, Cure, run
from demo_params import demo_params
from shown_commands import ROOT

from pipeline.layout import run_spec
from pipeline.params import load_params

PHRASES = "{captions: all, grounder: {family: annotations, path: phrases.parquet}}"
MINE = "datasets.mine: {kind: pairs, source: photos, images: ., captions: ../captions.csv}"
IMAGELESS = "datasets.mine: {kind: pairs, source: ., images: null, captions: captions.csv}"
OTHER = "systems.mcse-clip.runs.other: {parameters: {image: resnet}}"
SYSTEM = "systems.of-others: {objective: mcse, parameters: {image: resnet}, runs: {other: {}}}"
TWICE = "systems.kdmcse.runs.kdmcse.label: MCSE (CLIP)"


def project(*changes: str) -> Callable[[], object]:
    """Makes this folder the demo's project with some keys changed: ``train.epochs: 3``."""

    def write() -> None:
        params: dict[str, Any] = demo_params()
        for change in changes:
            keys, _, value = change.partition(": ")
            *above, last = keys.split(".")
            place = params
            for key in above:
                place = place[key]
            place[last] = yaml.safe_load(value)
        Path("params.yaml").write_text(yaml.safe_dump(params))
        Path(".dvc").mkdir(exist_ok=True)

    return write


def with_train_stages(*systems: str) -> None:
    """dvc.yaml with further train stages."""
    graph = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    graph["stages"] |= {f"train-{name}": graph["stages"]["train-mcse-resnet"] for name in systems}
    Path("dvc.yaml").write_text(yaml.safe_dump(graph))


def prepared(*changes: str) -> Callable[[], object]:
    """The project with its data set ``mine``."""

    def write() -> None:
        project(*changes)()
        assert run("stage prepare mine") == 0

    return write


GRAPH = [
    Cure(
        "use the commands with explicit paths (`sightline --help`)",
        "stage prepare mine",
        ("--help",),
        PREPARE,
    ),
    Cure(
        "or use the kind `sentences` for text only",
        "stage prepare mine",
        (project("datasets.mine: {kind: sentences, source: captions.csv}"),),
        begins=project(IMAGELESS),
    ),
    Cure(
        "is also a name under `datasets`",
        "stage inputs",
        (project(MINE, "joined.both: {first: scenes, second: mine}"),),
        begins=project(MINE, "joined.scenes: {first: scenes, second: mine}"),
    ),
    Cure(
        "`ground` finds the objects",
        "stage inputs",
        (project("graph.grounded: [scenes]"),),
        begins=project("graph.grounded: []"),
    ),
    Cure(
        "graph.grounded: needs a section `grounding`",
        "stage inputs",
        (project(f"grounding: {PHRASES}"),),
        begins=project("grounding: null"),
    ),
    Cure(
        "change the `label` of one",
        "stage inputs",
        (project(f"{TWICE} and text"),),
        begins=project(TWICE),
    ),
    Cure(
        "has no section `grounding`",
        "stage ground mine",
        (project(MINE, f"grounding: {PHRASES[:-1]}, segmenter: {{family: annotations}}}}"),),
        begins=prepared(MINE, "graph.grounded: []", "graph.object_encoders: []", "grounding: null"),
    ),
    Cure(
        "give it an entry under `systems`",
        lambda: run_spec(load_params(), "other", 0),
        (project(SYSTEM), lambda: with_train_stages("of-others")),
        begins=lambda: (project(OTHER)(), with_train_stages()),
    ),
]  # fmt: skip
