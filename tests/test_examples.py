"""Every example runs as it says, offline, on a few drawn pictures."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from captioned import write_captioned
from command_line import sightline
from made_results import made_result
from matplotlib.figure import Figure
from PIL import Image
from prepared_data import as_prepared
from shown_commands import ROOT
from tiny_encoder import make_encoder

from sightline import (
    OBJECTIVES,
    Embedder,
    FeatureSet,
    RunSummary,
    extract_features,
    make_objective,
    named_encoder,
    prepare_dataset,
    tokenize,
)
from sightline.cache import CAPTIONS, write_manifest
from sightline.models.sentence_transformers_folder import Recipe
from train.evaluate.results import save_result
from train.evaluate.similarity import evaluate_pairs, load_pairs, pair_cosines
from train.export import export_model
from train.train_run import train_model

EXAMPLES = ROOT / "examples"
SCRIPTS = {
    *("own_photographs.py", "new_loss.py", "classifier.py", "mcse_from_cache.py"),
    *("embedding_map.py", "flickr8k_models.py", "combined_terms.py", "curve.py"),
    *("kdmcse_features.py", "entities_to_boxes.py"),
}


def draw(folder: Path, colours: tuple[str, ...], each: int) -> None:
    for colour in colours:
        (folder / colour).mkdir(parents=True)
        for size in range(each):
            image = Image.new("RGB", (32, 32), "black")
            image.paste(colour, (4, 4, 14 + size, 14 + size))
            image.save(folder / colour / f"{size}.png")


def test_there_is_a_test_for_every_example():
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert found == SCRIPTS | {"tour.ipynb"}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_example_says_how_to_run_it(name):
    (command,) = re.findall(r"^    (python .+)$", (EXAMPLES / name).read_text(), re.M)
    assert shlex.split(command)[1] == f"examples/{name}"


def test_own_photographs_take_ten_lines_and_train(run_example, tmp_path, capsys):
    source = (EXAMPLES / "own_photographs.py").read_text()
    code = source.split('"""')[2].strip().splitlines()
    assert len([line for line in code if line and "import" not in line]) <= 10
    draw(tmp_path / "photos", ("red", "blue", "green"), 4)
    lines = ["image,caption"]
    for path in sorted((tmp_path / "photos").rglob("*.png")):
        lines.append(f"{path.relative_to(tmp_path / 'photos')},a {path.parent.name} square dog")
        lines.append(f"{path.relative_to(tmp_path / 'photos')},the big {path.stem} tree")
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    for part in make_encoder():
        part.save_pretrained(tmp_path / "student")
    run_example("own_photographs.py", "photos", "captions.csv", "student", "resnet18", "random:0")
    assert "features from untrained weights" in capsys.readouterr().out
    summary = RunSummary.read(tmp_path / "mine/run")
    assert summary.objective == "mcse"
    assert summary.features["image-resnet18"].rows == 12
    assert (tmp_path / "mine/run/model/README.md").is_file()


def test_a_new_loss_trains_and_is_the_equation(run_example, tmp_path, monkeypatch):
    monkeypatch.setitem(vars(OBJECTIVES), "places", dict(OBJECTIVES.places))
    run_example("new_loss.py")
    summary = RunSummary.read(tmp_path / "loss/run")
    assert summary.objective == "sigmoid"
    assert "new_loss" in summary.code
    assert any("loss_sigmoid" in entry for entry in summary.log)
    assert "SigLIP" in (tmp_path / "loss/run/model/README.md").read_text()

    from new_loss import sigmoid_loss  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(0)
    texts, images = (torch.randn(5, 7, generator=generator) for _ in range(2))
    expected = 0.0
    for i, t in enumerate(texts.double().numpy()):
        for j, v in enumerate(images.double().numpy()):
            cosine = t @ v / np.linalg.norm(t) / np.linalg.norm(v)
            sign = 1 if i == j else -1
            expected += np.log1p(np.exp(-sign * (10 * cosine - 5)))
    assert float(sigmoid_loss(texts, images)) == pytest.approx(expected / 5, rel=1e-5)


def test_combined_terms_are_those_of_their_papers(run_example, tmp_path, monkeypatch):
    monkeypatch.setitem(vars(OBJECTIVES), "places", dict(OBJECTIVES.places))
    demo, weights = tmp_path / "demo", "file:demo/datasets/scenes/encoders"
    small = {"train_pairs": 60, "dev_pairs": 60, "test_pairs": 60, "student_hidden": 32}
    steps = {"resnet_steps": 5, "clip_steps": 0, "teacher_steps": 0}
    scenes = demo / "datasets/scenes"
    data = prepare_dataset("scenes", scenes, scenes=60, sentences=60, **small, **steps)
    resnet = named_encoder("resnet18", f"{weights}/resnet.safetensors")
    clip = named_encoder(str(scenes / "encoders/clip.json"), f"{weights}/clip.safetensors", "text")
    extract_features(data, resnet, demo / "features/scenes/image/resnet")
    extract_features(data, clip, demo / "features/scenes/text/clip", "text")
    tokenize(data.texts, scenes / "student", 32, demo / "tokens/scenes-bert")

    def train_a_little(*given: Any, **settings: Any) -> RunSummary:
        return train_model(*given, **settings | {"max_steps": 4, "eval_steps": 2})

    monkeypatch.setattr("sightline.train_model", train_a_little, raising=False)
    run_example("combined_terms.py", "demo")
    summary = RunSummary.read(tmp_path / "combined/run")
    assert summary.features.keys() == {"image-resnet", "text-clip"}
    assert any(
        {"loss_text", "loss_image", "loss_teacher_text"} <= entry.keys() for entry in summary.log
    )

    torch.manual_seed(0)
    from combined_terms import ImagesAndTeacher  # pyright: ignore[reportMissingImports]

    ours = ImagesAndTeacher(image="resnet", text="clip")
    module = ours.build(6, {"image-resnet": 5, "text-clip": 7})
    embeddings = {"sentences": (torch.randn(4, 6), torch.randn(4, 6))}
    rows = {"image-resnet": torch.randn(4, 5), "text-clip": torch.randn(4, 7)}

    class Pairs:
        stream = "pairs"

        def features_of(self, kind: str, encoder: str) -> torch.Tensor:
            return rows[f"{kind}-{encoder}"]

    found = ours.terms(module.heads, Pairs(), embeddings)
    mcse = make_objective("mcse", {"image": "resnet", "variant": "released"})
    kdmcse = {"text": "clip", "image_weight": 0, "teacher_text_threshold": None}
    parts = (mcse, ("text", "image")), (make_objective("kdmcse", kdmcse), ("text", "teacher_text"))
    for part, names in parts:
        terms = part.terms(module.heads, Pairs(), embeddings)
        for name in names:
            torch.testing.assert_close(found[name], terms[name])


def test_a_classifier_reads_the_features_of_a_folder(run_example, tmp_path, capsys):
    draw(tmp_path / "photos", ("red", "blue", "green"), 6)
    run_example("classifier.py", "photos", "resnet18", "random:0")
    assert "18 photographs, 3 classes: accuracy 1.00" in capsys.readouterr().out
    assert len(FeatureSet.open(tmp_path / "classifier/features")) == 18


GROUPS = ("small", "blue", "dog", "near")


@pytest.fixture
def map_inputs(tmp_path) -> Path:
    """A model, graded pairs, and a data set whose test captions are of four groups of twelve."""
    export_model(tmp_path / "model", Embedder(*make_encoder(), "mean"), "A card.\n", Recipe())
    texts = [" ".join([word] * count) for word in GROUPS for count in range(8, 20)]
    rows = [{"text": text, "split": "test"} for text in (*texts, texts[0])]
    rows.append({"text": "a big dog", "split": "train"})
    rows = [{"caption_id": f"c{i}", "image_id": "a.png", **row} for i, row in enumerate(rows)]
    (tmp_path / "data").mkdir()
    write_manifest(as_prepared(tmp_path / "data") / "captions.parquet", captions_of(rows), CAPTIONS)
    random = np.random.default_rng(0)
    lines = [
        f"{gold}\t{' '.join(random.choice(GROUPS, 3))}\t{' '.join(random.choice(GROUPS, 3))}"
        for gold in np.linspace(0, 5, 40)
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *lines]) + "\n")
    return tmp_path


def captions_of(rows: list[dict[str, str]]) -> pa.Table:
    return pa.Table.from_pylist(rows, CAPTIONS)


def dots(picture: str, number: int) -> list[tuple[float, float, str]]:
    """(x, y, colour) of the dots in the scatter plot ``number``, in their order."""
    part = picture.split(f'<g id="PathCollection_{number}">')[1].partition('<g id="')[0]
    uses = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style=".*stroke: (#\w+)', part)
    return [(float(x), float(y), colour) for x, y, colour in uses]


def test_a_map_has_the_clusters_of_the_embeddings_and_the_cosines_of_pairs(
    run_example, map_inputs, capsys
):
    words = ("--captions", "data", "--pairs", "pairs.tsv", "--clusters", "4")
    run_example("embedding_map.py", *words, "--out", "new/map.svg", "model", "model")
    first, second, *again = capsys.readouterr().out.splitlines()
    assert again == [first, second]  # the same model twice
    assert float(re.fullmatch(r"model: silhouette (0\.\d{3})", first)[1]) > 0.5

    picture = (map_inputs / "new/map.svg").read_text()
    captions = dots(picture, 1)
    places = np.array([dot[:2] for dot in captions])
    assert len(np.unique(places, axis=0)) == 48
    colours = np.array([colour for *_, colour in captions])
    assert np.unique(colours, return_counts=True)[1].tolist() == [12] * 4
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(48, np.inf))
    assert (colours[distances.argmin(axis=1)] == colours).all()

    encode, pairs = Embedder.load(map_inputs / "model").encode, load_pairs(map_inputs / "pairs.tsv")
    (cosines,) = pair_cosines(encode, [pairs])
    means = [round(float(part.mean()), 3) for part in np.split(cosines, 5)]
    spearman = evaluate_pairs(encode, pairs).spearman
    assert second == f"model: Spearman × 100 {spearman:.2f}, mean cosines {means}"
    x, y, _ = zip(*dots(picture, 3), strict=True)
    assert np.corrcoef(x, pairs.gold)[0, 1] == pytest.approx(1)
    assert np.corrcoef(y, cosines)[0, 1] == pytest.approx(-1)  # downwards


def test_a_map_of_captions_alone_is_a_picture(run_example, map_inputs):
    words = ("--captions", "data", "--clusters", "4", "--out", "map.png")
    run_example("embedding_map.py", *words, "model")
    with Image.open(map_inputs / "map.png") as picture:
        assert picture.size == (630, 630)
        assert len(set(picture.convert("RGB").getdata())) > 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out a.png model", "expected --captions, --pairs or both"),
        ("--captions data --out a.gif model", "a --out of .png, .svg or .pdf"),
        ("--captions no --out a.png model", "no: no prepared data set here"),
        ("--captions captioned --out a.png model", "captioned: 2 captions in the split test"),
        ("--captions data --out a.png model", "48 captions in the split test; expected more than"),
        ("--captions data --clusters 4 --out a.png no", "no"),
        ("--pairs no.tsv --out a.png model", "no.tsv: no such"),
        ("--pairs data --out a.png model", "STS/STSBenchmark"),
    ],
)
def test_wrong_input_of_a_map_is_one_clear_error(run_example, map_inputs, capsys, words, message):
    write_captioned(map_inputs / "captioned")
    with pytest.raises(SystemExit) as ended:
        run_example("embedding_map.py", *words.split())
    assert message in f"{ended.value.code} {capsys.readouterr().err}"
    assert not (map_inputs / "a.png").exists()


def run_of(name: str, *scores: float | None, objective: str = "mcse", **parameters) -> None:
    """Results of a run, a score per seed, in ./results; ``parameters`` are its objective's."""
    for seed, score in enumerate(scores):
        result = made_result(
            name,
            seed,
            parameters={"objective": parameters, "train": {"batch_size": 64, "temperature": 1}},
            training={"objective": objective},
            scores={"score": score, "distance": 1.0},
            reasons={} if score is not None else {"score": "constant"},
        )
        save_result(result, Path(f"results/{name}/seed-{seed}.json"))


@pytest.fixture
def drawn(run_example, monkeypatch, capsys) -> Callable[..., Any]:
    """Draws runs of ./results with the two commands; returns the axis."""
    shown: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: shown.append(figure))

    def draw(runs: str, *words: str, baseline: str = "") -> Any:
        reference = ["--baseline", baseline] if baseline else []
        compare = ["compare", *runs.split(), *reference, "--format", "json", "--out", "c.json"]
        assert sightline(*compare) == 0, capsys.readouterr().err
        run_example("curve.py", "c.json", *words, "--out", "c.png")
        return shown[-1].axes[0]

    return draw


def test_a_curve_has_the_means_and_deviations_in_the_order_of_the_values(drawn):
    run_of("third", 30.0, 34.0, weight=2.0)
    run_of("first", 10.0, 20.0, weight=0.01)
    run_of("second", 21.0, 25.0, weight=0.5)
    run_of("base", 1.0, 3.0, objective="simcse")
    axis = drawn("third first second", "weight", baseline="base")
    (line,) = axis.containers
    assert line.get_label() == "mcse"
    assert [*line[0].get_ydata()] == [15.0, 23.0, 32.0]
    ends = [segment[:, 1].tolist() for segment in line[2][0].get_segments()]
    # of two numbers that are d apart: d / √2
    for (low, high), (mean, apart) in zip(ends, ((15, 10), (23, 4), (32, 4)), strict=True):
        assert (low, high) == pytest.approx((mean - apart / 2**0.5, mean + apart / 2**0.5))
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.01", "0.5", "2.0"]
    (reference,) = (line for line in axis.lines if line.get_label() == "base")
    assert [*reference.get_ydata()] == [2.0, 2.0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("objective.weight", "score")
    assert drawn("first second", "weight", "--metric", "distance").get_ylabel() == "distance"


def test_runs_that_differ_in_something_else_are_another_line_of_a_curve(drawn):
    """As in MCSE's figure 3, whose last value is all pairs."""
    for number, pairs in enumerate((None, 100, 5000)):
        run_of(f"simcse-{number}", 10.0 + number, objective="simcse", pairs=pairs)
        run_of(f"clip-{number}", 20.0 + number, pairs=pairs, image="clip")
        run_of(f"resnet-{number}", None if pairs else 30.0, pairs=pairs, image="resnet")
    names = [f"{run}-{n}" for run in ("simcse", "clip", "resnet") for n in range(3)]
    axis = drawn(" ".join(names), "pairs")
    lines = {line.get_label(): line[0] for line in axis.containers}
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["100", "5000", "None"]
    assert {label: [*line.get_ydata()] for label, line in lines.items()} == {
        "simcse": [11.0, 12.0, 10.0],
        "mcse, objective.image clip": [21.0, 22.0, 20.0],
        "mcse, objective.image resnet": [30.0],
    }
    assert [*lines["mcse, objective.image resnet"].get_xdata()] == [2]


def test_values_of_a_curve_may_be_no_numbers(drawn):
    run_of("b", 1.0, teachers=["b"])
    run_of("a", 2.0, teachers=["a"])
    axis = drawn("b a", "teachers")
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["['b']", "['a']"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("weigh", "weigh: expected one parameter, found none"),
        ("temperature", "found objective.temperature, train.temperature"),
        ("weight --metric scor", "found scor, expected one of score, distance"),
    ],
)
def test_wrong_input_of_a_curve_is_one_clear_error(drawn, capsys, words, message):
    for weight in (1.0, 2.0):
        run_of(f"weight-{weight}", 1.0, weight=weight, temperature=1)
    with pytest.raises(SystemExit) as ended:
        drawn("weight-1.0 weight-2.0", *words.split())
    assert message in f"{ended.value.code} {capsys.readouterr().err}"


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear the outputs"
        exec(compile("".join(cell["source"]), f"tour.ipynb, cell {number}", "exec"), names)
    assert set(names["runs"]) == set(names["scores"]) == {"simcse", "mcse"}
    assert names["nearest"][0] == 0
    assert names["runs"]["mcse"].features["image-resnet"].rows == len(names["images"])
