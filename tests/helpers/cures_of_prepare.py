"""Remedies of `prepare` for images, splits, ids and the folder it writes, provoked and applied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from cures import PREPARE, Cure, run
from cures_of_data import (
    COCO,
    COCOS,
    HUGGINGFACE,
    JSON,
    NAMES,
    PICTURES,
    RECORDS,
    WEBDATASET,
    a_table,
    as_json,
    captioned,
    packed,
    picture,
    with_header,
)
from cures_of_imports import BOXES

MORE = [f"more/{name},a" for name in NAMES]
SPLITS = f"{PREPARE.replace('--out d', '--out s')} --splits train=list.txt"


OTHERS = "prepare pairs --images others --captions others.csv --out e"
JOINED = "prepare joined --parts d=d --parts e=e --out j"


def listed(*names: str) -> Callable[[], object]:
    """A list of images of a split."""
    return lambda: Path("list.txt").write_text("\n".join(names))


def only_a_header() -> None:
    Path("captions.csv").write_text("image,caption\n")


def restored() -> None:
    with_header("captions.csv", "image,caption")


def with_ids(*ids: str) -> Callable[[], object]:
    """A caption of each image, with an id."""

    def write() -> None:
        lines = [f"{name},a bird,{id_}" for name, id_ in zip(NAMES, ids, strict=True)]
        Path("captions.csv").write_text("\n".join(["image,caption,caption_id", *lines]))

    return write


def of_other_images() -> None:
    Path("others").mkdir()
    Path("others/other.png").write_bytes(picture(99))


def not_utf8() -> None:
    shutil.copy("photos/0.png", os.fsencode("photos/") + b"\xff.png")


def renamed() -> None:
    Path(os.fsdecode(b"photos/\xff.png")).rename("photos/renamed.png")


def a_data_set_of_sentences() -> None:
    Path("lines.txt").write_text("a dog\n")


PREPARED = [
    Cure(
        "no such image folder; check the path",
        PREPARE,
        (lambda: Path("elsewhere").rename("photos"),),
        begins=lambda: Path("photos").rename("elsewhere"),
    ),
    Cure(
        "{}: no images in this folder",
        PREPARE.replace("photos", "tars"),
        passes=PREPARE,
        begins=packed,
    ),
    Cure(
        "is not UTF-8; rename the file",
        PREPARE,
        (renamed,),
        begins=not_utf8,
    ),
    Cure(
        "Label Studio's tasks; export JSON-MIN or CSV instead",
        JSON,
        (as_json(RECORDS),),
        begins=as_json([{"id": 1, "annotations": [], "data": {}, "predictions": []}]),
    ),
    Cure("give a file that holds them", PREPARE, (restored,), begins=only_a_header),
    Cure(
        "; give the folder of {}",
        PREPARE.replace("photos", "others"),
        passes=PREPARE,
        begins=of_other_images,
    ),
    Cure(
        "write the paths from the folder of the images in both",
        SPLITS,
        (listed(*NAMES), restored),
        begins=lambda: (
            listed(*(f"some/{name}" for name in NAMES))(),
            Path("captions.csv").write_text("\n".join(["image,caption", *MORE])),
        ),
    ),
    Cure(
        "cells hold lists, the others text; write all of them in one way",
        PREPARE,
        (restored,),
        begins=lambda: Path("captions.csv").write_text(
            "image,caption\n" + "".join(f"{n},\"['a', 'b']\"\n" for n in NAMES[1:]) + "0.png,a\n"
        ),
    ),
    Cure(
        "of base64, write the bytes that it decodes to",
        HUGGINGFACE,
        (captioned(image=PICTURES),),
        begins=captioned(image=["aGVsbG8=" * 1000] * 4),
    ),
    Cure(
        "{}: is missing, but other {}s have it; give it in all of them, or in none",
        JSON,
        (as_json(RECORDS),),
        begins=as_json([RECORDS[0] | {"caption_id": "a"}, *RECORDS[1:]]),
    ),
    Cure(
        "give every caption a unique id",
        PREPARE,
        (with_ids("a", "b", "c", "d"),),
        begins=with_ids("a", "b", "c", "a"),
    ),
    Cure(
        "images: several have the id {}; give each its own",
        f"{COCOS} --captions train=captions.json",
        (as_json(COCO),),
        begins=as_json({**COCO, "images": [*COCO["images"], {"id": 0, "file_name": "1.png"}]}),
    ),
    Cure(
        "and no usable caption{}; check where the images and captions are",
        HUGGINGFACE,
        (captioned(image=PICTURES),),
        begins=a_table({"image": PICTURES, "caption": [""] * 4}),
    ),
    Cure(
        "is not a Parquet or Arrow file; give one, or a folder of them",
        HUGGINGFACE.replace("t.parquet", "captions.csv"),
        passes=HUGGINGFACE,
        begins=captioned(image=PICTURES),
    ),
    Cure(
        "are of splits that are left out; choose others",
        f"{PREPARE} --splits train=[b]",
        passes=f"{PREPARE} --splits train=[a]",
        begins=lambda: Path("captions.csv").write_text(
            "image,caption,split\ngone.png,a bird,b\n" + "".join(f"{n},a,a\n" for n in NAMES)
        ),
    ),
    Cure(
        "'**/' before it for all folders",
        f"{WEBDATASET} --shards **.tar",
        passes=f"{WEBDATASET} --shards **/*.tar",
        begins=packed,
    ),
    Cure(
        "holds a data set of kind {}, but this is one of kind {}; choose another folder",
        "prepare sentences --path lines.txt --out d",
        passes="prepare sentences --path lines.txt --out other",
        begins=a_data_set_of_sentences,
    ),
    Cure(
        "choose another folder, or delete that data set first",
        "prepare pairs --images others --captions others.csv --out d",
        passes="prepare pairs --images others --captions others.csv --out other",
        begins=lambda: (
            of_other_images(),
            Path("others.csv").write_text("image,caption\nother.png,a\n"),
        ),
    ),
    Cure(
        "remove them from one data set, so that no caption has its own image as a negative",
        JOINED,
        (lambda: Path("others/other.png").unlink(), OTHERS),
        begins=lambda: (
            of_other_images(),
            shutil.copy("photos/0.png", "others/other.png"),
            Path("others/own.png").write_bytes(picture(98)),
            Path("others.csv").write_text("image,caption\nother.png,a\nown.png,a\n"),
            run(OTHERS),
        ),
    ),
    Cure(
        "Mend the rows, or leave out `grounder.strict`",
        f"{BOXES}box --set grounder.strict=true",
        passes=f"{BOXES}box",
        begins=lambda: Path("boxes.csv").write_text(
            "image,caption,phrase,box\n"
            '0.png,a red bird 0,bird,"[0, 0, 2, 2]"\n'
            '1.png,a red bird 1,bird,"[0, 0]"\n'
        ),
    ),
]
