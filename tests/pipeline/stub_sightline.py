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


def keys() -> np.ndarray:
    """One key per line of ``pictures.txt``, which stands in for a folder of photographs."""
    return keys_of_texts(Path("pictures.txt").read_text().split())


def params() -> dict:
    return yaml.safe_load(Path("params.yaml").read_text())


def write(path: Path | str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def prepare(dataset: str) -> None:
    for name in ("images.parquet", "captions.parquet", "sentences.parquet", "student/stub"):
        write(Path("data/datasets", dataset, name), f"{name} of {dataset}")
    for name in ("dev.tsv", "test.tsv"):
        write(Path("data/datasets", dataset, "similarity", name), f"{name} of {dataset}")


def image_features(dataset: str, encoder: str) -> None:
    record = EncoderRecord(name=f"stub/{encoder}", source="random:0", weights_sha256="0" * 64)
    about = {"preprocessing": {}, "precision": "fp32", "dtype": "float16"}
    spec = FeatureSpec(kind="image", encoder=record, dim=DIM, **about)
    with SetWriter(Path("data/features", dataset, "image", encoder), spec) as writer:
        for batch in writer.plan(keys(), batch_size=64):
            rows = np.tile(batch.keys.astype(np.float32), DIM // 32) + len(encoder)
            writer.add(batch, rows)
        writer.publish()


def tokens() -> None:
    write(Path("data/tokens", params()["student"]["name"], "tokens.parquet"), "tokens")


def inputs() -> None:
    from pipeline.inputs import Inputs
    from pipeline.params import load_params

    found = Inputs(load_params())
    found.write()
    print(found)


def train(run: str, seed: str) -> None:
    given = params()
    Path(given["student"]["model"], "stub").read_text()
    system = next(system for system in given["systems"].values() if run in system["runs"])
    rows = 0
    if encoder := system["parameters"].get("image"):
        folder = Path("data/features", given["graph"]["pairs"], "image", encoder)
        rows = len(FeatureSet.open(folder).take(keys()))
    write(f"runs/{run}/seed-{seed}/model.json", json.dumps({"rows": rows}))


def main() -> None:
    group, stage, *words = sys.argv[1:]
    if group != "stage":
        from pipeline.cli import main as sightline

        sightline()
        return
    with Path("calls.txt").open("a") as calls:
        calls.write(" ".join([stage, *words]) + "\n")
    stages = (prepare, image_features, inputs, tokens, train)
    {each.__name__.replace("_", "-"): each for each in stages}[stage](*words)


if __name__ == "__main__":
    main()
