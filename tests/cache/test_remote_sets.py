"""Sets at a URL: fetched once, verified, resumed; and their tars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import sightline, unboxed
from remote_servers import hub
from shelves import SHELVES, Shelf, s3_shelf, web_shelf

from pipeline.cli.train import _objective
from sightline.cache import FeatureSet, PhraseTokens, TokenSet
from sightline.cache.archive import export_set
from sightline.errors import CacheError, SightlineError
from sightline.files import storage
from sightline.files.storage import StorageError
from train.objectives import objective_class


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "_PAUSES", (0.01, 0.01))
    monkeypatch.setattr(storage, "_BLOCK", 512)
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "fetched"))


@pytest.fixture(params=SHELVES)
def shelf(request, world, monkeypatch) -> Iterator[Shelf]:
    with SHELVES[request.param](world, monkeypatch) as served:
        yield served


def bytes_read(shelf: Shelf) -> int:
    """Of shards and indices, since the last call."""
    spans = [span[6:].split("-") for method, _, span in shelf.faults.asked if span]
    shelf.faults.asked.clear()
    return sum(int(last) + 1 - int(first) for first, last in spans)


def test_a_set_is_fetched_once_and_equals_that_here(shelf, world, capsys):
    there = FeatureSet.open(f"{shelf.url}/image")
    here = FeatureSet.open(world / "image")
    np.testing.assert_array_equal(there.take(here.keys), here.take(here.keys))
    said = capsys.readouterr().err
    assert f"{shelf.url}/image: fetching {len(here.record.files)} files, " in said
    assert bytes_read(shelf) == sum(file.bytes for file in here.record.files)
    again = FeatureSet.open(f"{shelf.url}/image")
    assert again.path == there.path
    assert bytes_read(shelf) == 0
    assert not capsys.readouterr().err


def test_sets_of_tokens_are_fetched_too(shelf, world):
    assert len(TokenSet.open(f"{shelf.url}/tokens")) == len(TokenSet.open(world / "tokens"))
    phrases = PhraseTokens.open(f"{shelf.url}/phrase-tokens")
    assert len(phrases) == len(PhraseTokens.open(world / "phrase-tokens"))
    with pytest.raises(CacheError, match=r"none: no set here \(no set.json\)"):
        FeatureSet.open(f"{shelf.url}/none")
    with pytest.raises(SightlineError, match="expected s3://"):
        FeatureSet.open("file:///etc")


def test_a_stopped_fetch_goes_on_where_it_was(world, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sightline.cache.remote_sets._CHUNK", 512)
    record = FeatureSet.open(world / "image").record
    largest = max(record.files, key=lambda file: file.bytes)
    with s3_shelf(world, monkeypatch) as shelf:
        after = [lambda: None] * (largest.bytes // 512 // 2)
        shelf.faults.of[shelf.path(f"image/{largest.name}")] = [*after, *[403] * 50]
        with pytest.raises(StorageError, match="access denied"):
            FeatureSet.open(f"{shelf.url}/image")
        (part,) = (tmp_path / "fetched").rglob(f"incoming/{largest.name}")
        kept = part.stat().st_size
        assert 0 < kept < largest.bytes
        shelf.faults.of.clear()
        bytes_read(shelf)
        capsys.readouterr()
        assert len(FeatureSet.open(f"{shelf.url}/image"))
        assert " are here)" in capsys.readouterr().err
        assert bytes_read(shelf) < sum(file.bytes for file in record.files) - kept + 2048


def test_other_bytes_are_refused_and_a_changed_set_is_fetched_again(shelf, world):
    record = FeatureSet.open(world / "image").record
    shard = record.shards[0]
    sound = (world / "image" / shard.name).read_bytes()
    shelf.write(f"image/{shard.name}", sound[:-1] + b"!")
    with pytest.raises(CacheError, match=rf"image/{shard.name}: arrived as BLAKE3 .*try again"):
        FeatureSet.open(f"{shelf.url}/image")
    shelf.write(f"image/{shard.name}", sound)
    there = FeatureSet.open(f"{shelf.url}/image")
    damaged = there.path / shard.name
    damaged.write_bytes(sound[:-1] + b"?")  # here
    os.utime(damaged, (1, 1))
    bytes_read(shelf)
    assert len(FeatureSet.open(f"{shelf.url}/image")) == len(there)
    assert bytes_read(shelf) == shard.bytes


def test_a_training_names_features_by_their_url(shelf, world):
    (_, sets) = _objective(objective_class("mcse"), {}, [], [f"{shelf.url}/image"])
    assert list(sets) == ["image-image"]
    assert len(FeatureSet.open(sets["image-image"])) == len(FeatureSet.open(world / "image"))
    (_, named) = _objective(objective_class("mcse"), {}, [], [f"image-image={shelf.url}/image"])
    assert named == sets


def test_a_folder_that_takes_no_files_is_named_with_its_variable(world, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(CacheError, match=r"image: cannot be fetched .* SIGHTLINE_CACHE")
    with web_shelf(world, monkeypatch) as shelf:
        monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "file"))
        with refused:
            FeatureSet.open(f"{shelf.url}/image")
        for variable in ("SIGHTLINE_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # an account without a home
        with refused:
            FeatureSet.open(f"{shelf.url}/image")


def test_an_error_of_what_lies_there_names_the_url(shelf):
    shelf.write("image/set.json", b"[]")
    with pytest.raises(CacheError, match=f"^{shelf.url}/image/set.json: "):
        FeatureSet.open(f"{shelf.url}/image")


def test_a_set_that_was_fetched_is_whole_while_it_is_looked_at_again(world, monkeypatch):
    with s3_shelf(world, monkeypatch) as shelf:
        there = FeatureSet.open(f"{shelf.url}/image")

        def replace(source: Path, target: Path) -> None:
            assert len(FeatureSet.open(there.path)) == len(there)  # as another process does

        monkeypatch.setattr(Path, "replace", replace)
        FeatureSet.open(f"{shelf.url}/image")


def test_commands_take_the_url_of_a_set(shelf, world, tmp_path, capsys):
    url = f"{shelf.url}/image"
    assert sightline("cache", "info", url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fingerprint"] == FeatureSet.open(world / "image").record.fingerprint
    assert sightline("cache", "diff", url, world / "image") == 0
    assert "0 added, 0 removed, 0 changed" in capsys.readouterr().out
    assert sightline("cache", "export", url, "--out", tmp_path / "a.tar") == 0
    assert sightline("look", "features", url) == 0
    assert "rows × width" in capsys.readouterr().out


def test_a_tar_is_exported_to_a_url_and_imported_from_it(world, monkeypatch, tmp_path, capsys):
    with s3_shelf(tmp_path / "empty", monkeypatch) as shelf:
        url = f"{shelf.url}/image.tar"
        for _ in range(2):  # replaced by itself
            assert sightline("cache", "export", world / "image", "--out", url) == 0
        assert sightline("cache", "import", url, "--out", tmp_path / "back") == 0
        with pytest.raises(SightlineError, match=r"image.tar: holds the export of another set"):
            export_set(world / "tokens", url)
        with pytest.raises(SightlineError, match=r"nowhere/a.tar: no such bucket; "):
            export_set(world / "tokens", "s3://nowhere/a.tar")
        assert sightline("cache", "import", f"{shelf.url}/no.tar", "--out", tmp_path / "no") == 1
        assert sightline("cache", "import", shelf.url, "--out", tmp_path / "no") == 2
        assert "which only the tar of a set may have" in unboxed(capsys.readouterr().err)
    export_set(world / "image", tmp_path / "here.tar")
    export_set(tmp_path / "back", tmp_path / "back.tar")
    assert (tmp_path / "here.tar").read_bytes() == (tmp_path / "back.tar").read_bytes()
    with pytest.raises(StorageError, match="a web server takes no files"):
        storage.upload(tmp_path / "here.tar", "https://host/a.tar")


def test_a_set_of_the_hub_is_fetched_at_its_revision(world, tmp_path):
    script = (
        "from sightline.cache import FeatureSet\n"
        "print(len(FeatureSet.open('hf://datasets/team/cache@v1/image')))\n"
    )
    with hub(world, "team/cache", "v1") as (address, asked):
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        environment |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}

        def run() -> subprocess.CompletedProcess[str]:
            words = [sys.executable, "-c", script]
            return subprocess.run(words, env=environment, capture_output=True, text=True)

        first = run()
        assert first.stdout == f"{len(FeatureSet.open(world / 'image'))}\n", first.stderr
        assert "hf://datasets/team/cache@v1/image: fetching" in first.stderr
        asked.clear()
        assert run().stderr == ""
        assert {path for path in asked if "/resolve/" in path} == {
            "/datasets/team/cache/resolve/v1/image/set.json"
        }
        script = script.replace("@v1", "@v2")
        assert "no such repository or revision, or a private one; " in run().stderr
