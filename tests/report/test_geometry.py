"""The plane of alignment and uniformity, and neighbours in the page of a comparison."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from captioned import write_captioned
from command_line import unboxed
from invented_runs import write_invented
from matplotlib.text import Text

from train.evaluate.pools import read_images
from train.evaluate.results import (
    Hits,
    ModelNeighbours,
    Neighbour,
    TaskResult,
    load_result,
    save_result,
)
from train.report.figures import plane_of_runs
from train.report.tables import Cell, Column, Row, Table

NASTY = '</style><script>window.hacked = 1</script> & "$y$"'


def plane(models):
    """The figure of a table of models: name → alignment, uniformity and score."""
    tasks = ("alignment", "uniformity", "Avg")
    rows = [
        Row(name, dict(zip(tasks, map(Cell, figures), strict=True)))
        for name, figures in models.items()
    ]
    columns = (Column(task, better="low" if task != "Avg" else "high") for task in tasks)
    return plane_of_runs(Table("Scores", "run", tuple(columns), tuple(rows)))


def test_no_text_of_the_plane_overprints_another():
    # twelve models with long names in nearly one place, one at an edge
    names = [f"a model that has quite a long name, the {i}th" for i in range(12)]
    models = {name: (0.2 + i / 300, -2 + i / 100, 70.0) for i, name in enumerate(names)}
    figure = plane(models | {"far": (0.9, -1.0, 70.0)})
    figure.draw_without_rendering()
    (legend,), (axis, bar) = figure.legends, figure.axes
    texts = [*legend.get_texts(), *axis.texts, axis.xaxis.label, axis.yaxis.label, bar.yaxis.label]
    assert len(texts) == 13 + 3
    boxes = [Text.get_window_extent(text) for text in texts]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    looks = {(line.get_marker(), str(line.get_markeredgecolor())) for line in axis.lines}
    assert len(looks) == 13  # every model has its own


def test_a_model_without_a_score_is_a_hollow_dot_and_one_without_geometry_is_left_out():
    undefined = {"none": (None, -1.0, 70.0)}
    models = {"scored": (0.2, -2.0, 70.0), "unscored": (0.2, -2.0, None)}
    figure = plane(models | undefined)
    full, hollow = figure.axes[0].lines
    assert full.get_markerfacecolor() != "white"
    assert hollow.get_markerfacecolor() == "white"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["scored", "unscored"]
    assert plane(undefined) is None


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Results with neighbours, and their photographs."""
    root = tmp_path_factory.mktemp("compared")
    write_invented(root / "results")
    folder = write_captioned(root / "set")
    (folder / "images/b.png").unlink()
    images = read_images(folder / "images.parquet")
    near = Neighbour(NASTY, ("c1",), ("a.png",), 0.75, True)
    picture = Hits(((Neighbour("", (), ("b.png",), 0.5, False),),))
    for run, pictures in (("simcse", Hits(reason="it has no heads")), ("mcse", picture)):
        neighbours = ModelNeighbours(
            ("a dog runs",),
            (("a.png",),),
            "3 captions",
            1,
            Hits(((near,),)),
            pictures,
            keys={i: k.hex() for i, k in zip(images.ids, images.keys, strict=True)},
        )
        file = root / "results" / run / "seed-0.json"
        result = load_result(file)
        more = {**result.tasks, "neighbours": TaskResult(neighbours=neighbours)}
        save_result(result.model_copy(update={"tasks": more}), file)
    return root


@pytest.fixture
def compare(compared, tmp_path, monkeypatch, said):
    """Writes page.html in a working folder with a copy of the inputs."""
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return partial(said, "compare", "simcse", "mcse", "--format", "html", "--out", "page.html")


def test_the_page_of_a_comparison_has_neighbours_and_photographs_if_asked_for(compare):
    assert compare("--data", "set") == (0, "", "")
    page = Path("page.html").read_text()
    for section in ("scores", "subsets", "neighbours"):
        assert page.count(f'<section id="{section}">') == 1
    assert page.count("<svg") == 1  # subsets
    assert "it has no heads" in page
    assert "b.png: no such file" in page
    assert page.count('url("data:image/png;base64,') == 1
    assert NASTY not in page
    assert compare() == (0, "", "")
    page = Path("page.html").read_text()
    assert 'url("data:' not in page
    assert page.count('<section id="neighbours">') == 1


def test_a_browser_shows_them_runs_nothing_of_them_and_fetches_nothing(compare, browser):
    compare("--data", "set")
    browser.open(Path("page.html"))
    assert browser.messages == []
    fetched = [url for url in browser.requests if not url.startswith("data:")]
    assert fetched == [Path("page.html").resolve().as_uri()]
    picture = "getComputedStyle(document.querySelector('.query .picture')).backgroundImage"
    assert browser.run(picture).startswith('url("data:image/png')
    shown = "[...document.querySelectorAll('#neighbours .sides > div')].filter(e => !e.hidden)"
    assert browser.run(f"{shown}.length") == 4
    browser.run(
        "(e => { e.value = 'simcse'; e.dispatchEvent(new Event('input')); })"
        "(document.querySelector('.filter input'))"
    )
    assert browser.run(f"{shown}.map(e => e.dataset.run)") == ["simcse", "simcse"]
    assert browser.run("window.hacked") is None


def test_photographs_must_be_there_if_they_are_asked_for(compare, said):
    Path("set/images").rename("elsewhere")
    code, out, err = compare("--data", "set")
    assert (code, out) == (1, "")
    assert "set: its images are not here" in err
    assert not Path("page.html").exists()
    code, _, err = said("compare", "simcse", "mcse", "--data", "set")
    assert code == 2
    assert "only the page of a comparison has it" in unboxed(err)
