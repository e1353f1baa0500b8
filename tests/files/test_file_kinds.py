"""Files are recognised by their content: each made by the library that writes it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import re
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from PIL import Image

from sightline.errors import SightlineError
from sightline.files.file_kinds import (
    data_kind,
    file_kind,
    kind_of_names,
    unexpected,
    ungzipped,
)
from sightline.user_files import read_text

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
TABLE = pa.table({"image": ["a.jpg"], "caption": ["a dog"]})
TEXT = b"image,caption\na.jpg,a dog\n"


def stream(path: Path) -> None:
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE)


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["rows"] = ROWS


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")


def tarred(path: Path, form: int) -> None:
    with tarfile.open(path, "w", format=form) as tar:
        tar.addfile(member := tarfile.TarInfo("0.txt"), io.BytesIO(b"x"))
        assert member.name


def scripted(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), path)


def exported(path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    torch.export.save(program, path.with_suffix(".pt2"))  # no other suffix is taken
    path.with_suffix(".pt2").rename(path)


def records(*each: bytes) -> bytes:
    """TFRecord: each with its length, and a checksum behind both."""
    return b"".join(struct.pack("<Q4s", len(r), b"sum1") + r + b"sum2" for r in each)


def mds(path: Path) -> None:
    """As MosaicML's `MDSWriter` writes a shard: the number of samples, their offsets, columns."""
    columns = b'{"column_encodings": ["str"], "column_names": ["caption"], "format": "mds"}'
    offsets = [16 + len(columns), 21 + len(columns)]
    path.write_bytes(struct.pack("<3I", 1, *offsets) + columns + b"\1\0\0\0a")


MAKE = {
    "gzip": lambda path: path.write_bytes(gzip.compress(TEXT)),
    "bzip2": lambda path: path.write_bytes(bz2.compress(TEXT)),
    "xz": lambda path: path.write_bytes(lzma.compress(TEXT)),
    "zip": lambda path: zipped(path, "photos/0.jpg"),
    "excel": lambda path: zipped(path, "[Content_Types].xml", "xl/workbook.xml"),
    "npz": lambda path: np.savez(path.open("wb"), rows=ROWS),
    "pytorch": lambda path: torch.save(torch.ones(2), path),
    "pytorch-legacy": lambda path: torch.save(
        torch.ones(2), path, _use_new_zipfile_serialization=False
    ),
    "torchscript": scripted,
    "torch_export": exported,
    "pickle": lambda path: path.write_bytes(pickle.dumps({"a.jpg": ROWS})),
    "pickle-2": lambda path: path.write_bytes(pickle.dumps([1], protocol=2)),
    "tar": lambda path: tarred(path, tarfile.PAX_FORMAT),
    "tar-ustar": lambda path: tarred(path, tarfile.USTAR_FORMAT),
    "parquet": lambda path: pq.write_table(TABLE, path),
    "arrow": lambda path: feather.write_feather(TABLE, str(path)),
    "arrow-stream": stream,
    "feather1": lambda path: feather.write_feather(TABLE, str(path), version=1),
    "hdf5": hdf5,
    "npy": lambda path: np.save(path.open("wb"), ROWS),
    "npy_objects": lambda path: np.save(path.open("wb"), np.array([{}, []], dtype=object)),
    "safetensors": lambda path: safetensors.numpy.save_file({"rows": ROWS}, path),
    "image-jpg": lambda path: Image.new("RGB", (4, 4)).save(path, "JPEG"),
    "image-png": lambda path: Image.new("RGB", (4, 4)).save(path, "PNG"),
    "image-webp": lambda path: Image.new("RGB", (4, 4)).save(path, "WEBP"),
    "image-tiff": lambda path: Image.new("RGB", (4, 4)).save(path, "TIFF"),
    "opendocument": lambda path: zipped(path, "mimetype", "content.xml"),
    "xml": lambda path: path.write_bytes(b'\xef\xbb\xbf<?xml version="1.0"?><a/>'),
    "xml-without-declaration": lambda path: path.write_bytes(b"<a x='1'>\n <b>c</b>\n</a>\n"),
    "tfrecord": lambda path: path.write_bytes(records(b"12345")),
    "tfrecord-many": lambda path: path.write_bytes(records(*[bytes(n) for n in range(1, 9)])),
    "mds": mds,
    "lmdb": lambda path: path.write_bytes(b"\0" * 16 + b"\xde\xc0\xef\xbe" + b"\0" * 80),
    "html": lambda path: path.write_bytes(b"\n<!DOCTYPE html><title>Sign in</title>"),
    "lfs": lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
}


@pytest.mark.parametrize("kind", MAKE)
def test_a_binary_file_is_what_its_writer_wrote_whatever_its_name(tmp_path, kind):
    path = tmp_path / "captions.csv"
    MAKE[kind](path)
    found = file_kind(path)
    assert found is not None
    assert found == kind.partition("-")[0]
    assert data_kind(path.read_bytes()) == found
    error = str(unexpected(path, found, "a CSV"))
    assert error.startswith(f"{path}: ")
    assert "; expected a CSV" in error


TEXTS = [b"", b"a", TEXT, "naïve\n".encode(), b"BM\n", b"[1]\n", b"PK\n", b"\x80abc", b"\0" * 2048]
TEXTS += [b"PARENTS watch a game", b"BZhang runs\n", b"GIF89a is a format", b"ARROW1\tan arrow\n"]
TEXTS += [b"<s> a dog </s>\n<s> a cat </s>", b"<3 my dog", b"<a>\n<b> runs\n"]
TEXTS += [records(b"12345")[:-1], b"\2\0\0\0" + b"\0" * 60]


@pytest.mark.parametrize("data", TEXTS)
def test_text_and_what_nobody_knows_have_no_kind(data):
    assert data_kind(data) is None


def test_a_truncated_zip_is_a_zip_still(tmp_path):
    zipped(tmp_path / "z", "a.jpg")
    data = (tmp_path / "z").read_bytes()
    assert data_kind(data[:30]) == "zip"


def test_a_pickle_is_not_opened_and_shows_how_to_become_parquet(tmp_path):
    class Evil:
        def __reduce__(self):
            return Path(tmp_path / "ran").touch, ()

    path = tmp_path / "features.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    kind = file_kind(path)
    assert kind == "pickle"
    says = str(unexpected(path, kind, "features", ("name", "features")))
    (code,) = re.findall(r"columns name and features: (.*)", says)
    rows = {"name": ["a"], "features": ROWS[:1], "FILE": tmp_path / "a.parquet"}
    exec(f"import pyarrow.parquet\n{code}", rows)
    assert pq.read_table(rows["FILE"]).to_pylist() == [{"name": "a", "features": [0, 1, 2]}]
    assert str(unexpected(path, kind, "text")).endswith("load it where you trust it and write text")
    assert not (tmp_path / "ran").exists()


NAMES = {
    "mds": ["index.json", "shard.00000.mds"],
    "mds-zipped": ["index.json", "shard.00000.mds.zstd"],
    "tfrecord": ["README.md", "train.tfrecord-00000-of-00001"],
    "lmdb": ["data.mdb", "lock.mdb"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_folder_is_known_by_the_names_in_it(kind):
    assert kind_of_names(NAMES[kind]) == kind.partition("-")[0]
    assert kind_of_names(["data.mdb.txt", "mds", "0.tar"]) is None


def test_a_step_names_the_columns_that_are_needed(tmp_path):
    for kind in MAKE:
        path = tmp_path / "a"
        MAKE[kind](path)
        found = file_kind(path)
        assert found is not None
        says = str(unexpected(path, found, "captions", ("image", "caption")))
        what, _, step = says.partition("; expected captions; ")
        assert what
        assert step
        assert "{" not in step.replace("{'image'", "")


def test_gzip_is_unpacked_and_damage_named(tmp_path):
    data = gzip.compress(TEXT)
    assert ungzipped(tmp_path, data) == TEXT
    with pytest.raises(SightlineError, match="damaged gzip"):
        ungzipped(tmp_path, data[:-9])


def test_text_is_read_from_gzip_and_nothing_else_is_taken_for_text(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + TEXT))
    assert read_text(tmp_path / "a.csv.gz") == TEXT.decode()
    pq.write_table(TABLE, tmp_path / "train.txt")
    with pytest.raises(SightlineError, match=r"train.txt: a Parquet file; expected captions"):
        read_text(tmp_path / "train.txt", "captions")
    tarred(tmp_path / "b.tar", tarfile.GNU_FORMAT)
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress((tmp_path / "b.tar").read_bytes()))
    with pytest.raises(SightlineError, match="a tar archive"):
        read_text(tmp_path / "b.tar.gz")
