"""Finished runs and scores that are kept after an edit of the code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline import graph
from pipeline.params import Params


def accept_code(params: Params, names: Sequence[str]) -> Iterator[str]:
    """Keep finished runs and scores after an edit that changes no numbers; yields a line for each.

    Args:
        names: names of the runs; empty: all runs in params.yaml.

    Raises:
        SightlineError: there is no such run.
    """
    from train.code_digest import code_of, objectives_of
    from train.evaluate.evaluation import accept_code as accept_code_of_result
    from train.evaluate.evaluation import accept_run, digest_of_run
    from train.records import FILE_NAME
    from train.run_folder import RunFolder

    for name in names or params.runs:
        run = params.run(name)
        current = code_of(objectives_of(run.objective, run.parameters))
        for seed in params.graph.seeds:
            folder, scores = graph.run_folder(name, seed), graph.result_file(name, seed)
            if not (folder / FILE_NAME).is_file():
                yield f"{folder}: not trained yet"
                continue
            before = digest_of_run(folder)
            if RunFolder(folder).accept(current):
                yield f"{folder}: accepted"
                if scores.is_file():
                    accept_run(scores, folder, before)
            else:
                yield f"{folder}: the code that trained it has not changed"
            if scores.is_file() and (tasks := accept_code_of_result(scores)):
                yield f"{scores}: accepted for {', '.join(tasks)}"
