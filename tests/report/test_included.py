"""Figures of `sightline look space`, and neighbours, in the page of a comparison."""

from __future__ import annotations

import base64
import shutil
from functools import partial
from pathlib import Path

import pytest
from captioned import write_captioned
from command_line import unboxed
from invented_runs import write_invented
from invented_spaces import space, study

from train.evaluate.pools import read_images
from train.evaluate.results import (
    Found,
    ModelNeighbours,
    Neighbour,
    TaskResult,
    load_result,
    save_result,
)
from train.report.space_page import write_geometry

NASTY = "</style><script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Results with neighbours, their photographs, and a folder of `sightline look space`."""
    root = tmp_path_factory.mktemp("inputs")
    write_invented(root / "results")
    write_geometry(study(space("simcse"), space("mcse")), "t", root / "geometry")
    folder = write_captioned(root / "set")
    (folder / "images/b.png").unlink()
    images = read_images(folder / "images.parquet")
    near = Neighbour(NASTY, ("c1",), ("a.png",), 0.75, True)
    picture = Found(((Neighbour("", (), ("b.png",), 0.5, False),),))
    for run, pictures in (("simcse", Found(reason="it has no heads")), ("mcse", picture)):
        found = ModelNeighbours(
            ("a dog runs",),
            (("a.png",),),
            "3 captions",
            1,
            Found(((near,),)),
            pictures,
            keys={i: k.hex() for i, k in zip(images.ids, images.keys, strict=True)},
        )
        file = root / "results" / run / "seed-0.json"
        result = load_result(file)
        more = {**result.tasks, "neighbours": TaskResult(neighbours=found)}
        save_result(result.model_copy(update={"tasks": more}), file)
    return root


@pytest.fixture
def place(inputs, tmp_path, monkeypatch) -> Path:
    """A working folder with a copy of the inputs."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ("simcse", "mcse", "--format", "html", "--out", "page.html")
PHOTOGRAPHS = ("--data", "set")


@pytest.fixture
def compare(said):
    return partial(said, "compare", *WORDS)


def test_the_page_has_their_sections_and_the_same_bytes_again(place, compare):
    words = ("--space", "geometry", *PHOTOGRAPHS)
    assert compare(*words) == (0, "", "")
    page = Path("page.html").read_text()
    for section in ("scores", "subsets", "embedding-spaces", "neighbours"):
        assert page.count(f'<section id="{section}">') == 1
    assert page.count("<svg") == 2  # scores and subsets
    assert page.count('src="data:image/svg+xml;base64,') == 4  # plane, map, gold and spectrum
    assert base64.b64encode(Path("geometry/plane.svg").read_bytes()).decode() in page
    assert "it has no heads" in page
    assert "b.png: no such file" in page
    assert page.count('url("data:image/png;base64,') == 1
    assert NASTY not in page
    assert compare(*words) == (0, "", "")
    assert Path("page.html").read_text() == page
    assert compare() == (0, "", "")  # without geometry and photographs
    page = Path("page.html").read_text()
    assert 'url("data:' not in page
    assert page.count('<section id="neighbours">') == 1
    assert '<section id="embedding-spaces">' not in page


def test_a_browser_shows_them_and_fetches_nothing(place, compare, browser):
    compare("--space", "geometry", *PHOTOGRAPHS)
    browser.open(place / "page.html")
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [
        (place / "page.html").resolve().as_uri()
    ]
    assert browser.run("window.hacked") is None
    picture = "getComputedStyle(document.querySelector('.query .picture')).backgroundImage"
    assert browser.run(picture).startswith('url("data:image/png')
    shown = "[...document.querySelectorAll('#neighbours .sides > div')].filter(e => !e.hidden)"
    assert browser.run(f"{shown}.length") == 4
    browser.run(
        "(e => { e.value = 'simcse'; e.dispatchEvent(new Event('input')); })"
        "(document.querySelector('.filter input'))"
    )
    assert browser.run(f"{shown}.map(e => e.dataset.run)") == ["simcse", "simcse"]


def test_a_folder_without_figures_is_one_error(place, compare):
    code, out, err = compare("--space", "set")
    assert (code, out) == (1, "")
    assert "set: no figure here, such as plane.svg" in err
    assert not Path("page.html").exists()


def test_a_figure_of_a_folder_runs_nothing(place, compare, browser):
    Path("geometry/plane.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><script>top.hacked = 1</script></svg>'
    )
    assert compare("--space", "geometry") == (0, "", "")
    browser.open(place / "page.html")
    assert browser.run("window.hacked") is None


def test_only_a_page_has_them(place, said):
    for words in (("--space", "geometry"), PHOTOGRAPHS):
        code, _, err = said("compare", "simcse", "mcse", *words)
        assert code == 2
        assert "only the page of a comparison has it" in unboxed(err)


def test_photographs_must_be_there_if_they_are_asked_for(place, compare):
    Path("set/images").rename("elsewhere")
    code, _, err = compare(*PHOTOGRAPHS)
    assert code == 1
    assert "set: its images are not here" in err


def test_a_curve_has_a_page_too(place, said):
    words = ("compare", "mcse", "mcse-untrained", "--baseline", "simcse", "--curve", "run")
    code, _, err = said(*words, "--format", "html", "--out", "curve.html")
    assert (code, err) == (0, "")
    page = Path("curve.html").read_text()
    assert page.count("<svg") == 1
    assert "76.67" in page
    assert said(*words, "--format", "html", "--out", "curve.html")[0] == 0  # replaces its own
