"""The way to a GPU, on the CPU: the host's pixels within a level, its rows within the bound."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.cache import FeatureSet, Place
from pipeline.encoders.named_encoder import named_encoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract import batches, feed
from pipeline.extract.batches import ImageReader, raw_batch
from pipeline.extract.cutouts import CutoutPreprocessing, CutoutRules
from pipeline.extract.encode_missing import ExtractSettings, ImageEntry, extract_images
from pipeline.extract.feed import DeviceFeed, HostFeed, feed_for

CPU = torch.device("cpu")
SAME = 0.9999
"""The bound on rows of different devices, as in `verify --recompute`."""
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


@pytest.mark.parametrize(("interpolation", "levels"), [("bilinear", 1), ("bicubic", 1)])
def test_fitting_in_float_is_within_a_level(interpolation: str, levels: int) -> None:
    rng = np.random.default_rng(1)
    for width, height in [*SIZES, (500, 375), (1000, 60)]:
        image = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
        exact = small(interpolation).fitted(image)
        other = small(interpolation).fitted(image, in_float=True)
        assert other.dtype == torch.uint8
        difference = (exact.int() - other.int()).abs()
        assert difference.max() <= levels
        assert difference.float().mean() < 0.3


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


def test_a_raw_batch_holds_every_image_and_fits_large_ones(
    entries: list[ImageEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "RAW_PIXELS", 37 * 50 - 1)
    broken = ImageEntry(Place(Path("nowhere.png")), bytes(32))
    raw, failures = raw_batch([entries[0], broken, entries[2]], 4, ImageReader(small()))
    assert [(f.row, f.code) for f in failures] == [(1, "missing")]
    assert raw.shapes == [(0, 3, 20, 20, 1), (2, 3, 32, 32, 0)]
    assert raw.values.numel() == 3 * 20 * 20 + 3 * 32 * 32
    with pytest.raises(ValueError, match="do not fit"):
        raw_batch(entries, 2, ImageReader(small()))
    empty, failures = raw_batch([broken], 4, ImageReader(small()))
    assert (empty.values.numel(), len(failures)) == (0, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_way_to_a_device_gives_the_rows_of_the_host(
    encoder, entries: list[ImageEntry], workers: int
) -> None:
    read = ImageReader(small())
    found = {}
    for kind in (HostFeed, DeviceFeed):
        one = kind(encoder, read)
        rows = []
        for inputs, failures in one.decoded(iter([entries[:4], entries[4:]]), 4, workers):
            assert not failures
            rows += [one.launch(inputs, 0, 4)()]
        found[kind] = np.concatenate(rows)
    host, device = torch.from_numpy(found[HostFeed]), torch.from_numpy(found[DeviceFeed])
    assert torch.cosine_similarity(host[:7], device[:7]).min() > SAME


def test_rows_do_not_depend_on_neighbours_or_the_part_of_a_batch(
    encoder, entries: list[ImageEntry]
) -> None:
    read = ImageReader(small())
    one = DeviceFeed(encoder, read)
    whole, _ = raw_batch(entries[:4], 4, read)
    turned, _ = raw_batch([entries[i] for i in (3, 1, 0, 2)], 4, read)
    rows = one.launch(whole, 0, 4)()
    assert np.array_equal(one.launch(turned, 0, 4)(), rows[[3, 1, 0, 2]])
    halves = [one.launch(whole, start, start + 2)() for start in (0, 2)]  # as after running out
    np.testing.assert_allclose(np.concatenate(halves), rows, rtol=1e-4, atol=1e-5)
    one.launch(turned, 0, 4)
    assert np.array_equal(one.launch(whole, 0, 4)(), rows)  # not the batch that was sent before


def test_extraction_by_way_of_a_device(
    encoder, entries: list[ImageEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ImageEntry(Place(tmp_path / "gone.png"), bytes(32))
    given = [*entries, gone]
    extract_images(given, encoder, tmp_path / "host", settings())
    monkeypatch.setattr(feed, "feed_for", lambda *of: DeviceFeed(*of))
    for workers in (0, 2):
        extract_images(given, encoder, tmp_path / str(workers), settings(workers))
    sets = {name: FeatureSet.open(tmp_path / name) for name in ("host", "0", "2")}
    assert sets["0"].record.content_digest == sets["2"].record.content_digest
    keys = sorted({entry.key for entry in entries})
    host, device = (torch.from_numpy(sets[name].take(keys)).float() for name in ("host", "0"))
    assert torch.cosine_similarity(host, device).min() > SAME
    assert sets["0"].record.failed == sets["host"].record.failed == 1


def test_options_are_part_of_plan_and_record(
    entries: list[ImageEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    out, plans = tmp_path / "set", []
    from pipeline.cache.feature_writer import FeatureSetWriter

    usual = FeatureSetWriter.plan

    def plan(self, *arguments, **shape):
        plans.append(shape["code"])
        return usual(self, *arguments, **shape)

    monkeypatch.setattr(FeatureSetWriter, "plan", plan)
    for compiled in (False, True):
        config = named_encoder("resnet18", "random:0", compile=compiled)
        extract_images(entries, config.build_image(CPU, "fp32"), out, settings())
        options = [s.computed.get("options") for s in FeatureSet.open(out).record.shards]
        assert options == ["channels last, compiled" if compiled else "channels last"]
        out = tmp_path / "compiled"
    assert plans[0] + ", compiled" == plans[1]


def test_a_gpu_is_fed_on_its_own_way(encoder) -> None:
    read = ImageReader(small())
    assert isinstance(feed_for(encoder, read), HostFeed)


def settings(workers: int = 0, device: str = "cpu") -> ExtractSettings:
    return ExtractSettings(
        batch_size=4, workers=workers, threads=1, max_failed=0.5, dtype="float32", device=device
    )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_gives_the_rows_of_the_cpu(
    encoder, entries: list[ImageEntry], tmp_path: Path, precision: str
) -> None:
    device = torch.device("cuda", 0)
    there = named_encoder("resnet18", "random:0").build_image(device, precision)
    assert isinstance(feed_for(there, ImageReader(there.preprocessing)), DeviceFeed)
    extract_images(entries, encoder, tmp_path / "host", settings())
    for workers in (0, 2):
        given = settings(workers, "cuda:0")
        extract_images(entries, there, tmp_path / str(workers), given)
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
    raw, _ = raw_batch(entries[:4], 4, read)
    rows = []
    for compiled in (False, True):
        there = named_encoder("resnet18", "random:0", compile=compiled)
        one = DeviceFeed(there.build_image(device, "fp32"), read)  # type: ignore[arg-type]
        rows.append(torch.from_numpy(one.launch(raw, 0, 4)()))
        assert np.array_equal(one.launch(raw, 0, 4)(), rows[-1].numpy())
    assert torch.cosine_similarity(*rows).min() > SAME
