"""`sightline look space`: its figures, its page, its numbers, and what it refuses."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from captioned import CAPTIONS_OF, write_captioned
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from small_senteval import write_senteval
from tiny_encoder import WORDS, make_encoder

from train.evaluate.geometry import Geometry
from train.evaluate.similarity import Correlation, GradedPairs
from train.evaluate.space import (
    MapSentences,
    MapSettings,
    ModelSpace,
    SentenceMap,
    SpaceStudy,
)
from train.evaluate.vectors import Spectrum
from train.report.charts import to_png, to_svg
from train.report.page import to_page
from train.report.render import to_text
from train.report.space_page import (
    cluster_colours,
    document_of,
    gold_chart,
    grid_of_spaces,
    map_chart,
    plane_chart,
    spectrum_chart,
)

RANDOM = np.random.default_rng(2)
NASTY = '<script>alert("x")</script> & $y$'


def space(name: str, x: float = -2.0, y: float = 0.2, score: float | None = 70.0) -> ModelSpace:
    n, pairs = 50, 60
    return ModelSpace(
        name,
        8,
        Correlation(score, pairs, None if score is not None else "every pair has the same cosine"),
        Geometry(y, x, 10, n),
        np.linspace(-0.2, 1, pairs),
        0.1,
        Spectrum(np.sqrt(np.arange(8, 0, -1) / 36), 6.5),
        SentenceMap(RANDOM.standard_normal((n, 2)), RANDOM.integers(0, 10, n), 0.25),
    )


def study(*models: ModelSpace, pairs: int = 60) -> SpaceStudy:
    texts = tuple(f"s{i}" for i in range(50))
    graded = GradedPairs("toy", ("a",) * pairs, ("b",) * pairs, np.linspace(0, 5, pairs))
    found = SpaceStudy(graded, MapSentences("toy", texts, None, 80), MapSettings())
    found.models.extend(models)
    return found


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


def test_charts_of_one_and_of_many_models_are_drawn_and_repeatable():
    for count in (1, 2):
        found = study(*(space(f"m{i}") for i in range(count)))
        for chart in (plane_chart, map_chart, gold_chart, spectrum_chart):
            figure, again = chart(found), chart(found)
            assert figure is not None
            assert again is not None
            assert to_png(figure) == to_png(again)
            assert to_svg(figure) == to_svg(again)


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


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Two encoders, a TSV of pairs, SentEval's folder and a TSV of groups."""
    monkeypatch.chdir(tmp_path)
    for kind in ("bert", "roberta"):
        for part in make_encoder(kind):
            part.save_pretrained(kind)
    random = np.random.default_rng(0)
    lines = ["score\tsentence1\tsentence2"]
    for i in range(40):
        one, two = (" ".join(random.choice(WORDS, 5)) for _ in range(2))
        lines.append(f"{i % 11 / 2}\t{one}\t{two}")
    Path("pairs.tsv").write_text("\n".join(lines) + "\n")
    groups = [f"{i % 2}\t{' '.join(random.choice(WORDS, 6))}" for i in range(50)]
    Path("groups.tsv").write_text("\n".join(["group\tsentence", *groups]) + "\n")
    write_senteval(Path("downstream"))
    return tmp_path


@pytest.fixture
def sightline(said):
    return partial(said, "look", "space", "--pooling", "mean", "--device", "cpu")


MODELS = ("--model", "bert", "--model", "other=roberta")
SMALL = ("--clusters", 3, "--perplexity", 5, "--limit", 30)


def test_the_command_writes_a_folder_and_the_same_bytes_again(place, sightline):
    words = (*MODELS, "--pairs", "pairs.tsv", *SMALL, "--out", "out")
    code, out, err = sightline(*words)
    assert code == 0, err
    assert "other" in out
    names = {"geometry.json", "geometry.html"}
    names |= {f"{n}.{k}" for n in ("plane", "map", "gold", "spectrum") for k in ("png", "svg")}
    first = {file.name: file.read_bytes() for file in Path("out").iterdir()}
    assert set(first) == names
    assert sightline(*words)[0] == 0
    assert {file.name: file.read_bytes() for file in Path("out").iterdir()} == first
    record = json.loads(first["geometry.json"])
    assert record["map"]["drawn_from"] == 80
    assert len(record["map"]["texts"]) == 30
    assert [each["name"] for each in record["models"]] == ["bert", "other"]


def test_the_map_can_have_its_own_sentences_with_gold_groups(place, sightline):
    words = (*MODELS, "--pairs", "pairs.tsv", *SMALL, "--sentences", "groups.tsv", "--out", "out")
    code, out, _ = sightline(*words, "--json")
    assert code == 0
    found = json.loads(out)
    between = [tuple(each["between"]) for each in found["agreement"]]
    expected = [("gold groups", "bert"), ("gold groups", "other"), ("bert", "other")]
    assert between == expected
    assert set(found["map"]["groups"]) == {"0", "1"}
    assert "gold groups" in Path("out/geometry.html").read_text()


def test_the_map_can_be_of_a_data_set(place, sightline):
    write_captioned(Path("set"))
    small = ("--clusters", 2, "--perplexity", 2, "--out", "out")
    code, out, _ = sightline(*MODELS, "--pairs", "pairs.tsv", *small, "--data", "set", "--json")
    assert code == 0
    captions = {text for texts in CAPTIONS_OF.values() for text in texts}
    assert set(json.loads(out)["map"]["texts"]) == captions


def test_splits_of_sts_b(place, sightline):
    small = ("--model", "bert", "--clusters", 2, "--perplexity", 2, "--pairs", "downstream")
    counts = {}
    for split in ((), ("--split", "test"), ("--split", "all")):
        code, out, err = sightline(*small, *split, "--out", "out", "--json")
        assert code == 0, err
        counts[json.loads(out)["pairs"]["name"]] = json.loads(out)["pairs"]["count"]
    assert counts == {"STS-B dev": 4, "STS-B test": 4, "STS-B": 12}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--pairs", "pairs.tsv", "--out", "out"), 2, "--model"),
        ((*MODELS, "--pairs", "pairs.tsv", "--split", "dev", "--out", "o"), 2, "has no splits"),
        ((*MODELS, "--pairs", "no.tsv", "--out", "o"), 1, "no.tsv: no such dev set"),
        ((*MODELS, "--pairs", "pairs.tsv", "--out", "pairs.tsv"), 1, "is a file, not a folder"),
        ((*MODELS, "--pairs", "pairs.tsv", "--out", "."), 1, "contains the input pairs.tsv"),
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
def test_a_mistake_gets_one_clear_error(place, sightline, words, code, message):
    found, _, err = sightline(*words)
    assert found == code
    assert message in " ".join(err.replace("│", " ").split())
    assert not Path("o").exists()


def test_foreign_files_are_kept(place, sightline):
    Path("out").mkdir()
    Path("out/plane.png").write_text("mine")
    words = ("--model", "no-such-model", "--pairs", "pairs.tsv", *SMALL, "--out", "out")
    code, _, err = sightline(*words)
    assert code == 1
    assert "plane.png" in err  # before any model is loaded
    assert Path("out/plane.png").read_text() == "mine"


@pytest.mark.parametrize("pairs", [60, 4000])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_constant_scores_and_cosines_can_be_drawn(pairs):
    found = study(pairs=pairs)
    flat = {**space("flat", score=None).__dict__, "cosines": np.ones(pairs)}
    found.models.append(ModelSpace(**flat))
    assert to_png(gold_chart(found))  # pyright: ignore[reportArgumentType]
    found.pairs.gold[:] = 2.5
    assert to_png(gold_chart(found))  # pyright: ignore[reportArgumentType]
