"""`sightline look features` as a user sees it: the summary, the JSON, the page, the errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import sightline
from demo_params import demo_params_text
from diagnosed_world import DiagnosedWorld

from sightline.cache import key_of_text
from sightline.cache.prepared import RECORD

ROOT = Path(__file__).parents[2]
SETS = "data/features/scenes/image/clip", "data/features/scenes/text/clip"


@pytest.fixture
def world(tmp_path, monkeypatch) -> DiagnosedWorld:
    monkeypatch.chdir(tmp_path)
    return DiagnosedWorld.make(Path("world"))


def diagnose(*words: object) -> int:
    return sightline("look", "features", *words)


def inputs(world: DiagnosedWorld) -> list[object]:
    return [world.image_set, world.text_set, "--data", world.root]


def with_hostile_text(world: DiagnosedWorld) -> DiagnosedWorld:
    """The first caption is markup; its row is the nearest to another one's."""
    world.captions[0] = (0, "<script>alert(1)</script> & more")
    first, second = (key_of_text(text) for _, text in world.captions[:2])
    world.text_rows[first] = world.text_rows[second].copy()
    return world.write()


def test_the_json_and_the_page_hold_the_same(world, capsys):
    with_hostile_text(world)
    assert diagnose(*inputs(world), "--json", "--out", "page.html") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "sightline.diagnosis/2"
    assert [each["spec"]["kind"] for each in found["sets"]] == ["image", "text"]
    assert found["pairs"]["compared"] == len(world.captions)
    assert found["settings"]["batch_size"] == 64
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


def test_the_same_sets_give_the_same_page(world, capsys):
    world.write()
    pages = []
    for _ in range(2):
        assert diagnose(*inputs(world), "--out", "page.html") == 0
        pages.append(Path("page.html").read_bytes())
    assert pages[0] == pages[1]
    assert "page.html: written" in capsys.readouterr().err


def test_the_summary_says_what_was_found(world, capsys):
    world.write()
    assert diagnose(*inputs(world), "--threshold", 0.3, "--batch-size", 8) == 0
    said = capsys.readouterr().out
    for part in ("rows × width", "30 × 12", "median", "No problem found", "Image term: cosine"):
        assert part in said
    assert re.search(r"^0\.3 ", said, re.M)
    assert re.search(r"^0\.9 \(default\)", said, re.M)


def test_one_set_alone(world, capsys):
    world.write()
    assert diagnose(world.image_set, "--json", "--out", "page.html") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cross"] is found["pairs"] is None
    assert found["filters"] == []
    assert len(found["sets"]) == 1
    assert Path("page.html").read_text().count("<svg") == 1


def test_a_repository_provides_manifests_and_thresholds(world, capsys):
    world.write()
    for source, target in zip((world.image_set, world.text_set), SETS, strict=True):
        Path(target).parent.mkdir(parents=True)
        source.rename(target)
    Path("data/datasets/scenes").mkdir(parents=True)
    for path in (world.captions_manifest, world.images_manifest, world.root / RECORD):
        path.rename(Path("data/datasets/scenes") / path.name)
    params = demo_params_text()
    own = "{image: clip, text: clip, weight: 2.0, image_threshold: 0.4, caption: longest}"
    changed = params.replace("{image: clip, text: clip, weight: 2.0}", own)
    assert changed != params
    Path("params.yaml").write_text(
        changed.replace("batch_size: 64\n  learning", "batch_size: 9\n  learning")
    )
    assert diagnose(*SETS, "--json") == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["run"], settings["batch_size"], settings["caption"]) == (
        "kdmcse",
        9,
        "longest",
    )
    assert settings["configured"] == {"image": 0.4, "teacher_text": 0.9, "released": False}

    assert diagnose(*SETS, "--json", "--batch-size", 12, "--caption", "all") == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["batch_size"], settings["caption"]) == (12, "all")


def test_a_foreign_file_is_not_replaced_and_is_refused_before_any_work(world, capsys):
    world.write()
    Path("notes.html").write_text("mine")
    assert diagnose(*inputs(world), "--out", "notes.html") == 1
    assert "was not written by this command" in capsys.readouterr().err
    assert Path("notes.html").read_text() == "mine"
    assert diagnose(*inputs(world), "--out", world.image_set / "page.html") == 1
    assert "is inside the input" in capsys.readouterr().err


def test_a_mistake_is_one_line(world, capsys):
    world.write()
    assert diagnose(world.image_set, world.text_set) == 1
    said = capsys.readouterr()
    assert "give --data, the data set" in said.err
    assert "Traceback" not in said.err + said.out
    assert diagnose("nowhere") == 1
    assert "nowhere" in capsys.readouterr().err
    assert diagnose() == 2
