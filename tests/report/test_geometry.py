"""`sightline look space`: its figures, its folder, and both in the page of a comparison."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from captioned import CAPTIONS_OF, write_captioned
from command_line import unboxed
from invented_runs import write_invented
from matplotlib.text import Text
from small_senteval import write_senteval
from tiny_encoder import WORDS, make_encoder

from train.evaluate.geometry import Geometry
from train.evaluate.pools import read_images
from train.evaluate.results import (
    Found,
    ModelNeighbours,
    Neighbour,
    TaskResult,
    load_result,
    save_result,
)
from train.evaluate.similarity import Correlation, GradedPairs
from train.evaluate.space import MapSentences, MapSettings, ModelSpace, SentenceMap, SpaceStudy
from train.evaluate.vectors import Spectrum
from train.report.charts import to_png, to_svg
from train.report.page import to_page
from train.report.render import to_text
from train.report.space_page import (
    cluster_colours,
    document_of,
    gold_chart,
    grid_of_spaces,
    plane_chart,
    spectrum_chart,
    write_geometry,
)

NASTY = '</style><script>window.hacked = 1</script> & "$y$"'
RANDOM = np.random.default_rng(2)


def space(name, x=-2.0, y=0.2, score=70.0, pairs=60):
    """A model with its uniformity, its alignment and its Spearman × 100."""
    return ModelSpace(
        name,
        8,
        Correlation(score, pairs, None if score is not None else "every pair has the same cosine"),
        Geometry(y, x, 10, 50),
        np.linspace(-0.2, 1, pairs),
        0.1,
        Spectrum(np.sqrt(np.arange(8, 0, -1) / 36), 6.5),
        SentenceMap(RANDOM.standard_normal((50, 2)), RANDOM.integers(0, 10, 50), 0.25),
    )


def study(*models, pairs=60):
    texts = tuple(f"s{i}" for i in range(50))
    graded = GradedPairs("toy", ("a",) * pairs, ("b",) * pairs, np.linspace(0, 5, pairs))
    spaces = SpaceStudy(graded, MapSentences("toy", texts, None, 80), MapSettings())
    spaces.models.extend(models)
    return spaces


def test_no_text_of_the_plane_overprints_another():
    # twelve models with long names in nearly one place, one at an edge
    names = [f"a model that has quite a long name, the {i}th" for i in range(12)]
    near = [space(name, -2 + i / 100, 0.2 + i / 300) for i, name in enumerate(names)]
    figure = plane_chart(study(*near, space("far", -1, 0.9)))
    figure.draw_without_rendering()
    (legend,), (axis, bar) = figure.legends, figure.axes
    texts = [*legend.get_texts(), *axis.texts, axis.xaxis.label, axis.yaxis.label, bar.yaxis.label]
    assert len(texts) == 13 + 4
    boxes = [Text.get_window_extent(text) for text in texts]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    looks = {(line.get_marker(), str(line.get_markeredgecolor())) for line in axis.lines}
    assert len(looks) == 13  # every model has its own


def test_a_model_without_a_score_is_a_hollow_dot_and_one_without_geometry_is_left_out():
    undefined = replace(space("none"), geometry=Geometry(None, -1.0, 0, 9))
    figure = plane_chart(study(space("scored"), space("unscored", score=None), undefined))
    full, hollow = figure.axes[0].lines
    assert full.get_markerfacecolor() != "white"
    assert hollow.get_markerfacecolor() == "white"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["scored", "unscored"]
    assert plane_chart(study(undefined)) is None


def test_labels_of_less_than_a_decade_are_numbers():
    svg = to_svg(spectrum_chart(study(space("a"))))
    assert "mathdefault" not in svg
    assert "<!-- 0.3 -->" in svg


def test_many_pairs_are_drawn_as_bins():
    model = replace(space("m"), cosines=RANDOM.uniform(-1, 1, 4000))
    figure = gold_chart(study(model, pairs=4000))
    (bins,) = figure.axes[0].collections
    assert bins.get_array().sum() == 4000  # every pair is in a bin
    assert "Spearman × 100: 70.00" in {each.get_text() for each in figure.axes[0].texts}


@pytest.mark.parametrize("pairs", [60, 4000])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_constant_scores_and_cosines_can_be_drawn(pairs):
    flat = replace(space("flat", score=None), cosines=np.ones(pairs))
    spaces = study(flat, pairs=pairs)
    assert to_png(gold_chart(spaces))
    spaces.pairs.gold[:] = 2.5
    assert to_png(gold_chart(spaces))


@pytest.mark.parametrize("count", [1, 10, 11, 20, 21, 50])
def test_clusters_have_colours_of_their_own(count):
    colours = cluster_colours(count)
    assert len(set(colours)) == len(colours) == count


def test_a_page_escapes_names_and_loads_nothing():
    spaces = study(space(NASTY), space("other", score=None))
    page = to_page(document_of(spaces, NASTY, {"plane": "<svg></svg>", "map": "<svg></svg>"}))
    assert page.count("<script") == 1  # that of the page
    assert page.count("&lt;script&gt;") >= 4  # title, heading, both tables
    assert not re.search(r"""src=|href="(?!#)|@import|url\(""", page)
    assert "Not defined: other: every pair has the same cosine." in page
    assert "50 of 80 distinct sentences" in page
    assert "<script" not in to_svg(plane_chart(spaces))


def test_the_best_of_each_column_is_bold_where_they_print_differently():
    both = study(space("a", -2, 0.3, 60), space("b", -1, 0.1, 50))
    page = to_page(document_of(both, "t", {}))
    assert re.findall(r'class="n best">([^<]+)<', page) == ["60.00", "-2.000", "0.100"]

    def bold(*models):
        rows = grid_of_spaces(study(*models)).rows
        return [[cell.bold for cell in row.cells[:3]] for row in rows]

    near, same, far = space("a", -0.0001, 0.1), space("b", 0.0001, 0.10001), space("c", 1, 0.3)
    assert bold(near, same) == [[False] * 3] * 2
    assert bold(near, same, far) == [[False, True, True]] * 2 + [[False] * 3]
    assert "-0.000" not in to_text(document_of(study(near, same), "t", {}), "terminal")


def test_the_json_has_every_number():
    spaces = study(space("a"), space("b"))
    body = json.loads(to_text(document_of(spaces, "t", {}), "json"))
    one, two = body["models"]
    assert (one["name"], two["name"]) == ("a", "b")
    assert len(one["cosines"]) == len(body["pairs"]["gold"]) == 60
    assert len(one["map"]["points"]) == len(body["map"]["texts"]) == 50
    assert body["agreement"][0]["between"] == ["a", "b"]
    values = np.sqrt(np.arange(8, 0, -1) / 36)
    assert one["spectrum"]["singular_values"] == [round(value, 6) for value in values]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two encoders, a TSV of pairs, SentEval's folder, a TSV of groups, and a stranger's file."""
    root = tmp_path_factory.mktemp("inputs")
    for kind in ("bert", "roberta"):
        for part in make_encoder(kind):
            part.save_pretrained(root / kind)
    random = np.random.default_rng(0)
    lines = ["score\tsentence1\tsentence2"]
    for i in range(40):
        one, two = (" ".join(random.choice(WORDS, 5)) for _ in range(2))
        lines.append(f"{i % 11 / 2}\t{one}\t{two}")
    (root / "pairs.tsv").write_text("\n".join(lines) + "\n")
    groups = [f"{i % 2}\t{' '.join(random.choice(WORDS, 6))}" for i in range(50)]
    (root / "groups.tsv").write_text("\n".join(["group\tsentence", *groups]) + "\n")
    write_senteval(root / "downstream")
    write_captioned(root / "set")
    (root / "old").mkdir()
    (root / "old/plane.png").write_text("mine")
    return root


@pytest.fixture
def look(inputs, monkeypatch, said):
    """Runs the command in the folder of the inputs."""
    monkeypatch.chdir(inputs)
    return partial(said, "look", "space", "--pooling", "mean", "--device", "cpu")


MODELS = ("--model", "bert", "--model", "other=roberta")
SMALL = ("--clusters", 3, "--perplexity", 5, "--limit", 30)


def test_the_command_writes_a_folder_and_the_same_bytes_again(look, tmp_path):
    words = (*MODELS, "--pairs", "pairs.tsv", *SMALL, "--out", tmp_path)
    code, out, err = look(*words)
    assert code == 0, err
    assert "other" in out
    names = {"geometry.json", "geometry.html"}
    names |= {f"{n}.{k}" for n in ("plane", "map", "gold", "spectrum") for k in ("png", "svg")}
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(first) == names
    assert look(*words)[0] == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first
    record = json.loads(first["geometry.json"])
    assert record["map"]["drawn_from"] == 80
    assert len(record["map"]["texts"]) == 30
    assert [each["name"] for each in record["models"]] == ["bert", "other"]


def test_the_map_can_have_its_own_sentences_with_gold_groups(look, tmp_path):
    words = (*MODELS, "--pairs", "downstream", *SMALL, "--sentences", "groups.tsv")
    code, out, _ = look(*words, "--out", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    between = [tuple(each["between"]) for each in found["agreement"]]
    expected = [("gold groups", "bert"), ("gold groups", "other"), ("bert", "other")]
    assert between == expected
    assert set(found["map"]["groups"]) == {"0", "1"}
    assert "gold groups" in (tmp_path / "geometry.html").read_text()
    assert (found["pairs"]["name"], found["pairs"]["count"]) == ("STS-B dev", 4)


def test_the_map_can_be_of_a_data_set(look, tmp_path):
    words = ("--model", "bert", "--pairs", "downstream", "--split", "all", "--data", "set")
    small = ("--clusters", 2, "--perplexity", 2, "--out", tmp_path)
    code, out, err = look(*words, *small, "--json")
    assert code == 0, err
    found = json.loads(out)
    captions = {text for texts in CAPTIONS_OF.values() for text in texts}
    assert set(found["map"]["texts"]) == captions
    assert (found["pairs"]["name"], found["pairs"]["count"]) == ("STS-B", 12)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--pairs pairs.tsv --out o", 2, "--model"),
        ("--model bert --pairs pairs.tsv --split dev --out o", 2, "has no splits"),
        ("--model bert --pairs no.tsv --out o", 1, "no.tsv: no such dev set"),
        ("--model bert --pairs pairs.tsv --out pairs.tsv", 1, "is a file, not a folder"),
        ("--model bert --pairs pairs.tsv --out .", 1, "contains the input pairs.tsv"),
        ("--model none --pairs pairs.tsv --out old", 1, "plane.png"),
        (
            "--model bert --pairs pairs.tsv --out o --clusters 80",
            1,
            "pairs: 80 distinct sentences; 80 clusters",
        ),
        ("--model bert --pairs pairs.tsv --out o --sentences no.tsv", 1, "no such file"),
        (
            "--model bert --pairs pairs.tsv --out o --sentences g --data d",
            2,
            "--data and --sentences: give one of them",
        ),
    ],
)
def test_a_mistake_gets_one_clear_error_before_a_model_is_loaded(look, words, code, message):
    found, _, err = look(*words.split())
    assert found == code
    assert message in unboxed(err)
    assert not Path("o").exists()
    assert Path("old/plane.png").read_text() == "mine"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Results with neighbours, their photographs, and a folder of `sightline look space`."""
    root = tmp_path_factory.mktemp("compared")
    write_invented(root / "results")
    write_geometry(study(space("simcse"), space("mcse")), "t", root / "geometry")
    folder = write_captioned(root / "set")
    (folder / "images/b.png").unlink()
    images = read_images(folder / "images.parquet")
    near = Neighbour(NASTY, ("c1",), ("a.png",), 0.75, True)
    picture = Found(((Neighbour("", (), ("b.png",), 0.5, False),),))
    for run, pictures in (("simcse", Found(reason="it has no heads")), ("mcse", picture)):
        neighbours = ModelNeighbours(
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
        more = {**result.tasks, "neighbours": TaskResult(neighbours=neighbours)}
        save_result(result.model_copy(update={"tasks": more}), file)
    return root


@pytest.fixture
def compare(compared, tmp_path, monkeypatch, said):
    """Writes page.html in a working folder with a copy of the inputs."""
    shutil.copytree(compared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return partial(said, "compare", "simcse", "mcse", "--format", "html", "--out", "page.html")


def test_the_page_of_a_comparison_has_figures_and_neighbours_if_they_are_asked_for(compare):
    assert compare("--space", "geometry", "--data", "set") == (0, "", "")
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
    assert compare() == (0, "", "")
    page = Path("page.html").read_text()
    assert 'url("data:' not in page
    assert page.count('<section id="neighbours">') == 1
    assert '<section id="embedding-spaces">' not in page


def test_a_browser_shows_them_runs_nothing_of_them_and_fetches_nothing(compare, browser):
    compare("--space", "geometry", "--data", "set")
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
    Path("geometry/plane.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><script>top.hacked = 1</script></svg>'
    )
    assert compare("--space", "geometry") == (0, "", "")
    browser.open(Path("page.html"))
    assert browser.run("window.hacked") is None


def test_figures_and_photographs_must_be_there_if_they_are_asked_for(compare, said):
    Path("set/images").rename("elsewhere")
    for option, message in (
        ("--space", "set: no figure here, such as plane.svg"),
        ("--data", "set: its images are not here"),
    ):
        code, out, err = compare(option, "set")
        assert (code, out) == (1, "")
        assert message in err
        assert not Path("page.html").exists()
        code, _, err = said("compare", "simcse", "mcse", option, "set")
        assert code == 2
        assert "only the page of a comparison has it" in unboxed(err)
