"""Remedies of `prepare` and `cache import`, provoked and applied."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import pickle
import shutil
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cures import GROUND, PREPARE, TEXTS, TOKENS, Cure
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


def save_to_disk() -> None:
    from datasets import Dataset, Image

    Dataset(pq.read_table("t.parquet")).cast_column("image", Image()).save_to_disk("saved")


def shell(command: str) -> Callable[[], object]:
    return lambda: subprocess.run(command, shell=True, check=True)


def packed_captions(name: str, pack: Callable[[bytes], bytes]) -> Callable[[], object]:
    """The captions in a file of another kind alone."""

    def pack_them() -> None:
        Path(name).write_bytes(pack(Path("captions.csv").read_bytes()))
        Path("captions.csv").unlink()

    return pack_them


def in_archive(data: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("captions.csv", data)
    return content.getvalue()


def in_tar(data: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        member = tarfile.TarInfo("captions.csv")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def of_spreadsheet(mark: str) -> Callable[[bytes], bytes]:
    """What is enough of a workbook to be known as one."""

    def write(data: bytes) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name in (mark, "content.xml"):
                archive.writestr(name, data)
        return content.getvalue()

    return write


RECORDS = [{"image": name, "caption": "a"} for name in NAMES]
TFRECORD = struct.pack("<Q4s1s4s", 1, b"sum1", b"x", b"sum2")
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 2)
IMAGE_ROWS = {"path": NAMES, "rows": VECTORS}
IMPORT = "cache import t.parquet --out imported"
FLICKR = "prepare flickr30k --images photos --captions captions.csv --out f"
COCOS = "prepare coco --images photos --out c"
CLIP_RETRIEVAL = "cache import embeddings --data photos --out imported"
WEBDATASET = "prepare webdataset --images tars --out w"
BESIDE = "prepare pairs --images photos --out b"
HUGGINGFACE = "prepare huggingface --path t.parquet --out h"


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

JSON = PREPARE.replace(".csv", ".json")
PARQUET = PREPARE.replace("captions.csv", "t.parquet")
PACKED = {
    "bz2": ("unpack it: `bunzip2 -k {}`", bz2.compress, "bunzip2 -k captions.csv.bz2"),
    "xz": ("unpack it: `unxz -k {}`", lzma.compress, "unxz -k captions.csv.xz"),
    "zst": (
        "unpack it: `unzstd {}`",
        lambda data: pa.compress(data, "zstd", asbytes=True),
        "unzstd captions.csv.zst",
    ),
    "tar": ("or unpack it: `tar xf {}`", in_tar, "tar xf captions.csv.tar"),
    "zip": ("unpack it: `unzip {} -d FOLDER`", in_archive, "unzip captions.csv.zip -d FOLDER"),
    "xlsx": ("save it as CSV UTF-8", of_spreadsheet("[Content_Types].xml"), ""),
    "ods": ("save it as CSV UTF-8", of_spreadsheet("mimetype"), ""),
}
OF_PACKED = [
    Cure(
        message,
        PREPARE.replace(".csv", f".csv.{suffix}"),
        (shell(command or "printf 'image,caption\\n0.png,a\\n' > captions.csv"),),
        PREPARE.replace("captions.csv", "FOLDER/captions.csv") if suffix == "zip" else PREPARE,
        packed_captions(f"captions.csv.{suffix}", pack),
    )
    for suffix, (message, pack, command) in PACKED.items()
]
AS_TABLE = {
    "opening it runs its code": pickle.dumps({"0.png": "a"}),
    "read it by tf.data.TFRecordDataset": TFRECORD,
    "read it by streaming.StreamingDataset": struct.pack("<3I", 1, 26, 26) + b'{"column": []}',
    "read it by the package lmdb": b"\0" * 16 + b"\xde\xc0\xef\xbe" + b"\0" * 80,
    " from it": b"<?xml version='1.0'?><captions/>",
    "export its table as CSV": b"SQLite format 3\0" + bytes(99),
    "give another file": picture(0),
    "write that with the tool that this file is of": bytes(range(32)),
}
"""What is not a table of captions is followed by one."""
OF_KINDS = [
    Cure(
        message,
        PREPARE,
        (a_table({"image": NAMES, "caption": NAMES}),),
        PARQUET,
        lambda data=data: Path("captions.csv").write_bytes(data),
    )
    for message, data in AS_TABLE.items()
]
NOT_RECORDS: dict[str, object] = {
    "write a list of objects that have these as keys": {"version": 2},
    "expected as many values in each row of 'data' as 'columns' has": {"columns": ["a"], "data": 1},
    "expected columns of one length": {"image": NAMES, "caption": []},
    "remove {} from them, or write a list of the objects": {"0.png": RECORDS[1]},
    "expected a list of objects; write it with `orient": [["0.png", "a"]],
    "remove it, or write an object in its place": [*RECORDS, 3],
}
OF_JSON = [
    Cure(message, JSON, (as_json(RECORDS),), begins=as_json(content))
    for message, content in NOT_RECORDS.items()
]

DATA = [
    *OF_PACKED,
    *OF_KINDS,
    *OF_JSON,
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
        "or prepare it: `sightline prepare sentences --path {} --column NAME --out FOLDER`",
        TOKENS.replace("--data d", "--data captions.csv"),
        ("prepare sentences --path captions.csv --column caption --out FOLDER",),
        TOKENS.replace("--data d", "--data FOLDER"),
        lambda: shutil.rmtree("tokens"),
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
]  # fmt: skip
