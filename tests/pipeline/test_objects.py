"""`sightline extract object`: from phrases to features, even if some are invalid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import sightline, unboxed
from PIL import Image
from prepared_data import as_prepared
from small_inputs import write_clip

from pipeline.extract import objects
from pipeline.grounding.cutouts import write_cutouts
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
from sightline.cache.prepared import PreparedDataset
from sightline.cache.rle import CROP_RULE, MaskCode, cutout_key, encode_mask

OBJECTS = 3  # of each image


class Photos:
    """Five images with three objects each, which two captions name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict] = []
        self.paths: list[str] = []
        (folder / "photos").mkdir()
        rng = np.random.default_rng(0)
        for i in range(5):
            pixels = rng.integers(0, 256, (30, 40 + i, 3), dtype=np.uint8)
            self.paths.append(f"{i}.png")
            Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
            for k in range(OBJECTS):
                box = slice(3, 9 + k), slice(4 + 10 * k, 12 + 10 * k)
                self.name(i, masked(*pixels.shape[:2], box))
        self.write_images()

    def name(self, image: int, code: dict) -> bytes:
        """Add the phrases of one object; its key."""
        image_key = key_of_file(self.folder / "photos" / self.paths[image])
        key = cutout_key(image_key, code["size"], code["counts"], CROP_RULE)
        row = {"image_key": image_key, "phrase": "a thing", "char_start": 0, "char_end": 7}
        row |= {"box": [0.0, 0.0, 1.0, 1.0], "score": 1.0, "mask": code, "cutout_key": key}
        for caption in ("a thing is here", "a thing is there"):
            self.rows.append({**row, "caption_key": key_of_text(caption)})
        return key

    def write_images(self) -> None:
        keys = [key_of_file(self.folder / "photos" / path) for path in self.paths]
        columns = {"image_id": self.paths, "path": self.paths, "key": keys}
        columns |= {name: [0] * len(keys) for name in ("width", "height")}
        columns |= {"split": ["train"] * len(keys), **whole_files(len(keys))}
        table = pa.table({name: columns[name] for name in IMAGES.names}, schema=IMAGES)
        write_manifest(self.folder / "images.parquet", table, IMAGES)

    def extract(self, out: str = "out", **options: object) -> int:
        """Run the command on the current phrases; returns its exit code."""
        table = pa.Table.from_pylist(self.rows, schema=PHRASES)
        write_manifest(self.folder / "phrases.parquet", table, PHRASES)
        words = {
            "data": as_prepared(self.folder, self.folder / "photos"),
            "phrases": self.folder / "phrases.parquet",
            "encoder": write_clip(self.folder),
            "weights": "random:0",
            "out": self.folder / out,
            "batch-size": 4,
            "workers": 0,
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        line = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
        return sightline("extract", "object", *line, "--json")

    def failures(self) -> dict[str, str]:
        """Code → reason of failed rows."""
        lines = (self.folder / "out.run" / "failures.jsonl").read_text().splitlines()
        return {each["code"]: each["reason"] for each in map(json.loads, lines)}


def masked(height: int, width: int, *boxes: tuple[slice, slice]) -> MaskCode:
    """The code of a mask of these boxes."""
    mask = np.zeros((height, width), dtype=bool)
    for box in boxes:
        mask[box] = True
    return encode_mask(mask)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def photos(tmp_path) -> Photos:
    return Photos(tmp_path)


def test_each_object_is_one_row_no_matter_how_often_it_is_named(capsys, photos):
    assert photos.extract() == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 15
    features = FeatureSet.open(photos.folder / "out")
    assert (len(features), features.dim) == (15, 8)
    assert features.record.spec.kind == "object"
    assert features.record.spec.preprocessing["margin"] == 0.1
    rows = features.take([row["cutout_key"] for row in photos.rows[::2]])
    assert len(np.unique(rows, axis=0)) == 15
    assert verify(photos.folder / "out") == []


def test_a_row_is_the_encoding_of_its_own_cut_out(photos):
    import torch

    from pipeline.encoders.config import named_encoder
    from pipeline.extract.inputs import CutoutRules, objects_of_phrases
    from pipeline.extract.objects import CutoutPreprocessing

    assert photos.extract(dtype="float32") == 0
    config = named_encoder(str(photos.folder / "clip.json"), "random:0", "image")
    encoder = config.build_image(torch.device("cpu"), "fp32")
    read = objects.ObjectReader(CutoutPreprocessing(encoder.preprocessing, CutoutRules()))
    features = FeatureSet.open(photos.folder / "out")
    data = PreparedDataset(photos.folder, photos.folder / "photos")
    for entry in objects_of_phrases(photos.folder / "phrases.parquet", data):
        alone = encoder.encode(read.preprocessing.normalised(read(entry)).unsqueeze(0))[0]
        np.testing.assert_allclose(features.take([entry.key])[0], alone, rtol=1e-4, atol=1e-5)


def test_an_image_is_read_once_for_all_its_objects_even_a_broken_one(monkeypatch, photos):
    (photos.folder / "photos" / "1.png").write_bytes(b"broken")
    loaded = []
    usual = objects.load_image

    def load_image(path, *others):
        loaded.append(path)
        return usual(path, *others)

    monkeypatch.setattr(objects, "load_image", load_image)
    assert photos.extract(max_failed=0.5) == 0
    assert len(loaded) == len(set(loaded)) == 5
    assert len(FeatureSet.open(photos.folder / "out").failed) == OBJECTS


def test_the_number_of_workers_changes_no_byte(photos):
    photos.name(2, {"size": [30, 42], "counts": "00"})  # one row in error
    files = []
    for workers in (0, 2):
        assert photos.extract(str(workers), workers=workers, max_failed=0.5) == 0
        files.append(files_of(photos.folder / str(workers)))
    assert files[0] == files[1]


def test_the_order_of_phrases_and_images_changes_no_byte(photos):
    files = []
    for out in ("one", "two"):
        assert photos.extract(out) == 0
        files.append(files_of(photos.folder / out))
        photos.rows.reverse()
        photos.paths.reverse()
        photos.write_images()
    assert files[0] == files[1]


def store(photos: Photos, out: str = "cutouts") -> Path:
    """Store the cut-outs of the current phrases."""
    table = pa.Table.from_pylist(photos.rows, schema=PHRASES)
    write_manifest(photos.folder / "phrases.parquet", table, PHRASES)
    paths = [photos.folder / "photos" / path for path in photos.paths]
    places = {key_of_file(path): Place(path) for path in paths}
    write_cutouts(photos.folder / "phrases.parquet", places, photos.folder / out)
    return photos.folder / out


@pytest.mark.parametrize(("background", "workers"), [("mean", 0), ("keep", 2)])
def test_stored_cutouts_give_the_rows_of_the_photographs_which_they_replace(
    capsys, photos, background, workers
):
    assert photos.extract("cut", background=background) == 0
    cutouts = store(photos)
    for photograph in (photos.folder / "photos").iterdir():
        photograph.unlink()
    options = {"background": background, "cutouts": cutouts, "workers": workers}
    assert photos.extract("stored", **options) == 0
    cut, stored = (FeatureSet.open(photos.folder / name) for name in ("cut", "stored"))
    assert len(stored) == 15
    assert stored.fingerprint == cut.fingerprint
    np.testing.assert_array_equal(stored.take(cut.keys), cut.take(cut.keys))


def test_a_background_that_is_kept_is_in_the_row(photos):
    cutouts = store(photos)
    rows = []
    for background in ("mean", "keep"):
        # two corners of its box are not its own
        key = photos.name(0, masked(30, 40, np.s_[5:20, 5:20], np.s_[22:28, 22:28]))
        assert photos.extract(background, background=background, cutouts=cutouts) == 0
        rows.append(FeatureSet.open(photos.folder / background).take([key]))
    assert not np.allclose(*rows, atol=1e-3)


def test_objects_that_are_not_stored_are_cut_out_of_their_photographs(capsys, photos):
    cutouts = store(photos)
    new = photos.name(2, masked(30, 42, np.s_[20:25, 1:30]))
    assert photos.extract("cut") == 0
    for path in photos.paths[:2] + photos.paths[3:]:
        (photos.folder / "photos" / path).unlink()
    assert photos.extract(cutouts=cutouts) == 0
    cut, both = (FeatureSet.open(photos.folder / name) for name in ("cut", "out"))
    assert len(both) == 16
    np.testing.assert_array_equal(both.take(cut.keys), cut.take(cut.keys))
    assert both.find([new])[0] >= 0
    capsys.readouterr()
    (photos.folder / "photos").rename(photos.folder / "away")
    assert photos.extract("no-photographs", cutouts=cutouts) == 1
    said = capsys.readouterr().err
    assert "cutouts: lacks 1 of 16 objects" in said
    assert f"its images are not here: there is no folder {photos.folder / 'photos'}" in said


def test_cutouts_of_other_rules_are_refused(capsys, photos, monkeypatch):
    other = objects.SPEC.model_copy(update={"description": {"format": "cutouts/1"}})
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.grounding.cutouts.SPEC", other)
        cutouts = store(photos)
    assert photos.extract(cutouts=cutouts) == 1
    said = capsys.readouterr().err
    assert "cutouts/1" in said
    assert "run its stage again" in said


def test_new_phrases_compute_only_new_objects(capsys, photos):
    computed = []
    for step in range(3):
        if step == 2:
            new = photos.name(1, masked(30, 41, np.s_[20:25, 1:30]))
        assert photos.extract() == 0
        computed.append(json.loads(capsys.readouterr().out)["computed"])
    assert computed == [15, 0, 1]
    assert len(FeatureSet.open(photos.folder / "out").take([new])) == 1


@pytest.mark.parametrize("change", [{"margin": 0.2}, {"background": "white"}])
def test_different_rules_give_a_different_feature_set(capsys, photos, change):
    fingerprints, computed = set(), []
    for options in ({}, change):
        assert photos.extract(**options) == 0
        said = json.loads(capsys.readouterr().out)
        fingerprints.add(said["fingerprint"])
        computed.append(said["computed"])
    assert len(fingerprints) == 2
    assert computed == [15, 15]


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
    (photos.folder / "photos" / "0.png").unlink()
    assert photos.extract(max_failed=0.5) == 0
    features = FeatureSet.open(photos.folder / "out")
    assert len(features) == 12
    expected = ["changed", "mask_damaged", "mask_damaged", "mask_empty", "mask_size"]
    assert sorted(features.failed.values()) == expected + ["missing"] * OBJECTS
    failures = photos.failures()
    assert failures["missing"] == "no such file"
    assert "the mask is 40 × 30 and the image 43 × 30 pixels" in failures["mask_size"]
    assert CROP_RULE in failures["changed"]


def test_phrases_of_other_images_are_one_clear_error(capsys, photos):
    photos.paths.pop()
    photos.write_images()
    assert photos.extract() == 1
    said = capsys.readouterr().err
    assert "belong to 1 image that" in said
    assert "Traceback" not in said


def test_a_huge_object_is_refused(photos):
    from pipeline.encoders.preprocessing import ImagePreprocessing
    from pipeline.extract.decode import ImageError
    from pipeline.extract.inputs import CutoutRules, objects_of_phrases
    from pipeline.extract.objects import CutoutPreprocessing

    Image.new("RGB", (400, 1)).save(photos.folder / "photos" / "strip.png")
    photos.paths.append("strip.png")
    photos.write_images()
    strip = photos.name(5, encode_mask(np.ones((1, 400), dtype=bool)))
    assert photos.extract() == 0
    data = PreparedDataset(photos.folder, photos.folder / "photos")
    entries = objects_of_phrases(photos.folder / "phrases.parquet", data)
    image = ImagePreprocessing((8, 8), (8, 8), "bilinear", (0.5,) * 3, (0.5,) * 3)
    read = objects.ObjectReader(CutoutPreprocessing(image, CutoutRules()), max_pixels=480**2 - 1)
    (entry,) = [entry for entry in entries if entry.key == strip]
    with pytest.raises(ImageError, match="padded to 480 × 480") as caught:
        read(entry)
    assert caught.value.code == "too_many_pixels"


def test_an_unknown_background(capsys, photos):
    assert photos.extract(background="grey") == 2
    said = unboxed(capsys.readouterr().err)
    assert all(name in said for name in ("mean", "white", "black", "keep"))


def test_objects_without_phrases_are_refused(capsys, photos):
    words = ["--encoder", "clip.json", "--weights", "random:0", "--out", photos.folder / "out"]
    data = as_prepared(photos.folder, photos.folder / "photos")
    assert sightline("extract", "object", "--data", data, *words) == 1
    assert "features of objects need `phrases`" in capsys.readouterr().err


def test_an_object_whose_photograph_is_missing_is_named(capsys, photos):
    assert photos.extract() == 0
    (photos.folder / "photos" / "1.png").unlink()
    assert photos.extract(check=15) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "3 rows cannot be encoded again" in said
    assert "1.png is missing; give the inputs that the set was made from" in said
