"""Memory and time of a step by batch size, whole and in chunks (gradient caching).

    python bench/chunks.py                          # BERT-base's shape, this machine's device
    python bench/chunks.py --layers 4 --batches 64,128,256,512 --chunk 32

Each cell runs in a separate process, because a process's peak memory never decreases. Its memory
is that peak minus the needs of the model, the gradients and a step of two rows: activations,
embeddings and the N × N losses. Ratios are relative to the whole batch of the same size, and to the
smallest batch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from transformers import BertConfig, BertModel

from sightline.devices import peak_memory
from train.batch import Sentences
from train.gradient_cache import CachedEmbeddings, chunks_of
from train.losses import info_nce
from train.model import GroundedModel
from train.objectives import make_objective

LENGTH = 32
VOCABULARY = 30_522


class Step:
    """Forward and backward passes of SimCSE on random tokens, all rows of one length."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.device = torch.device(options.device)
        config = BertConfig(num_hidden_layers=options.layers, vocab_size=VOCABULARY)
        encoder: Any = BertModel(config, add_pooling_layer=False)
        self.model = GroundedModel(encoder, make_objective("simcse", {}), "cls", {})
        self.model.to(self.device).train()

    def __call__(self, rows: int, chunk: int | None) -> float:
        """Seconds for a step of ``rows`` rows."""
        start = time.perf_counter()
        ids = torch.randint(5, VOCABULARY, (rows, LENGTH), device=self.device)
        lengths = torch.full((rows,), LENGTH, device=self.device)
        parts = chunks_of(range(rows), chunk)
        chunks = [Sentences(ids[p.start : p.stop], lengths[p.start : p.stop]) for p in parts]
        own = CachedEmbeddings(self.model.encode, chunks, self.device)
        leaf = own.sentences.requires_grad_()
        first, second = (self.model.heads["text"](view) for view in leaf)
        info_nce(first, second).backward()
        own.backward(leaf.grad, None)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def peak(device: torch.device) -> int:
    """Peak memory of this process in bytes, on the device or else on the host."""
    found = peak_memory(device)
    return found.get("device", found["host"])


def cell(options: argparse.Namespace) -> dict[str, float]:
    """Memory (bytes) and time (s) of one batch size, in this process."""
    step = Step(options)
    step(2, None)
    before = peak(step.device)
    seconds = [step(options.rows, options.chunk or None) for _ in range(options.steps)]
    taken = statistics.median(seconds[1:] or seconds)
    return {"bytes": peak(step.device) - before, "seconds": taken}


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--layers", type=int, default=12, help="encoder layers (default: 12)")
    parser.add_argument("--batches", default="64,128,256", help="batch sizes (default: 64,128,256)")
    parser.add_argument("--chunk", type=int, default=32, help="rows per chunk (default: 32)")
    parser.add_argument("--steps", type=int, default=3, help="steps per cell; the first warms up")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows:
        print(json.dumps(cell(options)))
        return
    print(f"{options.device}: {torch.get_num_threads()} threads; torch {torch.__version__}")
    print(f"BERT of {options.layers} layers, hidden 768, {LENGTH} tokens per row, float32")
    print(
        f"{'batch':>6} {'chunk':>6} {'MB':>8} {'of whole':>9} {'of first':>9} {'time of whole':>14}"
    )
    first: dict[int, float] = {}
    for rows in map(int, options.batches.split(",")):
        whole: dict[str, float] = {}
        for chunk in (0, options.chunk):
            words = [f"--rows={rows}", f"--chunk={chunk}", f"--layers={options.layers}"]
            words += [f"--steps={options.steps}", f"--device={options.device}"]
            made = subprocess.run(
                [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True
            )
            found = json.loads(made.stdout.splitlines()[-1])
            whole = whole or found
            first.setdefault(chunk, found["bytes"])
            print(
                f"{rows:6} {chunk or '-':>6} {found['bytes'] / 1e6:8.0f} "
                f"{found['bytes'] / whole['bytes']:9.2f} {found['bytes'] / first[chunk]:9.2f} "
                f"{found['seconds'] / whole['seconds']:14.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
