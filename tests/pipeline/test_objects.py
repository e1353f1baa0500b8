"""`sightline extract object`: from phrases to features, even if some are invalid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from prepared_data import as_prepared
from small_inputs import write_clip

from pipeline.encoders.names import named_encoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from pipeline.extract import decode_batches, objects
from pipeline.extract.decode import ImageError
from pipeline.extract.decode_batches import EntryDecoder
from pipeline.extract.inputs import CutoutEntry, objects_of_phrases
from pipeline.extract.objects import CutoutPreprocessing, Cutter
from pipeline.extract.runner import run
from pipeline.extract.settings import CutoutRules
from pipeline.grounding.cutouts import cutouts_job
from sightline.cache import (
    IMAGES,
    PHRASES,
    FeatureSet,
    Place,
    key_of_file,
    key_of_text,
    verify,
    whole_files,
    write_manifest,
)
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.prepared import PreparedDataset
from sightline.cache.rle import MaskCode, encode_mask

OBJECTS = 3  # of each image


class Photos:
    """Five images with three objects each, which two captions name."""

    def __init__(self, folder: Path, said) -> None:
        self.folder, self.images = folder, folder / "photos"
        self.phrases = folder / "phrases.parquet"
        self._said = said
        self.rows: list[dict] = []
        self.paths: list[str] = []
        self.images.mkdir()
        rng = np.random.default_rng(0)
        for i in range(5):
            pixels = rng.integers(0, 256, (30, 40 + i, 3), dtype=np.uint8)
            self.paths.append(f"{i}.png")
            Image.fromarray(pixels).save(self.images / f"{i}.png")
            for k in range(OBJECTS):
                box = slice(3, 9 + k), slice(4 + 10 * k, 12 + 10 * k)
                self.name(i, masked(*pixels.shape[:2], box))
        self.write_images()

    def name(self, image: int, code: MaskCode | dict) -> bytes:
        """Add the phrases of one object; its key."""
        image_key = key_of_file(self.images / self.paths[image])
        key = cutout_key(image_key, code["size"], code["counts"], CROP_RULE)
        row = {"image_key": image_key, "phrase": "a thing", "char_start": 0, "char_end": 7}
        row |= {"box": [0.0, 0.0, 1.0, 1.0], "score": 1.0, "mask": code, "cutout_key": key}
        for caption in ("a thing is here", "a thing is there"):
            self.rows.append({**row, "caption_key": key_of_text(caption)})
        return key

    def write_images(self) -> None:
        keys = [key_of_file(self.images / path) for path in self.paths]
        columns = {"image_id": self.paths, "path": self.paths, "key": keys}
        columns |= {name: [0] * len(keys) for name in ("width", "height")}
        columns |= {"split": ["train"] * len(keys), **whole_files(len(keys))}
        table = pa.table({name: columns[name] for name in IMAGES.names}, schema=IMAGES)
        write_manifest(self.folder / "images.parquet", table, IMAGES)

    def write_phrases(self) -> None:
        write_manifest(self.phrases, pa.Table.from_pylist(self.rows, schema=PHRASES), PHRASES)

    def store(self) -> Path:
        """Store the cut-outs of the current phrases."""
        self.write_phrases()
        paths = [self.images / path for path in self.paths]
        places = {key_of_file(path): Place(path) for path in paths}
        run(cutouts_job(self.phrases, places, self.folder / "cutouts"), max_failed=0)
        return self.folder / "cutouts"

    def run(self, out: str, options: dict) -> tuple[int, str, str]:
        self.write_phrases()
        words = {
            "data": as_prepared(self.folder, self.images),
            "phrases": self.phrases,
            "encoder": write_clip(self.folder),
            "weights": "random:0",
            "out": self.folder / out,
            "batch-size": 4,
            "workers": 0,
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        pairs = [word for name, value in words.items() for word in (f"--{name}", value)]
        return self._said("extract", "object", *pairs, "--json")

    def extract(self, out: str = "out", **options: object) -> FeatureSet:
        """The features of the current phrases; what the command says is in `summary`."""
        code, said, err = self.run(out, options)
        assert code == 0, err
        self.summary = json.loads(said)
        return FeatureSet.open(self.folder / out)

    def refused(self, **options: object) -> str:
        """The error of the command on the current phrases."""
        code, _, err = self.run("out", options)
        assert code == 1
        return " ".join(err.split())

    def entries(self) -> list[CutoutEntry]:
        data = PreparedDataset(self.folder, self.images)
        return list(objects_of_phrases(self.phrases, data))


def masked(height: int, width: int, *boxes: tuple[slice, slice]) -> MaskCode:
    """The code of a mask of these boxes."""
    mask = np.zeros((height, width), dtype=bool)
    for box in boxes:
        mask[box] = True
    return encode_mask(mask)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def photos(tmp_path, said) -> Photos:
    return Photos(tmp_path, said)


def test_each_object_is_one_row_which_is_the_encoding_of_its_cut_out(photos):
    features = photos.extract(dtype="float32")
    assert (photos.summary["computed"], len(features), features.dim) == (15, 15, 8)
    assert features.record.spec.kind == "object"
    assert features.record.spec.preprocessing["margin"] == 0.1
    assert verify(photos.folder / "out") == []
    config = named_encoder(str(photos.folder / "clip.json"), "random:0", "image")
    encoder = config.build_image(torch.device("cpu"), "fp32")
    read = EntryDecoder(Cutter(), CutoutPreprocessing(encoder.preprocessing, CutoutRules()))
    rows = features.take([entry.key for entry in photos.entries()])
    assert len(np.unique(rows, axis=0)) == 15
    for entry, row in zip(photos.entries(), rows, strict=True):
        alone = encoder.encode(read.preprocessing.normalised(read(entry)).unsqueeze(0))[0]
        np.testing.assert_allclose(row, alone, rtol=1e-4, atol=1e-5)


def test_an_image_is_read_once_for_all_its_objects_even_a_broken_one(monkeypatch, photos):
    (photos.images / "1.png").write_bytes(b"broken")
    loaded = []
    usual = objects.load_image

    def load_image(path, *others):
        loaded.append(path)
        return usual(path, *others)

    monkeypatch.setattr(objects, "load_image", load_image)
    assert len(photos.extract(max_failed=0.5).failed) == OBJECTS
    assert len(loaded) == len(set(loaded)) == 5


def test_neither_the_order_of_phrases_and_images_nor_workers_change_a_byte(photos):
    photos.name(2, {"size": [30, 42], "counts": "00"})  # one row in error
    photos.extract("one", max_failed=0.5)
    photos.rows.reverse()
    photos.paths.reverse()
    photos.write_images()
    photos.extract("two", max_failed=0.5, workers=2)
    assert files_of(photos.folder / "one") == files_of(photos.folder / "two")


@pytest.mark.parametrize(("background", "workers"), [("mean", 0), ("keep", 2)])
def test_stored_cutouts_give_the_rows_of_the_photographs_which_they_replace(
    photos, background, workers
):
    cut = photos.extract("cut", background=background)
    cutouts = photos.store()
    for photograph in photos.images.iterdir():
        photograph.unlink()
    stored = photos.extract("stored", background=background, cutouts=cutouts, workers=workers)
    assert len(stored) == 15
    assert stored.fingerprint == cut.fingerprint
    np.testing.assert_array_equal(stored.take(cut.keys), cut.take(cut.keys))


def test_a_background_that_is_kept_is_in_the_row(photos):
    # two corners of its box are not its own
    key = photos.name(0, masked(30, 40, np.s_[5:20, 5:20], np.s_[22:28, 22:28]))
    rows = [photos.extract(each, background=each).take([key]) for each in ("mean", "keep")]
    assert not np.allclose(*rows, atol=1e-3)


def test_objects_that_are_not_stored_are_cut_out_of_their_photographs(photos):
    cutouts = photos.store()
    new = photos.name(2, masked(30, 42, np.s_[20:25, 1:30]))
    cut = photos.extract("cut")
    for path in photos.paths[:2] + photos.paths[3:]:
        (photos.images / path).unlink()
    both = photos.extract(cutouts=cutouts)
    assert len(both) == 16
    np.testing.assert_array_equal(both.take(cut.keys), cut.take(cut.keys))
    assert both.find([new])[0] >= 0
    photos.images.rename(photos.folder / "away")
    error = photos.refused(cutouts=cutouts)
    assert "cutouts: lacks 1 of 16 objects" in error
    assert f"its images are not here: there is no folder {photos.images}" in error


def test_cutouts_of_other_rules_are_refused(photos, monkeypatch):
    other = objects.SPEC.model_copy(update={"description": {"format": "cutouts/1"}})
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.grounding.cutouts.SPEC", other)
        cutouts = photos.store()
    error = photos.refused(cutouts=cutouts)
    assert "cutouts/1" in error
    assert "run its stage again" in error


def test_only_what_is_new_is_computed_and_other_rules_compute_all(photos):
    def computed(**rules: object) -> tuple[int, str]:
        photos.extract(**rules)
        return photos.summary["computed"], photos.summary["fingerprint"]

    first, same = computed()[0], computed()[0]
    new = photos.name(1, masked(30, 41, np.s_[20:25, 1:30]))
    more, fingerprint = computed()
    assert (first, same, more) == (15, 0, 1)
    assert len(FeatureSet.open(photos.folder / "out").take([new])) == 1
    for rules in ({"margin": 0.2}, {"background": "white"}):
        again, other = computed(**rules)
        assert again == 16, rules
        assert other != fingerprint, rules


def test_an_object_that_cannot_be_cut_out_costs_only_its_row(photos):
    whole = np.ones((30, 43), dtype=bool)
    photos.name(3, encode_mask(whole[:, :40]))  # of another size than the image
    photos.name(3, encode_mask(~whole))
    photos.name(3, {"size": [30, 43], "counts": "5"})  # too few runs
    photos.name(3, {"size": [30, 43], "counts": "no code: \x00"})
    changed = photos.name(3, encode_mask(whole))
    for row in photos.rows:
        if row["cutout_key"] == changed:
            row["cutout_key"] = bytes(32)
    (photos.images / "0.png").unlink()
    features = photos.extract(max_failed=0.5)
    assert len(features) == 12
    expected = ["changed", "mask_damaged", "mask_damaged", "mask_empty", "mask_size"]
    assert sorted(features.failed.values()) == expected + ["missing"] * OBJECTS
    lines = (photos.folder / "out.run" / "failures.jsonl").read_text().splitlines()
    reasons = {each["code"]: each["reason"] for each in map(json.loads, lines)}
    assert reasons["missing"] == "no such file"
    assert "the mask is 40 × 30 and the image 43 × 30 pixels" in reasons["mask_size"]
    assert CROP_RULE in reasons["changed"]


def test_a_huge_object_is_refused(photos, monkeypatch):
    Image.new("RGB", (400, 1)).save(photos.images / "strip.png")
    photos.paths.append("strip.png")
    photos.write_images()
    strip = photos.name(5, encode_mask(np.ones((1, 400), dtype=bool)))
    photos.extract()
    image = ImagePreprocessing((8, 8), (8, 8), "bilinear", (0.5,) * 3, (0.5,) * 3)
    monkeypatch.setattr(decode_batches, "MAX_PIXELS", 480**2 - 1)
    read = EntryDecoder(Cutter(), CutoutPreprocessing(image, CutoutRules()))
    (entry,) = [entry for entry in photos.entries() if entry.key == strip]
    with pytest.raises(ImageError, match="become 480 × 480") as caught:
        read(entry)
    assert caught.value.code == "too_many_pixels"


def test_inputs_that_do_not_fit_are_one_clear_error(photos, said):
    data = as_prepared(photos.folder, photos.images)
    words = ["--encoder", "clip.json", "--weights", "random:0", "--out", photos.folder / "out"]
    code, _, err = said("extract", "object", "--data", data, *words)
    assert code == 1
    assert "features of objects need `phrases`" in err
    photos.extract()
    (photos.images / "1.png").unlink()
    error = photos.refused(check=15)
    assert "3 rows cannot be encoded again" in error
    assert "1.png is missing; give the inputs that the set was made from" in error
    del photos.paths[1]
    photos.write_images()
    assert "belong to 1 image that" in photos.refused()
