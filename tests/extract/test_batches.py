"""From decoded batches to rows: on the CPU, on a GPU within the bound, and without enough memory.

Out of memory, the compute batch is halved, the run continues, and the record says so.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_inputs import write_photos
from torch import nn

from pipeline.encoders.encoder import TextEncoder
from pipeline.encoders.names import named_encoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract.decode import load_entry
from pipeline.extract.decode_batches import EncoderFeed, EntryDecoder, decode_batch
from pipeline.extract.encode_missing import feature_job
from pipeline.extract.inputs import Entries, FeatureInputs, ImageEntry, inputs_of
from pipeline.extract.objects import CutoutPreprocessing
from pipeline.extract.runner import run
from pipeline.extract.settings import CutoutRules, ExtractSettings
from pipeline.machine import Machine
from sightline.cache import (
    EncoderRecord,
    FeatureSet,
    Place,
    SetWriter,
    keys_of_texts,
    verify,
)
from sightline.cache.keys import as_keys
from sightline.errors import SightlineError

CPU = torch.device("cpu")
SAME = 0.9999
"""The bound on rows of different devices, as in `--check`."""
SIZES = [(50, 37), (37, 50), (32, 32), (80, 21), (16, 16), (33, 33), (50, 37)]
SMALL = ImagePreprocessing((24, 24), (20, 20), "bilinear", (0.4,) * 3, (0.2,) * 3)


@pytest.fixture
def entries(tmp_path):
    """Photographs of these sizes."""
    (tmp_path / "photos").mkdir()
    rng, found = np.random.default_rng(0), []
    for number, size in enumerate(SIZES):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        path = tmp_path / "photos" / f"{number}.png"
        coarse.resize(size, Image.Resampling.BICUBIC).save(path)
        found.append(ImageEntry(Place(path), hashlib.sha256(path.read_bytes()).digest()))
    return found


@pytest.fixture(scope="module")
def encoder():
    return named_encoder("resnet18", "random:0").build_image(CPU, "fp32")


def encode(entries, encoder, out, workers=0, device="cpu"):
    """Encode images with one thread."""
    settings = ExtractSettings(batch_size=4, dtype="float32")
    images = Entries.of(as_keys([entry.key for entry in entries]), entries)
    job = feature_job(FeatureInputs("image", images), encoder, out, settings, workers)
    run(job, 0.5, Machine(threads=1, devices=device))


def test_normalising_a_batch_gives_the_bytes_of_one_image():
    pixels = torch.randint(0, 256, (3, 4, 20, 20), dtype=torch.uint8)
    cutouts = CutoutPreprocessing(SMALL, CutoutRules(background="white"))
    for rule, channels in ((SMALL, 3), (cutouts, 4)):
        whole = rule.normalised(pixels[:, :channels])
        out = torch.full((3, 3, 20, 20), torch.nan)
        for row in range(3):
            rule.normalised(pixels[row, :channels], out=out[row])
        assert torch.equal(whole, out)


def test_rows_do_not_depend_on_neighbours_or_the_part_of_a_batch(encoder, entries):
    read = EntryDecoder(load_entry, SMALL)
    one = EncoderFeed(encoder, read)
    whole = decode_batch(entries[:4], 4, read).pixels
    turned = decode_batch([entries[i] for i in (3, 1, 0, 2)], 4, read).pixels
    rows = one.launch(whole, 0, 4)().copy()
    assert np.array_equal(one.launch(turned, 0, 4)(), rows[[3, 1, 0, 2]])
    halves = [one.launch(whole, start, start + 2)().copy() for start in (0, 2)]
    np.testing.assert_allclose(np.concatenate(halves), rows, rtol=1e-4, atol=1e-5)
    assert np.array_equal(one.launch(whole, 0, 4)(), rows)  # not the batch that was sent before


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_whose_upper_bits_are_unused_are_told_of(encoder, tmp_path, capfd, workers):
    levels = np.linspace(0, 4095, 24 * 24, dtype=np.uint16).reshape(24, 24)
    entries = []
    for name, values in (("12bits", levels), ("10bits", levels // 4), ("16bits", levels * 16)):
        file = tmp_path / f"{name}.png"
        Image.fromarray(values).save(file)
        entries.append(ImageEntry(Place(file), hashlib.sha256(file.read_bytes()).digest()))
    encode(entries, encoder, tmp_path / "features", workers)
    said = capfd.readouterr().err
    assert "warning: 2 pictures came out nearly black (no value above 16 of 255), such as" in said
    assert "multiply such values by 64 or 16, and prepare the data set again" in said
    assert "16bits.png" not in said
    assert len(FeatureSet.open(tmp_path / "features")) == 3


def test_options_are_part_of_plan_and_record(entries, tmp_path, monkeypatch):
    usual, plans = SetWriter.plan, []

    def plan(self, *arguments, **shape):
        plans.append(shape["code"])
        return usual(self, *arguments, **shape)

    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    monkeypatch.setattr(SetWriter, "plan", plan)
    for compiled, said in ((False, "channels last"), (True, "channels last, compiled")):
        config, out = named_encoder("resnet18", "random:0", compile=compiled), tmp_path / said
        encode(entries, config.build_image(CPU, "fp32"), out)
        options = [shard.computed["options"] for shard in FeatureSet.open(out).record.shards]
        assert options == [said]
    assert plans[0] + ", compiled" == plans[1]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_gives_the_rows_of_the_cpu(encoder, entries, tmp_path, precision):
    device = torch.device("cuda", 0)
    there = named_encoder("resnet18", "random:0").build_image(device, precision)
    assert EncoderFeed(there, EntryDecoder(load_entry, there.preprocessing)).on_gpu
    encode(entries, encoder, tmp_path / "host")
    for workers in (0, 2):
        encode(entries, there, tmp_path / str(workers), workers, "cuda:0")
    sets = {name: FeatureSet.open(tmp_path / name) for name in ("host", "0", "2")}
    assert sets["0"].record.content_digest == sets["2"].record.content_digest
    keys = sorted({entry.key for entry in entries})
    host, rows = (torch.from_numpy(sets[name].take(keys)).float() for name in ("host", "0"))
    bound = SAME if precision == "fp32" else 0.999
    assert torch.cosine_similarity(host, rows).min() > bound


@pytest.mark.gpu
def test_a_compiled_model_on_a_gpu(encoder, entries):
    device = torch.device("cuda", 0)
    read = EntryDecoder(load_entry, encoder.preprocessing)
    inputs = decode_batch(entries[:4], 4, read).pixels
    rows = []
    for compiled in (False, True):
        there = named_encoder("resnet18", "random:0", compile=compiled)
        one = EncoderFeed(there.build_image(device, "fp32"), read)
        rows.append(torch.from_numpy(one.launch(inputs, 0, 4)()))
        assert np.array_equal(one.launch(inputs, 0, 4)(), rows[-1].numpy())
    assert torch.cosine_similarity(*rows).min() > SAME


@pytest.mark.parametrize("kind", ["image", "text"])
def test_what_a_kind_has_no_use_for_is_refused(kind, tmp_path):
    with pytest.raises(SightlineError, match=rf"kind {kind} take no phrases and no cutouts; leave"):
        inputs_of(kind, tmp_path, phrases=tmp_path / "phrases", cutouts=tmp_path / "cutouts")


# --- out of memory


TEXTS = [f"text {i}" for i in range(50)]


class Limited:
    """A device with room for so many rows of a text encoder, and the sizes of calls."""

    def __init__(self, room, dies_after=None, error=None):
        self.room, self.calls, self._dies_after = room, [], dies_after
        self._error = error or torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB."
        )
        torch.manual_seed(0)
        self._model = nn.Linear(32, 16)

    def encode(self, texts, length):
        self.calls.append(len(texts))
        if len(self.calls) == self._dies_after:
            raise SightlineError("the power is gone")
        if len(texts) > self.room:
            raise self._error
        with torch.inference_mode():
            return self._model(torch.tensor(keys_of_texts(texts)).float() / 255)

    def fill(self, out):
        """The set of all texts in ``out``."""
        encode_all(self.encode, out)
        return FeatureSet.open(out)


def encode_all(call, out):
    """Encode all texts with an encoder that makes this ``call`` for each batch."""
    source = EncoderRecord(name="limited", source="random:0", weights_sha256="0" * 64)
    encoder = TextEncoder(source, 16, {}, lengths=lambda texts: [1] * len(texts), encode=call)
    settings = ExtractSettings(batch_size=8, dtype="float32")
    texts = FeatureInputs("text", Entries.of(keys_of_texts(TEXTS), TEXTS))
    run(feature_job(texts, encoder, out, settings), settings.max_failed)


def test_the_batch_is_halved_until_it_fits_and_that_is_recorded(tmp_path, capsys):
    wide, device = Limited(room=8).fill(tmp_path / "wide"), Limited(room=3)
    narrow = device.fill(tmp_path / "narrow")
    assert device.calls[:4] == [8, 4, 2, 2]
    assert set(device.calls[4:]) == {2}
    said = capsys.readouterr().err
    assert "out of memory with 8 rows per call; continuing with 4" in said
    assert "out of memory with 4 rows per call; continuing with 2" in said
    computed = [features.record.shards[0].computed for features in (wide, narrow)]
    assert [about["batch_size"] for about in computed] == [8, 8]
    assert [about.get("halved_to") for about in computed] == [None, 2]
    assert wide.fingerprint == narrow.fingerprint
    assert verify(tmp_path / "narrow") == []
    keys = keys_of_texts(TEXTS)
    one, other = (torch.from_numpy(each.take(keys)).double() for each in (wide, narrow))
    assert torch.cosine_similarity(one, other).min() >= 0.9999


def test_a_run_resumes_with_the_smaller_number(tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.cache.writer.block_rows", lambda spec: 8)
    with pytest.raises(SightlineError, match="power"):
        Limited(room=4, dies_after=6).fill(tmp_path / "set")
    device = Limited(room=8)
    (shard,) = device.fill(tmp_path / "set").record.shards
    assert set(device.calls) == {4}
    assert shard.computed["halved_to"] == 4
    Limited(room=4).fill(tmp_path / "whole")
    one, other = (tmp_path / name / shard.name for name in ("set", "whole"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 0 B)"),
        RuntimeError("Invalid buffer size: 20.25 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_every_device_says_in_its_own_words_that_it_is_full(tmp_path, error):
    device = Limited(room=3, error=error)
    device.fill(tmp_path / "set")
    assert device.calls[:4] == [8, 4, 2, 2]


def test_no_room_for_one_row_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(SightlineError, match=r"no room for one of its rows .* --precision bf16"):
        Limited(room=0).fill(tmp_path / "set")


def test_other_device_errors_are_not_treated_as_out_of_memory(tmp_path):
    def fails(texts, length):
        raise RuntimeError("cuDNN error")

    with pytest.raises(RuntimeError, match="cuDNN"):
        encode_all(fails, tmp_path / "set")


@pytest.mark.gpu
def test_a_full_real_device(tmp_path):
    class Greedy(Limited):
        def run_out(self):
            free, _ = torch.cuda.mem_get_info()
            torch.empty(2 * free, dtype=torch.uint8, device="cuda")

    (shard,) = Greedy(room=2).fill(tmp_path / "set").record.shards
    assert shard.computed["halved_to"] == 2


SCRIPT = """
import multiprocessing
from pathlib import Path

from sightline import EncoderConfig, extract_features

multiprocessing.set_start_method("{method}", force=True)
settings = {{"family": "torchvision", "model": "resnet18", "weights": "random:0", "resize": 32}}
config = EncoderConfig.model_validate({{**settings, "crop": 32}})


def main():
    rows = extract_features(Path("photos"), config, "set", device="cpu", workers=2)
    print(len(rows), "rows")


{call}
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_works_or_is_told_about_the_main_guard(tmp_path, method, guarded):
    write_photos(tmp_path / "photos", 5)
    call = 'if __name__ == "__main__":\n    main()' if guarded else "main()"
    (tmp_path / "script.py").write_text(SCRIPT.format(method=method, call=call))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    if guarded or method == "fork":
        assert (ended.returncode, ended.stdout) == (0, "5 rows\n"), ended.stderr
    else:
        assert ended.returncode == 1
        assert 'put it below `if __name__ == "__main__":`' in ended.stderr
        assert not (tmp_path / "set/set.json").exists()
