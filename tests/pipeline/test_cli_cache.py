"""`sightline cache` as a user sees it: output and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
from PIL import Image
from small_inputs import extracting

from sightline.cache import (
    FeatureSet,
    TokenHeader,
    TokenSet,
    keys_of_texts,
    verify,
    write_tokens,
)
from sightline.cache.prepared import SCHEMA, PreparedDataset

HEADER = TokenHeader("0" * 64, max_length=8, pad_token_id=0, vocabulary_size=100)


def damage(folder: str) -> str:
    """Flip a bit of a shard; its name."""
    shard = next(Path(folder).glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    return shard.name


def test_info_can_be_pasted_into_an_appendix(says, world):
    text = says("cache", "info", "image")
    record = FeatureSet.open("image").record
    encoder = record.spec.encoder
    for part in (encoder.name, encoder.weights_sha256, record.fingerprint):
        assert part in text
    for part in ("untrained weights", "6 of 8 numbers; failed: 0", "device cpu", "Licence of the"):
        assert part in text
    facts = json.loads(says("cache", "info", "image", "--json"))
    assert (facts["rows"], facts["failed"], facts["dim"]) == (6, 0, 8)
    assert "not known here" in facts["licence"]
    shutil.copytree("image", "data/features/mine/image/clip")
    Path("data/datasets/mine").mkdir(parents=True)
    record = {"schema": SCHEMA, "kind": "flickr30k", "licence": "for non-commercial research"}
    Path("data/datasets/mine/dataset.json").write_text(json.dumps(record))
    assert "non-commercial research" in says("cache", "info", "data/features/mine/image/clip")


def test_damage_is_named_repaired_and_recomputed(said, says, world):
    before = FeatureSet.open("image").record
    name = damage("image")
    code, out, _ = said("cache", "verify", ".")
    assert code == 1
    assert name in out
    assert "text: sound" in out
    assert "6 rows will be recomputed" in says("cache", "repair", "image")
    assert verify(Path("image")) == []
    assert json.loads(says("cache", "repair", "image", "--json")) == {"image": []}
    assert "6 computed" in says(*extracting("image", "image"))
    assert FeatureSet.open("image").record == before


def test_sets_on_a_linked_disk_are_found_once_and_a_link_to_nowhere_is_named(said, says, world):
    scratch, features = world / "scratch", world / "features"
    features.mkdir()
    shutil.move("image", scratch)
    shutil.move("text", features / "text")
    for name in ("image", "again"):
        (features / name).symlink_to(scratch)
    (features / "loop").symlink_to(features)
    (features / "unmounted").symlink_to(world / "gone")
    linked = "features/again"
    code, out, err = said("cache", "verify", "features", "--json")
    assert (code, json.loads(out)) == (0, {linked: [], "features/text": []})
    assert f"features/unmounted leads nowhere: {world / 'gone'}" in err
    assert "6 copied" in says(*extracting("image", "other"), "--copy-from", "features")
    damage(str(scratch))
    code, out, _ = said("cache", "verify", "features")
    assert (code, f"{linked}: 1 fault" in out) == (1, True)
    assert says("cache", "gc", "features", "--dry-run").count(f"{linked}: 0 files") == 1
    assert "6 rows will be recomputed" in says("cache", "repair", "features")
    assert linked in says("cache", "list", "features")


def test_a_damaged_set_hides_no_other(said, fails, world):
    Path("image/set.json").write_text("{")
    code, out, err = said("cache", "list", ".", "--json")
    assert (code, [each["path"] for each in json.loads(out)]) == (1, ["text"])
    assert "set.json: truncated or not JSON" in err
    code, out, err = said("cache", "gc", ".", "--json")
    assert (code, [*json.loads(out)]) == (1, ["text"])
    assert "set.json: not a Sightline record" in err
    damage("text")
    assert "image/set.json" in fails("cache", "repair", ".")
    assert verify(Path("text")) == []
    Path("image/set.json").unlink()
    for command in ("verify", "list"):
        code, out, err = said("cache", command, ".")
        assert code == 1
        assert "image: not a set (no set.json)" in out + err
        assert "text" in out


def test_markup_in_a_name_is_shown_verbatim(says, world):
    Path("image").rename("[red]clip[")
    assert "[red]clip[" in says("cache", "list", ".")


@pytest.mark.parametrize("command", ["list", "verify", "repair", "gc"])
def test_a_path_without_a_set_is_named(fails, world, command):
    assert "nowhere: no such folder; expected a set" in fails("cache", command, "nowhere")
    assert "clip.json: a file; expected a set" in fails("cache", command, "clip.json")
    assert "no cache set here or below" in fails("cache", command, "photos")


def test_an_export_or_an_import_that_is_refused_damages_nothing(fails, unchanged):
    with unchanged():
        for out in ("image/set.json", "image/more.tar", "photos"):
            assert f"{out}: " in fails("cache", "export", "image", "--out", out)
        for archive in ("clip.json", "photos", "nowhere.tar"):
            assert archive in fails("cache", "import", archive, "--out", "new")


def test_gc_reports_what_it_would_free_and_frees_it(says, world):
    garbage, foreign = (f"shard-{digit * 32}.h5" for digit in "01")
    Path("image", garbage).write_bytes(b"x" * 3_000_000)
    Path("image", foreign).write_bytes(b"somebody else's")
    ours = {"schema": "sightline.next/1", "files": [garbage]}
    Path("image/set.json.next").write_text(json.dumps(ours))
    assert "3.0 MB would be freed" in says("cache", "gc", "image", "--dry-run")
    (found,) = json.loads(says("cache", "gc", "image", "--dry-run", "--json")).values()
    assert found == {"files": {garbage: 3_000_000}, "rows": 0, "bytes": 3_000_000}
    record = Path("image/set.json").read_bytes()
    assert "3.0 MB freed" in says("cache", "gc", "image")
    assert Path("image/set.json").read_bytes() == record  # else DVC would send it again
    assert verify(Path("image")) == []
    assert len(list(Path("image").iterdir())) == 4
    assert Path("image", foreign).read_bytes() == b"somebody else's"


def test_gc_compacts_a_set_with_dropped_rows_and_leaves_another(says, fails, world):
    def shards() -> set[str]:
        return {path.name for path in Path("image").glob("shard-*")}

    Image.new("RGB", (30, 30), "red").save("photos/new.png")
    says(*extracting("image", "image"))
    before = shards()
    assert len(before) == 2
    says("cache", "gc", "image")
    assert shards() == before
    min(path for path in Path("photos").iterdir() if path.name != "new.png").unlink()
    says(*extracting("image", "image"))
    (freed,) = json.loads(says("cache", "gc", "image", "--json")).values()
    assert before < freed["files"].keys()  # the index too
    assert len(shards()) == 1
    assert verify(Path("image")) == []
    assert FeatureSet.open("image").record.rows == 6


def test_an_error_of_the_disk_stops_gc_and_repair_of_no_other_set(said, world, monkeypatch):
    def full(folder, *_, **__):
        if folder.name == "image":
            raise OSError(28, "No space left on device")
        return real(folder)

    for command, module, name in (("gc", "compact", "collect"), ("repair", "repair", "repair")):
        real = resolve_name(f"sightline.cache.{module}:{name}")
        monkeypatch.setattr(sys.modules[f"sightline.cache.{module}"], name, full)
        damage("text")
        code, out, err = said("cache", command, ".")
        assert code == 1
        assert "text: " in out
        assert "image: No space left on device" in err


def test_gc_names_run_folders_whose_set_is_gone_and_removes_them_if_asked(said, says, world):
    says(*extracting("image", "sets/other"))
    Path("sets/other.run/parts").mkdir(parents=True)
    Path("sets/other.run/lock").touch()
    Path("sets/other.run/parts/part-x.h5").write_bytes(b"unfinished")
    Path("sets/other.run/notes.txt").write_text("mine")
    Path("sets/photos.run").mkdir()  # somebody's
    assert "run folder" not in said("cache", "gc", "sets")[2]
    shutil.rmtree("sets/other")
    for words in ((), ("--lost-runs", "--dry-run")):
        _, _, err = said("cache", "gc", "sets", *words)
        assert ("of 1 run folder the set is gone (" in err) == (not words)
        assert Path("sets/other.run/parts/part-x.h5").exists()
    assert "sets/other.run: " in says("cache", "gc", "sets", "--lost-runs")
    assert [*map(str, Path("sets/other.run").rglob("*"))] == ["sets/other.run/notes.txt"]
    assert Path("sets/photos.run").is_dir()


def test_a_set_below_a_folder_called_like_that_of_a_run_is_looked_at(said, says, world):
    shutil.copytree("image", "sets/first.run/clip")
    shutil.copytree("image", "sets/second.run")
    for folder in ("sets/first.run/clip", "sets/second.run"):
        name = damage(folder)
        code, out, _ = said("cache", "verify", "sets")
        assert code == 1
        assert f"{folder}/{name}" in out
    assert "NAME.run is for the files of runs" in said(*extracting("image", "a.run"))[2]


def test_a_set_below_a_folder_whose_name_is_not_utf_8(says, world):
    folder = Path(os.fsdecode(b"caf\xe9"))
    says(*extracting("image", folder / "set"))
    assert verify(folder / "set") == []
    assert len(FeatureSet.open(folder / "set")) == 6
    assert "sound" in says("cache", "verify", folder)
    says("cache", "gc", folder)
    says("cache", "export", folder / "set", "--out", folder / "rows", "--format", "parquet")
    write_tokens(folder / "tokens", HEADER, keys_of_texts(["a"]), [[1]])
    assert len(TokenSet.open(folder / "tokens")) == 1


def test_export_import_and_diff(says, world):
    says("cache", "export", "image", "--out", "a.tar")
    says("cache", "import", "a.tar", "--out", "b")
    assert "0 added, 0 removed, 0 changed, 6 unchanged" in says("cache", "diff", "image", "b")
    assert json.loads(says("cache", "diff", "image", "b", "--json"))["same"] == 6


def test_mcse_through_the_command(says, fails, tmp_path, monkeypatch):
    import h5py

    monkeypatch.chdir(tmp_path)
    with h5py.File("in.hdf5", "w") as file:
        file["features"] = np.arange(12, dtype=np.float32).reshape(3, 4)
    Path("in.txt").write_text("one\ntwo\nthree\n")
    mcse = ["--format", "mcse", "--data", "data", "--texts"]
    says("cache", "import", "in.hdf5", *mcse, "in.txt", "--out", "set")
    assert PreparedDataset.open("data").captions["text"].to_pylist() == ["one", "two", "three"]
    Path("in.txt").write_text("one\ntwo\n")
    assert "2 lines" in fails("cache", "import", "in.hdf5", *mcse, "in.txt", "--out", "other")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("export image --licence cc0", "--licence: tar has no such options"),
        ("import a.hdf5 --format mcse --texts t", "--data: this format needs it"),
        ("import a.hdf5 --format mcse --data d", "--texts: this format needs it"),
        ("import a.tar --data photos", "--data: a tar has no such options"),
        ("import photos --texts t", "--texts: the files of other tools has --data"),
        ("import a.hdf5 --format mcse --kind image", "--kind: mcse has --data, --texts"),
    ],
)
def test_options_of_another_format_are_misuse(fails, words, fault):
    assert fault in fails("cache", *words.split(), "--out", "out", code=2)
