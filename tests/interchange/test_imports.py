"""Features that others made: read by name, refused with one error, never passed off as ours."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import shutil
import tracemalloc
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from command_line import sightline
from foreign_files import DIM, NAMES, STEMS, TEXTS, clip_retrieval, unit_rows, write_set
from PIL import Image
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from set_oracle import expect_sound

from pipeline.datasets.prepare import prepare_dataset
from pipeline.interchange import feature_layouts, row_arrays
from pipeline.interchange.export import names_in
from pipeline.interchange.import_rows import (
    Imported,
    ImportOptions,
    foreign_spec,
    import_rows,
    write_rows,
)
from sightline.cache import FeatureSet, key_of_file, key_of_text, keys_of_texts, verify
from sightline.cache.prepared import PreparedDataset
from sightline.cache.record import FILE_NAME
from sightline.errors import SightlineError


@pytest.fixture
def photos(tmp_path):
    """Six photographs, one of them in a folder and one a copy of another."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (8, 8), (40 * i, 10, 10)).save(folder / f"{i}.png")
    shutil.copy(folder / "1.png", folder / "more/copy.png")
    return folder


def imported(folder: Path, photos: Path, **options: object) -> Imported:
    """What became of `folder` as the set beside the photographs."""
    given = {"data": photos, "kind": "image", **options}
    return import_rows(folder, photos.parent / "set", ImportOptions(**given))


def row_bytes(photos: Path, *names: str) -> bytes:
    """The imported rows of these photographs."""
    keys = [key_of_file(photos / name) for name in names]
    return FeatureSet.open(photos.parent / "set").take(keys).tobytes()


def prepared(photos: Path, *names: str) -> Path:
    """These photographs as a prepared data set."""
    captions, folder = photos.parent / "captions.csv", photos.parent / "data"
    captions.write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in names))
    words = [f"--images={photos}", f"--captions={captions}", "--out", folder]
    assert sightline("prepare", "pairs", *words) == 0
    return folder


@pytest.mark.parametrize("by_id", [False, True])
def test_images_of_a_data_set_are_named_by_their_files_or_their_ids(tmp_path, photos, by_id):
    pytest.importorskip("datasets")
    files = [*NAMES[:5], "1.png"]
    pq.write_table(pa.table({"image": files, "caption": files}), photos / "t.parquet")
    prepare_dataset("huggingface", tmp_path / "data", path=photos)
    names = [f"train/{n}" for n in (0, 1, 2, 3, 4, 1)] if by_id else files
    clip_retrieval(tmp_path / "emb", names)
    found = imported(tmp_path / "emb", photos, data=tmp_path / "data")
    assert (found.record.rows, found.missing, found.repeated) == (5, 0, 1)


@pytest.mark.parametrize(
    ("names", "prepare"),
    [
        (NAMES, False),
        ([f"/home/somebody/photos/{name}" for name in NAMES], False),
        (STEMS, False),
        (NAMES, True),
    ],
    ids=["as they are", "elsewhere", "stems", "prepared"],
)
def test_clip_retrieval_is_imported(tmp_path, photos, names, prepare):
    values = clip_retrieval(tmp_path / "emb", names)
    data = prepared(photos, *NAMES) if prepare else photos
    found = imported(tmp_path / "emb", photos, data=data, source="open_clip ViT-B-32")
    assert (found.record.rows, found.repeated, found.contradicting) == (5, 1, 1)
    spec = found.record.spec
    assert (spec.normalised, spec.dtype) == (True, "float16")
    assert spec.encoder.source == "open_clip ViT-B-32"
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()
    assert verify(tmp_path / "set") == []


@pytest.mark.parametrize("start", ["", "/data/frames/", "https://host/frames/"])
@pytest.mark.parametrize("by_data", [False, True])
def test_rows_of_folders_that_are_not_here_are_no_images(tmp_path, photos, start, by_data):
    folder = photos.rename(tmp_path / "video1")
    for name in ("cam", "more/cam"):
        (folder / name).mkdir()
        shutil.copy(folder / "0.png", folder / name / "7.png")
        with (folder / name / "7.png").open("ab") as file:
            file.write(name.encode())
    videos = ("video3", "video1", "video2")
    names = [f"{video}/{name}" for video in videos for name in ("0.png", "cam/7.png")]
    (tmp_path / "tables").mkdir()
    for part in range(2):
        rows = [[float(i), 1.0] for i in range(3 * part, 3 * part + 3)]
        table = pa.table({"path": [start + n for n in names[3 * part :][:3]], "x": rows})
        pq.write_table(table, tmp_path / f"tables/{part}.parquet")
    data = prepared(folder, "0.png") if by_data else folder
    with pytest.raises(SightlineError, match=r"4 of 6 rows have no key.*write its path"):
        imported(tmp_path / "tables", folder, data=data)
    found = imported(tmp_path / "tables", folder, data=data, allow_missing=True)
    assert (found.record.rows, found.missing, found.repeated) == (2, 4, 0)
    keys = [key_of_file(folder / name) for name in ("0.png", "cam/7.png")]
    assert FeatureSet.open(tmp_path / "set").take(keys)[:, 0].tolist() == [2, 3]
    assert "such as" in "\n".join(found.lines(tmp_path / "set"))


def test_every_file_counts_for_the_length_and_of_an_image_the_one_with_the_lower_number(
    tmp_path, photos
):
    values = clip_retrieval(tmp_path / "emb")
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", values[:4] * 2)
    for path in [*(tmp_path / "emb").rglob("*_[01].*")]:
        path.rename(path.with_name(path.name.replace("_1.", "_10.").replace("_0.", "_9.")))
    assert not imported(tmp_path / "emb", photos).record.spec.normalised
    # the row of 1.png, which is in the file with number 9
    assert row_bytes(photos, "more/copy.png") == (values[1] * 2).tobytes()


def test_the_row_of_two_files_gets_the_name_of_the_first(tmp_path, photos):
    clip_retrieval(tmp_path / "emb")
    imported(tmp_path / "emb", photos)
    data = PreparedDataset.open(prepared(photos, "1.png"))
    names = names_in(data, FeatureSet.open(tmp_path / "set"))
    assert sorted(names["image_path"].to_pylist()) == NAMES[:5]


def test_texts_have_the_keys_that_a_data_set_gives_them(tmp_path, said):
    values = clip_retrieval(tmp_path / "emb")
    words = ["cache", "import", tmp_path / "emb", "--kind", "text", "--out", tmp_path / "set"]
    code, _, error = said(*words)
    assert code == 1
    assert "1 of 6 rows have no key, because their text is empty, such as '' (row 3" in error
    code, out, _ = said(*words, "--allow-missing")
    assert code == 0
    assert "1 row left out: their text is missing" in out
    assert "1 row left out: an earlier row describes the same" in out
    assert "white space around 1 text left out" in out
    assert "imported, not checked" in out
    keys = [key_of_text(text) for text in ("two dogs", "a dog", "a tree")]
    rows = FeatureSet.open(tmp_path / "set").take(keys)
    assert rows.tobytes() == values[[2, 0, 4]].tobytes()


def datacomp(folder: Path, save=np.savez) -> np.ndarray:
    """A shard of DataComp's metadata; the rows of every array."""
    values = unit_rows()
    folder.mkdir(parents=True)
    arrays = {f"{model}_{what}": values for model in ("b32", "l14") for what in ("img", "txt")}
    save(folder / "00ab.npz", **arrays, dedup=values[:, :2])
    pq.write_table(pa.table({"uid": STEMS, "text": TEXTS}), folder / "00ab.parquet")
    return values


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_datacomp_is_imported(tmp_path, photos, save):
    values = datacomp(tmp_path / "meta", save)
    with pytest.raises(SightlineError, match=r"'l14_img'.*--features"):
        imported(tmp_path / "meta", photos, kind=None)
    for array, kind in {"l14_img": "image", "b32_txt": "text"}.items():
        options = ImportOptions(data=photos, features=array, allow_missing=True)
        spec = import_rows(tmp_path / "meta", tmp_path / array, options).record.spec
        assert (spec.kind, spec.preprocessing["array"]) == (kind, array)
        key = key_of_file(photos / "2.png") if kind == "image" else key_of_text("two dogs")
        assert FeatureSet.open(tmp_path / array).take([key]).tobytes() == values[2].tobytes()


def write_tables(folder: Path, layout: str, dtype: str) -> np.ndarray:
    """Named rows as Parquet (``fixed``, ``list``, ``split``) or Arrow (``file``, ``stream``)."""
    values = np.random.default_rng(3).standard_normal((len(NAMES), DIM)).astype(dtype)
    folder.mkdir(parents=True)
    flat = pa.array(values.ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, DIM)
    if layout == "list":
        lists = pa.ListArray.from_arrays(pa.array(range(0, values.size + 1, DIM), pa.int32()), flat)
    table = pa.table({"file_name": NAMES, "embedding": lists, "n": list(range(6))})
    if layout in ("file", "stream"):
        make = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
        with make(folder / "data-0.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    elif layout == "split":
        pq.write_table(table[:2], folder / "a.parquet")
        pq.write_table(table[2:], folder / "b.parquet")
    else:
        pq.write_table(table, folder / "a.parquet", store_schema=layout != "list")
    return values


@pytest.mark.parametrize("layout", ["fixed", "list", "file", "stream", "split"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_column_of_lists_is_imported(tmp_path, photos, layout, dtype):
    values = write_tables(tmp_path / "table", layout, dtype)
    features = "embedding" if layout == "list" else None
    spec = imported(tmp_path / "table", photos, features=features).record.spec
    assert (spec.normalised, spec.dtype) == (False, dtype)
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()


def write_arrays(path: Path, names: list[str], values: np.ndarray, *, each: bool = False) -> None:
    """Named rows in a file of arrays: one of rows and one of names, or one array an image."""
    arrays = dict(zip(names, values, strict=True)) if each else {"clip": values}
    if path.suffix.lower() == ".npz":
        with path.open("wb") as file:  # np.savez adds a suffix
            np.savez(file, **arrays, **({} if each else {"names": np.array(names)}))
    elif path.suffix == ".safetensors":
        save_file(arrays, path, None if each else {"names": json.dumps(names)})
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, chunks=True, compression="gzip")
            if not each:
                file["labels"], file["file_names"] = np.arange(6), names


@pytest.mark.parametrize("each", [False, True], ids=["names", "one array an image"])
@pytest.mark.parametrize("name", ["x.npz", "X.NPZ", "x.safetensors", "x.h5", "x.bin"])
def test_files_of_arrays_with_names_are_imported(tmp_path, photos, name, each):
    values = unit_rows()
    write_arrays(tmp_path / name, NAMES, values, each=each)
    write_tables(tmp_path / "x", "fixed", "float32")
    (tmp_path / "x/a.parquet").rename(tmp_path / "x.parquet")  # does not matter
    found = imported(tmp_path / name, photos)
    assert found.record.rows == 5
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()
    assert found.lines(tmp_path)[1].startswith(
        "rows from 'features'" if each else "rows from 'clip'"
    )


def test_a_folder_with_a_file_for_each_image_is_imported(tmp_path, photos):
    values = unit_rows()
    for name, row in zip(NAMES[:5], values, strict=False):
        (tmp_path / "rows" / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / "rows" / Path(name).with_suffix(".npy"), row)
    assert imported(tmp_path / "rows", photos).record.rows == 5
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()


@pytest.mark.parametrize("name", ["a.feather", "A.PARQUET", "a.pq", "a.txt", "a.npz"])
def test_tables_are_known_by_their_content(tmp_path, photos, name):
    values = write_tables(tmp_path / "table", "fixed", "float32")
    source = tmp_path / "table/a.parquet"
    if name == "a.feather":
        feather.write_feather(pq.read_table(source), tmp_path / name)
    else:
        source.rename(tmp_path / name)
    assert imported(tmp_path / name, photos).record.rows == 5
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.parquet"])
def test_rows_of_float64_are_rounded_and_numbers_name_images_where_they_are_asked_to(
    tmp_path, photos, name
):
    values, numbers = unit_rows().astype(np.float64), np.array([0, 1, 2, 3, 4, 4])
    if name == "a.npz":
        np.savez(tmp_path / name, clip=values, image_ids=numbers)
    elif name == "a.h5":
        with h5py.File(tmp_path / name, "w") as file:
            file["clip"], file["image_ids"] = values, numbers
    else:
        table = pa.table({"clip": values.tolist(), "image_ids": numbers})
        pq.write_table(table, tmp_path / name)
    with pytest.raises(SightlineError, match=r"give it with --names"):
        imported(tmp_path / name, photos)
    done = imported(tmp_path / name, photos, names="image_ids")
    assert "rows from 'clip', rounded to float32, names from 'image_ids'" in done.columns
    assert row_bytes(photos, "0.png", "4.png") == values[[0, 4]].astype(np.float32).tobytes()


@pytest.mark.parametrize("as_object", [False, True])
def test_the_bytes_of_images_give_their_keys(tmp_path, photos, as_object):
    values = unit_rows().astype(np.float32)
    images = [(photos / name).read_bytes() for name in NAMES]
    cells = [{"bytes": image, "path": "x"} if as_object else image for image in images]
    rows = pa.FixedSizeListArray.from_arrays(values.ravel(), DIM)
    blobs = [b"no image"] * len(NAMES)
    table = pa.table({"photo": cells, "other": blobs, "caption": TEXTS, "clip": rows})
    pq.write_table(table, tmp_path / "a.parquet")
    assert imported(tmp_path / "a.parquet", photos, data=None).record.rows == 5
    assert row_bytes(photos, *NAMES[:5]) == values[:5].tobytes()
    pq.write_table(table.append_column("again", table["photo"]), tmp_path / "a.parquet")
    with pytest.raises(SightlineError, match=r"'photo' and 'again' hold images; .*--names"):
        imported(tmp_path / "a.parquet", photos)


def test_a_pickle_becomes_parquet_as_its_error_says(tmp_path, photos):
    values = unit_rows()
    torch.save(dict(zip(NAMES, torch.tensor(values), strict=True)), tmp_path / "x.pt")
    with pytest.raises(SightlineError, match=r"a PyTorch pickle; expected a tar .*") as error:
        imported(tmp_path / "x.pt", photos)
    code = re.search(r"pyarrow\.parquet\.write_table.*\)", str(error.value))
    assert code is not None
    where = {"name": NAMES, "features": values, "FILE": tmp_path / "a.parquet"}
    exec(f"import pyarrow.parquet\n{code[0]}", where)
    assert imported(tmp_path / "a.parquet", photos).record.rows == 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"{}", "x.jsonl: text, .* as Parquet; expected a tar"),
        ("faiss.index", b"IxF2" + bytes(99), "text, or a format that is not known here"),
        ("x.csv.gz", gzip.compress(b"a,b", mtime=0), "compressed by gzip; .*gunzip -k"),
        ("x.pickle", pickle.dumps({"a": 1}), "a pickle; .*write_table"),
        ("x.npy", None, "Python objects, .*write_table"),
        ("x.npz", b"PK\3\4", "x.npz: damaged"),
        ("x.h5", b"", "x.h5: damaged"),
    ],
)
def test_what_a_file_is_stands_in_its_error(tmp_path, photos, name, content, message):
    if content is None:
        np.save(tmp_path / name, np.array(NAMES, object), allow_pickle=True)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SightlineError, match=message):
        imported(tmp_path / name, photos)


def test_two_kinds_of_files_are_not_chosen_from(tmp_path, photos):
    write_tables(tmp_path / "both", "fixed", "float32")
    write_arrays(tmp_path / "both/x.npz", NAMES, unit_rows())
    with pytest.raises(SightlineError, match=r"a\.parquet and x\.npz may both hold the rows"):
        imported(tmp_path / "both", photos)


def test_numbers_of_other_types_are_refused_where_they_are(tmp_path, photos):
    save_torch({"clip": torch.zeros(6, 7, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with pytest.raises(SightlineError, match=r"'clip': bfloat16 \[6, 7\]; expected float16, f"):
        imported(tmp_path / "x.safetensors", photos)
    np.savez(tmp_path / "x.npz", clip=unit_rows(), names=np.array(NAMES, object))
    with pytest.raises(SightlineError, match=r"which image .*'names': object \[6\] \(Python obj"):
        imported(tmp_path / "x.npz", photos)


@pytest.mark.parametrize("how", ["link", "virtual", "storage"])
@pytest.mark.parametrize("mcse", [True, False])
def test_hdf5_is_not_followed_into_another_file(tmp_path, photos, said, how, mcse):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["rows"] = unit_rows().astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["names"] = NAMES
        if how == "link":
            file["features"] = h5py.ExternalLink("secret.h5", "/rows")
        elif how == "virtual":
            layout = h5py.VirtualLayout((6, DIM), np.float32)
            layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "rows", (6, DIM))
            file.create_virtual_dataset("features", layout)
        else:
            where = [(str(tmp_path / "secret.h5"), 0, 6 * DIM * 4)]
            file.create_dataset("features", (6, DIM), np.float32, external=where)
    (tmp_path / "texts").write_text("a dog\n" * 6)
    words = ["cache", "import", tmp_path / "x.h5", "--data", photos, "--out", tmp_path / "set"]
    more = ["--format", "mcse", "--texts", tmp_path / "texts"] if mcse else ["--kind", "image"]
    assert said(*words, *more)[0] == 1
    assert "x.h5: /features lies in another file" in said(*words, *more)[2]


def test_an_object_array_is_never_unpickled(tmp_path, photos):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    bomb = np.array([[Bomb()] * DIM] * 4, dtype=object)
    clip_retrieval(tmp_path / "emb")
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", bomb, allow_pickle=True)
    datacomp(tmp_path / "meta")
    np.savez(tmp_path / "meta/00ab.npz", l14_img=bomb)
    for name, features in (("emb", None), ("meta", "l14_img")):
        with pytest.raises(SightlineError, match=r"Python objects|allow_pickle=False"):
            imported(tmp_path / name, photos, features=features)
    assert not (tmp_path / "exploded").exists()


SECOND, FIRST_TABLE = "img_emb/img_emb_1.npy", "metadata/metadata_0.parquet"
ONES = np.ones((2, DIM), np.float16)


def without_names(folder: Path) -> None:
    table = pq.read_table(folder / FIRST_TABLE).drop_columns(["image_path"])
    pq.write_table(table, folder / FIRST_TABLE)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, {"data": None}, "SHA-256 of its image.*'0.png'.*--data"),
        (None, {"kind": None}, "img_emb and text_emb"),
        (None, {"names": "url"}, "--names"),
        (None, {"names": "caption"}, "have no key"),
        (lambda f: (f / FIRST_TABLE).unlink(), {}, "metadata_0.parquet is missing"),
        (without_names, {}, "without one that names the images there are no keys: .*--names"),
        (lambda f: np.save(f / SECOND, ONES[:, :3]), {}, "img_emb_1.npy: rows of 3 float16"),
        (
            lambda f: np.save(f / SECOND, ONES.astype(int)),
            {},
            "img_emb_1.npy: found 'array': int64",
        ),
        (lambda f: np.save(f / SECOND, ONES[:1]), {}, "metadata_1.parquet: 2 rows, .*_1.npy has 1"),
        (lambda f: (f / SECOND).write_bytes(b"none"), {}, "img_emb_1.npy: damaged, or not such"),
        (lambda f: (f / FIRST_TABLE).write_bytes(b"none"), {}, "metadata_0.parquet: damaged"),
        (lambda f: (f.parent / "photos/3.png").unlink(), {}, "1 of 6 .*'3.png'.*--allow-missing"),
    ],
)
def test_a_mistake_is_one_clear_error_and_writes_nothing(
    tmp_path, photos, change, options, message
):
    clip_retrieval(tmp_path / "emb")
    if change is not None:
        change(tmp_path / "emb")
    with pytest.raises(SightlineError, match=message):
        imported(tmp_path / "emb", photos, **options)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.npy", "nothing says which image each row describes: rows.parquet is missing"),
        ("none", "no such file"),
        ("empty", "no features"),
        ("a.parquet", r"a\.parquet: damaged, or not such a file"),
        ("a.arrow", r"a\.arrow: damaged, or not such a file"),
    ],
)
def test_what_is_not_features_is_refused(tmp_path, name, message):
    np.save(tmp_path / "rows.npy", ONES)
    (tmp_path / "empty").mkdir()
    table = pa.table({"embedded": pa.FixedSizeListArray.from_arrays(pa.array(ONES.ravel()), DIM)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for path in tmp_path.glob("a.*"):  # a name that is not UTF-8
        path.write_bytes(path.read_bytes().replace(b"embedded", b"embed\xf5ed"))
    with pytest.raises(SightlineError, match=message):
        import_rows(tmp_path / name, tmp_path / "set", ImportOptions(kind="image"))


@pytest.mark.parametrize("cell", [None, [1, None, 2], [1], [1, 2, np.nan]])
def test_cells_of_a_column_are_checked(tmp_path, photos, cell):
    values: list = np.ones((6, 3), np.float32).tolist()
    values[4] = cell
    kind = pa.list_(pa.float32()) if cell == [1] else pa.list_(pa.float32(), 3)
    pq.write_table(pa.table({"path": NAMES, "x": pa.array(values, kind)}), tmp_path / "a.parquet")
    if cell == [1]:
        message = "row 4: found 1 number, expected 3, as before; correct it, or write null in"
        with pytest.raises(SightlineError, match=message):
            imported(tmp_path / "a.parquet", photos, features="x")
        return
    assert imported(tmp_path / "a.parquet", photos, features="x").record.rows == 4
    failed = {key_of_file(photos / "4.png"): "not_finite"}
    assert FeatureSet.open(tmp_path / "set").failed == failed


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float16())])
def test_a_null_is_a_row_without_a_value(tmp_path, photos, kind):
    rows = [np.ones(3, np.float16) for _ in NAMES]
    table = {"path": NAMES, "x": pa.array([None, *rows[1:]], kind)}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    done = imported(tmp_path / "a.parquet", photos, features="x")
    assert (done.record.rows, done.record.failed) == (4, 1)
    assert "1 row without a value" in done.lines(tmp_path)
    pq.write_table(pa.table(table).slice(0, 1), tmp_path / "a.parquet")
    with pytest.raises(SightlineError, match="row 0: found 0 numbers, expected some"):
        imported(tmp_path / "a.parquet", photos, features="x")


@pytest.mark.parametrize("name", ["a.h5", "a.npz"])
def test_each_image_may_have_an_array_or_a_group_of_arrays(tmp_path, photos, name):
    values = unit_rows()

    def written(arrays: dict[str, np.ndarray]) -> Path:
        (tmp_path / name).unlink(missing_ok=True)
        if name == "a.npz":
            np.savez(tmp_path / name, **arrays)  # pyright: ignore[reportArgumentType]
        else:
            with h5py.File(tmp_path / name, "w") as file:
                for key, array in arrays.items():
                    file[key] = array
        return tmp_path / name

    each = dict(zip(NAMES[:4], values, strict=False))
    for arrays, options in (
        (each, {}),
        ({f"{key}/clip": row for key, row in each.items()}, {}),
        ({f"{key}/clip": row[None] for key, row in each.items()}, {}),
        ({f"{k}/{p}": row[: 1 + len(p)] for k, row in each.items() for p in ("a", "bc")}, "a"),
    ):
        options = {"features": options} if options else {}
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        assert imported(written(arrays), photos, **options).record.rows == 4
    regions = written({key: np.ones((2, DIM), np.float32) for key in NAMES[:4]})
    with pytest.raises(SightlineError, match="the vectors of one image, write one for each"):
        imported(regions, photos)
    pq.write_table(pa.table({"path": NAMES, "x": [[[1.0]]] * 6}), tmp_path / "a.parquet")
    with pytest.raises(SightlineError, match=r"found 'path': string.*group of vectors to one for"):
        imported(tmp_path / "a.parquet", photos)


def spoil(path: Path, random: Random) -> None:
    """Flip bits of a file, cut it, overwrite a part with zeros, or add to it."""
    data = bytearray(path.read_bytes())
    match random.choice(["flip", "flip", "cut", "zero", "grow"]):
        case "flip":
            for _ in range(random.choice([1, 1, 5])):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        case "cut":
            del data[random.randrange(len(data)) :]
        case "zero":
            start = random.randrange(len(data))
            data[start : start + 16] = bytes(len(data[start : start + 16]))
        case _:
            data += bytes(random.randrange(1, 100))
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("rounds", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_damaged_files_of_every_format_are_refused_or_import_a_sound_set(tmp_path, photos, rounds):
    sources, images = tmp_path / "sources", ImportOptions(data=photos, kind="image")
    clip_retrieval(sources / "clip-retrieval")
    datacomp(sources / "datacomp")
    options = {"datacomp": ImportOptions(data=photos, features="l14_img", allow_missing=True)}
    for layout in ("fixed", "file", "stream"):
        write_tables(sources / layout, layout, "float16")
    write_set(tmp_path / "set", "float16")
    for name in ("npz", "safetensors", "h5"):
        (sources / name).mkdir()
        write_arrays(sources / name / f"x.{name}", NAMES, unit_rows())
    for form in ("parquet", "npy"):
        words = ["--format", form, "--out", sources / f"export-{form}"]
        assert sightline("cache", "export", tmp_path / "set", *words) == 0
    random, refused = Random(rounds), 0
    for number in range(rounds):
        name = random.choice(sorted(each.name for each in sources.iterdir()))
        source, out = tmp_path / f"{number}/source", tmp_path / f"{number}/out"
        shutil.copytree(sources / name, source)
        spoil(random.choice(sorted(p for p in source.rglob("*") if p.is_file())), random)
        try:
            import_rows(source, out, options.get(name, images))
        except SightlineError:
            refused += 1
            assert not (out / FILE_NAME).exists()
        else:
            assert verify(out) == []
        shutil.rmtree(source.parent)
    assert rounds / 3 < refused < rounds


def test_rows_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(row_arrays, "_BLOCK_BYTES", 1 << 20)
    (tmp_path / "text_emb").mkdir()
    (tmp_path / "metadata").mkdir()
    np.save(tmp_path / "text_emb/text_emb_0.npy", np.ones((1000, 16_000), np.float16))  # 32 MB
    table = pa.table({"caption": [str(i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "metadata/metadata_0.parquet")
    _, (part,) = feature_layouts.find(tmp_path, ImportOptions(kind="text"))
    tracemalloc.start()
    try:
        assert sum(len(block) for block in part.blocks()) == 1000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_interrupted_import_of_many_small_files_starts_over(tmp_path):
    """Its parts are the files' blocks, of which there are more than the plan has."""
    rows = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    keys = keys_of_texts([f"text {i}" for i in range(60)])
    source = tmp_path / "rows.npy"
    np.save(source, rows)
    spec = foreign_spec("npy", [source], "text", 4, "someone's encoder")

    def blocks(stop=None):
        for start in range(0, 60, 10):
            if start == stop:
                raise SightlineError("the power is gone")
            yield keys[start : start + 10], rows[start : start + 10]

    with pytest.raises(SightlineError, match="power"):
        write_rows(tmp_path / "set", spec, keys, blocks(stop=40), [source])
    record = write_rows(tmp_path / "set", spec, keys, blocks(), [source])
    assert (record.rows, record.provenance.imported) == (60, True)
    expect_sound(tmp_path / "set")
    assert not (tmp_path / "set.run/parts").exists()
    np.testing.assert_array_equal(
        FeatureSet.open(tmp_path / "set").take(keys), rows.astype(record.spec.dtype)
    )
