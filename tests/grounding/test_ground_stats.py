"""Statistics of a grounding, counted by hand on three small images."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from gallery_data import HOSTILE, small_grounding
from typer.testing import CliRunner

from pipeline.cli.commands import app
from pipeline.grounding.stats import ground_stats, write_stats
from sightline.cache import CAPTIONS, PHRASES, CacheError, write_manifest
from sightline.cache.groundings import read_phrases


@pytest.fixture
def files(tmp_path):
    return small_grounding(tmp_path)


def test_counts(files):
    stats = ground_stats(files.phrases)
    assert (stats.images, stats.captions, stats.pairs) == (4, 4, 8)
    assert stats.pairs_per_image == 2.0
    assert stats.images_by_pairs == {0: 1, 2: 2, 4: 1}
    assert stats.captions_by_pairs == {1: 1, 2: 2, 3: 1}
    assert stats.contrasted == 3
    assert stats.drops == {"low_score": 1, "no_box": 1, "scene": 1, "too_small": 1}
    assert stats.objects == 8
    assert stats.span_coverage is None


def test_coverage_counts_a_character_once(files):
    stats = ground_stats(files.phrases, files.captions)
    plain = (18 + 11) / 36  # "a red hat" lies inside "a man in a red hat"
    hostile = (34 + 3) / len(HOSTILE)  # the family is three code points
    wrong = 11 / 28  # the second span lies inside the first
    assert stats.span_coverage == pytest.approx((plain + 11 / 22 + hostile + wrong) / 4)


def test_a_phrases_manifest_alone(files, tmp_path):
    path = tmp_path / "phrases.parquet"
    write_manifest(path, read_phrases(files.phrases), PHRASES)
    stats = ground_stats(path)
    assert (stats.images, stats.pairs, stats.drops) == (3, 8, {})
    assert stats.pairs_per_image == pytest.approx(8 / 3)


def test_captions_of_another_data_set(files, tmp_path):
    other = small_grounding(tmp_path / "other")
    write_manifest(other.captions, pa.Table.from_pylist([], schema=CAPTIONS), CAPTIONS)
    with pytest.raises(CacheError, match="lacks 4 of the captions that were grounded"):
        ground_stats(files.phrases, other.captions)


def test_plots_are_lists_of_points(files, tmp_path):
    write_stats(ground_stats(files.phrases), tmp_path / "plots")
    pairs = json.loads((tmp_path / "plots/pairs_per_image.json").read_text())
    assert pairs == [
        {"pairs": 0, "images": 1},
        {"pairs": 2, "images": 2},
        {"pairs": 4, "images": 1},
    ]
    drops = json.loads((tmp_path / "plots/drops.json").read_text())
    assert drops[0] == {"reason": "low_score", "dropped": 1}


def test_the_command(files, tmp_path):
    out = tmp_path / "figures"
    words = ["ground", "stats", str(files.phrases), "--captions", str(files.captions)]
    shown = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "2.00 (MCSEO on Flickr30k: 4.2)" in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert told == json.loads((out / "stats.json").read_text())
    assert told["published_pairs_per_image"] == 4.2


def test_the_stage(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/objects").mkdir(parents=True)
    files.phrases.rename(tmp_path / "data/objects/mine")
    (tmp_path / "data/datasets/mine").mkdir(parents=True)
    files.captions.rename(tmp_path / "data/datasets/mine/captions.parquet")
    shown = CliRunner().invoke(app, ["stage", "ground-stats", "mine"])
    assert shown.exit_code == 0, shown.output
    assert "8 pairs of 4 images, 2.00 per image" in shown.output
    names = {path.name for path in (tmp_path / "data/ground-stats/mine").iterdir()}
    assert names == {"ground_stats.json", "stats.json", "pairs_per_image.json", "drops.json"}
