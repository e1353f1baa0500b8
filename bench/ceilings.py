"""What the device can do at best: copies and matrix products.

    python bench/ceilings.py --json ceilings.json

Medians of ten, each waited for. A copy within the device counts the bytes read and written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sightline.devices import device_name, pick_device

REPEATS = 10


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a call, after two that warm up."""
    taken = []
    for _ in range(REPEATS + 2):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copies(device: torch.device, size: int) -> dict[str, float]:
    """GB/s of copies of ``size`` bytes."""
    there = torch.ones(size, dtype=torch.uint8, device=device)
    other, pageable = torch.empty_like(there), torch.ones(size, dtype=torch.uint8)
    ways: dict[str, Callable[[], Tensor]] = {
        "within the device": lambda: other.copy_(there),
        "to it, pageable": lambda: other.copy_(pageable),
    }
    factor = {"within the device": 2}
    if device.type == "cuda":
        pinned = pageable.pin_memory()
        ways["to it, pinned"] = lambda: other.copy_(pinned, non_blocking=True)
        ways["from it, pinned"] = lambda: pinned.copy_(there, non_blocking=True)
    rates = {way: factor.get(way, 1) * size / seconds(run, device) for way, run in ways.items()}
    return {f"copy {way}, GB/s": rate / 1e9 for way, rate in rates.items()}


def products(device: torch.device, edge: int) -> dict[str, float]:
    """TFLOP/s of square matrix products of random numbers."""
    before = torch.get_float32_matmul_precision()
    found = {}
    for name, dtype, precision in (
        ("fp32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bf16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        left = torch.randn(edge, edge, device=device, dtype=dtype)
        right, out = torch.randn_like(left), torch.empty_like(left)
        taken = seconds(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device)
        found[f"{name} product, TFLOP/s"] = 2 * edge**3 / taken / 1e12
    torch.set_float32_matmul_precision(before)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Ceilings of copies and matrix products.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see it work")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    device = pick_device(options.device)
    found = copies(device, 1 << 24 if options.quick else 1 << 30)
    found |= products(device, 512 if options.quick else 8192)
    print(f"{device_name(device)}, torch {torch.__version__}")
    for name, value in found.items():
        print(f"{name:<32}{value:12.2f}")
    if options.json:
        body = {"device": device_name(device), "torch": torch.__version__, "ceilings": found}
        options.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
