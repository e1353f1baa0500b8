"""`sightline accept`: keep finished runs after a code edit."""

from __future__ import annotations

from typing import Annotated

import typer


def accept(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Names under `runs` of a system; default: all."),
    ] = None,
) -> None:
    """Keep finished runs and scores after an edit of the code.

    For an edit that changes no numbers: without it the next `dvc repro` trains and scores again.
    The results record it.

    Example: sightline accept mcse-clip
    """
    from pipeline import layout
    from pipeline.stages import load_here
    from train.code_digest import code_of
    from train.evaluate.evaluation import accept_code, accept_run
    from train.records import FILE_NAME, digest_of_run
    from train.run_folder import RunFolder

    params = load_here()
    for name in runs or params.runs:
        run = params.run(name)
        current = code_of([run.objective])
        for seed in params.graph.seeds:
            folder, scores = layout.run_folder(name, seed), layout.result_file(name, seed)
            if not (folder / FILE_NAME).is_file():
                print(f"{folder}: not trained yet")
                continue
            before = digest_of_run(folder)
            if RunFolder(folder).accept(current):
                print(f"{folder}: accepted")
                if scores.is_file():
                    accept_run(scores, folder, before)
            else:
                print(f"{folder}: the code that trained it has not changed")
            if scores.is_file() and (tasks := accept_code(scores)):
                print(f"{scores}: accepted for {', '.join(tasks)}")
