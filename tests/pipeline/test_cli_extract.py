"""`sightline extract` with explicit paths: its output, and the files on disk afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import sightline, unboxed
from PIL import Image
from small_inputs import write_clip

from sightline.cache import FeatureSet, key_of_file, key_of_text, verify
from sightline.files import model_paths


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(7):
        pixels = rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)
        name = folder / ("more" if i % 2 else "") / f"photo {i}.png"
        Image.fromarray(pixels).save(name)
    return folder


@pytest.fixture
def clip(tmp_path) -> Path:
    return write_clip(tmp_path)


def image_words(photos: Path, clip: Path, out: Path, **options: object) -> list[object]:
    words: list[object] = ["extract", "image", "--data", photos, "--encoder", clip]
    words += ["--weights", "random:0", "--out", out, "--batch-size", 4, "--workers", 0]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    return words


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_images_of_a_folder(capsys, photos, clip, tmp_path):
    assert sightline(*image_words(photos, clip, tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "7 rows" in said
    assert "untrained weights" in said
    features = FeatureSet.open(tmp_path / "out")
    assert (len(features), features.dim) == (7, 8)
    assert features.record.spec.encoder.untrained
    rows = features.take([key_of_file(path) for path in sorted(photos.rglob("*.png"))])
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == 7
    assert verify(tmp_path / "out") == []


def test_the_number_of_decode_workers_changes_no_byte(photos, clip, tmp_path):
    for workers in (0, 1, 2):
        out = tmp_path / str(workers)
        assert sightline(*image_words(photos, clip, out, workers=workers)) == 0
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "2")


def test_a_temporary_folder_without_room_for_a_socket(capsys, monkeypatch, photos, clip, tmp_path):
    """Decode processes hand on batches over sockets; a command without them would hang."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert sightline(*image_words(photos, clip, tmp_path / "out", workers=1)) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert str(deep) in line
    assert "set TMPDIR to a folder on a local disk" in line
    assert not list(deep.iterdir())
    assert sightline(*image_words(photos, clip, tmp_path / "out", workers=0)) == 0


def test_a_second_run_computes_nothing_and_a_new_image_computes_one(capsys, photos, clip, tmp_path):
    words = [*image_words(photos, clip, tmp_path / "out"), "--json"]
    computed = []
    for step in range(3):
        if step == 2:
            Image.new("RGB", (30, 30), "red").save(photos / "new.png")
        assert sightline(*words) == 0
        computed.append(json.loads(capsys.readouterr().out)["computed"])
    assert computed == [7, 0, 1]


def test_an_output_may_have_the_name_of_the_model(capsys, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["extract", "image", "--data", photos, "--encoder", "resnet18", "--workers", 0]
    words += ["--weights", "random:0", "--out", "resnet18", "--json"]
    for computed in (None, 0):
        assert sightline(*words) == 0
        said = json.loads(capsys.readouterr().out)
        assert computed is None or said["computed"] == computed


def test_a_model_of_this_machine_is_an_input_and_a_set_is_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, file in (("encoder", "config.json"), ("set", "set.json"), ("run", "run.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert model_paths("encoder", "set", "run", "on/a-hub") == [Path("encoder")]


def test_unreadable_files_cost_a_row_and_pipes_are_ignored(capsys, photos, clip, tmp_path):
    (photos / "nowhere.png").symlink_to(tmp_path / "gone.png")
    os.mkfifo(photos / "pipe.png")
    words = image_words(photos, clip, tmp_path / "out", max_failed=0.5)
    assert sightline(*words) == 0
    assert "1 failed" in capsys.readouterr().out
    (line,) = (tmp_path / "out.run" / "failures.jsonl").read_text().splitlines()
    assert "nowhere.png" in line
    assert "no such file" in line


def test_renaming_and_copying_recompute_nothing(capsys, photos, clip, tmp_path):
    words = [*image_words(photos, clip, tmp_path / "out"), "--json"]
    assert sightline(*words) == 0
    first = json.loads(capsys.readouterr().out)
    (photos / "photo 0.png").rename(photos / "naïve 名.png")
    shutil.copy(photos / "naïve 名.png", photos / "again.png")
    assert sightline(*words) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["computed"] == 0
    assert second["content_digest"] == first["content_digest"]


def test_different_weights_recompute_everything_and_say_why(capsys, photos, clip, tmp_path):
    words = image_words(photos, clip, tmp_path / "out")
    assert sightline(*words) == 0
    words[words.index("random:0")] = "random:1"
    assert sightline(*words) == 0
    said = capsys.readouterr()
    assert "recomputing everything because" in said.err
    assert "encoder.source: random:0 → random:1" in said.err
    assert "7 computed" in said.out


def test_one_bad_image_costs_one_row(capsys, photos, clip, tmp_path):
    (photos / "broken.jpg").write_bytes(b"not an image at all")
    words = image_words(photos, clip, tmp_path / "out", max_failed=0.5)
    assert sightline(*words) == 0
    summary, reason, where = capsys.readouterr().out.splitlines()
    assert "7 rows · 8 computed" in summary
    assert "1 failed" in summary
    assert reason.startswith(f"  {photos}/broken.jpg: not an image of a known format")
    assert where == f"  {tmp_path}/out.run/failures.jsonl"
    assert len(FeatureSet.open(tmp_path / "out")) == 7
    (line,) = (tmp_path / "out.run" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["code"] == "undecodable"
    assert json.loads(line)["path"].endswith("broken.jpg")


def test_too_many_bad_images_end_it_after_the_good_ones_are_published(
    capsys, photos, clip, tmp_path
):
    for i in range(2):
        (photos / f"broken {i}.jpg").write_bytes(b"nothing" * (i + 1))
    assert sightline(*image_words(photos, clip, tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "2 of 9 images failed, more than max_failed = 0.01" in said
    assert "failures.jsonl" in said
    assert said.count("not an image of a known format") == 2
    assert len(FeatureSet.open(tmp_path / "out")) == 7


def test_nothing_but_bad_images_is_an_error(capsys, photos, clip, tmp_path):
    for path in photos.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:60])
    assert sightline(*image_words(photos, clip, tmp_path / "out", max_failed=1)) == 1
    assert "all 7 images failed" in capsys.readouterr().err


def test_a_fixed_bad_image_is_a_new_image(capsys, photos, clip, tmp_path):
    (photos / "broken.png").write_bytes(b"nothing")
    words = image_words(photos, clip, tmp_path / "out", max_failed=1)
    assert sightline(*words) == 0
    Image.new("RGB", (30, 30), "red").save(photos / "broken.png")
    assert sightline(*words) == 0
    features = FeatureSet.open(tmp_path / "out")
    assert (len(features), features.failed) == (8, {})
    assert (tmp_path / "out.run" / "failures.jsonl").read_text() == ""


def test_texts_of_a_file(clip, tmp_path):
    (tmp_path / "texts.txt").write_text("a red bird\n\na boat\na red bird\n")
    words = ["extract", "text", "--data", tmp_path / "texts.txt", "--encoder", clip]
    words += ["--weights", "random:0", "--out", tmp_path / "out", "--dtype", "float32"]
    assert sightline(*words) == 0
    features = FeatureSet.open(tmp_path / "out")
    assert features.take([key_of_text("a boat"), key_of_text("a red bird")]).shape == (2, 8)
    assert features.dtype == np.float32


def test_a_full_disk_is_reported_before_anything_starts(
    monkeypatch, capsys, photos, clip, tmp_path
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert sightline(*image_words(photos, clip, tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "Nothing was started" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--encoder": "resnet5"}, "did you mean resnet50"),
        ({"--encoder": "resnet5"}, "ViT-B-32"),
        ({"--weights": "lucky:7"}, "random:SEED"),
        ({"--data": "nowhere"}, "nowhere: no such folder of images, nor a prepared data set"),
        ({"--devices": "cuda"}, "'cuda' was requested"),
        (
            {"--precision": "fp8"},
            "--precision: input should be 'fp32', 'bf16' or 'fp16'; found 'fp8'",
        ),
    ],
)
def test_impossible_requests_are_one_clear_error(capsys, photos, clip, tmp_path, change, message):
    import torch

    if "--devices" in change and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    words = image_words(photos, clip, tmp_path / "out")
    for option, value in change.items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    assert sightline(*words) == (2 if "--precision" in change else 1)
    said = unboxed(capsys.readouterr().err)
    assert message in said
    assert "Traceback" not in said


def test_a_file_in_place_of_the_output_is_reported_before_anything_starts(
    capsys, photos, clip, tmp_path
):
    (tmp_path / "out").write_text("a file")
    assert sightline(*image_words(photos, clip, tmp_path / "out")) == 1
    assert "out: is a file, not a folder" in capsys.readouterr().err
    assert not (tmp_path / "out.run").exists()


def test_an_empty_folder_is_an_error(capsys, clip, tmp_path):
    (tmp_path / "none").mkdir()
    assert sightline(*image_words(tmp_path / "none", clip, tmp_path / "out")) == 1
    assert "no images in this folder" in capsys.readouterr().err


def test_failed_rows_are_retried_on_request(capsys, photos, clip, tmp_path):
    bad = photos / "broken.png"
    bad.write_bytes(b"nothing")
    words = [*image_words(photos, clip, tmp_path / "out", max_failed=1), "--json"]
    computed = []
    for more in ([], [], ["--retry-failed"]):
        assert sightline(*words, *more) == 0
        computed.append(json.loads(capsys.readouterr().out)["computed"])
    assert computed == [8, 0, 1]


def test_rows_of_another_set_are_copied_with_other_workers(capsys, photos, clip, tmp_path):
    assert sightline(*image_words(photos, clip, tmp_path / "sets" / "one")) == 0
    words = image_words(photos, clip, tmp_path / "two", workers=1, copy_from=tmp_path / "sets")
    capsys.readouterr()
    assert sightline(*words, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["computed"], said["copied"]) == (0, 7)
    assert files(tmp_path / "two") == files(tmp_path / "sets" / "one")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("5/4", "worker '5/4': expected i/n with i from 0 to n - 1"),
        ("2/2", "worker '2/2': expected i/n with i from 0 to n - 1"),
        ("a/b", "worker 'a/b': expected i/n with i from 0 to n - 1"),
    ],
)
def test_an_invalid_worker_is_misuse(capsys, photos, clip, tmp_path, given, said):
    words = image_words(photos, clip, tmp_path / "out", worker=given)
    assert sightline(*words) == 2
    assert said in unboxed(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_sole_worker_leaves_the_files_of_a_single_run(capsys, photos, clip, tmp_path):
    (photos / "broken.jpg").write_bytes(b"not an image at all")
    for name, options in ("alone", {}), ("shared", {"worker": "1/3"}):
        words = image_words(photos, clip, tmp_path / name, max_failed=1, **options)
        assert sightline(*words, "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["published"], said["rows"], said["failed"]) == (True, 7, 1)
        assert (said["computed"], said["resumed"]) == (8, 0)
    assert files(tmp_path / "alone") == files(tmp_path / "shared")
    listed = [
        (tmp_path / f"{name}.run" / "failures.jsonl").read_text() for name in ("alone", "shared")
    ]
    assert listed[0] == listed[1]
    assert "broken.jpg" in listed[0]


def test_threads_are_as_requested_and_recorded(monkeypatch, capsys, photos, clip, tmp_path):
    import torch

    before, seen = torch.get_num_threads(), []
    encode = torch.nn.Module.__call__
    monkeypatch.setattr(
        torch.nn.Module,
        "__call__",
        lambda *a, **k: seen.append(torch.get_num_threads()) or encode(*a, **k),
    )
    for count in (1, 2):
        out = tmp_path / str(count)
        assert sightline(*image_words(photos, clip, out, threads=count)) == 0
        assert set(seen) == {count}
        seen.clear()
        assert FeatureSet.open(out).record.shards[0].computed["threads"] == count
    assert torch.get_num_threads() == before


def test_a_flipped_byte_is_computed_again_and_said(capsys, photos, clip, tmp_path):
    words = image_words(photos, clip, tmp_path / "out")
    assert sightline(*words) == 0
    before = files(tmp_path / "out")
    (shard,) = (tmp_path / "out").glob("shard-*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    capsys.readouterr()
    assert sightline(*words) == 0
    said = capsys.readouterr()
    assert f"{shard}: BLAKE3" in said.err
    assert "its 7 rows will be recomputed" in said.err
    assert "7 computed" in said.out
    assert {
        name: data for name, data in files(tmp_path / "out").items() if name in before
    } == before
    assert verify(tmp_path / "out", rows=True) == []


def test_a_damaged_set_is_neither_exported_nor_compared_nor_read(capsys, photos, clip, tmp_path):
    out = tmp_path / "out"
    assert sightline(*image_words(photos, clip, out)) == 0
    (shard,) = out.glob("shard-*")
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    for words in (
        ["cache", "export", out, "--out", tmp_path / "set.tar"],
        ["cache", "export", out, "--out", tmp_path / "folder", "--format", "parquet"],
        ["cache", "diff", out, out],
        ["cache", "gc", "--compact", out],
        ["look", "features", out],
    ):
        capsys.readouterr()
        assert sightline(*words) == 1, words
        said = capsys.readouterr().err
        assert f"error: {shard}: BLAKE3" in said
        assert "Traceback" not in said
    assert not (tmp_path / "set.tar").exists()
    assert not (tmp_path / "folder").exists()
