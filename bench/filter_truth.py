"""What KDMCSE's threshold removes on `scenes`, against the meaning that the drawing knows.

    python bench/filter_truth.py

Run in the folder of the demo, after `make demo`. The scenes are drawn again (same seed, no
pixels), so the graded similarity of any two captions is known, 0 to 5. For each threshold, over
the negatives of the first 100 paired batches of a run with seed 0: the share removed, how many of
these mean nearly the same (a grade of 4 or more) and how many of all negatives that do are
removed. Then, for pairs of captions from 0.9 on and below 0.5, how many agree in all their
colours, shapes, sizes and textures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from pipeline import graph
from pipeline.datasets.scenes.captions import Description, describe, write
from pipeline.datasets.scenes.scene import random_scene, stream
from pipeline.datasets.scenes.similarity import similarity
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES
from pipeline.params import load_params
from sightline.cache import CAPTIONS, FeatureSet, keys_of_texts, read_manifest
from train.losses import cosine_matrix
from train.pairs import read_pairs
from train.schedule import Schedule

SAME = 4.0  # grade from which a negative counts as a false one


def descriptions(seed: int, count: int) -> dict[str, Description]:
    """What each caption says, drawn as `pipeline.datasets.scenes.build` draws it."""
    random = stream(seed, "scenes")
    scenes = [random_scene(random) for _ in range(count)]
    found: dict[str, Description] = {}
    for number, scene in enumerate(scenes):
        own = stream(seed, "captions", number)
        texts: set[str] = set()
        while len(texts) < 5:
            description, _ = describe(scene, own)
            text = write(description, own).text
            texts.add(text)
            found[text] = description
    return found


def agreements(one: Description, other: Description) -> list[bool]:
    """Whether the things of two captions have the same values, for each attribute."""

    def values(of: Description, name: str) -> list[str]:
        return sorted(getattr(mention.thing, name) for mention in of.mentions)

    return [values(one, name) == values(other, name) for name in ATTRIBUTES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100)
    options = parser.parse_args()
    source = load_params(Path("params.yaml")).dataset("scenes").source
    known = descriptions(source.seed, source.scenes)
    captions, images = graph.captions_manifest("scenes"), graph.images_manifest("scenes")
    texts = read_manifest(captions, CAPTIONS)["text"].to_pylist()
    assert set(texts) == set(known), "data/datasets/scenes is of other parameters"
    image_set = FeatureSet.open(graph.features_folder("scenes", "image", "clip"))
    text_set = FeatureSet.open(graph.features_folder("scenes", "text", "clip"))
    pairs = read_pairs(captions, images, "all", 0)
    schedule = Schedule(len(pairs), 0, 64, 0)
    scores: dict[str, list[np.ndarray]] = {"image": [], "teacher_text": []}
    grades, agreed = [], []
    for k in range(options.batches):
        rows = schedule.rows(schedule.draw(k))
        said = [known[pairs.texts[row]] for row in rows]
        off = ~np.eye(len(rows), dtype=bool)
        grades.append(np.array([[similarity(a, b) for b in said] for a in said])[off])
        agreed.append(np.array([[agreements(a, b) for b in said] for a in said])[off])
        text = torch.from_numpy(
            text_set.take(keys_of_texts([pairs.texts[row] for row in rows])).astype(np.float32)
        )
        image = torch.from_numpy(image_set.take(pairs.image_keys[rows]).astype(np.float32))
        scores["image"].append(cosine_matrix(text, image).numpy()[off])
        scores["teacher_text"].append(cosine_matrix(text, text).numpy()[off])
    grade = np.concatenate(grades)
    same = grade >= SAME
    print(f"{len(grade):,} negatives, {same.mean():.2%} with a grade of {SAME:g} or more")
    print("term          threshold  removed  mean grade  nearly the same  of these removed")
    for term, found in scores.items():
        values = np.concatenate(found)
        for threshold in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95):
            gone = values >= threshold
            print(
                f"{term:13} {threshold:9.2f} {gone.mean():8.2%} {grade[gone].mean():11.2f} "
                f"{same[gone].mean():16.1%} {gone[same].mean():17.1%}"
            )
    cosines, agree = np.concatenate(scores["teacher_text"]), np.concatenate(agreed)
    for name, chosen in (("0.9 or more", cosines >= 0.9), ("below 0.5", cosines < 0.5)):
        shares = zip(ATTRIBUTES, agree[chosen].mean(axis=0), strict=True)
        print(f"captions at {name}: " + ", ".join(f"same {a} {s:.1%}" for a, s in shares))


if __name__ == "__main__":
    main()
