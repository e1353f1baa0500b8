"""`train.precision: auto`: bf16 where it is faster here, found by timing both, once per study.

Processor flags do not tell: bf16 is five times as fast on one Xeon and emulated on another.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from sightline.devices import device_name, threads_here
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.hardware import processor
from sightline.lock import WriterLock
from sightline.output import write_file
from train.data import TrainingData
from train.model import GroundedModel, load_student
from train.objectives.simcse import SimCSE, SimCSEParams
from train.optimizer import make_optimizer
from train.probe_record import PrecisionProbe
from train.run_spec import Precision, RunSpec

_STEPS = 3
"""Steps of each precision after the first, which sets it up."""
_PATIENCE = 600.0
"""Seconds to wait for another run's probe."""
_MARK = b'{"schema": "sightline.precision/1"'


_Found = TypeAdapter(dict[str, PrecisionProbe])


def probed(spec: RunSpec, data: TrainingData, device: torch.device, rows: int) -> PrecisionProbe:
    """The probe of this study and machine, from ``spec.precision_file`` or made now.

    Args:
        rows: that the encoder gets at once.

    Raises:
        SightlineError: the file is not Sightline's, or damaged.
    """
    file = spec.precision_file
    if file is None:
        return probe(spec, data, device, rows)
    key = _key(spec, device, rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    with WriterLock(file.parent, patience=_PATIENCE):  # runs may start together
        found = _read(file)
        if key not in found:
            found[key] = probe(spec, data, device, rows)
            body = {name: each.model_dump() for name, each in found.items()}
            text = _MARK.decode() + ', "probes": ' + json.dumps(body, indent=1) + "}\n"
            write_file(file, text.encode(), _MARK)
        return found[key]


def stored(spec: RunSpec, device: torch.device, rows: int) -> PrecisionProbe | None:
    """The probe of this study and machine in ``spec.precision_file``; None if there is none yet.

    Raises:
        SightlineError: as `probed`.
    """
    file = spec.precision_file
    return None if file is None else _read(file).get(_key(spec, device, rows))


def _key(spec: RunSpec, device: torch.device, rows: int) -> str:
    student = spec.student.model_dump(mode="json")
    return digest([student, rows, spec.train.compile, _machine(device)])


def probe(spec: RunSpec, data: TrainingData, device: torch.device, rows: int) -> PrecisionProbe:
    """Time a few steps of the encoder in both precisions, in turn.

    Heads and losses, which are float32 in either, are left out. Weights and random states of the
    run are not touched.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        encoder, _ = load_student(spec.student)
        compiled = rows if spec.train.compile == "on" else None
        model = GroundedModel(
            encoder, SimCSE(SimCSEParams()), spec.student.pooling, {}, compiled_rows=compiled
        )
        model.to(device).train()
        optimizer = make_optimizer(model, spec.train.model_copy(update={"precision": "fp32"}))
        best: dict[Precision, float] = {"fp32": float("inf"), "bf16": float("inf")}
        for number in range(_STEPS + 1):
            batch = data[number].to(device)
            sentences = batch.part(range(min(rows, len(batch))))
            for precision in best:
                model.precision = precision
                _wait(device)
                start = time.perf_counter()
                embeddings, _ = model.encode(sentences)
                embeddings.square().mean().backward()
                nn.utils.clip_grad_norm_(model.parameters(), spec.train.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                _wait(device)
                if number:
                    best[precision] = min(best[precision], time.perf_counter() - start)
    return PrecisionProbe(machine=_machine(device), **best)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _machine(device: torch.device) -> str:
    if device.type != "cpu":
        return f"{device_name(device)}, PyTorch {torch.__version__}"
    return f"{processor().model}, {threads_here()} threads, PyTorch {torch.__version__}"


def _read(file: Path) -> dict[str, PrecisionProbe]:
    if not file.is_file():
        return {}
    try:
        return _Found.validate_python(json.loads(file.read_bytes())["probes"])
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise SightlineError(
            f"{file}: not the probes of `train.precision: auto`; delete it, and they are made again"
        ) from error
