"""`sightline cache` as a user sees it: output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import sightline
from small_inputs import write_clip, write_photos

from sightline.cache import FeatureSet, keys_of_texts, verify
from sightline.cache.prepared import SCHEMA, PreparedDataset


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with photos, the config of a tiny CLIP, texts, and a feature set of each."""
    folder = tmp_path_factory.mktemp("made")
    write_photos(folder / "photos", 6)
    write_clip(folder)
    (folder / "texts.txt").write_text("a red bird\na boat on a lake\nnothing at all\n")
    encoder = ["--encoder", folder / "clip.json", "--weights", "random:0"]
    images = ["--data", folder / "photos", "--out", folder / "image", "--workers", 0]
    texts = ["--data", folder / "texts.txt", "--out", folder / "text"]
    for words in (["image", *images], ["text", *texts]):
        assert sightline("extract", *words, *encoder) == 0
    return folder


@pytest.fixture
def world(made, tmp_path) -> Path:
    """A copy of `made` to modify freely."""
    return Path(shutil.copytree(made, tmp_path / "world"))


def damage(folder: Path) -> str:
    """Flip a bit of a shard; its name."""
    shard = next(folder.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    return shard.name


def test_info_can_be_pasted_into_an_appendix(capsys, world):
    assert sightline("cache", "info", world / "image") == 0
    said = capsys.readouterr().out
    record = FeatureSet.open(world / "image").record
    for part in (
        record.spec.encoder.name,
        record.spec.encoder.weights_sha256,
        record.fingerprint,
        "untrained weights",
        "6 of 8 numbers; failed: 0",
        "device cpu",
        "Licence of the data",
    ):
        assert part in said


def test_info_as_json(capsys, world):
    assert sightline("cache", "info", world / "image", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["failed"], said["dim"]) == (6, 0, 8)
    assert "not known here" in said["licence"]


def test_the_licence_of_a_data_set_in_the_graph_is_shown(monkeypatch, capsys, world):
    monkeypatch.chdir(world)
    shutil.copytree("image", "data/features/mine/image/clip")
    Path("data/datasets/mine").mkdir(parents=True)
    record = {"schema": SCHEMA, "kind": "flickr30k", "licence": "for non-commercial research"}
    Path("data/datasets/mine/dataset.json").write_text(json.dumps(record))
    assert sightline("cache", "info", "data/features/mine/image/clip") == 0
    assert "non-commercial research" in capsys.readouterr().out


def test_damage_is_named_repaired_and_recomputed(capsys, world):
    before = FeatureSet.open(world / "image").record
    name = damage(world / "image")
    assert sightline("cache", "verify", world) == 1
    said = capsys.readouterr().out
    assert name in said
    assert f"{world / 'text'}: sound" in said
    assert sightline("cache", "repair", world / "image") == 0
    assert "6 rows will be recomputed" in capsys.readouterr().out
    assert verify(world / "image") == []
    assert sightline("cache", "repair", world / "image", "--json") == 0
    assert list(json.loads(capsys.readouterr().out).values()) == [[]]
    words = ["--data", world / "photos", "--out", world / "image", "--workers", 0, "--json"]
    encoder = ["--encoder", world / "clip.json", "--weights", "random:0"]
    assert sightline("extract", "image", *words, *encoder) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 6
    assert FeatureSet.open(world / "image").record == before


def test_a_damaged_set_hides_no_other(capsys, world):
    (world / "image" / "set.json").write_text("{")
    assert sightline("cache", "list", world, "--json") == 1
    said = capsys.readouterr()
    assert [each["path"] for each in json.loads(said.out)] == [(world / "text").as_posix()]
    assert "set.json: truncated or not JSON" in said.err


@pytest.mark.parametrize("command", ["verify", "list"])
def test_a_set_without_its_commit_file_is_a_fault(monkeypatch, capsys, world, command):
    monkeypatch.setenv("COLUMNS", "300")
    (world / "image/set.json").unlink()
    assert sightline("cache", command, world) == 1
    said = capsys.readouterr()
    assert f"{world / 'image'}: no set here (no set.json)" in said.out + said.err
    assert "text" in said.out  # the other is there all the same


def test_a_damaged_commit_file_does_not_stop_other_repairs(capsys, world):
    (world / "image/set.json").write_text("{")
    damage(world / "text")
    assert sightline("cache", "repair", world) == 1
    assert str(world / "image/set.json") in capsys.readouterr().err
    assert verify(world / "text") == []


def test_markup_in_a_name_is_shown_verbatim(monkeypatch, capsys, world):
    monkeypatch.setenv("COLUMNS", "300")
    shutil.copytree(world / "image", world / "[red]clip[" / "]")
    assert sightline("cache", "list", world) == 0
    assert "[red]clip[/]" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["list", "verify", "repair", "gc"])
def test_a_path_that_is_not_a_folder_is_named(capsys, world, command):
    assert sightline("cache", command, world / "nowhere") == 1
    assert "nowhere: no such folder; expected a set" in capsys.readouterr().err
    assert sightline("cache", command, world / "clip.json") == 1
    assert "clip.json: a file; expected a set" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["image/set.json", "image/more.tar", "photos"])
def test_an_export_damages_nothing(capsys, world, name):
    assert sightline("cache", "export", world / "image", "--out", world / name) == 1
    assert f"{world / name}: " in capsys.readouterr().err
    assert verify(world / "image") == []


def test_an_import_that_is_refused_leaves_nothing(capsys, world):
    before = sorted(world.rglob("*"))
    for archive in ("clip.json", "photos", "nowhere.tar"):
        words = [world / archive, "--out", world / "new"]
        assert sightline("cache", "import", *words) == 1
        assert archive in capsys.readouterr().err
    assert sorted(world.rglob("*")) == before


def test_features_of_a_different_kind_are_not_replaced(capsys, world):
    encoder = ["--encoder", world / "clip.json", "--weights", "random:0"]
    words = ["--data", world / "texts.txt", "--out", world / "image"]
    assert sightline("extract", "text", *words, *encoder) == 1
    assert (
        "holds a feature set of kind image, but this is a feature set of kind text"
        in capsys.readouterr().err
    )
    assert verify(world / "image") == []


def test_a_folder_to_copy_from_must_be_there(capsys, world):
    encoder = ["--encoder", world / "clip.json", "--weights", "random:0"]
    words = ["--data", world / "texts.txt", "--out", world / "new", "--copy-from", world / "no"]
    assert sightline("extract", "text", *words, *encoder) == 2
    assert "--copy-from" in capsys.readouterr().err
    assert not (world / "new").exists()


def test_gc_reports_what_it_would_free_and_frees_it(capsys, world):
    (world / "image" / f"shard-{'0' * 32}.h5").write_bytes(b"x" * 3_000_000)
    (world / "image" / f"shard-{'1' * 32}.h5").write_bytes(b"somebody else's")
    ours = {"schema": "sightline.next/1", "files": [f"shard-{'0' * 32}.h5"]}
    (world / "image" / "set.json.next").write_text(json.dumps(ours))
    assert sightline("cache", "gc", world / "image", "--dry-run") == 0
    assert "3.0 MB would be freed" in capsys.readouterr().out
    assert sightline("cache", "gc", world / "image", "--dry-run", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found == {"files": {f"shard-{'0' * 32}.h5": 3_000_000}, "rows": 0, "bytes": 3_000_000}
    assert sightline("cache", "gc", world / "image") == 0
    assert "3.0 MB freed" in capsys.readouterr().out
    assert verify(world / "image") == []
    assert len(list((world / "image").iterdir())) == 4
    assert (world / "image" / f"shard-{'1' * 32}.h5").read_bytes() == b"somebody else's"


def test_export_import_and_diff(capsys, world):
    assert sightline("cache", "export", world / "image", "--out", world / "a.tar") == 0
    assert sightline("cache", "import", world / "a.tar", "--out", world / "b") == 0
    capsys.readouterr()
    assert sightline("cache", "diff", world / "image", world / "b") == 0
    assert "0 added, 0 removed, 0 changed, 6 unchanged" in capsys.readouterr().out
    assert sightline("cache", "diff", world / "image", world / "b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["same"] == 6


def test_mcse_through_the_commands(capsys, tmp_path):
    import h5py

    with h5py.File(tmp_path / "in.hdf5", "w") as file:
        file["features"] = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    data, features = tmp_path / "data", tmp_path / "set"
    words = [tmp_path / "in.hdf5", "--format", "mcse", "--data", data]
    words += ["--texts", tmp_path / "in.txt"]
    assert sightline("cache", "import", *words, "--out", features) == 0
    out = ["--out", tmp_path / "out.hdf5", "--texts", tmp_path / "out.txt"]
    assert sightline("cache", "export", features, "--format", "mcse", "--data", data, *out) == 0
    assert (tmp_path / "out.txt").read_text() == "one\ntwo\nthree\n"
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    assert sightline("cache", "import", *words, "--out", tmp_path / "other") == 1
    assert "2 lines" in capsys.readouterr().err


def test_kdmcse_through_the_command(capsys, tmp_path):
    image = {"image_feat": [1, 2], "captions": ["a dog"], "lang_feat": [[3, 4]]}
    (tmp_path / "in.json").write_text(json.dumps({"a.jpg": image}))
    words = ["--format", "kdmcse", "--data", tmp_path / "data", "--out", tmp_path / "sets"]
    assert sightline("cache", "import", tmp_path / "in.json", *words) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path / 'sets/image/clip'}: 1 image\n{tmp_path / 'sets/text/clip'}: 1 cap" in said
    text = FeatureSet.open(tmp_path / "sets/text/clip")
    assert text.take(keys_of_texts(["a dog"])).tolist() == [[3, 4]]
    assert text.record.spec.encoder.source == "a JSON file in KDMCSE's form"
    assert PreparedDataset.open(tmp_path / "data").captions["text"].to_pylist() == ["a dog"]


def test_gc_compacts_shards_and_removes_the_old_ones(capsys, world):
    words = ["extract", "image", "--data", world / "photos", "--out", world / "new"]
    words += ["--workers", 0, "--encoder", world / "clip.json", "--weights", "random:0"]
    (world / "photos/5.png").rename(world / "5.png")
    assert sightline(*words) == 0
    (world / "5.png").rename(world / "photos/5.png")
    assert sightline(*words) == 0
    shards = {path.name for path in (world / "new").glob("shard-*")}
    assert len(shards) == 2
    assert sightline("cache", "gc", world / "new", "--compact", "--dry-run") == 2
    assert "--compact: not with --dry-run" in message(capsys)
    assert sightline("cache", "gc", world / "new") == 0
    assert {path.name for path in (world / "new").glob("shard-*")} == shards
    capsys.readouterr()
    assert sightline("cache", "gc", world / "new", "--compact", "--json") == 0
    (freed,) = json.loads(capsys.readouterr().out).values()
    assert shards < freed["files"].keys()  # the index too
    assert len(list((world / "new").glob("shard-*"))) == 1
    assert verify(world / "new") == []
    assert FeatureSet.open(world / "new").record.rows == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "image", "--licence", "cc0"], "--licence: tar has no such options"),
        (["export", "image", "--format", "npy", "--split", "dev"], "--split: npy has --data, "),
        (["export", "image", "--format", "mcse", "--texts", "t"], "--data: this format needs it"),
        (["export", "image", "--format", "mcse", "--data", "d"], "--texts: this format needs it"),
        (["import", "a.tar", "--data", "photos"], "--data: a tar has no such options"),
        (["import", "photos", "--texts", "t"], "--texts: the files of other tools has --data"),
        (["import", "a.json", "--format", "kdmcse"], "--data: this format needs it"),
        (
            ["import", "a.json", "--format", "kdmcse", "--kind", "image", "--texts", "t"],
            "--kind and --texts: kdmcse has --data, --source",
        ),
    ],
)
def test_options_of_another_format_are_misuse(capsys, words, said):
    assert sightline("cache", *words, "--out", "out") == 2
    assert said in message(capsys)


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of misuse, without its frame."""
    return " ".join(capsys.readouterr().err.replace("│", " ").split())
