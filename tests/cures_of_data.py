"""Remedies of `prepare` and `cache import`, provoked and applied."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cures import PREPARE, TEXTS, Cure


def with_header(path: str, header: str, images: int = 1) -> None:
    """Captions under another header, the images' names in its first columns."""
    names = sorted(file.name for file in Path("photos").iterdir())
    lines = [",".join([name] * images + ["a red bird"]) for name in names]
    Path(path).write_text("\n".join([header, *lines]) + "\n")


def as_json(content: Callable[[list[str]], object]) -> None:
    """Captions of the photographs in captions.json."""
    names = sorted(file.name for file in Path("photos").iterdir())
    Path("captions.json").write_text(json.dumps(content(names)))


def a_table(columns: Mapping[str, object]) -> Callable[[], object]:
    return lambda: pq.write_table(pa.table(columns), "t.parquet")


def captions_with(old: str, new: str) -> Callable[[], object]:
    def change() -> None:
        path = Path("captions.csv")
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))

    return change


VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 2)


IMAGE_ROWS = {"path": [f"{i}.png" for i in range(4)], "rows": VECTORS}


IMPORT = "cache import t.parquet --out imported"

DATA = [
    Cure(
        "`captions` is missing",
        "prepare pairs --set images=photos --out d",
        passes=PREPARE,
    ),
    Cure(
        "or omit `strict` to continue without these rows",
        PREPARE + " --set strict=true",
        passes=PREPARE,
        begins=captions_with("3.png", "gone.png"),
    ),
    Cure(
        "{}: do its rows describe images or texts? Give --kind image or text",
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
        "; --allow-missing leaves these rows out",
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
        "there are no keys: give it with --names",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --names whose",
        begins=a_table({"whose": IMAGE_ROWS["path"], "rows": VECTORS}),
    ),
    Cure(
        "a table must end in",
        PREPARE.replace(".csv", ".txt"),
        (lambda: Path("captions.txt").rename("captions.csv"),),
        f"{PREPARE} --set image=picture",
        lambda: with_header("captions.txt", "picture,caption"),
    ),
    Cure(
        "choose one of them with `{}`",
        PREPARE,
        passes=f"{PREPARE} --set image=picture",
        begins=lambda: with_header("captions.csv", "picture,caption"),
    ),
    Cure(
        "may both be the {}; choose one with",
        PREPARE,
        passes=f"{PREPARE} --set image=file_name",
        begins=lambda: with_header("captions.csv", "file_name,filename,caption", 2),
    ),
    Cure(
        "which `{}` names; it has",
        f"{PREPARE} --set caption=words",
        passes=f"{PREPARE} --set caption=caption",
    ),
    Cure(
        "COCO's captions; use the kind `coco`",
        PREPARE.replace(".csv", ".json"),
        passes="prepare coco --set images=photos --set captions.train=captions.json --out coco",
        begins=lambda: as_json(lambda names: {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
            "annotations": [{"id": n, "image_id": n, "caption": "a"} for n in range(len(names))],
        }),
    ),
    Cure(
        "Karpathy's captions and splits; give it as `karpathy`",
        PREPARE.replace(".csv", ".json"),
        passes="prepare pairs --set images=photos --set karpathy=captions.json --out d",
        begins=lambda: as_json(lambda names: {
            "images": [
                {"filename": name, "split": "train", "sentences": [{"raw": "a"}]} for name in names
            ]
        }),
    ),
    Cure(
        "convert the file with `tr '\\r' '\\n'`",
        TEXTS.replace("--data d", "--data lines.txt"),
        (lambda: subprocess.run("tr '\\r' '\\n' < lines.txt > u && mv u lines.txt", shell=True),),
        begins=lambda: Path("lines.txt").write_bytes(b"a red bird\ra boat\r"),
    ),
]  # fmt: skip
