"""KDMCSE's released CLIP features as files that `sightline cache import` takes.

    python examples/kdmcse_features.py JSON OUT

JSON is what its trainer reads, such as flickr30k_ViT_L14.json: one object, image name →
image_feat, captions, lang_feat, a row per caption (https://github.com/duyngtr16061999/KDMCSE,
src/data.py). Its gigabytes are read whole, as there. Import with the photographs

    sightline cache import OUT/texts.parquet --kind text --out TEXTS
    sightline cache import OUT/images.parquet --kind image --data PHOTOS --out IMAGES

and without them, in place of the second, what becomes a data set as well:

    sightline cache import OUT/mcse.hdf5 --format mcse --texts OUT/mcse.txt --data DATA --out IMAGES
"""

import argparse
import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def without_repeats(pairs):
    """A JSON object."""
    content = {}
    for name, value in pairs:
        if content.setdefault(name, value) is not value:
            raise ValueError(f"lists {name[:80]!r} twice")
    return content


def parts(entry):
    """Row of an image [1, dim], captions, their rows [n, dim]; ValueError for another form."""
    if not isinstance(entry, dict) or {"image_feat", "captions", "lang_feat"} - entry.keys():
        raise ValueError("expected image_feat, captions and lang_feat")
    captions = entry["captions"]
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise ValueError("captions are not a list of strings")
    with np.errstate(over="ignore"):  # what is too large is refused below
        image = np.array([entry["image_feat"]], np.float32)
        texts = np.array(entry["lang_feat"], np.float32)
    shapes = image.ndim, texts.ndim, *texts.shape[:1]
    if shapes != (2, 2, len(captions)) or not image.size * texts.size:
        found = f"{image.shape[1:]}, {len(captions)} captions and {texts.shape}"
        raise ValueError(f"found {found}, expected a row, and a row per caption")
    if not (np.isfinite(image).all() and np.isfinite(texts).all()):
        raise ValueError("a feature is not a finite number")
    return image, [re.sub(r"[\r\n]+", " ", text) for text in captions], texts


def read(path):
    """Image name → its parts."""
    content = json.loads(path.read_bytes(), object_pairs_hook=without_repeats)
    if not content or not isinstance(content, dict):
        raise ValueError("contains no images")
    images = {}
    for name, entry in content.items():
        try:
            image, _, texts = images[name] = parts(entry)
            first, _, others = next(iter(images.values()))
            if (image.shape[1], texts.shape[1]) != (first.shape[1], others.shape[1]):
                raise ValueError("row lengths differ from earlier images'")
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"image {name[:80]!r}: {error}") from None
    return images


def write(path, column, names, rows):
    """A table of names and rows [n, dim]."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    pq.write_table(pa.table({column: names, "features": lists}), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="JSON")
    parser.add_argument("out", type=Path, metavar="OUT")
    file, out = vars(parser.parse_args()).values()
    try:
        content = read(file)
    except (ValueError, RecursionError) as error:
        sys.exit(f"error: {file}: {error}; expected KDMCSE's JSON")
    images, captions, texts = zip(*content.values(), strict=True)
    images, lines = np.concatenate(images), [text for each in captions for text in each]
    out.mkdir(parents=True, exist_ok=True)
    write(out / "images.parquet", "image_path", list(content), images)
    write(out / "texts.parquet", "caption", lines, np.concatenate(texts))
    with h5py.File(out / "mcse.hdf5", "w") as mcse:  # row i belongs to line i
        mcse["features"] = np.repeat(images, [len(each) for each in captions], axis=0)
    (out / "mcse.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{out}: {len(images):,} images, {len(lines):,} captions")


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"error: {error}")
