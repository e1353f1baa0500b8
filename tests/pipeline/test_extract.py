"""`sightline extract`: its output and the files on disk, what `--dry-run` says, and `--check`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from open_clip import CLIP
from PIL import Image
from set_oracle import expect_sound
from small_inputs import extracting

from pipeline import encode_again
from sightline.cache import FeatureSet, SetWriter, key_of_file, key_of_text, verify
from sightline.cache.record import set_output
from sightline.errors import SightlineError
from sightline.files.atomic_files import model_paths
from sightline.machine import hardware
from sightline.machine.out_of_memory import HalvingCalls
from sightline.wording import in_bytes


@pytest.fixture
def counts(says):
    """Runs a command with `--json`; what it says in numbers."""
    return lambda *words: json.loads(says(*words, "--json"))


@pytest.fixture
def to_do(counts, unchanged, world, tmp_path_factory, monkeypatch):
    """Runs a command with `--dry-run`: what it says that there is to do, having written nothing."""
    (world / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(world / "tmp"))
    # torch makes this folder where it is first imported
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))

    def run(*words: object) -> dict:
        with unchanged():
            return counts(*words, "--dry-run")

    return run


def images(*more: object) -> list[object]:
    return extracting("image", "new", "--batch-size", 2, "--workers", 1, *more)


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


def test_a_temporary_folder_without_room_for_a_socket(fails, says, monkeypatch, world):
    """Decode processes hand on batches over sockets; a command without them would hang."""
    deep = world / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    err = fails(*images())
    assert str(deep) in err
    assert "set TMPDIR to a folder on a local disk" in err
    assert "or decode without processes (--workers 0)" in err
    assert not list(deep.iterdir())
    says(*extracting("image", "new", "--batch-size", 2))


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
    words = extracting("image", "image", "--weights", "random:1")
    _, out, _ = said(*words, "--dry-run")
    assert "6 to compute" in out
    assert "recomputing everything because encoder.source" in out
    code, out, err = said(*words)
    assert (code, "6 computed" in out) == (0, True)
    assert "recomputing everything because" in err
    assert "encoder.source: random:0 → random:1" in err


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
    assert "  photos/broken.png: not an image of a known format" in "\n".join(reasons)
    assert where == f"  {world}/image.run/failures.jsonl"
    listed = [*map(json.loads, Path("image.run/failures.jsonl").read_text().splitlines())]
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


def scaled(factor: float) -> list[object]:
    """Words that extract with a CLIP whose features are multiplied by ``factor`` twice."""
    torch.manual_seed(0)
    state = CLIP(**json.loads(Path("clip.json").read_text())).state_dict()
    for name in ("visual.ln_post.weight", "visual.proj"):
        state[name] *= factor
    safetensors.torch.save_file(state, "scaled.safetensors")
    return extracting("image", "large", "--weights", "file:scaled.safetensors")


def test_features_beyond_float16_name_their_images_and_what_stores_them(fails, says, world):
    words = scaled(1e3)
    err = fails(*words)
    assert "all 6 images failed" in err
    assert "photos/5.png: exceeds float16 (largest 1.5e+06): store with --dtype float32" in err
    assert "sightline prepare" not in err
    listed = map(json.loads, Path("large.run/failures.jsonl").read_text().splitlines())
    named = {Path(each["path"]).name for each in listed}
    assert named == {path.name for path in Path("photos").iterdir()}
    says(*words, "--dtype", "float32")
    assert len(FeatureSet.open("large")) == 6


def test_features_that_are_no_numbers_are_no_fault_of_the_images(fails, world):
    for factor, fault in (
        (1e20, "the encoder's row holds NaN or infinity: look at its weights"),
        (float("nan"), "hold NaN or infinite values, such as visual.proj"),
    ):
        err = fails(*scaled(factor))
        assert fault in err
        assert "sightline prepare" not in err


def test_a_missing_file_is_put_back_and_asked_for_again(fails, says, counts, world):
    names = [path.name for path in sorted(Path("photos").iterdir())]
    Path("captions.csv").write_text("\n".join(["image,caption", *(f"{n},a dog" for n in names)]))
    given = ["--images", "photos", "--captions", "captions.csv"]
    says("prepare", "pairs", *given, "--out", "d")
    path = Path("photos", names[0]).rename("away")
    words = extracting("image", "new", data="d")
    assert "Put back what is missing and rerun with --retry-failed, or raise" in fails(*words)
    path.rename(Path("photos", names[0]))
    assert counts(*words, "--retry-failed")["failed"] == 0


def test_a_full_disk_is_reported_before_anything_starts(monkeypatch, fails, world):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert "Nothing was started" in fails(*extracting("image", "new"))
    assert not Path("new").exists()


def test_threads_are_as_requested_and_recorded(monkeypatch, counts, world):
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
        "cache export image --out set.tar",
        "cache export image --out folder --format parquet",
        "cache diff image image",
        "look features image",
    ):
        code, _, err = said(*words.split())
        assert code == 1, words
        assert f"error: {shard}: BLAKE3" in err
    assert not Path("set.tar").exists()
    assert not Path("folder").exists()
    code, out, err = said(*extracting("image", "image"))
    assert (code, "6 computed" in out) == (0, True)
    assert f"{shard}: BLAKE3" in err
    assert "its 6 rows will be recomputed" in err
    assert before.items() <= files("image").items()
    expect_sound(Path("image"))


# -- what there is to do -------------------------------------------------------------------------


def test_a_dry_run_says_what_the_run_then_does(says, to_do):
    size = 6 * (8 * 2 + 32 + 61)
    assert to_do(*images()) == {"out": "new", "to_do": 6, "copied": 0, "bytes_to_write": size}
    assert says(*images("--dry-run")) == (
        f"new: 0 images there · 6 to compute · {in_bytes(size)} to write\n"
    )
    says(*images())
    assert size < FeatureSet.open("new").record.size  # HDF5 and Parquet take some kilobytes
    Image.new("RGB", (30, 30), "red").save("photos/new.png")
    shutil.copy("photos/1.png", "photos/0.png")
    assert says(*images("--dry-run")).startswith("new: 5 images there · 1 to compute")
    assert to_do(*images())["to_do"] == 1
    Path("texts.txt").write_text("another\nand another\n")
    assert to_do(*extracting("text", "text"))["to_do"] == 2


@pytest.mark.parametrize("more", [("--worker", "1/2"), ("--devices", "cpu,cpu")])
def test_workers_and_devices_say_what_all_of_them_do(to_do, more):
    assert to_do(*images(*more))["to_do"] == 6


def test_rows_of_another_set_are_copied_with_other_workers(to_do, counts):
    plan = to_do(*images("--copy-from", "."))
    assert (plan["to_do"], plan["copied"]) == (0, 6)
    assert plan["bytes_to_write"] > 0
    done = counts(*extracting("image", "new", "--workers", 1, "--copy-from", "."))
    assert (done["computed"], done["copied"]) == (0, 6)
    assert files("new") == files("image")


def test_a_dry_run_of_an_interrupted_run_counts_its_blocks_and_keeps_them(
    fails, counts, to_do, world, monkeypatch
):
    monkeypatch.setattr("sightline.cache.writer.block_rows", lambda spec: 2)
    encode, batches = HalvingCalls.run, itertools.count()

    def stop(self, items, call):
        if next(batches) == 2:
            raise SightlineError("killed")
        return encode(self, items, call)

    with monkeypatch.context() as patch:
        patch.setattr(HalvingCalls, "run", stop)
        fails(*images())
    assert len(list(world.rglob("*part-*.json"))) == 2
    assert to_do(*images())["to_do"] == 2
    assert counts(*images())["resumed"] == 4


def test_no_image_is_read_nor_a_run_beside_it_stopped(to_do):
    for path in Path("photos").iterdir():
        path.write_bytes(path.name.encode())  # not an image any more
    with set_output(Path("new")):  # as a run that has just begun
        assert to_do(*images())["to_do"] == 6


def test_a_dry_run_of_a_folder_without_images_is_the_error_of_the_command(fails, world):
    shutil.rmtree("photos")
    Path("photos").mkdir()
    assert "no images" in fails(*images("--dry-run"))


def test_figures_for_reading():
    assert [in_bytes(each) for each in (0, 999, 1_000, 2.5e6, 3e9, 7.25e15)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB", "7.2 PB"),
    ]


def test_work_on_a_cpu_beside_a_gpu_is_a_warning(said, world, monkeypatch):
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("570.1", ["NVIDIA H100"]))
    warning = "warning: this computes on the CPU, but the driver lists 1 GPU"
    assert warning in said(*extracting("text", "new"))[2]
    assert hardware.cpu_warning("cuda:0") == ""
    monkeypatch.setattr(hardware, "driver_gpus", lambda: ("", []))
    assert hardware.cpu_warning("cpu") == ""


# -- rows that are encoded again -----------------------------------------------------------------


def test_rows_are_encoded_again_and_nothing_is_written(says, unchanged):
    with unchanged():
        out = says(*extracting("image", "image", "--check", 2))
        body = json.loads(says(*extracting("image", "image", "--check", 2, "--json")))
    assert "2 rows encoded again: 2 with identical bytes" in out
    assert (body["out"], body["rows"], body["equal"], body["faults"]) == ("image", 2, 2, [])


def test_rows_are_encoded_again_with_the_threads_and_batches_of_the_record(
    says, world, monkeypatch
):
    says(*extracting("image", "own", "--batch-size", 4))  # with one thread
    used, fill_features = [], encode_again.fill_features

    def noted(inputs, config, out, settings, machine):
        used.append((machine.threads, settings.batch_size))
        return fill_features(inputs, config, out, settings, machine)

    monkeypatch.setattr(encode_again, "fill_features", noted)
    says(*extracting("image", "own", "--check", 2, "--threads", 2, "--batch-size", 8))
    assert used == [(1, 4)]


def test_rows_that_the_encoder_does_not_reproduce_are_named(said, world):
    features = FeatureSet.open("image")
    spec, keys = features.record.spec, np.array(features.keys)
    with SetWriter(Path("forged"), spec) as forged:
        for batch in forged.plan(keys, batch_size=64):
            rows = np.random.default_rng(1).standard_normal((len(batch.keys), spec.dim))
            computed = features.record.shards[0].computed
            forged.add(batch, rows.astype(np.float32), computed=computed)
        forged.publish()
    assert verify(Path("forged")) == []
    code, out, _ = said(*extracting("image", "forged", "--check", 6))
    assert (code, out.count("has cosine"), "0.png" in out) == (1, 6, True)


def test_another_encoder_and_other_inputs_are_refused(fails, world):
    err = fails(*extracting("image", "image", "--check", 2, "--weights", "random:1"))
    assert "differs from its record" in err
    assert "encoder.source: random:0 → random:1" in err
    Path("texts.txt").write_text("other\n")
    err = fails(*extracting("text", "text", "--check", 2))
    assert "text: none of its 3 rows matches these inputs" in err


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("weights=random:1", "--weights"),
        ("model=other.json", "--encoder"),
        ("family=timm", "--encoder"),
    ],
)
def test_what_has_an_option_is_not_set(fails, world, setting, option):
    err = fails(*extracting("image", "new", "--set", setting), code=2)
    assert f"{setting.partition('=')[0]} is an option: give {option}" in err
    assert not Path("new").exists()
