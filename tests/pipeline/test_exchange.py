"""Features exported for others, and those of others imported: every bit, and nothing pretended."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from PIL import Image
from tiny_encoder import make_encoder
from tiny_scenes import TINY

from pipeline.datasets.kinds import prepare
from pipeline.datasets.scenes import ScenesSource
from pipeline.interchange import rows as row_files
from pipeline.interchange.import_rows import ImportOptions, import_rows
from sightline.cache import (
    EncoderRecord,
    FeatureSet,
    FeatureSpec,
    SetWriter,
    key_of_file,
    key_of_text,
    keys_of_texts,
    verify,
)
from sightline.cache.record import FILE_NAME, read_features
from sightline.errors import SightlineError

FORMS = ("parquet", "npy")
DIM, ROWS = 7, 90


def spec(dtype: str, kind: str = "image") -> FeatureSpec:
    encoder = EncoderRecord(name="stub", source="pretrained:x", weights_sha256="0" * 64)
    return FeatureSpec(
        kind=kind, encoder=encoder, preprocessing={}, precision="fp32", dim=DIM, dtype=dtype
    )


def write_set(folder: Path, dtype: str, kind: str = "image", rows: int = ROWS) -> FeatureSet:
    """A set with odd values (-0.0, subnormal, the largest) and one failed row."""
    values = np.random.default_rng(0).standard_normal((rows, DIM)).astype(dtype)
    if rows:
        info = np.finfo(dtype)
        values[0] = [-0.0, info.smallest_subnormal, info.max, -info.max, 0.0, info.eps, 1.0]
        values[1] = 0
        values[2] = np.nan
    with SetWriter(folder, spec(dtype, kind)) as writer:
        keys = keys_of_texts([f"text {i}" for i in range(rows)])
        writer.plan(keys, batch_size=16, shard_rows=30)
        writer.add(keys, values, computed={"device": "cpu", "batch_size": 16})
        writer.publish()
    return FeatureSet.open(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_every_bit_is_exported_and_imported_by_its_key(tmp_path, monkeypatch, form, dtype):
    monkeypatch.setattr(row_files, "FILE_BYTES", 600)  # so that there are several files
    monkeypatch.setattr(row_files, "_CHUNK_BYTES", 64)
    before = write_set(tmp_path / "set", dtype, "text")
    assert sightline(*export(tmp_path, form)) == 0
    files = [path for path in (tmp_path / "out").rglob("*") if path.suffix == f".{form}"]
    assert len(files) > 2
    words = ["--kind", "text", "--out", tmp_path / "back"]
    assert sightline("cache", "import", tmp_path / "out", *words) == 0
    after = FeatureSet.open(tmp_path / "back")
    assert after.fingerprint != before.fingerprint  # what computed the rows is hearsay
    np.testing.assert_array_equal(after.keys, before.keys)
    rows = np.arange(len(before))
    assert after.gather(rows).tobytes() == before.gather(rows).tobytes()
    assert len(before.failed) == 1
    assert str(after.record.provenance) == "imported, not checked"
    assert verify(tmp_path / "back") == []


def export(folder: Path, form: str, *more: object) -> list[object]:
    return ["cache", "export", folder / "set", "--format", form, "--out", folder / "out", *more]


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_set_is_exported_too(tmp_path, form):
    write_set(tmp_path / "set", "float16", rows=0)
    assert sightline(*export(tmp_path, form)) == 0
    if form == "npy":
        assert np.load(tmp_path / "out/img_emb/img_emb_0000.npy").shape == (0, DIM)
    else:
        assert pq.read_table(tmp_path / "out/data/rows-0000.parquet").num_rows == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_datasets_opens_it_and_the_card_shows_code_that_runs(tmp_path, monkeypatch, form, dtype):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    before = write_set(tmp_path / "set", dtype)
    assert sightline(*export(tmp_path, form, "--licence", "cc-by-4.0")) == 0
    rows = datasets.load_dataset(str(tmp_path / "out"), split="train")
    assert [bytes.fromhex(key) for key in rows["key"]] == [key.tobytes() for key in before.keys]
    if form == "parquet":
        kind = pa.float16() if dtype == "float16" else pa.float32()
        assert rows.features.arrow_schema.field("features").type.list_size == DIM
        assert rows.features.arrow_schema.field("features").type.value_type == kind
    text = (tmp_path / "out/README.md").read_text()
    assert "license: cc-by-4.0" in text
    assert "computed here" in text
    assert str(tmp_path) not in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path / "out")
    names: dict = {}
    exec(code.replace("path/to/this/folder", str(tmp_path / "out")), names)
    found = names["rows"]["features"] if form == "parquet" else names["rows"]
    expected = before.gather(np.arange(len(before)))
    assert np.asarray(found[:], dtype=dtype).tobytes() == expected.tobytes()


def test_the_page_trains_a_student_on_a_teacher(tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("datasets", "transformers"):
        pytest.importorskip(name).utils.logging.disable_progress_bar()
    for part in make_encoder():
        part.save_pretrained(tmp_path / "bert")
    (tmp_path / "s.txt").write_text("".join(f"text {i}\n" for i in range(ROWS)))
    assert sightline("prepare", "sentences", "--set", "path=s.txt", "--out", "data") == 0
    write_set(tmp_path / "set", "float16", "teacher")
    words = ["--format", "parquet", "--data", "data", "--out", "teacher-of-mine"]
    assert sightline("cache", "export", "set", *words) == 0
    page = (Path(__file__).parents[2] / "docs/cache.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "EmbedDistill" in b]
    names: dict = {}
    exec(block.replace("bert-base-uncased", "bert"), names)
    assert len(names["rows"]) == ROWS - 1
    assert names["loss"].projection.out_features == DIM


def test_normalised_rows_are_another_set(tmp_path):
    write_set(tmp_path / "set", "float32")
    assert sightline(*export(tmp_path, "npy", "--normalise")) == 0
    rows = np.load(tmp_path / "out/img_emb/img_emb_0000.npy", allow_pickle=False)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert ((np.abs(lengths - 1) < 1e-6) | (lengths == 0)).all()
    assert "Every row has length 1." in (tmp_path / "out/README.md").read_text()
    assert "Content digest" not in (tmp_path / "out/README.md").read_text()


# -- features that others made -------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path) -> Path:
    """Six photographs, one of them in a folder and one a copy of another."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (8, 8), (40 * i, 10, 10)).save(folder / f"{i}.png")
    shutil.copy(folder / "1.png", folder / "more/copy.png")
    return folder


NAMES = ["0.png", "1.png", "2.png", "3.png", "4.png", "more/copy.png"]
TEXTS = ["a dog", "a cat", "two dogs", "", "a tree", "a dog"]


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def clip_retrieval(folder: Path, names: list[str] = NAMES) -> np.ndarray:
    """What `clip-retrieval inference` writes, in two partitions; the rows."""
    values = unit(np.random.default_rng(1).standard_normal((len(names), DIM)))
    for part, here in enumerate((slice(0, 4), slice(4, 6))):
        for what in ("img", "text"):
            (folder / f"{what}_emb").mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{what}_emb/{what}_emb_{part}.npy", values[here])
        (folder / "metadata").mkdir(exist_ok=True)
        table = pa.table({"image_path": names[here], "caption": TEXTS[here]})
        pq.write_table(table, folder / f"metadata/metadata_{part}.parquet")
    return values


@pytest.mark.parametrize("naming", ["as they are", "elsewhere", "stems", "prepared"])
def test_clip_retrieval_is_imported(tmp_path, photos, naming):
    names, images = NAMES, photos
    if naming == "elsewhere":
        names = [f"/home/somebody/photos/{name}" for name in NAMES]
    elif naming == "stems":
        names = [Path(name).stem for name in NAMES]
    elif naming == "prepared":
        captions = tmp_path / "captions.csv"
        captions.write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in NAMES))
        words = [f"--set=images={photos}", f"--set=captions={captions}", "--out", tmp_path / "data"]
        assert sightline("prepare", "pairs", *words) == 0
        images = tmp_path / "data"
    values = clip_retrieval(tmp_path / "emb", names)
    options = ImportOptions(data=images, kind="image", source="open_clip ViT-B-32")
    found = import_rows(tmp_path / "emb", tmp_path / "set", options)
    assert (found.record.rows, found.repeated, found.contradicting) == (5, 1, 1)
    assert found.record.spec.normalised is True
    assert found.record.spec.dtype == "float16"
    assert found.record.spec.encoder.source == "open_clip ViT-B-32"
    keys = [key_of_file(photos / name) for name in NAMES[:5]]
    assert FeatureSet.open(tmp_path / "set").take(keys).tobytes() == values[:5].tobytes()
    assert verify(tmp_path / "set") == []


def test_texts_are_hashed(tmp_path):
    values = clip_retrieval(tmp_path / "emb")
    with pytest.raises(SightlineError, match=r"1 of 6 rows have no key.*empty.*row 3"):
        import_rows(tmp_path / "emb", tmp_path / "set", ImportOptions(kind="text"))
    options = ImportOptions(kind="text", allow_missing=True)
    found = import_rows(tmp_path / "emb", tmp_path / "set", options)
    assert (found.record.rows, found.missing, found.repeated) == (4, 1, 1)
    rows = FeatureSet.open(tmp_path / "set").take([key_of_text("two dogs"), key_of_text("a dog")])
    assert rows.tobytes() == values[[2, 0]].tobytes()


def test_texts_have_the_keys_that_a_data_set_gives_them(tmp_path, capsys):
    values = clip_retrieval(tmp_path / "emb")
    texts = pa.table({"image_path": NAMES[4:], "caption": [" a tree\n", "a dog"]})
    pq.write_table(texts, tmp_path / "emb/metadata/metadata_1.parquet")
    words = ["--kind", "text", "--allow-missing", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "emb", *words) == 0
    assert "white space around 1 text left out" in capsys.readouterr().out
    row = FeatureSet.open(tmp_path / "set").take([key_of_text("a tree")])
    assert row.tobytes() == values[4].tobytes()


def datacomp(folder: Path, names: list[str] = NAMES, save=np.savez) -> np.ndarray:
    values = unit(np.random.default_rng(2).standard_normal((len(names), DIM)))
    folder.mkdir()
    arrays = {f"{model}_{what}": values for model in ("b32", "l14") for what in ("img", "txt")}
    save(folder / "00ab.npz", **arrays, dedup=values[:, :2])
    pq.write_table(pa.table({"uid": names, "text": TEXTS}), folder / "00ab.parquet")
    return values


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_datacomp_is_imported(tmp_path, photos, save):
    values = datacomp(tmp_path / "meta", [Path(name).stem for name in NAMES], save)
    with pytest.raises(SightlineError, match=r"'l14_img'.*--features"):
        import_rows(tmp_path / "meta", tmp_path / "set", ImportOptions(data=photos))
    for array, kind in {"l14_img": "image", "b32_txt": "text"}.items():
        options = ImportOptions(data=photos, features=array, allow_missing=True)
        found = import_rows(tmp_path / "meta", tmp_path / array, options)
        assert found.record.spec.kind == kind
        assert found.record.spec.preprocessing["array"] == array
        key = key_of_file(photos / "2.png") if kind == "image" else key_of_text("two dogs")
        assert FeatureSet.open(tmp_path / array).take([key]).tobytes() == values[2].tobytes()


@pytest.mark.parametrize("layout", ["fixed", "list", "file", "stream", "split"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_column_of_lists_is_imported(tmp_path, photos, layout, dtype):
    values = np.random.default_rng(3).standard_normal((len(NAMES), DIM)).astype(dtype)
    flat = pa.array(values.ravel())
    lists = pa.FixedSizeListArray.from_arrays(flat, DIM)
    if layout == "list":
        lists = pa.ListArray.from_arrays(pa.array(range(0, values.size + 1, DIM), pa.int32()), flat)
    table = pa.table({"file_name": NAMES, "embedding": lists, "n": list(range(6))})
    folder = tmp_path / "table"
    folder.mkdir()
    if layout in ("file", "stream"):
        make = pa.ipc.new_file if layout == "file" else pa.ipc.new_stream
        with make(folder / "data-0.arrow", table.schema) as writer:
            for batch in table.to_batches(max_chunksize=4):
                writer.write_batch(batch)
    elif layout == "split":
        pq.write_table(table[:2], folder / "a.parquet")
        pq.write_table(table[2:], folder / "b.parquet")
    else:
        pq.write_table(table, folder / "a.parquet", store_schema=layout != "list")
    features = "embedding" if layout == "list" else None
    found = import_rows(
        folder, tmp_path / "set", ImportOptions(data=photos, kind="image", features=features)
    )
    assert found.record.spec.normalised is False
    assert found.record.spec.dtype == dtype
    keys = [key_of_file(photos / name) for name in NAMES[:5]]
    assert FeatureSet.open(tmp_path / "set").take(keys).tobytes() == values[:5].tobytes()


def test_an_object_array_is_never_unpickled(tmp_path, photos):
    clip_retrieval(tmp_path / "emb")

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    bomb = np.array([[Bomb()] * DIM] * 4, dtype=object)
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", bomb, allow_pickle=True)
    with pytest.raises(SightlineError, match=r"Python objects|allow_pickle=False"):
        import_rows(tmp_path / "emb", tmp_path / "set", ImportOptions(data=photos, kind="image"))
    datacomp(tmp_path / "meta")
    np.savez(tmp_path / "meta/00ab.npz", l14_img=bomb)
    options = ImportOptions(data=photos, features="l14_img")
    with pytest.raises(SightlineError, match=r"Python objects|allow_pickle=False"):
        import_rows(tmp_path / "meta", tmp_path / "set", options)
    assert not (tmp_path / "exploded").exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _without(table: Path, column: str) -> None:
    pq.write_table(pq.read_table(table).drop_columns([column]), table)


MISTAKES = {
    "no images": (lambda f: None, {"data": None}, "SHA-256 of its image.*'0.png'.*--data"),
    "both kinds": (lambda f: None, {"kind": None}, "img_emb and text_emb"),
    "no metadata": (lambda f: shutil.rmtree(f / "metadata"), {}, "metadata_0.parquet is missing"),
    "a part without metadata": (
        lambda f: (f / "metadata/metadata_1.parquet").unlink(),
        {},
        "metadata_1.parquet is missing",
    ),
    "no names": (
        lambda f: _without(f / "metadata/metadata_0.parquet", "image_path"),
        {},
        "without one that names the images there are no keys: give it with --names",
    ),
    "an unknown column": (lambda f: None, {"names": "url"}, "--names"),
    "no text": (lambda f: None, {"names": "caption"}, "have no key"),
    "truncated": (lambda f: _cut(f / "img_emb/img_emb_1.npy"), {}, "img_emb_1.npy: damaged"),
    "another dim": (
        lambda f: np.save(f / "img_emb/img_emb_1.npy", np.ones((2, 3), np.float16)),
        {},
        "img_emb_1.npy: rows of 3 float16",
    ),
    "float64": (
        lambda f: np.save(f / "img_emb/img_emb_1.npy", np.ones((2, DIM))),
        {},
        "img_emb_1.npy: float64",
    ),
    "fewer rows": (
        lambda f: np.save(f / "img_emb/img_emb_1.npy", np.ones((1, DIM), np.float16)),
        {},
        "metadata_1.parquet: 2 rows, but img_emb_1.npy has 1",
    ),
    "no NumPy file": (
        lambda f: (f / "img_emb/img_emb_0.npy").write_bytes(b"nothing"),
        {},
        "img_emb_0.npy: damaged, or not such a file",
    ),
    "no Parquet": (
        lambda f: (f / "metadata/metadata_0.parquet").write_bytes(b"nothing"),
        {},
        "metadata_0.parquet: damaged",
    ),
    "a lost photograph": (
        lambda f: (f.parent / "photos/3.png").unlink(),
        {},
        "1 of 6 rows have no key.*'3.png'.*--allow-missing",
    ),
}


def test_a_damaged_name_of_a_column_is_one_clear_error(tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(8, np.float32)), 4)
    pq.write_table(pa.table({"embedded": lists}), tmp_path / "a.parquet", store_schema=False)
    damaged = (tmp_path / "a.parquet").read_bytes().replace(b"embedded", b"embed\xf5ed")
    (tmp_path / "a.parquet").write_bytes(damaged)
    with pytest.raises(SightlineError, match=r"a\.parquet: damaged, or not such a file"):
        import_rows(tmp_path / "a.parquet", tmp_path / "set", ImportOptions(kind="image"))


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_clear_error_and_writes_nothing(tmp_path, photos, case):
    change, options, message = MISTAKES[case]
    clip_retrieval(tmp_path / "emb")
    change(tmp_path / "emb")
    given = {"data": photos, "kind": "image", **options}
    with pytest.raises(SightlineError, match=message):
        import_rows(tmp_path / "emb", tmp_path / "set", ImportOptions(**given))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("rows.npy", "rows without metadata"), ("none", "no such file"), ("empty", "no features")],
)
def test_what_is_not_features_is_refused(tmp_path, name, message):
    np.save(tmp_path / "rows.npy", np.ones((2, 3), np.float16))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SightlineError, match=message):
        import_rows(tmp_path / name, tmp_path / "set", ImportOptions())


@pytest.mark.parametrize("cell", ["null", "null inside", "short", "NaN"])
def test_cells_of_a_column_are_checked(tmp_path, photos, cell):
    values: list = np.ones((6, 3), np.float32).tolist()
    values[4] = {"null": None, "null inside": [1, None, 2], "short": [1], "NaN": [1, 2, np.nan]}[
        cell
    ]
    kind = pa.list_(pa.float32()) if cell == "short" else pa.list_(pa.float32(), 3)
    pq.write_table(pa.table({"path": NAMES, "x": pa.array(values, kind)}), tmp_path / "a.parquet")
    options = ImportOptions(data=photos, kind="image", features="x")
    if cell == "NaN":
        found = import_rows(tmp_path / "a.parquet", tmp_path / "set", options)
        assert FeatureSet.open(tmp_path / "set").failed == {
            key_of_file(photos / "4.png"): "not_finite"
        }
        assert found.record.rows == 4
        return
    with pytest.raises(
        SightlineError, match=r"rows 0 to 5.*empty cells or lists of several lengths"
    ):
        import_rows(tmp_path / "a.parquet", tmp_path / "set", options)


def _sources(folder: Path, photos: Path) -> dict[str, ImportOptions]:
    """One source of every format below ``folder``: name → how to import it."""
    clip_retrieval(folder / "clip-retrieval")
    datacomp(folder / "datacomp", [Path(name).stem for name in NAMES])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(24, np.float32)), 4)
    table = pa.table({"path": NAMES, "features": lists})
    for name in ("table", "arrow-file", "arrow-stream"):
        (folder / name).mkdir()
    pq.write_table(table, folder / "table/a.parquet")
    for name, make in {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}.items():
        with make(folder / f"arrow-{name}/a.arrow", table.schema) as writer:
            writer.write_table(table)
    images = ImportOptions(data=photos, kind="image")
    names = ("clip-retrieval", "table", "arrow-file", "arrow-stream")
    found = dict.fromkeys(names, images)
    return {**found, "datacomp": ImportOptions(data=photos, features="l14_img", allow_missing=True)}


def _spoil(path: Path, random: Random) -> None:
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
    options = _sources(tmp_path / "sources", photos)
    write_set(tmp_path / "set", "float16")
    for form in FORMS:
        words = ["--format", form, "--out", tmp_path / f"sources/export-{form}"]
        assert sightline("cache", "export", tmp_path / "set", *words) == 0
        options[f"export-{form}"] = ImportOptions(kind="image")
    random, refused = Random(rounds), 0
    for number in range(rounds):
        name = random.choice(sorted(each.name for each in (tmp_path / "sources").iterdir()))
        source, out = tmp_path / f"{number}/source", tmp_path / f"{number}/out"
        shutil.copytree(tmp_path / "sources" / name, source)
        _spoil(random.choice(sorted(p for p in source.rglob("*") if p.is_file())), random)
        try:
            import_rows(source, out, options[name])
        except SightlineError:
            refused += 1
            assert not (out / FILE_NAME).exists()
        else:
            assert verify(out) == []
        shutil.rmtree(source.parent)
    assert rounds / 3 < refused < rounds


MEASURE = """
import resource, sys
from pathlib import Path
from pipeline.interchange.import_rows import ImportOptions, import_rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = import_rows(Path(sys.argv[1]), Path(sys.argv[2]), ImportOptions(kind="text"))
print(found.record.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_rows_are_streamed(tmp_path):
    count, dim = 3000, 16_000
    folder = tmp_path / "emb"
    (folder / "text_emb").mkdir(parents=True)
    (folder / "metadata").mkdir()
    np.save(folder / "text_emb/text_emb_0.npy", np.ones((count, dim), np.float16))
    table = pa.table({"caption": [str(i) for i in range(count)]})
    pq.write_table(table, folder / "metadata/metadata_0.parquet")
    words = [sys.executable, "-c", MEASURE, str(folder), str(tmp_path / "set")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows, kilobytes = map(int, done.stdout.split()[-2:])
    assert rows == count
    assert count * dim * 2 > 90e6
    assert kilobytes < 400_000, "a block of 2,048 rows takes 65 MB, and its file as much again"


# -- imported rows encoded again -----------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Path:
    """Drawn scenes with an encoder, and features extracted with it."""
    folder = tmp_path_factory.mktemp("scenes")
    prepare("scenes", ScenesSource.model_validate(TINY), folder / "data")
    words = ["extract", "image", "--data", folder / "data", "--out", folder / "set"]
    assert sightline(*words, *encoder(folder), "--batch-size", 8, "--workers", 0) == 0
    return folder


def encoder(folder: Path, seed: int = 0) -> list[object]:
    return ["--encoder", folder / "data/encoders/clip.json", "--weights", f"random:{seed}"]


def others(scenes: Path, out: Path, change=lambda rows: rows) -> None:
    """Features of the scenes as clip-retrieval writes them."""
    features = FeatureSet.open(scenes / "set")
    paths = sorted((scenes / "data/images").iterdir())
    (out / "img_emb").mkdir(parents=True)
    (out / "metadata").mkdir()
    rows = features.take([key_of_file(path) for path in paths]).astype(np.float32)
    np.save(out / "img_emb/img_emb_0.npy", change(unit(rows)))
    table = pa.table({"image_path": [path.name for path in paths]})
    pq.write_table(table, out / "metadata/metadata_0.parquet")


def recompute(scenes: Path, folder: Path, count: int = 5, seed: int = 0) -> int:
    words = ["extract", "image", "--data", scenes / "data", "--out", folder]
    return sightline(*words, *encoder(scenes, seed), "--check", count)


def imported(scenes: Path, tmp_path: Path, change=lambda rows: rows) -> Path:
    others(scenes, tmp_path / "emb", change)
    words = ["--data", scenes / "data/images", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "emb", *words) == 0
    return tmp_path / "set"


def test_equal_rows_are_recorded(scenes, tmp_path, capsys):
    folder = imported(scenes, tmp_path)
    assert "imported, not checked" in capsys.readouterr().out
    before = read_features(folder)
    assert before.provenance.doubt == "imported, not checked"
    assert recompute(scenes, folder) == 0
    said = capsys.readouterr().out
    assert "5 rows encoded again" in said
    assert "largest difference" in said
    after = read_features(folder)
    assert after.provenance.recomputed == 5
    assert after.provenance.doubt == ""
    assert "5 rows recomputed and equal (smallest cosine 1.000000" in str(after.provenance)
    assert after.content_digest == before.content_digest
    assert verify(folder) == []
    for command in ("list", "info"):
        assert sightline("cache", command, folder) == 0
        assert "5 rows recomputed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("change", [lambda rows: rows * np.float16(2), lambda rows: -rows])
def test_rows_that_differ_are_recorded_and_no_later_sample_hides_them(
    scenes, tmp_path, capsys, change
):
    folder = imported(scenes, tmp_path, change)
    assert recompute(scenes, folder) == 1
    provenance = read_features(folder).provenance
    assert provenance.recomputed == 0
    assert provenance.doubt == "imported, differs when recomputed"
    assert "of 5 recomputed rows differ" in str(provenance)
    assert provenance.check is not None
    better = provenance.check.model_copy(update={"differing": 0, "rows": 1})
    assert provenance.checked(better) == provenance
    other = better.model_copy(update={"fingerprint": "f" * 64})
    assert provenance.checked(other).doubt == ""  # another encoder is another question
    capsys.readouterr()


def test_another_encoder_is_a_difference(scenes, tmp_path):
    folder = imported(scenes, tmp_path)
    assert recompute(scenes, folder, seed=1) == 1
    assert "5 of 5 recomputed rows differ" in str(read_features(folder).provenance)
    assert recompute(scenes, folder) == 0
    assert read_features(folder).provenance.doubt == ""


@pytest.mark.parametrize("normalise", [[], ["--normalise"]])
def test_rows_of_an_export_are_encoded_again(scenes, tmp_path, normalise):
    words = ["cache", "export", scenes / "set", "--format", "parquet", "--out", tmp_path / "out"]
    assert sightline(*words, *normalise) == 0
    words = ["--kind", "image", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "out", *words) == 0
    assert recompute(scenes, tmp_path / "set") == 0
    check = read_features(tmp_path / "set").provenance.check
    assert check is not None
    assert (check.rows, check.differing) == (5, 0)
    assert check.largest_difference <= 2e-4  # float16, encoded in another batch


def test_imported_rows_are_not_passed_off_as_computed_here(scenes, tmp_path):
    """Neither by copying them into another set, nor by an extraction into theirs."""
    words = ["cache", "export", scenes / "set", "--format", "npy", "--out", tmp_path / "out"]
    assert sightline(*words) == 0
    folder = tmp_path / "features/imported"
    assert sightline("cache", "import", tmp_path / "out", "--out", folder) == 0
    some = tmp_path / "images"
    some.mkdir()
    for path in sorted((scenes / "data/images").iterdir())[:3]:
        shutil.copy(path, some)
    Image.new("RGB", (64, 64), "teal").save(some / "new.png")
    words = ["extract", "image", "--data", some, *encoder(scenes), "--workers", 0]
    words += ["--batch-size", 8, "--copy-from", tmp_path / "features", "--out"]
    assert sightline(*words, tmp_path / "mine") == 0
    mine = read_features(tmp_path / "mine")
    assert not mine.provenance.imported
    assert all("imported_from" not in shard.computed for shard in mine.shards)
    assert sightline(*words, folder) == 0
    replaced = read_features(folder)
    assert (replaced.rows, replaced.provenance.imported) == (4, False)
    assert all("imported_from" not in shard.computed for shard in replaced.shards)
