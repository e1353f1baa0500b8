"""docs/papers.md: every published row has a configuration and a command with its numbers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.configure import configuration
from pipeline.graph import run_spec
from pipeline.params import Params, validate_params
from train.objectives import make_objective

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared/design/published_results.json"

CLIP, RESNET = "clip-vit-b-32", "resnet50"


@dataclass(frozen=True)
class Expected:
    """A column of METHODS' table: learning rate, batch and epochs for BERT and for RoBERTa."""

    bert: tuple[float, int, int]
    roberta: tuple[float, int, int]
    features: set[tuple[str, str]]
    caption: str
    weights: dict[str, float]


TABLE = {
    "SimCSE": Expected((3e-5, 64, 3), (1e-5, 128, 3), set(), "random", {"text": 1.0}),
    "MCSE": Expected(
        (3e-5, 64, 3),
        (1e-5, 128, 3),
        {("image", RESNET)},
        "random",
        {"text": 1.0, "image": 0.01 / 2},  # λ belongs to the average over both views
    ),
    "KDMCSE": Expected(
        (3e-5, 64, 3),
        (1e-5, 128, 3),
        {("image", CLIP), ("text", CLIP)},
        "all",
        {"text": 1.0, "image": 0.005, "teacher_text": 0.005},  # λ times the mean of both
    ),
    "DALR": Expected(
        (2e-5, 128, 4),
        (1e-5, 128, 4),
        {("image", CLIP), ("teacher", "simcse"), ("teacher", "diffcse")},
        "random",
        {
            "text": 1.0,
            "image": 1.0,
            "consistency": 0.1,
            "cross_modal": 0.1,
            "ranking": 0.2,
            "intra_modal": 0.2,
        },
    ),
    "MCSEO": Expected(
        (3e-5, 64, 3),
        (1e-5, 64, 3),
        {("image", RESNET), ("object", RESNET)},
        "longest",
        {"text": 1.0, "image": 0.01, "object": 0.005},
    ),
}
STREAMS = {  # data → pairs, text
    "wiki": ("", "wiki"),
    "wiki+flickr": ("flickr30k", "wiki"),
    "wiki+coco": ("coco", "wiki"),
    "flickr": ("flickr30k", ""),
    "coco": ("coco", ""),
    "wiki+flickr+coco": ("flickr30k-coco", "wiki"),
    "wiki+cc12m": ("cc12m", "wiki"),
    "wiki+cc12m-2": ("cc12m-2", "wiki"),
}


def rows() -> dict[tuple[str, str], tuple[str, str]]:
    """(model, data) → (configuration, command) of the page's table."""
    page = (ROOT / "docs/papers.md").read_text()
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (?:`([\w-]+)`|–) \| `([^`]+)` \|$", page, re.M)
    return {(model, data): (name, command) for model, data, name, command in found}


ROWS = rows()
TRAINED = [key for key, (name, _) in ROWS.items() if name]


def test_every_published_row_is_on_the_page():
    ours = json.loads((ROOT / "train/report/published_results.json").read_text())
    assert len(ours) > 20
    for row in ours:
        assert (row["model"], row["data"] or "none") in ROWS


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the papers' figures are not here")
def test_every_row_of_every_published_table_is_on_the_page():
    given = json.loads(PUBLISHED.read_text())
    wanted = {(row["model"], row["data"]) for table in ("sts", "transfer") for row in given[table]}
    for table in ("retrieval_flickr30k_test", "training_minutes_one_A100_80GB_batch128_4_epochs"):
        wanted |= {tuple(name.split(" ")) for name in given[table] if name != "columns"}
    plane = given["alignment_uniformity_wiki_flickr"]
    wanted |= {(model, "wiki+flickr") for model in plane if model != "columns"}
    assert len(wanted) > 20
    assert wanted <= ROWS.keys()


def params_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(ROOT)
    return validate_params(configuration(name), name)


@pytest.mark.parametrize(("model", "data"), TRAINED, ids=str)
def test_a_row_has_the_numbers_of_its_paper(model, data, monkeypatch):
    name, command = ROWS[model, data]
    target = re.fullmatch(r"dvc repro --pull --glob 'train-([\w-]+)@([\w-]+)-\*'", command)
    assert target is not None
    system, run = target.groups()
    params = params_of(name, monkeypatch)
    assert params.runs[run].system == system
    paper, encoder = re.match(r"(\w+)-(BERT|RoBERTa)", model).groups()  # pyright: ignore
    expected, alone = TABLE[paper], not data.startswith("wiki")
    spec = run_spec(params, run, 0)

    assert spec.student.model == {"BERT": "bert-base-uncased", "RoBERTa": "roberta-base"}[encoder]
    assert (spec.student.pooling, spec.student.max_length) == ("cls", 32)
    rate, batch, epochs = expected.bert if encoder == "BERT" else expected.roberta
    train = spec.train
    if data == "flickr":
        epochs = 6
    assert (train.learning_rate, train.batch_size, train.epochs) == (rate, batch, epochs)
    assert (train.optimizer, train.epsilon, train.weight_decay) == ("released", None, 0.0)
    assert (train.warmup, train.max_grad_norm, train.eval_steps) == (0.0, 1.0, 125)
    assert (train.precision, train.max_steps, train.text_stream) == ("fp32", None, not alone)
    assert params.graph.seeds == [0, 1, 2, 3, 4]

    objective = make_objective(spec.objective, spec.parameters)
    needs = objective.features(objective.params)
    assert {(need.kind, need.encoder) for need in needs.values()} == expected.features
    weights = dict(expected.weights)
    if paper == "MCSE" and alone and encoder == "BERT":
        weights["image"] = 0.05 / 2
    assert objective.weights == pytest.approx(weights)
    described = objective.describe()
    caption = "longest" if "reproduced" in model else expected.caption
    assert described["caption"] == caption
    assert described["shuffle_images"] == ("shuffled" in model)
    if paper == "KDMCSE":
        thresholds = described["image_threshold"], described["teacher_text_threshold"]
        assert (described["variant"], described["margin"], thresholds) == (
            "paper",
            0.125,
            (0.9, 0.9),
        )
    if paper == "DALR":
        teachers = {each["encoder"]: each["weight"] for each in described["teachers"]}
        assert teachers == {"simcse": 0.33, "diffcse": 0.67}
        assert params.run("dalr-all-captions").parameters["caption"] == "all"

    pairs, text = STREAMS[data]
    assert (spec.pairs is None) == (not pairs)
    if spec.pairs is not None:
        assert spec.pairs.captions.parent.name == pairs
    assert (spec.text is None) == (not text)
    if spec.text is not None:
        assert spec.text.sentences.parent.name == text


def test_the_papers_use_coco_2014(monkeypatch):
    source = params_of("coco", monkeypatch).dataset("coco").source.model_dump(mode="json")
    assert source["folders"] == ["train2014", "val2014"]
    assert source["captions"]["train"] == "data/raw/coco/annotations/captions_train2014.json"


def test_the_released_kdmcse_reads_vit_l(monkeypatch):
    params = params_of("flickr30k-vit-l", monkeypatch)
    run = params.run("kdmcse-released")
    needs = make_objective(run.objective, run.parameters).features(
        make_objective(run.objective, run.parameters).params
    )
    assert {need.encoder for need in needs.values()} == {"clip-vit-l-14"}
    assert run.parameters["variant"] == "released"
    assert params.encoder("image", "clip-vit-l-14").model == "ViT-L-14-quickgelu"


def test_a_row_without_training_is_an_evaluation():
    untrained = {key: command for key, (name, command) in ROWS.items() if not name}
    assert len(untrained) == 3
    assert all(command.startswith("sightline evaluate sts ") for command in untrained.values())
