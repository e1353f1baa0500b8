"""Features that others made: read by name, refused with one error, never passed off as ours."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from foreign_files import (
    DIM,
    NAMES,
    STEMS,
    clip_retrieval,
    datacomp,
    unit,
    unit_rows,
    write_set,
    write_tables,
)
from PIL import Image
from small_inputs import write_clip, write_photos

from pipeline.interchange import foreign
from pipeline.interchange.import_rows import ImportOptions, import_rows
from sightline.cache import FeatureSet, key_of_file, key_of_text, verify
from sightline.cache.record import FILE_NAME, read_features
from sightline.errors import SightlineError

BEGINNING = "/home/somebody/photos/"


@pytest.mark.parametrize("naming", ["as they are", "elsewhere", "stems", "prepared"])
def test_clip_retrieval_is_imported(tmp_path, photos, naming):
    elsewhere = [BEGINNING + name for name in NAMES]
    names = {"elsewhere": elsewhere, "stems": STEMS}.get(naming, NAMES)
    images = photos
    if naming == "prepared":
        captions, images = tmp_path / "captions.csv", tmp_path / "data"
        captions.write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in NAMES))
        words = [f"--set=images={photos}", f"--set=captions={captions}", "--out", images]
        assert sightline("prepare", "pairs", *words) == 0
    values = clip_retrieval(tmp_path / "emb", names)
    options = ImportOptions(data=images, kind="image", source="open_clip ViT-B-32")
    found = import_rows(tmp_path / "emb", tmp_path / "set", options)
    assert (found.record.rows, found.repeated, found.contradicting) == (5, 1, 1)
    spec = found.record.spec
    assert (spec.normalised, spec.dtype) == (True, "float16")
    assert spec.encoder.source == "open_clip ViT-B-32"
    keys = [key_of_file(photos / name) for name in NAMES[:5]]
    assert FeatureSet.open(tmp_path / "set").take(keys).tobytes() == values[:5].tobytes()
    assert verify(tmp_path / "set") == []


def test_a_set_is_normalised_only_if_the_rows_of_every_file_are(tmp_path, photos):
    values = clip_retrieval(tmp_path / "emb")
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", values[:4] * 2)
    options = ImportOptions(data=photos, kind="image")
    assert not import_rows(tmp_path / "emb", tmp_path / "set", options).record.spec.normalised


def test_of_two_rows_of_an_image_that_of_the_file_with_the_lower_number_counts(tmp_path, photos):
    values = clip_retrieval(tmp_path / "emb")
    for path in [*(tmp_path / "emb").rglob("*_[01].*")]:
        path.rename(path.with_name(path.name.replace("_1.", "_10.").replace("_0.", "_9.")))
    import_rows(tmp_path / "emb", tmp_path / "set", ImportOptions(data=photos, kind="image"))
    row = FeatureSet.open(tmp_path / "set").take([key_of_file(photos / "more/copy.png")])
    assert row.tobytes() == values[1].tobytes()  # which 1.png has


def test_texts_have_the_keys_that_a_data_set_gives_them(tmp_path, capsys):
    values = clip_retrieval(tmp_path / "emb")
    words = ["cache", "import", tmp_path / "emb", "--kind", "text", "--out", tmp_path / "set"]
    assert sightline(*words) == 1
    said = capsys.readouterr().err
    assert "1 of 6 rows have no key, because their text is empty, such as '' (row 3" in said
    assert sightline(*words, "--allow-missing") == 0
    said = capsys.readouterr().out
    assert "1 row left out: their text is missing" in said
    assert "1 row left out: an earlier row describes the same" in said
    assert "white space around 1 text left out" in said
    keys = [key_of_text(text) for text in ("two dogs", "a dog", "a tree")]
    rows = FeatureSet.open(tmp_path / "set").take(keys)
    assert rows.tobytes() == values[[2, 0, 4]].tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_datacomp_is_imported(tmp_path, photos, save):
    values = datacomp(tmp_path / "meta", save)
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
    folder = write_tables(tmp_path / "table", layout, values)
    features = "embedding" if layout == "list" else None
    options = ImportOptions(data=photos, kind="image", features=features)
    spec = import_rows(folder, tmp_path / "set", options).record.spec
    assert (spec.normalised, spec.dtype) == (False, dtype)
    keys = [key_of_file(photos / name) for name in NAMES[:5]]
    assert FeatureSet.open(tmp_path / "set").take(keys).tobytes() == values[:5].tobytes()


def test_an_object_array_is_never_unpickled(tmp_path, photos):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    bomb = np.array([[Bomb()] * DIM] * 4, dtype=object)
    clip_retrieval(tmp_path / "emb")
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", bomb, allow_pickle=True)
    datacomp(tmp_path / "meta")
    np.savez(tmp_path / "meta/00ab.npz", l14_img=bomb)
    for name in ("emb", "meta"):
        features = "l14_img" if name == "meta" else None
        options = ImportOptions(data=photos, kind="image", features=features)
        with pytest.raises(SightlineError, match=r"Python objects|allow_pickle=False"):
            import_rows(tmp_path / name, tmp_path / "set", options)
    assert not (tmp_path / "exploded").exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _without(table: Path, column: str) -> None:
    pq.write_table(pq.read_table(table).drop_columns([column]), table)


SECOND, FIRST_TABLE = "img_emb/img_emb_1.npy", "metadata/metadata_0.parquet"
MISTAKES = {
    "no images": (None, {"data": None}, "SHA-256 of its image.*'0.png'.*--data"),
    "both kinds": (None, {"kind": None}, "img_emb and text_emb"),
    "no metadata": (lambda f: (f / FIRST_TABLE).unlink(), {}, "metadata_0.parquet is missing"),
    "no names": (
        lambda f: _without(f / FIRST_TABLE, "image_path"),
        {},
        "without one that names the images there are no keys: give it with --names",
    ),
    "an unknown column": (None, {"names": "url"}, "--names"),
    "no text": (None, {"names": "caption"}, "have no key"),
    "truncated": (lambda f: _cut(f / SECOND), {}, "img_emb_1.npy: damaged"),
    "another dim": (
        lambda f: np.save(f / SECOND, np.ones((2, 3), np.float16)),
        {},
        "img_emb_1.npy: rows of 3 float16",
    ),
    "float64": (lambda f: np.save(f / SECOND, np.ones((2, DIM))), {}, "img_emb_1.npy: float64"),
    "fewer rows": (
        lambda f: np.save(f / SECOND, np.ones((1, DIM), np.float16)),
        {},
        "metadata_1.parquet: 2 rows, but img_emb_1.npy has 1",
    ),
    "no NumPy file": (
        lambda f: (f / SECOND).write_bytes(b"nothing"),
        {},
        "img_emb_1.npy: damaged, or not such a file",
    ),
    "no Parquet": (
        lambda f: (f / FIRST_TABLE).write_bytes(b"nothing"),
        {},
        "metadata_0.parquet: damaged",
    ),
    "a lost photograph": (
        lambda f: (f.parent / "photos/3.png").unlink(),
        {},
        "1 of 6 rows have no key.*'3.png'.*--allow-missing",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_clear_error_and_writes_nothing(tmp_path, photos, case):
    change, options, message = MISTAKES[case]
    clip_retrieval(tmp_path / "emb")
    if change is not None:
        change(tmp_path / "emb")
    given = {"data": photos, "kind": "image", **options}
    with pytest.raises(SightlineError, match=message):
        import_rows(tmp_path / "emb", tmp_path / "set", ImportOptions(**given))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows.npy", "rows without metadata"),
        ("none", "no such file"),
        ("empty", "no features"),
        ("a.parquet", r"a\.parquet: damaged, or not such a file"),
        ("a.arrow", r"a\.arrow: damaged, or not such a file"),
    ],
)
def test_what_is_not_features_is_refused(tmp_path, name, message):
    np.save(tmp_path / "rows.npy", np.ones((2, 3), np.float16))
    (tmp_path / "empty").mkdir()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(8, np.float32)), 4)
    table = pa.table({"embedded": lists})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for path in tmp_path.glob("a.*"):
        path.write_bytes(path.read_bytes().replace(b"embedded", b"embed\xf5ed"))
    with pytest.raises(SightlineError, match=message):
        import_rows(tmp_path / name, tmp_path / "set", ImportOptions(kind="image"))


@pytest.mark.parametrize("cell", [None, [1, None, 2], [1], [1, 2, np.nan]])
def test_cells_of_a_column_are_checked(tmp_path, photos, cell):
    values: list = np.ones((6, 3), np.float32).tolist()
    values[4] = cell
    kind = pa.list_(pa.float32()) if cell == [1] else pa.list_(pa.float32(), 3)
    pq.write_table(pa.table({"path": NAMES, "x": pa.array(values, kind)}), tmp_path / "a.parquet")
    options = ImportOptions(data=photos, kind="image", features="x")
    if cell != [1, 2, np.nan]:
        message = r"rows 0 to 5.*empty cells or lists of several lengths"
        with pytest.raises(SightlineError, match=message):
            import_rows(tmp_path / "a.parquet", tmp_path / "set", options)
        return
    assert import_rows(tmp_path / "a.parquet", tmp_path / "set", options).record.rows == 4
    failed = {key_of_file(photos / "4.png"): "not_finite"}
    assert FeatureSet.open(tmp_path / "set").failed == failed


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
    sources, images = tmp_path / "sources", ImportOptions(data=photos, kind="image")
    clip_retrieval(sources / "clip-retrieval")
    datacomp(sources / "datacomp")
    options = {"datacomp": ImportOptions(data=photos, features="l14_img", allow_missing=True)}
    for layout in ("fixed", "file", "stream"):
        write_tables(sources / layout, layout, unit_rows(6))
    write_set(tmp_path / "set", "float16")
    for form in ("parquet", "npy"):
        words = ["--format", form, "--out", sources / f"export-{form}"]
        assert sightline("cache", "export", tmp_path / "set", *words) == 0
    random, refused = Random(rounds), 0
    for number in range(rounds):
        name = random.choice(sorted(each.name for each in sources.iterdir()))
        source, out = tmp_path / f"{number}/source", tmp_path / f"{number}/out"
        shutil.copytree(sources / name, source)
        _spoil(random.choice(sorted(p for p in source.rglob("*") if p.is_file())), random)
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
    monkeypatch.setattr(foreign, "_BLOCK_BYTES", 1 << 20)
    (tmp_path / "text_emb").mkdir()
    (tmp_path / "metadata").mkdir()
    np.save(tmp_path / "text_emb/text_emb_0.npy", np.ones((1000, 16_000), np.float16))  # 32 MB
    table = pa.table({"caption": [str(i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "metadata/metadata_0.parquet")
    (part,) = foreign.find(tmp_path, "text", None, None).parts
    tracemalloc.start()
    try:
        assert sum(len(block) for block in part.blocks()) == 1000
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# -- imported rows encoded again -----------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Photographs, and features extracted from them."""
    folder = tmp_path_factory.mktemp("world")
    write_photos(folder / "photos", 6)
    write_clip(folder)
    assert extract(folder, folder / "set") == 0
    return folder


def extract(world: Path, out: Path, *more: object, seed: int = 0) -> int:
    words = ["--encoder", world / "clip.json", "--weights", f"random:{seed}", "--workers", 0]
    data = [] if "--data" in more else ["--data", world / "photos"]
    return sightline("extract", "image", *data, *words, "--batch-size", 8, *more, "--out", out)


def as_they_are(rows: np.ndarray) -> np.ndarray:
    return rows


def imported(world: Path, tmp_path: Path, change=as_they_are) -> Path:
    """Features of the photographs as clip-retrieval writes them, imported."""
    paths = sorted((world / "photos").iterdir())
    rows = FeatureSet.open(world / "set").take([key_of_file(path) for path in paths])
    for name in ("img_emb", "metadata"):
        (tmp_path / "emb" / name).mkdir(parents=True)
    np.save(tmp_path / "emb/img_emb/img_emb_0.npy", change(unit(rows.astype(np.float32))))
    table = pa.table({"image_path": [path.name for path in paths]})
    pq.write_table(table, tmp_path / "emb/metadata/metadata_0.parquet")
    words = ["--data", world / "photos", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "emb", *words) == 0
    return tmp_path / "set"


def exported(world: Path, tmp_path: Path, *more: str) -> Path:
    """The features exported and imported."""
    words = ["cache", "export", world / "set", "--format", "parquet", "--out", tmp_path / "out"]
    assert sightline(*words, *more) == 0
    words = ["--kind", "image", "--out", tmp_path / "set"]
    assert sightline("cache", "import", tmp_path / "out", *words) == 0
    return tmp_path / "set"


@pytest.mark.parametrize("normalise", [None, [], ["--normalise"]])
def test_equal_rows_are_recorded(world, tmp_path, capsys, normalise):
    if normalise is None:
        folder = imported(world, tmp_path)
    else:
        folder = exported(world, tmp_path, *normalise)
    assert "imported, not checked" in capsys.readouterr().out
    before = read_features(folder)
    assert before.provenance.doubt == "imported, not checked"
    assert extract(world, folder, "--check", 5) == 0
    said = capsys.readouterr().out
    assert "5 rows encoded again" in said
    assert "largest difference" in said
    after = read_features(folder)
    check = after.provenance.check
    assert check is not None
    assert (check.rows, check.differing, after.provenance.doubt) == (5, 0, "")
    assert check.largest_difference <= 2**-11  # the last place of float16, in another batch
    assert "5 rows recomputed and equal (smallest cosine 1.000000" in str(after.provenance)
    assert after.content_digest == before.content_digest
    assert verify(folder) == []
    for command in ("list", "info"):
        assert sightline("cache", command, folder) == 0
        assert "5 rows recomputed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "seed"),
    [(lambda rows: rows * np.float16(2), 0), (lambda rows: -rows, 0), (as_they_are, 1)],
)
def test_rows_that_differ_are_recorded_and_no_later_sample_hides_them(
    world, tmp_path, change, seed
):
    folder = imported(world, tmp_path, change)
    assert extract(world, folder, "--check", 5, seed=seed) == 1
    provenance = read_features(folder).provenance
    assert (provenance.recomputed, provenance.doubt) == (0, "imported, differs when recomputed")
    assert "of 5 recomputed rows differ" in str(provenance)
    assert provenance.check is not None
    better = provenance.check.model_copy(update={"differing": 0, "rows": 1})
    assert provenance.checked(better) == provenance
    other = better.model_copy(update={"fingerprint": "f" * 64})
    assert provenance.checked(other).doubt == ""  # another encoder is another question
    if seed:
        assert extract(world, folder, "--check", 5) == 0
        assert read_features(folder).provenance.doubt == ""


def test_imported_rows_are_not_passed_off_as_computed_here(world, tmp_path):
    """Neither by copying them into another set, nor by an extraction into theirs."""
    words = ["cache", "export", world / "set", "--format", "npy", "--out", tmp_path / "out"]
    assert sightline(*words) == 0
    folder = tmp_path / "features/imported"
    assert sightline("cache", "import", tmp_path / "out", "--out", folder) == 0
    some = tmp_path / "images"
    some.mkdir()
    for path in sorted((world / "photos").iterdir())[:3]:
        shutil.copy(path, some)
    Image.new("RGB", (64, 64), "teal").save(some / "new.png")
    more = ["--data", some, "--copy-from", tmp_path / "features"]
    assert extract(world, tmp_path / "mine", *more) == 0
    mine = read_features(tmp_path / "mine")
    assert not mine.provenance.imported
    assert extract(world, folder, *more) == 0
    replaced = read_features(folder)
    assert (replaced.rows, replaced.provenance.imported) == (4, False)
    shards = [*mine.shards, *replaced.shards]
    assert all("imported_from" not in shard.computed for shard in shards)
