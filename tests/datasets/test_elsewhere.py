"""Images that stay in object storage or on a web server: prepared and read in place."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from command_line import sightline, unboxed
from demo_params import demo_params
from packed import column, load_all, picture, sample, samples, texts, write_tar
from shelves import SHELVES, Shelf, s3_shelf, web_shelf
from shown_commands import ROOT
from small_inputs import write_clip

from pipeline.datasets.joined import common_root
from pipeline.datasets.prepare import prepare_dataset
from pipeline.datasets.source import DatasetError, Source
from pipeline.extract.decode import ImageError, load_image
from pipeline.extract.decode_batches import decode_batch, decoded_batches
from pipeline.extract.inputs import inputs_of
from sightline.cache import FeatureSet
from sightline.cache.feature_kind import IMAGE
from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError
from sightline.files import storage
from sightline.files.storage import StorageError

MANIFESTS = ("images.parquet", "captions.parquet", "sentences.parquet")
SHARDS = "{00000..00002}.tar"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(storage, "_BLOCK", 4096)


@pytest.fixture
def tars(tmp_path) -> Path:
    """Three tars of two samples each, the second without its end."""
    for number in range(3):
        write_tar(tmp_path / f"shelf/{number:05}.tar", samples(2 * number, 2 * number + 1))
    cut = tmp_path / "shelf/00001.tar"
    cut.write_bytes(cut.read_bytes()[:8192])
    return tmp_path / "shelf"


@pytest.fixture(params=SHELVES)
def shelf(request, tars, monkeypatch) -> Iterator[Shelf]:
    with SHELVES[request.param](tars, monkeypatch) as served:
        yield served


def written(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in MANIFESTS}


def read_of(shelf: Shelf) -> set[str]:
    """The files whose bytes were asked for since the last call."""
    asked = {path.rpartition("/")[2] for method, path, _ in shelf.faults.asked if method == "GET"}
    shelf.faults.asked.clear()
    return {name for name in asked if name.endswith((".tar", ".png", ".parquet"))}


# --- tars


def test_tars_elsewhere_give_the_manifests_of_those_here(shelf, tars, out, tmp_path):
    given = {"shards": SHARDS}
    prepare_dataset("webdataset", tmp_path / "here", images=tars, **given)
    data = prepare_dataset("webdataset", out, images=shelf.url, **given)
    assert written(out) == written(tmp_path / "here")
    record = json.loads((out / "dataset.json").read_text())
    assert record["images"] == shelf.url == data.image_root
    assert record["problem_counts"]["incomplete_shards"] == 1
    assert PreparedDataset.open(out).require_images() == shelf.url
    assert len(load_all(out)) == 6
    for number in range(3):  # each byte once, and what two pictures of it take
        path = shelf.path(f"{number:05}.tar")
        size = (tars / f"{number:05}.tar").stat().st_size
        assert shelf.faults.bytes_asked(path) == size + len(picture(2 * number)) * 2


def test_only_new_and_changed_tars_are_read_again(shelf, tars, out, tmp_path):
    given = {"images": shelf.url, "shards": SHARDS}
    prepare_dataset("webdataset", out, **given)
    read_of(shelf)
    prepare_dataset("webdataset", out, **given)
    assert read_of(shelf) == set()
    write_tar(tmp_path / "new.tar", samples(2, 9))
    shelf.write("00001.tar", (tmp_path / "new.tar").read_bytes())
    prepare_dataset("webdataset", out, **given)
    assert read_of(shelf) == {"00001.tar"}
    prepare_dataset("webdataset", tmp_path / "here", images=tars, shards=SHARDS)
    assert written(out) == written(tmp_path / "here")
    read_of(shelf)
    prepare_dataset("webdataset", out, verify=True, **given)
    assert len(read_of(shelf)) == 3


def test_a_tar_that_fails_ends_the_run_and_is_read_alone_the_next_time(shelf, out):
    given = {"images": shelf.url, "shards": SHARDS}
    shelf.faults.of[shelf.path("00001.tar")] = [503] * 50
    with pytest.raises(
        DatasetError, match=r"1 of 3 shards could not be read, such as 00001.tar \(.*run the same"
    ):
        prepare_dataset("webdataset", out, **given)
    assert not (out / "images.parquet").exists()
    shelf.faults.of.clear()
    read_of(shelf)
    prepare_dataset("webdataset", out, **given)
    assert read_of(shelf) == {"00001.tar"}


def test_a_tar_that_changes_while_it_is_read_is_read_again(shelf, tars, out, tmp_path):
    write_tar(tmp_path / "new.tar", samples(7, 8))
    change = lambda: shelf.write("00000.tar", (tmp_path / "new.tar").read_bytes())  # noqa: E731
    shelf.faults.of[shelf.path("00000.tar")] = [lambda: None, change]
    with pytest.raises(DatasetError, match=r"00000.tar \((it changed while it was read|no such)"):
        prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
    prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
    prepare_dataset("webdataset", tmp_path / "here", images=tars, shards=SHARDS)
    assert written(out) == written(tmp_path / "here")


def test_every_tar_that_is_named_must_be_there(shelf, out):
    with pytest.raises(DatasetError, match=r"1 of the 4 files .* not there, such as 00003.tar"):
        prepare_dataset("webdataset", out, images=shelf.url, shards="{00000..00003}.tar")
    if shelf.url.startswith("https"):
        for pattern in (None, "*.tar"):
            with pytest.raises(SightlineError, match="does not tell what lies below a folder"):
                prepare_dataset("webdataset", out, images=shelf.url, shards=pattern)
        return
    for pattern in (None, "*.tar", "{0..1}.tar"):
        nowhere = re.sub("//cache/", "//nowhere/", shelf.url)
        with pytest.raises(SightlineError, match=f"^{nowhere}.*: no such bucket; "):
            prepare_dataset("webdataset", out, images=nowhere, shards=pattern)
    with pytest.raises(DatasetError, match=r"no shard matches '\*.zip'.* contains '00000.tar'"):
        prepare_dataset("webdataset", out, images=shelf.url, shards="*.zip")
    shelf.write("more/3.tar", b"")
    prepare_dataset("webdataset", out, images=shelf.url)
    record = json.loads((out / "dataset.json").read_text())
    assert record["problems"]["shards_not_read"] == ["more/3.tar"]
    assert record["counts"]["shards"] == 3


# --- folders of images


@pytest.fixture
def photographs(shelf) -> Iterator[str]:
    """The URL of photographs, on a web server those that braces name."""
    for number in range(4):
        shelf.write(f"photos/sub/{number}.png", picture(number))
    shelf.write("photos/notes.txt", b"mine")
    return f"{shelf.url}/photos" + ("/sub/{0..3}.png" if shelf.url.startswith("https") else "")


def test_a_folder_of_photographs(shelf, photographs, make_file, out, tmp_path):
    captions = make_file("c.csv", "image,caption\n" + "".join(f"{n}.png,a\n" for n in range(4)))
    prepare_dataset("pairs", out, images=photographs, captions=captions)
    below = "sub" if shelf.url.startswith("https") else ""
    local = shelf.folder / "photos" / below
    prepare_dataset("pairs", tmp_path / "here", images=local, captions=captions)
    assert written(out) == written(tmp_path / "here")
    assert len(load_all(out)) == 4
    read_of(shelf)
    shelf.write("photos/sub/1.png", picture(9))
    prepare_dataset("pairs", out, images=photographs, captions=captions)
    assert read_of(shelf) == {"1.png"}
    assert len(load_all(out)) == 4


def test_a_photograph_that_is_refused_costs_itself_and_a_fault_that_may_pass_the_run(
    shelf, photographs, make_file, out
):
    captions = make_file("c.csv", "image,caption\n0.png,a\n")
    shelf.faults.of[shelf.path("photos/sub/2.png")] = [403]
    prepare_dataset("pairs", out, images=photographs, captions=captions)
    problems = json.loads((out / "dataset.json").read_text())["problems"]
    assert [name.rpartition("/")[2] for name in problems["unreadable_images"]] == ["2.png"]
    shelf.faults.of[shelf.path("photos/sub/2.png")] = [503] * 50
    with pytest.raises(DatasetError, match=r"1 of 4 images could not be read, such as .*2.png"):
        prepare_dataset("pairs", out, images=photographs, captions=captions)


def test_names_with_the_folders_of_photographs_elsewhere(shelf, photographs, make_file, out):
    names = ["photos/sub/0.png", "album/1.png", "https://cdn/a/photos/sub/2.png?w=3", "sub/3.png"]
    lines = [json.dumps({"image": name, "caption": "a"}) for name in names]
    if shelf.url.startswith("https"):
        lines.pop(2)  # a table of URLs of web servers is refused
    else:
        lines[2] = lines[2].replace("https://cdn/a", shelf.url).replace("?w=3", "")
    captions = make_file("c.jsonl", "\n".join(lines))
    prepare_dataset("pairs", out, images=photographs, captions=captions)
    found = {path.rpartition("/")[2] for path in column(out, "image_id", "captions")}
    assert found == {"0.png", "3.png"} | (set() if shelf.url.startswith("https") else {"2.png"})
    problems = json.loads((out / "dataset.json").read_text())["problems"]
    assert problems["captions_without_image"] == ["album/1.png"]


def test_captions_beside_photographs_elsewhere_are_refused(photographs, out):
    with pytest.raises(DatasetError, match="`beside` reads captions beside images on this machine"):
        prepare_dataset("pairs", out, images=photographs, beside="txt")


# --- extraction


def encoder(folder: Path) -> list[object]:
    """Options of `sightline extract` for a small CLIP."""
    return ["--encoder", write_clip(folder), "--weights", "random:0", "--workers", 0]


class Reader:
    """Reads images as a model does that looks at one pixel."""

    channels, size = 3, (1, 1)

    def __call__(self, entry):
        return load_image(entry.place, entry.key)[:, :1, :1]


def test_a_batch_is_read_several_images_at_once_and_what_is_not_there_costs_its_row(shelf, out):
    prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
    entries = inputs_of("image", out).entries[:6]
    pixels, failed, _ = decode_batch(entries, 8, Reader())
    assert not failed
    assert pixels[:6, 0, 0, 0].tolist() == list(range(6))

    write_tar(shelf.folder / "00001.tar", samples(2, 3)[::-1])
    shelf.put()
    with pytest.raises(ImageError, match="changed"):
        load_image(entries[2].place, entries[2].key)
    (shelf.folder / "00001.tar").write_bytes(b"short")
    shelf.put()
    with pytest.raises(ImageError, match=r"outside: its place is bytes .* of a file that has 5"):
        load_image(entries[2].place, entries[2].key)
    shelf.faults.of[shelf.path("00001.tar")] = [410] * 50
    pixels, failed, _ = decode_batch(entries, 8, Reader())
    assert [*failed] == [entry.key for entry in entries[2:4]]
    assert pixels[[0, 1, 4, 5], 0, 0, 0].tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_has_died_is_no_fault_of_the_rows(shelf, out, workers):
    prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
    entries = inputs_of("image", out).entries[:6]
    shelf.faults.of[shelf.path("00001.tar")] = [503] * 50
    decoded = decoded_batches(iter([entries[:2], entries[2:]]), 4, Reader(), workers)
    assert not next(decoded).failed
    with pytest.raises(StorageError, match=r"00001\.tar: "):
        next(decoded)
    shelf.faults.of.clear()
    assert not decode_batch(entries, 8, Reader()).failed


def test_what_is_done_when_a_server_dies_is_kept_and_nothing_is_marked(
    tars, out, tmp_path, monkeypatch, capsys
):
    words = ["extract", "image", "--data", out, "--out", out.with_name("features")]
    words += [*encoder(tmp_path), "--batch-size", 2]
    monkeypatch.setitem(vars(IMAGE), "block_rows", 2)
    with web_shelf(tars, monkeypatch) as shelf:
        prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
        keys = PreparedDataset.open(out).images.sort_by("key")["path"].to_pylist()
        shelf.faults.of[f"/{keys[-1]}"] = [503] * 50
        assert sightline(*words) == 1
        said = unboxed(capsys.readouterr().err)
        assert "HTTP 503. Once the server answers, rerun the same command to resume" in said
        assert "images are done and kept" in said
        shelf.faults.of.clear()
        assert sightline(*words) == 0
        features = FeatureSet.open(out.with_name("features"))
        assert (len(features), features.failed) == (6, {})


def test_decode_processes_read_elsewhere_too(shelf, out):
    prepare_dataset("webdataset", out, images=shelf.url, shards=SHARDS)
    entries = inputs_of("image", out).entries[:6]
    batches = iter([entries[:3], entries[3:]])
    # forked while fsspec is in use
    decoded = list(decoded_batches(batches, 3, Reader(), workers=2))
    assert not any(batch.failed for batch in decoded)
    assert [int(p) for batch in decoded for p in batch.pixels[:, 0, 0, 0]] == list(range(6))


# --- the graph


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "project"
    (root / "data/raw").mkdir(parents=True)
    monkeypatch.chdir(root)
    beside = Path(sys.executable).parent  # `sightline`, which DVC starts
    monkeypatch.setenv("PATH", f"{beside}{os.pathsep}{os.environ['PATH']}")
    dvc("init", "--no-scm")
    shutil.copyfile(ROOT / "dvc.yaml", root / "dvc.yaml")
    return root


def dvc(*words: str) -> None:
    from dvc.cli import main

    assert main([*words]) == 0


def prepared() -> None:
    """As `dvc repro prepare@tars` leaves it, without a process for each stage."""
    assert sightline("stage", "inputs") == 0
    assert sightline("stage", "prepare", "tars") == 0
    dvc("commit", "-f", "inputs", "prepare@tars")


def dvc_status(stage: str) -> str:
    """What DVC has to say of a stage: nothing of one that is up to date."""
    from dvc.repo import Repo

    with Repo() as repo:
        found = repo.status([stage])
    return json.dumps(found) if found else ""


def configured(**dataset: str) -> None:
    """The demo's parameters, with a data set called tars."""
    params = demo_params()
    params["datasets"]["tars"] = {"kind": "webdataset", **dataset}
    Path("params.yaml").write_text(yaml.safe_dump(params))


@pytest.mark.slow
def test_dvc_watches_a_folder_of_object_storage(tars, tmp_path, monkeypatch, project):
    with s3_shelf(tars, monkeypatch) as shelf:
        configured(source=shelf.url, shards="*.tar")
        prepared()
        assert len(PreparedDataset.open("data/datasets/tars").images) == 6
        assert not dvc_status("prepare@tars")
        write_tar(tmp_path / "new.tar", samples(0, 7, 8))
        shelf.write("00000.tar", (tmp_path / "new.tar").read_bytes())
        assert "s3://cache/raw" in dvc_status("prepare@tars")
        shelf.faults.asked.clear()
        dvc("repro", "prepare@tars")
        assert read_of(shelf) == {"00000.tar"}
        assert len(PreparedDataset.open("data/datasets/tars").images) == 7


def test_a_list_here_stands_for_what_dvc_cannot_watch(tars, monkeypatch, project):
    with web_shelf(tars, monkeypatch) as shelf:
        Path("data/raw/tars.txt").write_text("00000.tar to 00002.tar, of May\n")
        configured(source="data/raw/tars.txt", images=shelf.url, shards=SHARDS)
        prepared()
        assert len(PreparedDataset.open("data/datasets/tars").images) == 6
        assert not dvc_status("prepare@tars")
        Path("data/raw/tars.txt").write_text("00000.tar to 00002.tar, of June\n")
        assert "tars.txt" in dvc_status("prepare@tars")


# --- secrets


def test_a_signature_is_in_no_record_and_no_message(tars, out, monkeypatch, capsys):
    with web_shelf(tars, monkeypatch, secret="sig=s3cr3t") as shelf:
        url = f"{shelf.url}?sig=s3cr3t"
        words = ["prepare", "webdataset", "--images", url, "--out", out]
        assert sightline(*words, "--shards", SHARDS) == 0
        monkeypatch.delenv(storage.SIGNED_URLS, raising=False)
        with pytest.raises(StorageError, match="access denied; give the signed URL in the environ"):
            load_all(out)
        monkeypatch.setenv(storage.SIGNED_URLS, url)
        assert len(load_all(out)) == 6
        assert len(PreparedDataset.open(out, images=url).images) == 6
        shelf.faults.of["/00001.tar"] = [503] * 50
        assert sightline(*words, "--shards", SHARDS, "--verify") == 1
        for pattern in ("{00000..00003}.tar", "*.tar", "{5..1}.tar"):
            assert sightline(*words, "--shards", pattern) in (1, 2)
        assert sightline(*words, "--splits", f"train={SHARDS}", "--image-part", "jpg") == 1
        said = capsys.readouterr()
        assert "s3cr3t" not in said.out + said.err
    files = [path for path in out.parent.rglob("*") if path.is_file()]
    assert any(path.name == "remembered.parquet" for path in files)
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


# --- settings


def test_paths_start_from_a_source_elsewhere():
    source = Source.model_validate({"kind": "webdataset", "source": "s3://bucket/raw"})
    assert source.image_root(Path("out")) == "s3://bucket/raw"
    assert source.inputs() == ["s3://bucket/raw"]
    given = {"kind": "pairs", "source": "s3://bucket/raw", "images": "photos"}
    source = Source.model_validate({**given, "captions": "/data/c.csv"})
    assert source.image_root(Path("out")) == "s3://bucket/raw/photos"
    with pytest.raises(ValueError, match=r"(?s)captions.*starts from a URL, but this fi"):
        Source.model_validate({**given, "captions": "c.csv"})
    local = {"kind": "pairs", "source": "data/raw", "captions": "c.csv"}
    source = Source.model_validate({**local, "images": "s3://bucket/photos"})
    assert source.inputs() == ["s3://bucket/photos", Path("data/raw/c.csv")]


@pytest.mark.parametrize("kind", ["pairs", "coco", "webdataset"])
def test_other_protocols_are_refused_by_every_kind(kind, capsys):
    url = "simplecache::file:///etc/hostname"
    assert sightline("prepare", kind, "--images", url, "--out", "o") == 2
    assert "expected s3://, gs://, https://" in unboxed(capsys.readouterr().err)


def test_a_url_in_rows_is_no_place(make_images, make_file, out, tmp_path):
    captions = make_file("c.csv", "image,caption\ns3://bucket/a.png,a\nb.png,b\n")
    prepare_dataset("pairs", out, images=make_images(["b.png"]), captions=captions)
    problems = json.loads((out / "dataset.json").read_text())["problems"]
    assert problems["captions_without_image"] == ["s3://bucket/a.png"]


def test_joined_sets_have_one_root():
    assert common_root(["s3://b/x/one", "s3://b/x/two"]) == "s3://b/x"
    assert common_root(["https://h/one", "https://h/two/more"]) == "https://h"
    for others in (["s3://a/x", "s3://b/x"], [Path("photos"), "s3://b/x"]):
        with pytest.raises(DatasetError, match="joined data sets have theirs in one place"):
            common_root(others)


def test_joined_tars_elsewhere(shelf, out, tmp_path):
    for name, numbers in (("one", "{00000..00000}"), ("two", "{00002..00002}")):
        prepare_dataset("webdataset", tmp_path / name, images=shelf.url, shards=f"{numbers}.tar")
    parts = {"one": tmp_path / "one", "two": tmp_path / "two"}
    prepare_dataset("joined", out, parts=parts)
    assert column(out, "path") == ["00000.tar"] * 2 + ["00002.tar"] * 2
    assert len(load_all(out)) == 4
    assert len(texts(out)) == 4


def test_a_caption_is_read_with_its_image(shelf, out):
    write_tar(shelf.folder / "00002.tar", sample("key", 4, "a big dog"))
    shelf.put()
    prepare_dataset("webdataset", out, images=shelf.url, shards="{00002..00002}.tar")
    assert texts(out) == {"00002.tar/key.png#0": "a big dog"}


# --- tables, and folders that are not prepared


def test_parquet_elsewhere_gives_the_manifests_of_that_here(shelf, out, tmp_path):
    for number in range(2):
        images = [{"bytes": picture(2 * number + n), "path": "a.png"} for n in range(2)]
        table = pa.table({"image": images, "caption": ["a dog", "a cat"]})
        pq.write_table(table, shelf.folder / f"{number}.parquet")
    shelf.put()
    prepare_dataset("huggingface", tmp_path / "here", path=shelf.folder)
    braces = "/{0..1}.parquet"
    prepare_dataset("huggingface", out, path=shelf.url + braces)
    assert written(out) == written(tmp_path / "here")
    if not shelf.url.startswith("https"):
        prepare_dataset("huggingface", out, path=shelf.url)
        assert written(out) == written(tmp_path / "here")
    prepare_dataset("huggingface", out, path=f"{shelf.url}/1.parquet")
    assert len(column(out, "path")) == 2
    with pytest.raises(DatasetError, match=r"1 of the 1 files that 'none.parquet' names are not"):
        prepare_dataset("huggingface", out, path=f"{shelf.url}/none.parquet")
    shelf.write("0.parquet", b"PAR1 and no more")
    with pytest.raises(SightlineError, match=r"0.parquet: damaged, or not such a file"):
        prepare_dataset("huggingface", out, path=f"{shelf.url}/0.parquet")


def test_features_of_a_folder_elsewhere(shelf, photographs, tmp_path):
    out = tmp_path / "features"
    words = ["extract", "image", *encoder(tmp_path)]
    assert sightline(*words, "--data", photographs, "--out", out) == 0
    assert len(FeatureSet.open(out)) == 4
    assert sightline(*words, "--data", "file:///etc", "--out", out) == 2
    with pytest.raises(SightlineError, match="made of files on this machine"):
        inputs_of("text", photographs)


def test_parts_encoded_without_a_shared_disk_become_one_set(tars, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    clip = encoder(tmp_path)

    def encoded(name: str, shards: str, *more: str) -> dict[str, int]:
        given = ["--images", shelf.url, "--shards", shards, "--out", f"data/{name}"]
        assert sightline("prepare", "webdataset", *given) == 0
        capsys.readouterr()
        words = ["--data", f"data/{name}", "--out", f"features/{name}", "--json", *more]
        assert sightline("extract", "image", *clip, *words) == 0
        return json.loads(capsys.readouterr().out)

    with s3_shelf(tars, monkeypatch) as shelf:
        for part, shards in enumerate(("{00000..00000}.tar", "{00001..00002}.tar")):
            encoded(f"part-{part}", shards)
            url = f"s3://cache/parts/{part}.tar"
            assert sightline("cache", "export", f"features/part-{part}", "--out", url) == 0
            assert sightline("cache", "import", url, "--out", f"parts/{part}") == 0
        summary = encoded("all", "*.tar", "--copy-from", "parts")
    assert (summary["computed"], summary["copied"]) == (0, 6)
    whole = FeatureSet.open("features/all")
    for part in ("part-0", "part-1"):
        mine = FeatureSet.open(f"features/{part}")
        assert (whole.take(mine.keys) == mine.take(mine.keys)).all()


def test_the_lines_of_a_list_name_the_tars(tars, monkeypatch, make_file, out):
    listed = make_file("web.txt", "00000.tar\n{00001..00002}.tar\n")
    with web_shelf(tars, monkeypatch) as shelf:
        prepare_dataset("webdataset", out, source=listed, images=shelf.url)
        assert len(column(out, "path")) == 6
        listed.write_text("../secret.tar\n")
        with pytest.raises(
            DatasetError, match=r"web.txt: found '../secret.tar', expected a pattern"
        ):
            prepare_dataset("webdataset", out, source=listed, images=shelf.url)
