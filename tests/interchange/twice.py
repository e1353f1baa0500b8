"""A data set in which one photograph has two names, and one text is the caption of two images."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from sightline.cache.prepared import PreparedDataset

LINES = [
    "image,caption,split",
    "a.png,a dog,train",
    "a.png,a red dog,train",
    "b.png,a dog,test",
    "copy of a.png,a dog again,dev",
]
COLOURS = {"a.png": "red", "b.png": "blue", "copy of a.png": "red"}
SENTENCE = "nobody's caption"


def write_twice(folder: Path) -> PreparedDataset:
    """Prepare it in ``folder / 'data'``."""
    from sightline import prepare_dataset

    (folder / "photos").mkdir(parents=True)
    for name, colour in COLOURS.items():
        Image.new("RGB", (3, 2), colour).save(folder / "photos" / name)
    (folder / "captions.csv").write_text("\n".join(LINES) + "\n")
    return prepare_dataset(
        "pairs", folder / "data", images=folder / "photos", captions=folder / "captions.csv"
    )
