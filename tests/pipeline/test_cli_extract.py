"""`sightline extract` with explicit paths: its output, and the files on disk afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_inputs import extracting

from sightline.cache import FeatureSet, key_of_file, key_of_text, verify
from sightline.files import model_paths


@pytest.fixture
def counts(said):
    """Runs a command with `--json`; what it says in numbers."""

    def run(*words: object) -> dict:
        code, out, err = said(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_each_image_and_each_text_has_a_row(made, says, world):
    features = FeatureSet.open("image")
    assert features.record.spec.encoder.untrained
    rows = features.take([key_of_file(path) for path in sorted((made / "photos").iterdir())])
    assert rows.shape == (6, 8)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == 6
    out = says(*extracting("text", "new", "--dtype", "float32"))
    assert "3 rows" in out
    assert "untrained weights" in out
    texts = FeatureSet.open("new")
    assert texts.take([key_of_text("nothing"), key_of_text("a red bird")]).dtype == np.float32


@pytest.mark.parametrize("more", [("--workers", 1), ("--workers", 2), ("--worker", "1/3")])
def test_decode_processes_and_a_sole_worker_change_no_byte(world, counts, more):
    assert counts(*extracting("image", "new", *more))["computed"] == 6
    assert files("new") == files("image")


def test_a_temporary_folder_without_room_for_a_socket(fails, monkeypatch, world):
    """Decode processes hand on batches over sockets; a command without them would hang."""
    deep = world / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    err = fails(*extracting("image", "new", "--workers", 1))
    assert str(deep) in err
    assert "set TMPDIR to a folder on a local disk" in err
    assert not list(deep.iterdir())


def test_only_what_is_new_is_computed(world, counts):
    words = extracting("image", "image")
    first = counts(*words)
    Path("photos/more").mkdir()
    Path("photos/0.png").rename("photos/more/naïve 名.png")
    shutil.copy("photos/more/naïve 名.png", "photos/again.png")
    second = counts(*words)
    assert first["computed"] == second["computed"] == 0
    assert second["content_digest"] == first["content_digest"]
    Image.new("RGB", (30, 30), "red").save("photos/new.png")
    assert counts(*words)["computed"] == 1


def test_different_weights_recompute_everything_and_say_why(said, world):
    code, out, err = said(*extracting("image", "image", "--weights", "random:1"))
    assert code == 0
    assert "recomputing everything because" in err
    assert "encoder.source: random:0 → random:1" in err
    assert "6 computed" in out


def test_a_model_of_this_machine_is_an_input_and_a_set_is_no_model(says, world):
    for name, file in (("encoder", "config.json"), ("run", "run.json")):
        Path(name).mkdir()
        Path(name, file).touch()
    assert model_paths("encoder", "image", "run", "on/a-hub") == [Path("encoder")]
    Path("image").rename("resnet18")  # the name of its encoder
    words = ["--encoder", "resnet18", "--weights", "random:0", "--out", "resnet18"]
    says("extract", "image", "--data", "photos", "--workers", 0, *words)


def test_an_image_that_cannot_be_read_costs_its_row(said, counts, world):
    Path("photos/broken.png").write_bytes(b"not an image at all")
    Path("photos/nowhere.png").symlink_to("gone.png")
    os.mkfifo("photos/pipe.png")
    words = extracting("image", "image", "--max-failed", 0.5)
    code, out, _ = said(*words)
    summary, *reasons, where = out.splitlines()
    assert code == 0
    assert "6 rows" in summary
    assert "2 failed" in summary
    assert any(
        each.startswith("  photos/broken.png: not an image of a known format") for each in reasons
    )
    assert where == f"  {world}/image.run/failures.jsonl"
    lines = Path("image.run/failures.jsonl").read_text().splitlines()
    listed = [json.loads(line) for line in lines]
    assert {Path(each["path"]).name for each in listed} == {"broken.png", "nowhere.png"}
    assert "undecodable" in {each["code"] for each in listed}
    assert counts(*words)["computed"] == 0
    assert counts(*words, "--retry-failed")["computed"] == 2
    Image.new("RGB", (30, 30), "red").save("photos/broken.png")
    Path("photos/nowhere.png").unlink()
    assert counts(*words)["computed"] == 1, "another content is a new image"
    features = FeatureSet.open("image")
    assert (len(features), features.failed) == (7, {})
    assert Path("image.run/failures.jsonl").read_text() == ""


def test_too_many_bad_images_end_it_after_the_good_ones_are_published(fails, world):
    for i in range(2):
        Path(f"photos/broken {i}.jpg").write_bytes(b"nothing" * (i + 1))
    err = fails(*extracting("image", "new"))
    assert "2 of 8 images failed, more than max_failed = 0.01" in err
    assert "failures.jsonl" in err
    assert err.count("not an image of a known format") == 2
    assert len(FeatureSet.open("new")) == 6
    for path in Path("photos").glob("*.png"):
        path.unlink()
    assert "all 2 images failed" in fails(*extracting("image", "none", "--max-failed", 1))


def test_a_full_disk_is_reported_before_anything_starts(monkeypatch, fails, world):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert "Nothing was started" in fails(*extracting("image", "new"))
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--encoder": "resnet5"}, "did you mean resnet50"),
        ({"--encoder": "resnet5"}, "ViT-B-32"),
        ({"--weights": "lucky:7"}, "random:SEED"),
        ({"--data": "nowhere"}, "nowhere: no such folder of images, nor a prepared data set"),
        ({"--data": "empty"}, "no images in this folder"),
        ({"--out": "clip.json"}, "clip.json: is a file, not a folder"),
        ({"--devices": "cuda"}, "'cuda' was requested"),
    ],
)
def test_impossible_requests_are_one_clear_error(fails, world, change, message):
    import torch

    if "--devices" in change and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    Path("empty").mkdir()
    (option, value), words = *change.items(), extracting("image", "new")
    if option in words:
        words[words.index(option) + 1] = value
    else:
        words += [option, value]
    before = sorted(world.rglob("*"))
    assert message in fails(*words)
    assert sorted(world.rglob("*")) == before


def test_rows_of_another_set_are_copied_with_other_workers(counts, world):
    found = counts(*extracting("image", "new", "--workers", 1, "--copy-from", "."))
    assert (found["computed"], found["copied"]) == (0, 6)
    assert files("new") == files("image")


def test_threads_are_as_requested_and_recorded(monkeypatch, counts, world):
    import torch

    before, seen = torch.get_num_threads(), set()
    encode = torch.nn.Module.__call__
    monkeypatch.setattr(
        torch.nn.Module,
        "__call__",
        lambda *a, **k: seen.add(torch.get_num_threads()) or encode(*a, **k),
    )
    for count in (1, 2):
        counts(*extracting("image", str(count), "--threads", count))
        assert seen == {count}
        seen.clear()
        assert FeatureSet.open(str(count)).record.shards[0].computed["threads"] == count
    assert torch.get_num_threads() == before


def test_a_damaged_set_is_not_read_and_computed_again(said, world):
    before = files("image")
    (shard,) = Path("image").glob("shard-*")
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    for words in (
        ["cache", "export", "image", "--out", "set.tar"],
        ["cache", "export", "image", "--out", "folder", "--format", "parquet"],
        ["cache", "diff", "image", "image"],
        ["cache", "gc", "--compact", "image"],
        ["look", "features", "image"],
    ):
        code, _, err = said(*words)
        assert code == 1, words
        assert f"error: {shard}: BLAKE3" in err
    assert not Path("set.tar").exists()
    assert not Path("folder").exists()
    code, out, err = said(*extracting("image", "image"))
    assert (code, "6 computed" in out) == (0, True)
    assert f"{shard}: BLAKE3" in err
    assert "its 6 rows will be recomputed" in err
    assert before.items() <= files("image").items()
    assert verify(Path("image"), rows=True) == []
