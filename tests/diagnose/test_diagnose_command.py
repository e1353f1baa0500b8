"""`sightline look features` as a user sees it: the summary, the JSON, the page, the errors."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from demo_params import demo_params_text

SETS = "data/features/scenes/image/clip", "data/features/scenes/text/clip"


@pytest.fixture
def look(tmp_path, monkeypatch, said):
    """Runs `sightline look features` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(said, "look", "features")


def inputs(world):
    return [world.image_set, world.text_set, "--data", world.root]


def test_the_summary_the_json_and_the_page_hold_the_same(look, own):
    own.captions[0] = (0, "<script>alert(1)</script> & more")
    first, second = own.text_keys[:2]
    own.text_rows[first] = own.text_rows[second].copy()  # so that the page names it
    words = (*inputs(own.write()), "--threshold", 0.3, "--batch-size", 8, "--batches", 5)
    words = (*words, "--out", "page.html")
    code, out, err = look(*words, "--json")
    assert (code, err) == (0, "page.html: written\n")
    found = json.loads(out)
    assert found["schema"] == "sightline.diagnosis/2"
    assert [each["spec"]["kind"] for each in found["sets"]] == ["image", "text"]
    assert found["pairs"]["compared"] == len(own.captions)
    assert found["settings"]["batch_size"] == 8
    assert {each["term"] for each in found["filters"]} == {"image", "teacher_text", "released"}
    page = Path("page.html").read_text()
    assert page.count("<svg") == 5  # cosines, ranks, thresholds, and one for each set
    assert page.count("<script") == 1  # that of the page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    separation = found["cross"]["cosines"]["separation"]
    assert f"{separation:.3f}" in page
    for each in found["sets"]:
        assert each["fingerprint"] in page

    code, summary, _ = look(*words)
    assert code == 0
    for part in ("rows × width", "30 × 12", "median", "No problem found", "Image term: cosine"):
        assert part in summary
    assert re.search(r"^0\.3 ", summary, re.M)
    assert re.search(r"^0\.9 \(default\)", summary, re.M)
    assert Path("page.html").read_text() == page


def test_one_set_alone(look, world):
    code, out, _ = look(world.image_set, "--json", "--out", "page.html")
    assert code == 0
    found = json.loads(out)
    assert found["cross"] is found["pairs"] is None
    assert found["filters"] == []
    assert len(found["sets"]) == 1
    assert Path("page.html").read_text().count("<svg") == 1


def test_a_repository_provides_manifests_and_thresholds(look, world):
    shutil.copytree(world.root, "data/datasets/scenes")
    for kind, target in zip(("image", "text"), SETS, strict=True):
        Path(target).parent.mkdir(parents=True)
        Path("data/datasets/scenes", kind).rename(target)
    params = demo_params_text()
    for before, after in (
        ("clip, weight: 2.0}", "clip, weight: 2.0, image_threshold: 0.4, caption: longest}"),
        ("batch_size: 64\n  learning", "batch_size: 9\n  learning"),
    ):
        assert before in params
        params = params.replace(before, after)
    Path("params.yaml").write_text(params)

    def settings(*words):
        code, out, _ = look(*SETS, "--batches", 2, "--json", *words)
        assert code == 0
        return json.loads(out)["settings"]

    found = settings()
    assert (found["run"], found["batch_size"], found["caption"]) == ("kdmcse", 9, "longest")
    assert found["configured"] == {"image": 0.4, "teacher_text": 0.9, "released": False}
    found = settings("--batch-size", 12, "--caption", "all")
    assert (found["batch_size"], found["caption"]) == (12, "all")


def test_a_foreign_file_is_not_replaced_and_is_refused_before_any_work(look, world):
    Path("notes.html").write_text("mine")
    code, _, err = look(*inputs(world), "--out", "notes.html")
    assert code == 1
    assert "was not written by this command" in err
    assert Path("notes.html").read_text() == "mine"
    code, _, err = look(*inputs(world), "--out", world.image_set / "page.html")
    assert code == 1
    assert "is inside the input" in err
