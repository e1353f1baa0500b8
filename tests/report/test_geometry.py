"""`sightline look space`: its figures, its page, its numbers, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from captioned import CAPTIONS_OF, write_captioned
from command_line import unboxed
from invented_spaces import RANDOM, space, study
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from small_senteval import write_senteval
from tiny_encoder import WORDS, make_encoder

from train.evaluate.geometry import Geometry
from train.evaluate.space import ModelSpace
from train.report.charts import to_png, to_svg
from train.report.page import to_page
from train.report.render import to_text
from train.report.space_page import (
    charts_of,
    cluster_colours,
    document_of,
    gold_chart,
    grid_of_spaces,
    plane_chart,
    spectrum_chart,
)

NASTY = '<script>alert("x")</script> & $y$'


def test_no_text_of_the_plane_overprints_another():
    # twelve models with long names in nearly one place, one at an edge
    names = [f"a model that has quite a long name, the {i}th" for i in range(12)]
    near = [space(name, -2 + i / 100, 0.2 + i / 300) for i, name in enumerate(names)]
    figure = plane_chart(study(*near, space("far", -1, 0.9)))
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,), (axis, bar) = figure.legends, figure.axes
    texts = [*legend.get_texts(), *axis.texts, axis.xaxis.label, axis.yaxis.label, bar.yaxis.label]
    assert len(texts) == 13 + 4
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in texts]
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    looks = {(line.get_marker(), str(line.get_markeredgecolor())) for line in axis.lines}
    assert len(looks) == 13  # every model has its own


def test_a_model_without_a_score_is_a_hollow_dot_and_one_without_geometry_is_left_out():
    undefined = ModelSpace(**{**space("none").__dict__, "geometry": Geometry(None, -1.0, 0, 9)})
    figure = plane_chart(study(space("scored"), space("unscored", score=None), undefined))
    assert figure is not None
    full, hollow = figure.axes[0].lines
    assert full.get_markerfacecolor() != "white"
    assert hollow.get_markerfacecolor() == "white"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["scored", "unscored"]
    assert plane_chart(study(undefined)) is None


def test_labels_of_less_than_a_decade_are_numbers():
    figure = spectrum_chart(study(space("a")))
    assert figure is not None
    svg = to_svg(figure)
    assert "mathdefault" not in svg
    assert "<!-- 0.3 -->" in svg


def test_one_model_has_every_figure():
    assert list(charts_of(study(space("m")))) == ["plane", "map", "gold", "spectrum"]


def test_many_pairs_are_drawn_as_bins():
    found = study(pairs=4000)
    model = space("m")
    found.models.append(ModelSpace(**{**model.__dict__, "cosines": RANDOM.uniform(-1, 1, 4000)}))
    figure = gold_chart(found)
    assert figure is not None
    (bins,) = figure.axes[0].collections
    assert bins.get_array().sum() == 4000  # every pair is in a bin
    assert "Spearman × 100: 70.00" in {each.get_text() for each in figure.axes[0].texts}


@pytest.mark.parametrize("count", [1, 10, 11, 20, 21, 50])
def test_clusters_have_colours_of_their_own(count):
    colours = cluster_colours(count)
    assert len(set(colours)) == len(colours) == count


def test_a_page_escapes_names_and_loads_nothing():
    found = study(space(NASTY), space("other", score=None))
    page = to_page(document_of(found, NASTY, {"plane": "<svg></svg>", "map": "<svg></svg>"}))
    assert page.count("<script") == 1  # that of the page
    assert page.count("&lt;script&gt;") >= 4  # title, heading, both tables
    assert not re.search(r"""src=|href="(?!#)|@import|url\(""", page)
    assert "Not defined: other: every pair has the same cosine." in page
    assert "50 of 80 distinct sentences" in page
    svg = to_svg(plane_chart(found))  # pyright: ignore[reportArgumentType]
    assert "<script" not in svg


def test_the_best_of_each_column_is_bold():
    both = study(space("a", -2, 0.3, 60), space("b", -1, 0.1, 50))
    page = to_page(document_of(both, "t", {}))
    assert re.findall(r'class="n best">([^<]+)<', page) == ["60.00", "-2.000", "0.100"]
    assert 'class="n best"' not in to_page(document_of(study(space("a")), "t", {}))


def test_figures_that_print_alike_are_bold_alike_and_zero_has_no_minus():
    def bold(*models: ModelSpace) -> list[list[bool]]:
        return [
            [cell.bold for cell in row.cells[:3]] for row in grid_of_spaces(study(*models)).rows
        ]

    near, same, far = space("a", -0.0001, 0.1), space("b", 0.0001, 0.10001), space("c", 1, 0.3)
    assert bold(near, same) == [[False] * 3] * 2
    assert bold(near, same, far) == [[False, True, True]] * 2 + [[False] * 3]
    assert "-0.000" not in to_text(document_of(study(near, same), "t", {}), "terminal")


def test_the_json_has_every_number():
    found = study(space("a"), space("b"))
    body = json.loads(to_text(document_of(found, "t", {}), "json"))
    one, two = body["models"]
    assert (one["name"], two["name"]) == ("a", "b")
    assert len(one["cosines"]) == len(body["pairs"]["gold"]) == 60
    assert len(one["map"]["points"]) == len(body["map"]["texts"]) == 50
    assert body["agreement"][0]["between"] == ["a", "b"]
    assert one["spectrum"]["singular_values"] == [
        round(v, 6) for v in np.sqrt(np.arange(8, 0, -1) / 36)
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Two encoders, a TSV of pairs, SentEval's folder and a TSV of groups."""
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
    return root


@pytest.fixture
def look(inputs, tmp_path, monkeypatch, said):
    """Runs the command in a folder that has the inputs."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return partial(said, "look", "space", "--pooling", "mean", "--device", "cpu")


MODELS = ("--model", "bert", "--model", "other=roberta")
SMALL = ("--clusters", 3, "--perplexity", 5, "--limit", 30)


def test_the_command_writes_a_folder_and_the_same_bytes_again(look):
    words = (*MODELS, "--pairs", "pairs.tsv", *SMALL, "--out", "out")
    code, out, err = look(*words)
    assert code == 0, err
    assert "other" in out
    names = {"geometry.json", "geometry.html"}
    names |= {f"{n}.{k}" for n in ("plane", "map", "gold", "spectrum") for k in ("png", "svg")}
    first = {file.name: file.read_bytes() for file in Path("out").iterdir()}
    assert set(first) == names
    assert look(*words)[0] == 0
    assert {file.name: file.read_bytes() for file in Path("out").iterdir()} == first
    record = json.loads(first["geometry.json"])
    assert record["map"]["drawn_from"] == 80
    assert len(record["map"]["texts"]) == 30
    assert [each["name"] for each in record["models"]] == ["bert", "other"]


def test_the_map_can_have_its_own_sentences_with_gold_groups(look):
    words = (*MODELS, "--pairs", "downstream", *SMALL, "--sentences", "groups.tsv", "--out", "out")
    code, out, _ = look(*words, "--json")
    assert code == 0
    found = json.loads(out)
    between = [tuple(each["between"]) for each in found["agreement"]]
    expected = [("gold groups", "bert"), ("gold groups", "other"), ("bert", "other")]
    assert between == expected
    assert set(found["map"]["groups"]) == {"0", "1"}
    assert "gold groups" in Path("out/geometry.html").read_text()
    assert (found["pairs"]["name"], found["pairs"]["count"]) == ("STS-B dev", 4)


def test_the_map_can_be_of_a_data_set(look):
    words = ("--model", "bert", "--pairs", "downstream", "--split", "all", "--data", "set")
    small = ("--clusters", 2, "--perplexity", 2, "--out", "out")
    code, out, err = look(*words, *small, "--json")
    assert code == 0, err
    found = json.loads(out)
    captions = {text for texts in CAPTIONS_OF.values() for text in texts}
    assert set(found["map"]["texts"]) == captions
    assert (found["pairs"]["name"], found["pairs"]["count"]) == ("STS-B", 12)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--pairs", "pairs.tsv", "--out", "out"), 2, "--model"),
        ((*MODELS, "--pairs", "pairs.tsv", "--split", "dev", "--out", "o"), 2, "has no splits"),
        ((*MODELS, "--pairs", "no.tsv", "--out", "o"), 1, "no.tsv: no such dev set"),
        ((*MODELS, "--pairs", "pairs.tsv", "--out", "pairs.tsv"), 1, "is a file, not a folder"),
        ((*MODELS, "--pairs", "pairs.tsv", "--out", "."), 1, "contains the input pairs.tsv"),
        (("--model", "none", "--pairs", "pairs.tsv", "--out", "old"), 1, "plane.png"),
        (
            (*MODELS, "--pairs", "pairs.tsv", "--out", "o", "--clusters", 80),
            1,
            "pairs: 80 distinct sentences; 80 clusters",
        ),
        (
            (*MODELS, "--pairs", "pairs.tsv", "--out", "o", "--sentences", "no.tsv"),
            1,
            "no such file",
        ),
        (
            (*MODELS, "--pairs", "pairs.tsv", "--out", "o", "--sentences", "g", "--data", "d"),
            2,
            "--data and --sentences: give one of them",
        ),
    ],
)
def test_a_mistake_gets_one_clear_error_before_a_model_is_loaded(look, words, code, message):
    Path("old").mkdir()
    Path("old/plane.png").write_text("mine")
    found, _, err = look(*words)
    assert found == code
    assert message in unboxed(err)
    assert not Path("o").exists()
    assert Path("old/plane.png").read_text() == "mine"


@pytest.mark.parametrize("pairs", [60, 4000])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_constant_scores_and_cosines_can_be_drawn(pairs):
    found = study(pairs=pairs)
    flat = {**space("flat", score=None).__dict__, "cosines": np.ones(pairs)}
    found.models.append(ModelSpace(**flat))
    assert to_png(gold_chart(found))  # pyright: ignore[reportArgumentType]
    found.pairs.gold[:] = 2.5
    assert to_png(gold_chart(found))  # pyright: ignore[reportArgumentType]
