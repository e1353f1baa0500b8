"""Remedies of `cache import`, of tables of boxes and of texts, provoked and applied."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from cures import GROUND, TEXTS, TOKENS, Cure
from cures_of_data import NAMES, PICTURES, a_table


def as_clip_retrieval_does() -> None:
    """Features of images and texts in the layout of clip-retrieval."""
    for name in ("img_emb", "text_emb", "metadata"):
        Path("embeddings", name).mkdir(parents=True)
    for name in ("img", "text"):
        np.save(f"embeddings/{name}_emb/{name}_emb_0.npy", np.ones((4, 2), np.float32))
    names = {"image_path": NAMES, "caption": NAMES}
    a_table(names, "embeddings/metadata/metadata_0.parquet")()


def photographs_twice() -> None:
    """Photographs of one name in two folders."""
    for folder in ("some", "more"):
        shutil.copytree("photos", f"both/{folder}")


VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 2)


IMAGE_ROWS = {"path": NAMES, "rows": VECTORS}


IMPORT = "cache import t.parquet --out imported"


CLIP_RETRIEVAL = "cache import embeddings --data photos --out imported"


def boxes(*numbers: float) -> Callable[[], object]:
    """A table of one box, without a mask."""

    def write() -> None:
        row = f'0.png,a red bird 0,bird,"{list(numbers)}"'
        Path("boxes.csv").write_text(f"image,caption,phrase,bbox\n{row}\n")

    return write


BOXES = (
    "ground --data d --set captions=all --set grounder.family=annotations --set "
    "grounder.path=boxes.csv --out boxes --set segmenter.family="
)


XYXY = " --set grounder.box_format=xyxy"


IMPORTS = [
    Cure(
        "correct it, or write null in its place, a row without a value (not in the first one)",
        f"{IMPORT} --kind image --data photos --features rows",
        (a_table({"path": NAMES, "rows": [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], None]}),),
        begins=a_table({"path": NAMES, "rows": [[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [1.0]]}),
    ),
    Cure(
        "convert it, of a group of vectors to one for each image, such as their mean",
        f"{IMPORT} --kind image --data photos",
        (a_table({"path": NAMES, "rows": [[0.5, 0.5]] * 4}),),
        begins=a_table({"path": NAMES, "rows": [[[0.5, 0.5]] * 2] * 4}),
    ),
    Cure(
        "if each is the vectors of one image, write one for each, such as their mean",
        f"{IMPORT.replace('.parquet', '.npz')} --kind image --data photos",
        (lambda: np.savez("t.npz", **{name: np.ones(3, np.float32) for name in NAMES}),),
        begins=lambda: np.savez("t.npz", **{n: np.ones((2, 3), np.float32) for n in NAMES}),
    ),
    Cure(
        "{}: do its rows describe images, texts or objects? Give --kind image, text or ",
        IMPORT + " --data photos",
        passes=IMPORT + " --data photos --kind image",
        begins=a_table(IMAGE_ROWS),
    ),
    Cure(
        "give their folder, or a prepared data set, with --data",
        IMPORT + " --kind image",
        passes=IMPORT + " --kind image --data photos",
        begins=a_table(IMAGE_ROWS),
    ),
    Cure(
        "--allow-missing leaves these rows out",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --allow-missing",
        begins=a_table(IMAGE_ROWS | {"path": ["0.png", "1.png", "2.png", "gone.png"]}),
    ),
    Cure(
        "name the array, or the column of lists of numbers, with --features",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --features rows",
        begins=a_table(IMAGE_ROWS | {"others": VECTORS}),
    ),
    Cure(
        "; if that names them, give it with --names",
        IMPORT.replace(".parquet", ".npz") + " --kind image --data photos",
        passes=IMPORT.replace(".parquet", ".npz") + " --kind image --data photos --names which",
        begins=lambda: np.savez("t.npz", rows=np.ones((4, 2), np.float32), which=np.arange(4)),
    ),
    Cure(
        "there are no keys: give it with --names",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --names whose",
        begins=a_table({"whose": IMAGE_ROWS["path"], "rows": VECTORS}),
    ),
    Cure(
        "--features is for files with several arrays or columns",
        f"{CLIP_RETRIEVAL} --features rows",
        passes=f"{CLIP_RETRIEVAL} --kind image",
        begins=as_clip_retrieval_does,
    ),
    Cure(
        "choose with --kind image or text",
        CLIP_RETRIEVAL,
        passes=f"{CLIP_RETRIEVAL} --kind text",
        begins=as_clip_retrieval_does,
    ),
    Cure(
        "hold images; choose one with --names",
        IMPORT + " --kind image",
        passes=IMPORT + " --kind image --names first",
        begins=a_table({"first": PICTURES, "second": PICTURES, "rows": VECTORS}),
    ),
    Cure(
        "give paths in place of names",
        f"{IMPORT} --kind image --data both",
        (a_table(IMAGE_ROWS | {"path": [f"more/{name}" for name in NAMES]}),),
        begins=lambda: (photographs_twice(), a_table(IMAGE_ROWS)()),
    ),
    Cure(
        "or the folder that holds one of them with --data",
        f"{IMPORT} --kind image --data both",
        passes=f"{IMPORT} --kind image --data both/more",
        begins=lambda: (photographs_twice(), a_table(IMAGE_ROWS)()),
    ),
    Cure(
        "or prepare it: `sightline prepare sentences --path {} --column NAME --out FOLDER`",
        TOKENS.replace("--data d", "--data captions.csv"),
        ("prepare sentences --path captions.csv --column caption --out FOLDER",),
        TOKENS.replace("--data d", "--data FOLDER"),
        lambda: shutil.rmtree("tokens"),
    ),
    Cure(
        "LF in its place: `tr '\\r' '\\n' < {} > {}`",
        TEXTS.replace("--data d", "--data lines.txt"),
        (lambda: subprocess.run("tr '\\r' '\\n' < lines.txt > lines-lf.txt", shell=True),),
        TEXTS.replace("--data d", "--data lines-lf.txt"),
        begins=lambda: Path("lines.txt").write_bytes(b"a red bird\ra boat\na lake\r\n"),
    ),
    Cure(
        "give `grounder.box_format`: xyxy or xywh in pixels",
        BOXES + "box",
        passes=BOXES + "box" + XYXY,
        begins=boxes(4, 5, 20, 10),
    ),
    Cure(
        "of parts of the image are rel_xyxy or rel_xywh, in `grounder.box_format`",
        BOXES + "box" + XYXY,
        passes=BOXES + "box --set grounder.box_format=rel_xyxy",
        begins=boxes(0.1, 0.1, 0.9, 1),
    ),
    Cure(
        "choose `segmenter.family=sam2` or `segmenter.family=box`",
        BOXES + "annotations" + XYXY,
        passes=BOXES + "box" + XYXY,
        begins=boxes(4, 5, 20, 10),
    ),
    Cure(
        "leave out `grounder.box_format`",
        GROUND.replace("--out grounding", "--out again") + XYXY,
        passes=GROUND.replace("--out grounding", "--out again"),
    ),
]
