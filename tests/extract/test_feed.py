"""From decoded batches to rows: on the CPU, and on a GPU within the bound."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.encoders.config import named_encoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract.batches import Feed, ImageReader, decode_batch
from pipeline.extract.encode_missing import encode
from pipeline.extract.inputs import CutoutRules, FeatureInputs, ImageEntry
from pipeline.extract.objects import CutoutPreprocessing
from pipeline.extract.settings import RunSettings
from sightline.cache import FeatureSet, Place

CPU = torch.device("cpu")
SAME = 0.9999
"""The bound on rows of different devices, as in `--check`."""
SIZES = [(50, 37), (37, 50), (32, 32), (80, 21), (16, 16), (33, 33), (50, 37)]


@pytest.fixture
def entries(tmp_path: Path) -> list[ImageEntry]:
    (tmp_path / "photos").mkdir()
    rng, found = np.random.default_rng(0), []
    for number, (width, height) in enumerate(SIZES):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        path = tmp_path / "photos" / f"{number}.png"
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(path)
        found.append(ImageEntry(Place(path), hashlib.sha256(path.read_bytes()).digest()))
    return found


@pytest.fixture(scope="module")
def encoder():
    return named_encoder("resnet18", "random:0").build_image(CPU, "fp32")


def small(interpolation: str = "bilinear") -> ImagePreprocessing:
    return ImagePreprocessing((24, 24), (20, 20), interpolation, (0.4,) * 3, (0.2,) * 3)  # type: ignore[arg-type]


def test_normalising_a_batch_gives_the_bytes_of_one_image() -> None:
    pixels = torch.randint(0, 256, (3, 4, 20, 20), dtype=torch.uint8)
    for rule, channels in (
        (small(), 3),
        (CutoutPreprocessing(small(), CutoutRules(background="white")), 4),
    ):
        whole = rule.normalised(pixels[:, :channels])
        out = torch.full((3, 3, 20, 20), torch.nan)
        for row in range(3):
            rule.normalised(pixels[row, :channels], out=out[row])
        assert torch.equal(whole, out)


def test_rows_do_not_depend_on_neighbours_or_the_part_of_a_batch(
    encoder, entries: list[ImageEntry]
) -> None:
    read = ImageReader(small())
    one = Feed(encoder, read)
    whole, _ = decode_batch(entries[:4], 4, read)
    turned, _ = decode_batch([entries[i] for i in (3, 1, 0, 2)], 4, read)
    rows = one.launch(whole, 0, 4)().copy()
    assert np.array_equal(one.launch(turned, 0, 4)(), rows[[3, 1, 0, 2]])
    halves = [one.launch(whole, start, start + 2)().copy() for start in (0, 2)]
    np.testing.assert_allclose(np.concatenate(halves), rows, rtol=1e-4, atol=1e-5)
    assert np.array_equal(one.launch(whole, 0, 4)(), rows)  # not the batch that was sent before


def test_options_are_part_of_plan_and_record(
    entries: list[ImageEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    out, plans = tmp_path / "set", []
    from sightline.cache.writer import SetWriter

    usual = SetWriter.plan

    def plan(self, *arguments, **shape):
        plans.append(shape["code"])
        return usual(self, *arguments, **shape)

    monkeypatch.setattr(SetWriter, "plan", plan)
    for compiled in (False, True):
        config = named_encoder("resnet18", "random:0", compile=compiled)
        encode(FeatureInputs("image", entries), config.build_image(CPU, "fp32"), out, settings())
        options = [s.computed.get("options") for s in FeatureSet.open(out).record.shards]
        assert options == ["channels last, compiled" if compiled else "channels last"]
        out = tmp_path / "compiled"
    assert plans[0] + ", compiled" == plans[1]


def settings(workers: int = 0, device: str = "cpu") -> RunSettings:
    return RunSettings(
        batch_size=4, workers=workers, threads=1, max_failed=0.5, dtype="float32", devices=device
    )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_gives_the_rows_of_the_cpu(
    encoder, entries: list[ImageEntry], tmp_path: Path, precision: str
) -> None:
    device = torch.device("cuda", 0)
    there = named_encoder("resnet18", "random:0").build_image(device, precision)
    assert Feed(there, ImageReader(there.preprocessing)).on_gpu
    encode(FeatureInputs("image", entries), encoder, tmp_path / "host", settings())
    for workers in (0, 2):
        given = settings(workers, "cuda:0")
        encode(FeatureInputs("image", entries), there, tmp_path / str(workers), given)
    sets = {name: FeatureSet.open(tmp_path / name) for name in ("host", "0", "2")}
    assert sets["0"].record.content_digest == sets["2"].record.content_digest
    keys = sorted({entry.key for entry in entries})
    host, rows = (torch.from_numpy(sets[name].take(keys)).float() for name in ("host", "0"))
    bound = SAME if precision == "fp32" else 0.999
    assert torch.cosine_similarity(host, rows).min() > bound


@pytest.mark.gpu
def test_a_compiled_model_on_a_gpu(encoder, entries: list[ImageEntry]) -> None:
    device = torch.device("cuda", 0)
    read = ImageReader(encoder.preprocessing)
    inputs, _ = decode_batch(entries[:4], 4, read)
    rows = []
    for compiled in (False, True):
        there = named_encoder("resnet18", "random:0", compile=compiled)
        one = Feed(there.build_image(device, "fp32"), read)  # type: ignore[arg-type]
        rows.append(torch.from_numpy(one.launch(inputs, 0, 4)()))
        assert np.array_equal(one.launch(inputs, 0, 4)(), rows[-1].numpy())
    assert torch.cosine_similarity(*rows).min() > SAME
