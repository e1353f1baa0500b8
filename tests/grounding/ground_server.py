"""A process that forks one grounding per request, so that many can be killed in seconds.

Importing the libraries takes seconds, a run without a model a twentieth of one. Each line on stdin
is a request (JSON: folder of the manifests, records, cut-outs, worker, and the point to be killed
at), each line on stdout what became of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torchvision.ops  # noqa: F401  (once, for all forks)
from fault_layer import FaultLayer
from ground_data import SETTINGS, BoxSegmenter, WordGrounder

from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import units_of
from pipeline.grounding.cutouts import write_cutouts
from pipeline.grounding.ground import ground
from pipeline.grounding.settings import Rules
from sightline.cache.plan import Worker
from sightline.cache.prepared import PreparedDataset


def run(data: Path, out: Path, cutouts: Path, given: str) -> None:
    """Both outputs, as the stage makes them."""
    worker = Worker.parse(given) if given else None
    settings = SETTINGS.but(worker=worker)
    units = units_of(PreparedDataset(data, data / "images"), "all")
    rules = Rules(duplicate_iou=None)
    if ground(units, WordGrounder(), BoxSegmenter(), rules, out, settings).record is None:
        return
    paths = {unit.key: unit.place for unit in units}
    cutting = RunSettings(block_rows=12, shard_rows=20, worker=worker)
    write_cutouts(out, paths, cutouts, cutting)


def serve(request: dict[str, str]) -> dict[str, Any]:
    """Run in a fork of this process: its exit code (minus the signal), its points, its errors."""
    with tempfile.TemporaryFile() as trace, tempfile.TemporaryFile() as said:
        process = os.fork()
        if process == 0:

            def reached(point: str) -> None:
                os.write(trace.fileno(), f"{point}\n".encode())
                if point == request["at"]:
                    os.kill(os.getpid(), signal.SIGKILL)

            code = 0
            try:
                os.dup2(said.fileno(), 2)
                FaultLayer(reached).install()
                outputs = Path(request["out"]), Path(request["cutouts"])
                run(Path(request["data"]), *outputs, request["worker"])
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                os._exit(code)
        _, status = os.waitpid(process, 0)
        for file in (trace, said):
            file.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "points": trace.read().decode().splitlines(),
            "said": said.read().decode(errors="replace"),
        }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)
