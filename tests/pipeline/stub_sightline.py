"""A `sightline` whose stages are stubs: they write what the graph expects, in milliseconds.

It stands first on the PATH while DVC runs the real dvc.yaml. Every call is noted in calls.txt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import yaml

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter, keys_of_texts

DIM = 256
PICTURES = Path("pictures.txt")


def keys() -> np.ndarray:
    """One key per line of ``pictures.txt``, which stands in for a folder of photographs."""
    return keys_of_texts(PICTURES.read_text().split())


def prepare(dataset: str) -> None:
    folder = Path("data/datasets") / dataset
    for name in ("images.parquet", "captions.parquet", "sentences.parquet", "student/stub"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} of {dataset}")
    for name in ("dev.tsv", "test.tsv"):
        (folder / "similarity").mkdir(exist_ok=True)
        (folder / "similarity" / name).write_text("score\tsentence1\tsentence2\n")


def image_features(dataset: str, encoder: str) -> None:
    record = EncoderRecord(name=f"stub/{encoder}", source="random:0", weights_sha256="0" * 64)
    spec = FeatureSpec(
        kind="image", encoder=record, preprocessing={}, precision="fp32", dim=DIM, dtype="float16"
    )
    with SetWriter(Path("data/features") / dataset / "image" / encoder, spec) as writer:
        for batch in writer.plan(keys(), batch_size=64):
            rows = np.tile(batch.keys.astype(np.float32), DIM // 32) + len(encoder)
            writer.add(batch.keys, rows)
        writer.publish()


def tokens() -> None:
    folder = (
        Path("data/tokens") / yaml.safe_load(Path("params.yaml").read_text())["student"]["name"]
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.parquet").write_text("tokens")


def code() -> None:
    folder = Path("data/code")
    folder.mkdir(parents=True, exist_ok=True)
    for system in yaml.safe_load(Path("params.yaml").read_text())["systems"]:
        (folder / f"{system}.json").write_text(Path("train").read_text())


def train(run: str, seed: str) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    systems = params["systems"].values()
    system = next(system for system in systems if run in system["runs"])
    needed = system["parameters"].get("image")
    (Path(params["student"]["model"]) / "stub").read_text()
    out = Path("runs") / run / f"seed-{seed}"
    out.mkdir(parents=True, exist_ok=True)
    rows = 0
    if needed:
        folder = Path("data/features") / params["graph"]["pairs"] / "image" / needed
        rows = len(FeatureSet.open(folder).take(keys()))
    (out / "model.json").write_text(json.dumps({"rows": rows}))


def main() -> None:
    group, stage, *words = sys.argv[1:]
    if group != "stage":
        from pipeline.cli import main as sightline

        sightline()
        return
    with Path("calls.txt").open("a") as calls:
        calls.write(" ".join([stage, *words]) + "\n")
    stages = {
        "prepare": prepare,
        "image-features": image_features,
        "code": code,
        "tokens": tokens,
        "train": train,
    }
    stages[stage](*words)


if __name__ == "__main__":
    main()
