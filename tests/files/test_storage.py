"""Files on servers: ranges of them are read, again after a fault, and secrets stay secret."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aged_files import aged
from botocore.exceptions import ConnectTimeoutError
from command_line import sightline, unboxed
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from shelves import SHELVES, Shelf, s3_shelf, web_shelf

from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError
from sightline.files import storage
from sightline.files.places import base_of, beside, location, path_below, shown
from sightline.files.storage import (
    FileState,
    MissingFile,
    StorageError,
    files_below,
    look,
    opened,
    read,
    reading_ahead,
    upload,
)

DATA = bytes(range(251)) * 1000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of a hundredth."""
    monkeypatch.setattr(storage, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(storage, "_BLOCK", 10_000)


@pytest.fixture(params=SHELVES)
def shelf(request, tmp_path, monkeypatch) -> Iterator[Shelf]:
    with SHELVES[request.param](tmp_path / "shelf", monkeypatch) as served:
        served.write("a b.tar", DATA)
        served.write("sub/c.tar", b"c")
        yield served


# --- which places there are


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "simplecache::file:///etc/hostname",
        "simplecache::https://host/a",
        "https://host/a::file:///etc/hostname",
        "zip://a.jpg::s3://bucket/a.zip",
        "http://host/a",
        "HTTPS://host/a",
        "github://a:b@main/c",
        "memory://a",
        "https://",
        "https:///a",
        "s3://",
        "https://host/a\nb",
        "https://host/a#part",
        "s3://bucket/a?versionId=1",
        "://host",
    ],
)
def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="expected"):
        location(url)
    if not url.startswith("s3://bucket"):  # there a key, as any
        with pytest.raises((StorageError, ValueError)):  # whatever a record says
            read(url)


@pytest.mark.parametrize("path", ["photos", "/a/photos", "a::b/photos", "https:/host", "C:\\a"])
def test_paths_are_paths(path):
    assert location(path) == Path(path)
    assert location(Path(path)) == Path(path)


def test_a_secret_is_in_no_text():
    url = "https://user:word@host/folder?sig=word"
    assert location(url) == url
    assert shown(url) == "https://host/folder"
    assert path_below(url, "a b#?.jpg") == "https://user:word@host/folder/a%20b%23%3F.jpg?sig=word"
    assert shown(path_below(url, "a.jpg")) == "https://host/folder/a.jpg"
    assert base_of("https://host/f/{0..9}.jpg?sig=word") == "https://host/f?sig=word"
    assert base_of("https://host/f") == "https://host/f"
    assert "word" not in str(StorageError(url, "no such file"))


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/passwd", "", "a//b", "./a"])
def test_a_name_stays_below_its_folder(name):
    with pytest.raises(SightlineError, match="stays below"):
        path_below("https://host/folder", name)


@pytest.mark.parametrize(
    "words",
    [
        "train simcse --tokens s3://me:secret@bucket/tokens --student bert --out run",
        "ground --data data --cutouts gs://bucket/cutouts --out objects",
        "cache verify s3://bucket/sets",
        "prepare sentences --path https://host/a.txt?signature=secret --out data",
        "prepare coco --captions train=s3://bucket/a.json --images train=photos --out data",
        "cache gc hf://datasets/a/b",
    ],
)
def test_where_a_path_is_read_a_url_is_said_to_be_one(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sightline(*words.split()) == 2
    said = unboxed(capsys.readouterr().err)
    found = re.search(r"found (\S+), expected a path on this machine", said)
    assert found is not None, said
    assert found[1] in words.replace("me:secret@", "").replace("?signature=secret", "")
    assert "secret" not in said
    assert not list(tmp_path.iterdir())


def test_a_path_that_was_a_url_is_said_to_be_one():
    with pytest.raises(SightlineError, match="found s3://bucket/data, expected a path"):
        PreparedDataset.open(Path("s3://bucket/data"))


@pytest.mark.parametrize(
    ("url", "folder", "found"),
    [
        ("s3://b/sets/mine", "../../raw photos", "s3://b/raw photos"),
        ("s3://b/mine", "../..raw", "s3://b/..raw"),
        ("s3://b/mine", "../..", None),
        ("https://host/a%20b/mine", "../c d", "https://host/a%20b/c%20d"),
        ("hf://datasets/o/n@1/mine", "../raw", "hf://datasets/o/n@1/raw"),
        ("hf://datasets/o/n@1/mine", "../../raw", None),
        ("s3://b/mine", "gs://other/raw", "gs://other/raw"),
    ],
)
def test_a_folder_beside_a_url(url, folder, found):
    assert beside(url, folder) == found


# --- what is there


def test_look_says_what_is_there(shelf):
    found = look(path_below(shelf.url, "a b.tar"))
    assert found is not None
    assert found.size == len(DATA)
    assert look(path_below(shelf.url, "none.tar")) is None
    assert look(path_below(shelf.url, "sub")) is None
    shelf.write("a b.tar", DATA[::-1])
    again = look(path_below(shelf.url, "a b.tar"))
    assert again is not None
    assert again.state != found.state
    assert found.state


def test_look_here_is_that_of_a_plain_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    assert look(tmp_path / "a") == FileState(3, "")  # written just now
    os.utime(tmp_path / "a", (1, 1))
    assert look(tmp_path / "a") == FileState(3, "")  # changed just now
    status = (aged(tmp_path) / "a").stat()
    state = f"3 1000000000 {status.st_ctime_ns} {status.st_ino}"
    assert look(str(tmp_path / "a")) == FileState(3, state)
    for name in ("none", "pipe", ".", "\0"):
        assert look(f"{tmp_path}/{name}") is None


def test_only_object_storage_is_listed(shelf):
    if shelf.url.startswith("https"):
        for pattern in (None, "*.tar"):
            with pytest.raises(StorageError, match=r"does not tell .* name its files, as \{00000"):
                files_below(shelf.url, pattern)
        assert not shelf.faults.asked
        return
    shelf.write("folder.tar/d.jpg", b"d")
    assert {name: found.size for name, found in files_below(shelf.url).items()} == {
        "a b.tar": len(DATA),
        "sub/c.tar": 1,
        "folder.tar/d.jpg": 1,
    }
    assert [*files_below(shelf.url, "*.tar")] == ["a b.tar"]
    assert sorted(files_below(shelf.url, "**/*.tar")) == ["a b.tar", "sub/c.tar"]
    assert files_below(shelf.url, "*.zip") == {}
    assert files_below(f"{shelf.url}/none") == {}


# --- its bytes


def test_bytes_are_read_by_ranges(shelf):
    place = path_below(shelf.url, "a b.tar")
    assert read(place, 1000, 1500) == DATA[1000:1500]
    assert read(place, 7, 7) == b""
    assert read(place) == DATA
    with reading_ahead([(place, start, start + 5) for start in (0, 10, 10, 20)]):
        assert [read(place, start, start + 5) for start in (0, 10, 20, 30)] == [
            DATA[start : start + 5] for start in (0, 10, 20, 30)
        ]
    with pytest.raises(StorageError):
        read(place, len(DATA) - 5, len(DATA) + 5)
    with pytest.raises(MissingFile, match="no such file"):
        read(path_below(shelf.url, "none.tar"), 0, 5)


@pytest.mark.parametrize("name", ["what?.png", "w#1.png", "a::b.png", "{0..1} %41+&ü.png", "?#"])
def test_a_file_may_have_any_name(shelf, name):
    place = path_below(shelf.url, name)
    shelf.write(name, b"picture")
    assert read(place) == b"picture"
    with opened(place) as file:
        assert file.read() == b"picture"
    if not place.startswith("https"):
        assert files_below(shelf.url)[name] == look(place)
        assert shown(place) == place
    with pytest.raises(MissingFile, match="no such file"):
        read(f"{place}none")


def test_a_file_is_read_in_blocks_and_a_part_of_it_alone(shelf):
    with opened(path_below(shelf.url, "a b.tar")) as file:
        file.seek(99_990)
        assert file.read(20) == DATA[99_990:100_010]  # over the edge of a block
        file.seek(5)
        assert file.read(10) == DATA[5:15]
        assert file.seek(-3, os.SEEK_END) == len(DATA) - 3
        assert file.read() == DATA[-3:]
        assert file.read(1) == b""
    path = shelf.path("a b.tar").replace(" ", "%20" if shelf.url.startswith("https") else " ")
    assert shelf.faults.bytes_asked(path) < len(DATA) / 2
    with opened(path_below(shelf.url, "a b.tar")) as file:
        assert file.read() == DATA


def fault_of(shelf: Shelf, *faults: object) -> str:
    name = "sub/c.tar"
    shelf.faults.of[shelf.path(name)] = [*faults]
    return path_below(shelf.url, name)


@pytest.mark.parametrize("fault", [503, 500, 429, "reset", "cut"])
def test_a_fault_that_passes_costs_a_retry(shelf, fault):
    if fault in ("cut", "reset") and not shelf.url.startswith(
        ("s3", "https")[: fault == "cut" or 2]
    ):
        pytest.skip("the server answers whole or not at all")
    shelf.write("sub/c.tar", b"0123456789")
    place = fault_of(shelf, fault, fault)
    assert read(place, 2, 8) == b"234567"


def test_a_library_may_call_a_timeout_otherwise():
    error = ConnectTimeoutError(endpoint_url="https://host/bucket?signature=secret")
    assert not isinstance(error, TimeoutError)
    fault = storage._fault("s3://bucket/a.tar", error)
    assert str(fault) == "s3://bucket/a.tar: no answer for 60 seconds"
    assert not fault.lasting


def test_a_fault_that_stays_is_an_error_in_the_end(shelf):
    place = fault_of(shelf, *[503] * 50)
    with pytest.raises(StorageError, match=r"503|Service Unavailable|Fault") as caught:
        read(place, 0, 1)
    assert not caught.value.lasting


def test_what_is_refused_is_not_asked_for_again(shelf):
    place = fault_of(shelf, 403, 403)
    with pytest.raises(StorageError, match="access denied; give") as caught:
        read(place, 0, 1)
    assert caught.value.lasting
    assert len(shelf.faults.of[shelf.path("sub/c.tar")]) == 1


def test_a_silent_server_is_left(shelf, monkeypatch):
    monkeypatch.setattr(storage, "_SECONDS", 0.1)
    storage._options.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_PAUSES", (0.01,) * 50)  # an answer may be late on a busy machine
        assert read(fault_of(shelf, "silence"), 0, 1) == b"c"
    place = fault_of(shelf, *["silence"] * 50)
    with pytest.raises(StorageError, match=r"no answer for 0.1 seconds"):
        read(place, 0, 1)
    storage._options.cache_clear()


def test_a_server_without_ranges_is_refused_before_it_sends_all(tmp_path, monkeypatch):
    (tmp_path / "big").write_bytes(DATA * 100)
    with (
        web_shelf(tmp_path, monkeypatch, ranges=False) as shelf,
        pytest.raises(StorageError, match="does not answer with ranges of bytes"),
    ):
        read(f"{shelf.url}/big", 10, 20)


def test_a_signature_comes_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "cc").mkdir()
    (tmp_path / "cc/a.tar").write_bytes(DATA)
    with web_shelf(tmp_path, monkeypatch, secret="sig=s3cr3t") as shelf:
        place = f"{shelf.url}/cc/a.tar"
        with pytest.raises(StorageError, match="SIGHTLINE_SIGNED_URLS") as caught:
            read(place, 0, 5)
        assert read(f"{place}?sig=s3cr3t", 0, 5) == DATA[:5]
        monkeypatch.setenv(storage.SIGNED_URLS, f"https://o/x?y=z {shelf.url}/cc?sig=s3cr3t")
        assert read(place, 0, 5) == DATA[:5]
        assert look(place) is not None
        monkeypatch.setenv(storage.SIGNED_URLS, f"{shelf.url}/c?sig=s3cr3t")
        with pytest.raises(StorageError, match="access denied"):
            read(place, 0, 5)
        with pytest.raises(StorageError) as caught:
            read(f"{shelf.url}/cc/none.tar?sig=s3cr3t", 0, 5)
        assert "s3cr3t" not in str(caught.value)
        assert caught.value.__context__ is None or "s3cr3t" not in str(caught.value.__cause__)


def test_a_host_that_does_not_answer_is_named_without_its_query(monkeypatch):
    with pytest.raises(StorageError, match=r"https://localhost:1/a: .*failed") as caught:
        read("https://localhost:1/a?sig=s3cr3t", 0, 5)
    assert "s3cr3t" not in str(caught.value)
    assert not caught.value.lasting


def test_a_bucket_that_is_not_there_is_no_missing_file(shelf, tmp_path):
    if shelf.url.startswith("https"):
        pytest.skip("a web server has no buckets")
    (tmp_path / "a").write_bytes(b"a")
    protocol = shelf.url.partition("://")[0]
    for place in (f"{protocol}://nowhere", f"{protocol}://nowhere/raw"):
        expected = rf"^{place}.*: no such bucket; correct its name, or make it first$"
        for ask in (
            lambda place: files_below(place),
            lambda place: files_below(place, "*.tar"),
            lambda place: look(f"{place}/a.tar"),
            lambda place: read(f"{place}/a.tar"),
            lambda place: read(f"{place}/a.tar", 0, 5),
            lambda place: upload(tmp_path / "a", f"{place}/a.tar"),
        ):
            with pytest.raises(StorageError, match=expected) as caught:
                ask(place)
            assert not isinstance(caught.value, MissingFile)
    bucket = shelf.url.rpartition("/")[0]
    assert files_below(bucket, "*.tar") == files_below(f"{bucket}/none", "*.tar") == {}
    assert look(f"{bucket}/none") is None


@pytest.mark.parametrize("kind", [RepositoryNotFoundError, RevisionNotFoundError])
def test_a_repository_of_the_hub_that_is_not_there_is_no_missing_file(kind):
    response = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co/a/b"))
    error = FileNotFoundError("datasets/a/b/c")
    error.__cause__ = kind("none", response=response)
    fault = storage._fault("hf://datasets/a/b/c", error)
    assert not isinstance(fault, MissingFile)
    assert "no such repository or revision, or a private one" in str(fault)
    assert "`hf auth login`" in str(fault)


def test_a_bucket_without_credentials_says_what_opens_it(tmp_path, monkeypatch):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf/a").write_bytes(b"abc")
    with s3_shelf(tmp_path / "shelf", monkeypatch) as shelf:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setitem(storage._options("s3"), "skip_instance_cache", True)
        with pytest.raises(StorageError, match=r"AWS_ACCESS_KEY_ID .* FSSPEC_S3_ANON=true"):
            read(f"{shelf.url}/a", 0, 3)
    storage._options.cache_clear()


def test_fsspec_is_imported_for_urls_alone(tmp_path):
    script = f"""
import sys
from pathlib import Path
from sightline.files.storage import look, opened
from pipeline.datasets.source import Source
Path({str(tmp_path)!r}, "a").write_bytes(b"a")
assert look({str(tmp_path / "a")!r}).size == 1
opened({str(tmp_path / "a")!r}).close()
Source.model_validate(dict(kind="pairs", images="photos", captions="c.csv"))
Source.model_validate(dict(kind="webdataset", images="s3://bucket/cc12m"))
assert not {{"fsspec", "aiohttp", "s3fs"}} & {{*sys.modules}}, sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_error_survives_the_way_from_another_process():
    for error in (
        StorageError("https://a/b?secret=1", "it is down", lasting=False),
        MissingFile("s3://a/b", "no such file"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.lasting) == (type(error), str(error), error.lasting)
