"""An encoder or a grounder of another package whose code changes, and the sets that it has made."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import sightline
from installed_package import forget, forget_sources, install
from small_inputs import write_photos

from pipeline.encoders.config import EncoderConfig
from pipeline.extract.code_change import stays_unchecked
from pipeline.extract.encode_missing import code_of_rows
from pipeline.extract.settings import ExtractSettings
from sightline.cache import FeatureSet, keys_of_texts, verify
from sightline.cache.parts import part_names
from sightline.cache.record import read_record
from sightline.cache.writer import SetWriter

ENCODER = '''
from typing import Literal
import torch
from addon.pool import pooled
from pipeline.encoders.config import EncoderConfig
from pipeline.extract.code_change import stays_unchecked
from pipeline.extract.encode_missing import code_of_rows
from pipeline.extract.settings import ExtractSettings
from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.preprocessing import ImagePreprocessing
from sightline.cache import EncoderRecord

class Shades(EncoderConfig):
    """Mean colours of a grid."""
    family: Literal["shades"]

    def build_image(self, device, precision):
        half, size = (0.5, 0.5, 0.5), (64, 64)
        how = ImagePreprocessing(
            resize=size, crop=size, interpolation="bilinear", mean=half, std=half,
            resize_mode="squash",
        )
        record = EncoderRecord(name="shades/grid", source="none", weights_sha256="0" * 64)
        return ImageEncoder(record, 48, how, device, pooled)
'''
POOL = """
import torch

def pooled(images):
    return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1).float()
"""
MAXIMUM = POOL.replace("avg", "max")
REWRITTEN = POOL.replace("torch.nn.functional", "functional").replace(
    "import torch", "from torch.nn import functional"
)


@pytest.fixture
def edit(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Installs the package `addon`, and then replaces its module `pool`."""
    folder = tmp_path / "site/addon"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "shades.py").write_text(ENCODER)
    install(tmp_path / "site", "addon", {"sightline.encoders": {"shades": "addon.shades:Shades"}})
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def replace(pool: str) -> None:
        (folder / "pool.py").write_text(pool)
        forget([EncoderConfig.families], "addon")
        forget_sources()

    yield replace
    forget([EncoderConfig.families], "addon")


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_photos(tmp_path / "photos", 12)


def extract(capsys, *more: object, out: str = "features") -> str:
    words = ["extract", "image", "--data", "photos", "--encoder", "shades:grid", "--out", out]
    assert sightline(*words, "--weights", "pretrained", "--workers", 0, *more) == 0
    told = capsys.readouterr()
    return told.out + told.err


def rows(folder: str = "features") -> bytes:
    return FeatureSet.open(Path(folder)).gather(np.arange(12)).tobytes()


def test_rows_of_other_code_are_computed_again(edit, photos, capsys):
    edit(POOL)
    extract(capsys)
    before = rows()
    edit(MAXIMUM)
    told = extract(capsys)
    assert "features: the code that made its rows has changed, and 8 of 8 rows" in told
    assert "12 computed" in told
    extract(capsys, out="fresh")
    assert rows() == rows("fresh") != before
    assert "nothing to compute" in extract(capsys)


def test_rows_of_code_that_computes_the_same_are_kept(edit, photos, capsys):
    edit(POOL)
    extract(capsys)
    before, record = rows(), read_record(Path("features"))
    edit(REWRITTEN)
    told = extract(capsys)
    assert "8 rows encoded again are equal: the set is kept" in told
    assert "nothing to compute" in told
    after = read_record(Path("features"))
    assert (rows(), after.content_digest) == (before, record.content_digest)
    assert after.fingerprint == record.fingerprint
    assert after.spec.code != record.spec.code
    assert verify(Path("features")) == []
    assert "changed" not in extract(capsys)


def test_a_comment_changes_nothing(edit, photos, capsys):
    edit(POOL)
    extract(capsys)
    edit(f'"""Pools."""\n{POOL}  # as in the paper\n')
    assert "changed" not in extract(capsys)


def test_a_set_that_is_kept_gains_the_rows_that_it_lacks(edit, photos, capsys):
    edit(POOL)
    extract(capsys)
    shutil.rmtree(photos)
    write_photos(photos, 15)
    edit(REWRITTEN)
    told = extract(capsys)
    assert "the set is kept" in told
    assert "15 rows · 3 computed" in told


def test_a_dry_run_encodes_nothing(edit, photos, capsys):
    edit(POOL)
    extract(capsys)
    record = Path("features/set.json").read_bytes()
    edit(MAXIMUM)
    assert "0 to compute" in extract(capsys, "--dry-run")
    assert Path("features/set.json").read_bytes() == record


def test_parts_of_other_code_are_not_used(edit, photos, capsys):
    """A run was stopped after its blocks were computed, and before it published."""
    edit(POOL)
    extract(capsys)
    record = read_record(Path("features"))
    features = FeatureSet.open(Path("features"))
    with SetWriter(Path("other"), record.spec) as writer:
        for batch in writer.plan(features.keys, batch_size=4):
            writer.add(batch, features.take(batch.keys))
    other = record.spec.model_copy(update={"code": "f" * 64})
    for spec, left in ((record.spec, 0), (other, 12)):
        plan = SetWriter(Path("other"), spec).preview(features.keys, batch_size=4)
        done = plan.done(part_names(Path("other.run")))
        assert plan.stored.rows - plan.rows_of(done) == left


def test_a_set_whose_encoder_cannot_be_built_here_stays_if_only_its_code_has_changed(
    edit, photos, capsys
):
    edit(POOL)
    Path("weights.pt").write_text("weights")
    words = ["extract", "image", "--data", "photos", "--encoder", "shades:grid", "--workers", 0]
    assert sightline(*words, "--weights", "file:weights.pt", "--out", "features") == 0
    keys = FeatureSet.open(Path("features")).keys
    settings = ExtractSettings()

    def said(keys=keys, settings=settings, **changes: str) -> str:
        given = {"family": "shades", "model": "grid", "weights": "file:weights.pt", **changes}
        config = EncoderConfig.model_validate(given)
        code = code_of_rows("image", config)
        return stays_unchecked(Path("features"), keys, config, settings, code)

    assert said() == ""  # nothing has changed
    edit(MAXIMUM)
    Path("weights.pt").unlink()
    assert said() == "features: the code that made its rows has changed; it stays, unchecked"
    assert said(model="other") == ""
    assert said(settings=ExtractSettings(dtype="float32")) == ""
    more = np.concatenate([keys, keys_of_texts(["not there"])])
    assert said(keys=more) == ""


def test_rows_of_other_code_are_not_copied(edit, photos, capsys):
    edit(POOL)
    extract(capsys, out="sets/one")
    assert "12 copied" in extract(capsys, "--copy-from", "sets", out="sets/two")
    edit(REWRITTEN)
    told = extract(capsys, "--copy-from", "sets", out="sets/three")
    assert "12 computed" in told
    assert "copied" not in told


def test_sets_of_our_own_encoders_say_nothing_of_code(photos, capsys):
    words = ["--encoder", "resnet18", "--weights", "random:0", "--out", "own"]
    assert sightline("extract", "image", "--data", "photos", "--workers", 0, *words) == 0
    assert "code" not in json.loads(Path("own/set.json").read_text())["spec"]
