"""Remedies of `prepare`: columns, splits, kinds and where captions lie, provoked and applied."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cures import PREPARE, Cure
from PIL import Image

NAMES = [f"{i}.png" for i in range(4)]


def picture(number: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (3, 2), (number, 0, 0)).save(content, "PNG")
    return content.getvalue()


PICTURES = [{"bytes": picture(number), "path": f"{number}.png"} for number in range(4)]
KARPATHY = {
    "images": [{"filename": n, "split": "train", "sentences": [{"raw": "a"}]} for n in NAMES]
}
COCO = {
    "images": [{"id": number, "file_name": name} for number, name in enumerate(NAMES)],
    "annotations": [{"id": n, "image_id": n, "caption": "a"} for n in range(len(NAMES))],
}


def with_header(path: str, header: str, images: int = 1, caption: str = "a bird") -> None:
    """Captions under another header, the images' names in its first columns."""
    lines = [",".join([name] * images + [caption]) for name in NAMES]
    Path(path).write_text("\n".join([header, *lines]) + "\n")


def as_json(content: object) -> Callable[[], object]:
    return lambda: Path("captions.json").write_text(json.dumps(content))


def a_table(columns: Mapping[str, object], path: str = "t.parquet") -> Callable[[], object]:
    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)

    return write


def captions_with(old: str, new: str) -> Callable[[], object]:
    def change() -> None:
        path = Path("captions.csv")
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))

    return change


def with_column(name: str, value: str) -> Callable[[], object]:
    """The captions with a further column, which has one value."""

    def add() -> None:
        header, *lines = Path("captions.csv").read_text().splitlines()
        lines = [f"{header},{name}", *(f"{line},{value}" for line in lines)]
        Path("captions.csv").write_text("\n".join(lines) + "\n")

    return add


def addresses() -> None:
    """Captions of images on the web alone."""
    lines = "".join(f"https://example.org/web/{name},a bird\n" for name in NAMES)
    Path("captions.csv").write_text(f"image,caption\n{lines}")


def metadata() -> None:
    """The captions in an image folder."""
    Path("photos/metadata.csv").write_bytes(Path("captions.csv").read_bytes())


def list_of_images() -> None:
    Path("list.txt").write_text("\n".join(NAMES))


def packed() -> None:
    """The photographs with captions in a tar, as `img2dataset` fetches them."""
    Path("tars").mkdir()
    Path("caption.txt").write_text("a red bird")
    with tarfile.open("tars/0.tar", "w") as tar:
        for path in sorted(Path("photos").iterdir()):
            tar.add(path, path.name)
            tar.add("caption.txt", f"{path.stem}.txt")


def captioned(**columns: object) -> Callable[[], object]:
    return a_table({"caption": ["a red bird"] * 4, **columns})


def two_configurations() -> None:
    for name in "ab":
        Path("both", name).mkdir(parents=True)
        table = pa.table({"image": PICTURES, "caption": NAMES})
        pq.write_table(table, Path("both", name, "t.parquet"))
    listed = "".join(f"- config_name: {name}\n  data_files: {name}/*\n" for name in "ab")
    Path("both/README.md").write_text(f"---\nconfigs:\n{listed}---\n")


def karpathy_with_restval() -> None:
    first, *others = KARPATHY["images"]
    images = [first | {"split": "restval"}, *others]
    Path("captions.json").write_text(json.dumps({"images": images}))


def beside() -> None:
    for name in NAMES:
        Path("photos", name).with_suffix(".txt").write_text("a red bird")


def save_to_disk() -> None:
    from datasets import Dataset, Image

    Dataset(pq.read_table("t.parquet")).cast_column("image", Image()).save_to_disk("saved")


def shell(command: str) -> Callable[[], object]:
    return lambda: subprocess.run(command, shell=True, check=True)


RECORDS = [{"image": name, "caption": "a"} for name in NAMES]
TFRECORD = struct.pack("<Q4s1s4s", 1, b"sum1", b"x", b"sum2")
FLICKR = "prepare flickr30k --images photos --captions captions.csv --out f"
COCOS = "prepare coco --images photos --out c"
WEBDATASET = "prepare webdataset --images tars --out w"
BESIDE = "prepare pairs --images photos --out b"
HUGGINGFACE = "prepare huggingface --path t.parquet --out h"


JSON = PREPARE.replace(".csv", ".json")
PARQUET = PREPARE.replace("captions.csv", "t.parquet")

DATA = [
    Cure(
        "put the missing {} into the line, or remove it",
        PREPARE,
        (captions_with("3.png a boat on a lake 3\n", ""),),
        begins=captions_with("3.png,a boat", "3.png a boat"),
    ),
    Cure(
        "correct the line{}",
        PREPARE,
        (captions_with("a boat, on a lake 3", '"a boat, on a lake 3"'),),
        begins=captions_with("a boat on a lake 3", "a boat, on a lake 3"),
    ),
    Cure(
        "once; give each another name in its first line",
        PREPARE,
        (lambda: with_header("captions.csv", "image,other,caption", 2),),
        begins=lambda: with_header("captions.csv", "image,image,caption", 2),
    ),
    Cure(
        "unpack it: `gunzip -k {}`",
        f"{WEBDATASET} --shards *.tar.gz",
        (shell("gunzip -k tars/0.tar.gz"),),
        f"{WEBDATASET} --shards 0.tar",
        lambda: (packed(), shell("gzip tars/0.tar")()),
    ),
    Cure(
        "{}; prepare that by the kind `huggingface`",
        WEBDATASET,
        (captioned(image=PICTURES),),
        HUGGINGFACE,
        lambda: (Path("tars").mkdir(), Path("tars/train.tfrecord").write_bytes(TFRECORD)),
    ),
    Cure(
        "let `shards` name others",
        f"{WEBDATASET} --shards *",
        passes=WEBDATASET,
        begins=lambda: (packed(), Path("tars/README").write_text("Birds.")),
    ),
    Cure(
        "check the pattern and the folder, which contains {}",
        f"{WEBDATASET} --shards 1.tar",
        passes=f"{WEBDATASET} --shards 0.tar",
        begins=packed,
    ),
    Cure(
        "{}: {}; {}convert it: `{}`",
        f"{BESIDE} --beside txt",
        (shell("f=photos/0.txt; iconv -f utf-16 -t utf-8 $f > $f.utf8 && mv $f.utf8 $f"),),
        begins=lambda: (beside(), Path("photos/0.txt").write_text("a bird", "utf-16")),
    ),
    Cure("no such folder of shards; check the path", WEBDATASET, (packed,)),
    Cure(
        "no such file or folder; check the path",
        HUGGINGFACE,
        (captioned(image=PICTURES),),
    ),
    Cure(
        "`captions` is missing",
        "prepare pairs --images photos --out d",
        passes=PREPARE,
    ),
    Cure(
        "or omit `strict` to continue without these rows",
        PREPARE + " --strict",
        passes=PREPARE,
        begins=captions_with("3.png", "gone.png"),
    ),
    Cure(
        "a table must end in",
        PREPARE.replace(".csv", ".txt"),
        (lambda: Path("captions.txt").rename("captions.csv"),),
        f"{PREPARE} --image-column picture",
        lambda: with_header("captions.txt", "picture,caption"),
    ),
    Cure(
        "choose one with `{}`",
        PREPARE,
        passes=f"{PREPARE} --image-column picture",
        begins=lambda: with_header("captions.csv", "picture,caption"),
    ),
    Cure(
        "choose one with `{}`",
        PREPARE,
        passes=f"{PREPARE} --image-column file_name",
        begins=lambda: with_header("captions.csv", "file_name,filename,caption", 2),
    ),
    Cure(
        "which `{}` names; it has",
        f"{PREPARE} --caption-column words",
        passes=f"{PREPARE} --caption-column caption",
    ),
    Cure(
        "COCO's captions; use the kind `coco`",
        PREPARE.replace(".csv", ".json"),
        passes=f"{COCOS} --captions train=captions.json",
        begins=as_json(COCO),
    ),
    Cure(
        "Karpathy's captions and splits; give it as `karpathy`",
        PREPARE.replace(".csv", ".json"),
        passes="prepare pairs --images photos --karpathy captions.json --out d",
        begins=as_json(KARPATHY),
    ),
    Cure(
        "name it with `split_column`, or remove `splits`",
        f"{PREPARE} --splits train=[a]",
        passes=f"{PREPARE} --splits train=[a] --split-column part",
        begins=with_column("part", "a"),
    ),
    Cure(
        "which `splits.{}` names; it has",
        f"{PREPARE} --splits train=[b]",
        passes=f"{PREPARE} --splits train=[a]",
        begins=with_column("split", "a"),
    ),
    Cure(
        "fetch them with `img2dataset --output_format webdataset`",
        PREPARE,
        (packed,),
        "prepare webdataset --images tars --out w",
        addresses,
    ),
    Cure(
        "the metadata files name images beside them; give this folder, or one above it",
        "prepare pairs --images tars --captions photos --out d",
        passes="prepare pairs --images photos --captions photos --out d",
        begins=lambda: (metadata(), packed()),
    ),
    Cure(
        "the table holds the images themselves",
        PREPARE.replace("captions.csv", "t.parquet"),
        passes=HUGGINGFACE,
        begins=captioned(image=PICTURES),
    ),
    Cure(
        "write lists (`.tolist()`)",
        PREPARE,
        (lambda: with_header("captions.csv", "image,caption", caption="\"['a', 'b']\""),),
        begins=lambda: with_header("captions.csv", "image,caption", caption="\"['a' 'b']\""),
    ),
    Cure(
        "`splits`: give files of image names",
        f"{PREPARE} --splits train=list.txt --splits dev=[a]",
        passes=f"{PREPARE} --splits train=list.txt",
        begins=list_of_images,
    ),
    Cure(
        "give `splits` (lists of images) or `karpathy`",
        f"{PREPARE} --splits train=list.txt --karpathy captions.json",
        passes=f"{PREPARE} --splits train=list.txt",
        begins=list_of_images,
    ),
    Cure(
        "also gives splits; use one of them",
        f"{PREPARE} --splits train=list.txt",
        passes=PREPARE,
        begins=lambda: (list_of_images(), with_column("split", "train")()),
    ),
    Cure(
        "give `splits` (the lists of Flickr30k Entities)",
        FLICKR,
        passes=f"{FLICKR} --splits train=list.txt",
        begins=list_of_images,
    ),
    Cure(
        "give `captions` (COCO's JSON",
        COCOS,
        passes=f"{COCOS} --captions train=captions.json",
        begins=as_json(COCO),
    ),
    Cure(
        "use the kind `coco` with this file as `karpathy`",
        "prepare pairs --images photos --karpathy captions.json --out d",
        passes=f"{COCOS} --karpathy captions.json",
        begins=karpathy_with_restval,
    ),
    Cure(
        "`restval` is a split of `karpathy`",
        f"{COCOS} --captions train=captions.json --restval",
        passes=f"{COCOS} --karpathy captions.json --restval",
        begins=as_json(KARPATHY),
    ),
    Cure(
        "give `shards` or `splits`",
        f"{WEBDATASET} --shards 0.tar --splits train=0.tar",
        passes=f"{WEBDATASET} --splits train=0.tar",
        begins=packed,
    ),
    Cure(
        "a shard is in several of `splits`",
        f"{WEBDATASET} --splits train=*.tar --splits dev=0.tar",
        passes=f"{WEBDATASET} --splits dev=0.tar",
        begins=packed,
    ),
    Cure(
        "expected a pattern below the folder `images`",
        f"{WEBDATASET} --shards ../tars/0.tar",
        passes=f"{WEBDATASET} --shards 0.tar",
        begins=packed,
    ),
    Cure(
        "for tar files use the kind `webdataset`",
        "prepare huggingface --path tars --out h",
        passes=WEBDATASET,
        begins=packed,
    ),
    Cure(
        "choose with `splits` or `split_column`",
        HUGGINGFACE.replace("t.parquet", "saved"),
        passes=HUGGINGFACE.replace("t.parquet", "saved") + " --splits train=restval",
        begins=a_table(
            {"image": PICTURES, "caption": NAMES}, "saved/data/restval-00000-of-00001.parquet"
        ),
    ),
    Cure(
        "an image belongs to only one",
        f"{HUGGINGFACE} --split-column part --splits train=a --splits dev=a",
        passes=f"{HUGGINGFACE} --split-column part --splits train=a",
        begins=captioned(image=PICTURES, part=["a"] * 4),
    ),
    Cure(
        "choose one with `{}`",
        HUGGINGFACE,
        passes=f"{HUGGINGFACE} --image-column picture",
        begins=captioned(picture=PICTURES),
    ),
    Cure(
        "name another column with",
        HUGGINGFACE,
        passes=f"{HUGGINGFACE} --image-column picture",
        begins=captioned(image=range(4), picture=PICTURES),
    ),
    Cure(
        "lies beside its images; check `beside`",
        f"{BESIDE} --beside json",
        passes=f"{BESIDE} --beside txt",
        begins=beside,
    ),
    Cure(
        "by `beside: txt` or `beside: json`",
        f"{BESIDE} --captions photos",
        passes=f"{BESIDE} --beside txt",
        begins=beside,
    ),
    Cure(
        "leave out `captions` and give `beside: txt`",
        f"{BESIDE} --captions t.parquet",
        passes=f"{BESIDE} --beside txt",
        begins=lambda: (beside(), captioned(url=NAMES, key=NAMES, status=NAMES)()),
    ),
    Cure(
        "give `captions` (a file) or `beside` (files), but not both",
        f"{BESIDE} --captions captions.csv --beside txt",
        passes=f"{BESIDE} --beside txt",
        begins=beside,
    ),
    Cure(
        "give its folder as `images` and {} as `shards`",
        "prepare webdataset --images tars/0.tar --out w",
        passes="prepare webdataset --images tars --shards 0.tar --out w",
        begins=packed,
    ),
    Cure(
        "choose one with `config`",
        HUGGINGFACE.replace("t.parquet", "both"),
        passes=HUGGINGFACE.replace("t.parquet", "both") + " --config b",
        begins=two_configurations,
    ),
    Cure(
        "keep one column: `cut -f{} {} > sentences.txt`",
        "prepare sentences --path lines.txt --out s",
        (lambda: subprocess.run("cut -f2 lines.txt > sentences.txt", shell=True, check=True),),
        "prepare sentences --path sentences.txt --out s",
        lambda: Path("lines.txt").write_text("1\ta dog\n2\ta cat\n"),
    ),
    Cure(
        "so `images` does not apply; remove it",
        f"{HUGGINGFACE} --images photos",
        passes=HUGGINGFACE,
        begins=captioned(image=PICTURES),
    ),
    Cure(
        "save the data set again with `save_to_disk`",
        HUGGINGFACE,
        (save_to_disk,),
        HUGGINGFACE.replace("t.parquet", "saved"),
        begins=captioned(image=[{"bytes": None, "path": "photos/0.png"}, *PICTURES[1:]]),
    ),
]
