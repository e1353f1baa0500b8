"""`sightline prepare KIND`: a command for each kind of data set, with the kind's own options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pipeline.cli.model_options import about, as_typed, options_in, takes
from pipeline.cli.options import JSON, OUT, option, print_json
from pipeline.cli.registry_commands import chosen_by_name
from pipeline.datasets.source import Source

VERIFY = Annotated[
    bool, option("Data", "Read every file again, also those that seem unchanged.", "--verify")
]


def _command(kind: str) -> Callable[..., None]:
    """The command that prepares data sets of ``kind``."""
    settings = Source.families.subclass(kind, Source)

    flags = options_in(settings)

    @takes("source", settings, panel="Data", extra={"kind": kind})
    def command(source: Source, out: OUT, verify: VERIFY = False, as_json: JSON = False) -> None:
        from pipeline.datasets.prepare import prepare
        from sightline.machine.progress import phase_progress

        with phase_progress() as tell:
            report = prepare(source, out, tell, verify=verify)
        if as_json:
            counts = {"counts": report.counts, "problem_counts": report.problem_counts}
            print_json({**counts, "shards": report.shards} if report.shards else counts)
            return
        print(f"{out}: {as_typed(report.summary(), flags)}")
        if report.problems:
            print(f"  all are listed in {out / 'dataset.json'}")

    example = settings.example or f"sightline prepare {kind} --out data/{kind}"
    command.__doc__ = f"{about(settings)}\n\nExample: {example}"
    return command


app = chosen_by_name(Source.families, _command)


@app.callback()
def _group() -> None:
    """Turn a data set into manifests."""
