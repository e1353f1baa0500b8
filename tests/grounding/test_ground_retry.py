"""`--retry-failed`: failed images are skipped unless a retry is requested."""

from __future__ import annotations

import pytest
from flat_tables import flat
from ground_data import SETTINGS, DataSet, Killed, WordGrounder, files_of, run_ground

from pipeline.grounding.protocols import GroundingError
from sightline.cache.groundings import grounding_counts, read_phrases

RETRY = SETTINGS.but(retry_failed=True)


@pytest.fixture
def data(tmp_path) -> DataSet:
    return DataSet.of(tmp_path / "data", 7)


def refusing(*names: str) -> WordGrounder:
    """A grounder that fails for these images."""

    def refuse(captions):
        for caption in captions:
            if caption.image_id in names:
                raise GroundingError(caption.image_key, "bad_annotation", "cut short")

    return WordGrounder(refuse)


def test_failed_images_are_reground_only_on_request(data, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert run_ground(data, out, refusing("2.png", "4.png")).failed == 2
    left = WordGrounder()
    assert run_ground(data, out, left).failed == 2
    assert left.calls == []
    mended = WordGrounder()
    summary = run_ground(data, out, mended, settings=RETRY)
    assert sum(mended.calls) == 2 * 2  # two captions each
    assert (summary.computed, grounding_counts(summary.folder)["failed"]) == (2, 0)
    assert (tmp_path / "out.run/failures.jsonl").read_text() == ""
    run_ground(data, whole)
    for kind in ("images", "phrases", "drops"):
        ours, clean = (sorted(map(repr, flat(at, kind).to_pylist())) for at in (out, whole))
        assert ours == clean
    again = WordGrounder()
    before = files_of(out)
    run_ground(data, out, again, settings=RETRY)
    assert again.calls == []
    assert files_of(out) == before


def test_an_image_that_fails_again_stays_one_row_with_its_new_reason(data, tmp_path):
    out = tmp_path / "out"
    run_ground(data, out, refusing("2.png", "4.png"))
    summary = run_ground(data, out, refusing("4.png"), settings=RETRY)
    assert (summary.computed, grounding_counts(summary.folder)["failed"]) == (2, 1)
    assert grounding_counts(summary.folder)["images"] == 7
    (line,) = (tmp_path / "out.run/failures.jsonl").read_text().splitlines()
    assert "4.png" in line
    assert read_phrases(out).num_rows == 6 * 7


def test_a_kill_during_a_retry_keeps_published_rows_and_the_run_resumes(data, tmp_path):
    out = tmp_path / "out"
    run_ground(data, out, refusing("2.png", "4.png"))
    before = files_of(out)

    def die(captions):
        raise Killed

    with pytest.raises(Killed):
        run_ground(data, out, WordGrounder(die), settings=RETRY)
    assert files_of(out) == before
    assert run_ground(data, out, settings=RETRY).failed == 0
    whole = tmp_path / "whole"
    run_ground(data, whole, refusing("2.png", "4.png"))
    run_ground(data, whole, settings=RETRY)
    assert files_of(out) == files_of(whole)


@pytest.mark.parametrize(("settings", "failed"), [(SETTINGS, 1), (RETRY, 0)])
def test_an_error_in_a_block_of_an_interrupted_run(data, tmp_path, settings, failed):
    refused: list[str] = []

    def hook(captions):
        if not refused:
            refused.append(captions[0].image_id)
            raise GroundingError(captions[0].image_key, "bad_annotation", "cut short")
        if sum(grounder.calls) == 4:  # the two other images of the first block are done
            raise Killed

    grounder = WordGrounder(hook)
    with pytest.raises(Killed):
        run_ground(data, tmp_path / "out", grounder)
    summary = run_ground(data, tmp_path / "out", settings=settings)
    assert grounding_counts(summary.folder)["failed"] == failed
    assert summary.resumed == (SETTINGS.block_rows if failed else 0)
