"""Sets that are not sound are refused with a clear error, and a writer follows no links."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import pytest
from attacks import ATTACKS
from forger import ROWS, Forger, harmful_pickle, write_set, zeros
from safetensors import safe_open

from sightline.cache import (
    IMAGES,
    CacheError,
    FeatureSet,
    TokenHeader,
    TokenSet,
    keys_of_texts,
    read_manifest,
    verify,
    write_tokens,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "set"
    write_set(folder)
    return folder


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A foreign file, which a forged set points to."""
    path = tmp_path_factory.mktemp("outside") / "secret.h5"
    with h5py.File(path, "w") as file:
        file["features"] = zeros(ROWS)
    return path


@pytest.mark.parametrize("name", ATTACKS)
def test_an_unsound_set_is_refused(sound: Path, outside: Path, tmp_path: Path, name: str) -> None:
    forge, message = ATTACKS[name]
    folder = tmp_path / "set"
    shutil.copytree(sound, folder)
    forge(Forger(folder, outside))
    before = outside.read_bytes()
    with pytest.raises(CacheError, match=message) as refused:
        FeatureSet.open(folder)
    assert str(tmp_path) in str(refused.value)
    assert verify(folder)  # the same as a message, without an exception
    assert {path.name: path.read_bytes() for path in outside.parent.iterdir()} == {
        outside.name: before
    }


def begin(run: Path, name: str, precious: Path) -> None:
    """A run folder of an earlier run in which one file is a link."""
    run.mkdir()
    (run / "lock").touch()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)


class TestAWriterAmongLinks:
    """A run does not write through links in its way."""

    @pytest.fixture
    def precious(self, tmp_path: Path) -> Path:
        (tmp_path / "home").mkdir()
        path = tmp_path / "home" / "notes"
        path.write_text("precious")
        return path

    @pytest.mark.parametrize("name", ["lock"])
    def test_for_the_run(self, tmp_path: Path, precious: Path, name: str) -> None:
        begin(tmp_path / "set.run", name, precious)
        with pytest.raises(OSError, match="symbolic links"):
            write_set(tmp_path / "set")
        assert precious.read_text() == "precious"

    @pytest.mark.parametrize("name", ["plan.json", "failures.jsonl"])
    def test_for_files_that_are_replaced(self, tmp_path: Path, precious: Path, name: str) -> None:
        precious.write_text("")
        begin(tmp_path / "set.run", name, precious)
        write_set(tmp_path / "set")
        assert precious.read_text() == ""

    def test_for_unfinished_files(self, tmp_path: Path, precious: Path) -> None:
        begin(tmp_path / "set.run", ".set.json.0123456789abcdef.tmp", precious)
        write_set(tmp_path / "set")
        assert precious.read_text() == "precious"
        assert not (tmp_path / "set.run" / ".set.json.0123456789abcdef.tmp").is_symlink()

    def test_for_the_record(self, tmp_path: Path, sound: Path) -> None:
        shutil.copytree(sound, tmp_path / "theirs")
        folder = tmp_path / "set"
        folder.mkdir()
        record = tmp_path / "theirs" / "set.json"
        before = record.read_bytes()
        (folder / "set.json").symlink_to(record)
        write_set(folder)
        assert record.read_bytes() == before
        assert verify(folder) == []


def test_a_damaged_list_of_failures_is_named(tmp_path: Path) -> None:
    (tmp_path / "set.run").mkdir()
    (tmp_path / "set.run" / "lock").touch()
    (tmp_path / "set.run" / "failures.jsonl").write_text('{"key": 5}\n')
    with pytest.raises(CacheError, match=r"failures.jsonl: not a list of failures .* delete it"):
        write_set(tmp_path / "set")


def sound_tokens(folder: Path) -> Path:
    """A token set of one text."""
    header = TokenHeader("tiny", "0" * 64, 32, 0, 100)
    write_tokens(folder, header, keys_of_texts(["a"]), [[1]])
    return folder


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\xff" * 60 + b"PAR1", b"\x80\x04."])
def test_manifests_and_tokens_that_are_no_parquet(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "images.parquet"
    path.write_bytes(data)
    with pytest.raises(CacheError, match="not a readable Parquet file"):
        read_manifest(path, IMAGES)
    (file,) = (sound_tokens(tmp_path / "tokens")).glob("shard-*.parquet")
    size = file.stat().st_size
    file.write_bytes(data.ljust(size, b"\0"))
    with pytest.raises(CacheError, match="damaged; run `sightline cache repair"):
        TokenSet.open(tmp_path / "tokens")


def test_a_pickle_that_calls_itself_safetensors_is_not_unpickled(tmp_path: Path) -> None:
    from train.checkpoints import Best

    path = tmp_path / "best.safetensors"
    path.write_bytes(harmful_pickle(tmp_path / "x"))
    assert Best(path).load() is None
    with pytest.raises(Exception, match="header"), safe_open(path, framework="np"):
        pass
    assert not (tmp_path / "x.owned").exists()


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    import pickle

    pickle.loads(harmful_pickle(tmp_path / "x"))
    assert (tmp_path / "x.owned").exists()
