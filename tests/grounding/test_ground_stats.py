"""Statistics of a grounding, counted by hand on three small images."""

from __future__ import annotations

import json

import pytest
from command_line import sightline
from gallery_data import HOSTILE, small_grounding
from ground_data import write_table

from pipeline.extract.objects import SPEC
from pipeline.grounding.stats import statistics
from sightline.cache import CAPTIONS, CacheError
from sightline.cache.keys import as_keys
from sightline.cache.sets import write_rows
from sightline.cache.tables import CUTOUTS


@pytest.fixture
def made(tmp_path):
    return small_grounding(tmp_path)


def test_counts(made):
    stats = statistics(made.path)
    assert (stats["images"], stats["pairs"], stats["failed"]) == (4, 8, {})
    assert stats["pairs_per_image"] == 2.0
    assert list(stats["images_by_pairs"].items()) == [(0, 1), (2, 2), (4, 1)]
    assert stats["contrasted"] == 3
    assert stats["dropped"] == {"low_score": 1, "no_box": 1, "scene": 1, "too_small": 1}
    assert stats["objects"] == 8
    assert stats["span_coverage"] is None


def test_coverage_counts_a_character_once(made):
    stats = statistics(made.path, made.folder / "captions.parquet")
    plain = (18 + 11) / 36  # "a red hat" lies inside "a man in a red hat"
    hostile = (34 + 3) / len(HOSTILE)  # the family is three code points
    wrong = 11 / 28  # the second span lies inside the first
    assert stats["span_coverage"] == pytest.approx((plain + 11 / 22 + hostile + wrong) / 4)


def test_captions_of_another_data_set(made, tmp_path):
    other = write_table(tmp_path / "other.parquet", [], CAPTIONS)
    with pytest.raises(CacheError, match="lacks 4 of the captions that were grounded"):
        statistics(made.path, other)


def test_cache_info_shows_them(made, capsys):
    words = ["cache", "info", made.path, "--data", made.folder]
    assert sightline(*words) == 0
    shown = capsys.readouterr().out
    assert "2.00 per image (MCSEO on Flickr30k: 4.2)" in shown
    assert "4: low score 1, no box 1, scene 1, too small 1" in shown
    assert "of a caption's characters" in shown
    assert sightline(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)["statistics"]
    assert found == json.loads(json.dumps(statistics(made.path, made.folder / "captions.parquet")))


def test_a_data_set_is_for_groundings_only(made, tmp_path, capsys):
    write_rows(tmp_path / "cutouts", SPEC, as_keys([]), CUTOUTS.empty_table())
    assert sightline("cache", "info", tmp_path / "cutouts", "--data", made.folder) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "is of kind cutouts, not a grounding" in said
