"""Hugging Face data sets: images in rows are written once, images with a path stay there."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_params import demo_params
from packed import column, load_all, picture, rows, samples, texts, write_tar
from saved_tables import README, STRUCT, save, table, write, write_arrow

from pipeline import layout, stages
from pipeline.datasets.huggingface import HuggingFaceSource
from pipeline.datasets.prepare import prepare as prepare_source
from pipeline.datasets.source import DatasetError
from pipeline.extract.decode import load_image
from pipeline.params import validate_params
from sightline.errors import SightlineError

pytest.importorskip("datasets")


def prepare(path, out, **given):
    return prepare_source(HuggingFaceSource(path=path, **given), out)


def test_the_images_of_a_saved_dataset_are_written_once(saved, out):
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    report = prepare(saved, out)
    names = [*(f"train/{n}" for n in range(5)), *(f"validation/{n}" for n in range(3))]
    assert column(out, "image_id") == names
    assert column(out, "split") == ["train"] * 5 + ["dev"] * 3
    assert column(out, "key") == [hashlib.sha256(picture(n)).digest() for n in range(8)]
    assert texts(out)["train/3#0"] == "caption 3"
    assert report.counts["files"] == 3
    assert report.shards["train/data-00000-of-00002.arrow"] == {"images": 3, "captions": 3}
    assert len(load_all(out)) == 8
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before
    assert "images were written to the folder images once" in report.summary()
    again = out.with_name("again")
    prepare(saved, again)
    tars = [(place / "images/00000.tar").read_bytes() for place in (out, again)]
    assert tars[0] == tars[1]


def test_a_full_tar_is_followed_by_another(saved, out, monkeypatch):
    monkeypatch.setattr("pipeline.datasets.image_tars._MOST_BYTES", 1)
    prepare(saved, out)
    assert column(out, "path") == [f"{number:05}.tar" for number in range(8)]
    assert len(load_all(out)) == 8


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_single_arrow_file(folder, out, new, compression):
    path = write_arrow(folder / "a.arrow", table(range(4)), new, compression=compression)
    prepare(path, out)
    assert column(out, "image_id") == ["0", "1", "2", "3"]
    assert len(load_all(out)) == 4


@pytest.mark.parametrize(
    "form",
    [
        {"compression": "none", "use_dictionary": False},
        {"data_page_size": 1, "row_group_size": 3},
        {"compression": "zstd"},
    ],
)
def test_parquet_rows_with_one_image_are_one_image(folder, out, form):
    chosen = table(range(5)).take([0, 1, 2, 3, 1, 4])  # image 1 has two rows
    pq.write_table(chosen, folder / "train-00000-of-00001.parquet", **form)
    prepare(folder, out)
    keys = [hashlib.sha256(picture(n)).digest() for n in range(5)]
    assert column(out, "key") == keys
    assert len(load_all(out)) == 5
    assert texts(out)["train/1#1"] == "caption 1"


def test_rows_with_bytes_may_be_joined_by_rows_with_a_path_but_not_the_other_way_round(folder, out):
    (folder / "1.png").write_bytes(picture(1))
    both = [{"bytes": picture(0), "path": "gone.png"}, {"bytes": None, "path": "1.png"}]
    made = pa.table({"image": pa.array(both, STRUCT), "caption": ["a", "b"]})
    pq.write_table(made, folder / "a.parquet")
    prepare(folder, out)
    assert len(load_all(out)) == 2
    pq.write_table(made.take([1, 0]), folder / "a.parquet")
    with pytest.raises(DatasetError, match="row train/1 holds its image, but earlier ones name"):
        prepare(folder, out)


LISTS = [["one", "two"], [], None, ["", "three"]]


@pytest.mark.parametrize(
    ("said", "kept", "empty"),
    [
        (["\u2800", "\u3164", "", "seen \n"], {"3#0": "seen"}, ["0#0", "1#0", "2#0"]),
        (LISTS, {"0#0": "one", "0#1": "two", "3#1": "three"}, ["2#0", "3#0"]),
    ],
)
def test_captions_are_texts_or_lists(folder, out, said, kept, empty):
    report = prepare(write_arrow(folder / "a.arrow", table(range(4), said)), out)
    assert texts(out) == kept
    assert report.problems.get("empty_captions", []) == empty
    assert report.counts.get("captions_trimmed", 0) == ("seen" in kept.values())


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary()])
def test_a_column_of_plain_bytes(folder, out, kind):
    said = pa.array(["a", "b", "c"], pa.large_string())
    columns = {"jpg": pa.array([picture(n) for n in range(3)], kind), "txt": said}
    prepare(
        write(folder / "x.parquet", pa.table(columns)),
        out,
        image_column="jpg",
        caption_column="txt",
    )
    assert len(load_all(out)) == 3


def test_columns_of_usual_names_structs_lists_and_ids(folder, out):
    """As Karpathy's COCO lies on the hub: objects in lists, and further columns."""
    sentences = [[{"raw": "one", "id": 7}, {"raw": "two", "id": 8}], [{"raw": "three", "id": 9}]]
    columns = {
        "image": [picture(n) for n in range(2)],
        "sentences": sentences,
        "filepath": ["a"] * 2,
    }
    pq.write_table(pa.table({**columns, "title": ["t", None]}), folder / "a.parquet")
    report = prepare(folder, out, caption_column="sentences.raw", caption_id_column="sentences.id")
    assert texts(out) == {"7": "one", "8": "two", "9": "three"}
    assert any(
        "column 'title' is not used; `caption_column` chooses it" in n for n in report.guesses
    )
    prepare(folder, out, caption_column=["title", "sentences.raw"])
    assert list(texts(out).values()) == ["t", "one", "two", "three"]
    report = prepare(folder, out)
    assert texts(out) == {"train/0#0": "t"}
    assert report.guesses[0] == "a.parquet: column 'title' read as caption"


def test_paths_are_read_below_the_dataset_only(folder, out):
    prepare(write(folder / "a.parquet", table(range(2))), out)
    assert (out / "images").is_dir()
    (folder / "photos").mkdir()
    for n in range(2):
        (folder / f"photos/{n}.png").write_bytes(picture(n))
    (folder.parent / "secret.png").write_bytes(picture(9))
    paths = ["photos/0.png", str(folder / "photos/1.png"), "../secret.png", "/etc/hostname"]
    paths += ["gone.png", "a\0b", None, "https://example.org/x.png", "photos"]
    named = pa.table({"image": paths, "caption": ["x"] * len(paths)})
    pq.write_table(named, folder / "a.parquet")
    report = prepare(folder, out, splits={"train": "train"})
    assert column(out, "path") == ["photos/0.png", "photos/1.png"]
    assert column(out, "offset") == [None, None]
    assert not (out / "images").exists()  # the tars of the earlier form
    assert report.problem_counts == {
        "images_outside_their_folder": 2,
        "images_without_file": 3,
        "rows_without_image": 1,
        "urls_in_place_of_images": 1,
    }
    assert len(load_all(out)) == 2
    for given in ({}, {"images": folder}):
        prepare(folder / "a.parquet", out, **given)
        assert len(load_all(out)) == 2


def test_splits_are_chosen_and_named(saved, out):
    report = prepare(saved, out, splits={"test": "validation"})
    assert set(column(out, "split")) == {"test"}
    assert report.counts["images"] == 3
    with pytest.raises(DatasetError, match="has no split 'dev'; it has train, validation"):
        prepare(saved, out, splits={"dev": "dev"})
    with pytest.raises(DatasetError, match="`images` does not apply"):
        prepare(saved, out, images=saved)


def test_a_column_of_splits(folder, out):
    split = ["train", "val", "test", "train", ""]
    save(folder, everything=table(range(5), split=split))
    prepare(folder, out, split_column="split")
    assert column(out, "split") == ["train", "dev", "test", "train", ""]
    with pytest.raises(DatasetError, match="unknown split 'everything'"):
        prepare(folder, out)
    with pytest.raises(
        DatasetError, match=r"column caption \(choose as splits\.dev=\[…\]\): unknown split"
    ):
        prepare(folder, out, split_column="caption")


def test_a_column_of_splits_that_gives_ids_is_not_unused(folder, out):
    ids = [f"id {n}" for n in range(5)]
    pq.write_table(table(range(5), split=ids), folder / "train.parquet")
    report = prepare(folder, out, caption_id_column="split")
    assert column(out, "caption_id", "captions") == ids
    assert not any("is not used" in note for note in report.notes)


@pytest.mark.parametrize("chosen", ["[train, restval]", "train"])
def test_restval_of_karpathy_can_be_trained_on_or_left_out(folder, out, chosen, said):
    split = ["train", "val", "test", "restval", None]
    save(folder, everything=table(range(5), split=split))
    words = ["--split-column", "split", "--splits", f"train={chosen}"]
    words += ["--splits", "dev=val", "--out", out]
    code, shown, _ = said("prepare", "huggingface", "--path", f"{folder}", *words)
    assert code == 0
    train = ["train", "train"] if "restval" in chosen else ["train"]
    assert sorted(column(out, "split")) == ["dev", *train]
    assert f"{4 - len(train)} rows of other splits" in shown
    with pytest.raises(
        DatasetError,
        match=r"no row has 'valid', which `splits\.dev` names; it has restval, test, train, v",
    ):
        prepare(folder, out, split_column="split", splits={"train": "train", "dev": "valid"})
    twice = {"train": ["restval"], "test": "restval"}
    with pytest.raises(ValueError, match="takes 'restval' for 2 splits"):
        prepare(folder, out, split_column="split", splits=twice)


def test_several_splits_can_be_one(saved, out):
    prepare(saved, out, splits={"train": ["train", "validation"]})
    assert column(out, "split") == ["train"] * 8


TEXTS = ["a", "b", "c"]
STRINGS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.run_end_encoded(pa.int32(), pa.string()),
]
LISTED = [pa.list_, pa.large_list, lambda of: pa.list_(of, 2), pa.list_view, pa.large_list_view]


def of(texts: list[str], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_run_end_encoded(kind):
        return pa.array(texts, kind)
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(texts) + 1), pa.int32()), texts)


@pytest.mark.parametrize("kind", STRINGS, ids=str)
def test_every_string_of_arrow_is_text(folder, out, kind):
    write_arrow(folder / "a.arrow", table(range(3), of(TEXTS, kind), split=of(["train"] * 3, kind)))
    prepare(folder, out, split_column="split")
    assert list(texts(out).values()) == TEXTS


@pytest.mark.parametrize("inner", [pa.string(), pa.string_view(), STRINGS[3]], ids=str)
@pytest.mark.parametrize("outer", LISTED)
def test_every_list_of_arrow_holds_texts(folder, out, outer, inner):
    said = pa.array([[text, text + text] for text in TEXTS], outer(inner))
    write_arrow(folder / "a.arrow", table(range(3), said))
    prepare(folder, out)
    assert list(texts(out).values()) == ["a", "aa", "b", "bb", "c", "cc"]


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())], ids=str)
def test_every_binary_of_arrow_is_an_image(folder, out, kind):
    columns = {"image": pa.array([picture(n) for n in range(3)], kind), "caption": TEXTS}
    prepare(write(folder / "x.arrow", pa.table(columns)), out)
    assert len(load_all(out)) == 3


def test_an_image_in_two_splits_is_reported_and_complete_splits_miss_no_file(folder, out):
    save(folder, train=table(range(3)), test=table(range(2, 4)))
    names = {path.name for path in folder.rglob("*.arrow")}
    assert len(names) == 1  # the same in both splits
    assert prepare(folder, out, strict=False).problems == {"images_in_two_splits": ["test/0"]}


def test_missing_files_of_a_series_are_noticed(folder, out):
    pq.write_table(table(range(3)), folder / "train-00001-of-00004.parquet")
    report = prepare(folder, out)
    wanted = "1 of 4 files train-*-of-00004.parquet are in data; get the others too"
    assert report.problems["missing_files"] == [wanted]
    assert f"warning: {wanted}" in report.summary()
    with pytest.raises(DatasetError, match="missing files: 1"):
        prepare(folder, out, strict=True)


LATIN = pa.array([b"caf\xe9"]).view(pa.string())
EMPTY = {"image": pa.array([], pa.binary()), "caption": pa.array([], pa.string())}
SIZED = [{"bytes": b"x", "width": 3}]
WRONG = [
    ({"caption": ["x"]}, "found 'caption'; expected image (or file_name"),
    ({"image": [5], "caption": ["x"]}, "column 'image' is int64, expected bytes"),
    ({"image": SIZED, "caption": ["x"]}, "expected bytes, a path, or a struct of both"),
    ({"image": [b"x"], "body": ["x"]}, "found 'image', 'body'; expected caption (or captions"),
    ({"image": [b"x"], "text": ["x"], "title": ["y"]}, "'text' and 'title' may both be the capt"),
    ({"url": ["http://x/a.jpg"], "caption": ["y"]}, "'url' gives URLs, expected names of images"),
    ({"image": ["http://x/a.jpg"], "caption": ["y"]}, "fetch them with `img2dataset --output"),
    ({"image": [b"x"], "caption": [[5]]}, "expected a string or a list of strings"),
    ({"image": [b"x"], "caption": ["\u200b"]}, "no usable caption"),
    ({"image": [b"x"], "caption": LATIN}, "damaged, or not such a file (In column 1: Invalid: Inv"),
    (EMPTY, "found 0 images"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_wrong_columns_are_one_error(folder, out, columns, message, suffix):
    with pytest.raises(SightlineError) as error:
        prepare(write(folder / f"a.{suffix}", pa.table(columns)), out)
    assert message in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_damaged_files_are_one_error_or_the_same_images(folder, out, suffix):
    path = write(folder / f"a.{suffix}", table(range(3)))
    whole = path.read_bytes()
    keys = {hashlib.sha256(picture(n)).digest() for n in range(3)}
    cut = [whole[:size] for size in (0, 1, 7, *range(8, len(whole), 101))]
    flips = range(0, len(whole), 37)
    flipped = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in flips]
    for data in cut + flipped:
        path.write_bytes(data)
        refusal = ""
        try:
            prepare(path, out)
        except SightlineError as error:
            refusal = str(error)
        if refusal:
            assert data in flipped or str(path) in refusal
            continue
        assert data in flipped or set(column(out, "key")) <= keys
        for image in rows(out):
            tar = (out / "images" / image["path"]).read_bytes()
            found = tar[image["offset"] :][: image["length"]]
            assert hashlib.sha256(found).digest() == image["key"]


def test_other_folders_are_refused_with_the_reason(folder, out):
    def refused(message: str, path: Path = folder) -> None:
        with pytest.raises(DatasetError, match=message):
            prepare(path, out)
        assert not out.exists()

    refused("no such file or folder", folder / "gone")
    refused("contains no Parquet or Arrow files")
    (folder / "a.csv").write_text("image,caption\na.png,x\n")
    refused("is not a Parquet or Arrow file; give one", folder / "a.csv")
    (folder / "a.png").write_bytes(picture(0))
    refused("for a folder of images `pairs`")
    pq.write_table(table(range(3)), folder / "a.parquet")
    for outside in ("../other/*.parquet", "/etc/hostname", "https://example.org/a.parquet"):
        (folder / "README.md").write_text(README.format(outside))
        refused("not a data set that `datasets` can read")


def test_one_of_several_configurations_is_chosen(folder, out):
    sections = []
    for name in ("en", "de"):
        (folder / name).mkdir()
        pq.write_table(table(range(2)), folder / name / "a.parquet")
        sections.append(f"- config_name: {name}\n  data_files: {name}/*.parquet\n")
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(sections) + "---\n")
    for config, found in ((None, "and none is chosen"), ("fr", "and no 'fr'")):
        said = rf"data: has the configurations en, de, {found}; choose one with `config`"
        with pytest.raises(DatasetError, match=said):
            prepare(folder, out, config=config)
    assert prepare(folder, out, config="de").counts["images"] == 2


def test_folders_of_splits_as_spark_and_pandas_write_them(folder, out):
    for number, split in enumerate(("train", "val")):
        (folder / f"split={split}").mkdir()
        pq.write_table(table(range(number, number + 1)), folder / f"split={split}" / "0.parquet")
    prepare(folder, out)
    assert column(out, "split") == ["train", "dev"]


def test_tables_beside_a_script_are_read_without_running_it(folder, out):
    pq.write_table(table(range(3)), folder / "a.parquet")
    (folder / "data.py").write_text(f"open({str(out)!r}, 'w')")
    assert prepare(folder, out).counts["images"] == 3


def test_descriptions_choose_configurations_and_what_no_split_has_is_counted(folder, out):
    for number, name in enumerate(("one", "two", ".hidden", "__own/three")):
        (folder / "__own").mkdir(exist_ok=True)
        pq.write_table(table(range(number, number + 1)), folder / f"{name}.parquet")
    (folder / "b.arrow").write_bytes(b"")  # the other kind of file
    report = prepare(folder, out)
    assert report.counts["images"] == 2
    unread = [".hidden.parquet", "__own/three.parquet", "b.arrow"]
    assert report.problems == {"tables_not_read": unread}
    two = "- config_name: second\n  data_files: two.parquet\n---"
    (folder / "README.md").write_text("---" + README.format("one.parquet")[3:-4] + two)
    assert prepare(folder, out.with_name("b"), config="second").counts["images"] == 1
    with pytest.raises(DatasetError, match="default, second, and no 'other'; choose one with"):
        prepare(folder, out, config="other")


def test_a_saved_data_set_is_read_as_its_state_says(saved, out):
    shutil.copyfile(saved / "train/data-00000-of-00002.arrow", saved / "train/cache-0.arrow")
    assert prepare(saved, out).problems == {}
    state = json.loads((saved / "train/state.json").read_text())

    def refused(message: str, **changed: object) -> None:
        (saved / "train/state.json").write_text(json.dumps(state | changed))
        with pytest.raises(SightlineError, match=message):
            prepare(saved, out)

    refused("its description names other.arrow", _data_files=[{"filename": "../other.arrow"}])
    refused("_data_files: is missing|_data_files", _data_files=None)
    refused("flatten_indices", _indices_data_files=[{"filename": "indices.arrow"}])


def test_the_graph_reads_images_where_they_are(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoded").mkdir()
    pq.write_table(table(range(20, 23)), "encoded/a.parquet")
    write_tar(tmp_path / "tars/0.tar", samples(*range(30, 34)))
    (tmp_path / "loose").mkdir()
    for n in range(2):
        (tmp_path / f"loose/{n}.png").write_bytes(picture(40 + n))
    (tmp_path / "loose/c.token").write_text("0.png#0\tone")
    given = demo_params()
    given["datasets"] |= {
        "loose": {"kind": "pairs", "source": "loose", "images": ".", "captions": "c.token"},
        "arrow": {"kind": "huggingface", "source": "data"},
        "parquet": {"kind": "huggingface", "source": "encoded"},
        "tar": {"kind": "webdataset", "source": "tars"},
    }
    given["joined"] = {
        "two": {"first": "arrow", "second": "parquet"},
        "three": {"first": "two", "second": "tar"},
        "all": {"first": "three", "second": "loose"},
    }
    given["graph"] |= {"pairs": "all", "grounded": [], "object_encoders": []}
    params = validate_params(given, "params.yaml")
    counts = {"loose": 2, "arrow": 8, "parquet": 3, "tar": 4, "two": 11, "three": 15, "all": 17}
    for name, count in counts.items():
        stages.prepare(params, name)
        entries = layout.feature_inputs(name, "image").entries
        assert len([load_image(entry.place, entry.key) for entry in entries]) == count
