"""docs/papers.md, `compare --paper list`: a published row has a configuration with its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from shown_commands import check_command

from docs.papers import page
from pipeline.layout import run_spec
from pipeline.paper_recipes import PaperRecipes
from train.objectives import make_objective
from train.report.published import every_entry, published_rows

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared/design/published_results.json"
GIVEN = PUBLISHED.with_name("papers.json")

CLIP, RESNET = "clip-vit-b-32", "resnet50"


class Expected(NamedTuple):
    """A column of METHODS' table: learning rate, batch and epochs for BERT and for RoBERTa."""

    bert: tuple[float, int, int]
    roberta: tuple[float, int, int]
    features: set[tuple[str, str]]
    caption: str
    weights: dict[str, float]


BERT, ROBERTA = (3e-5, 64, 3), (1e-5, 128, 3)
SOFT = {"consistency": 0.1, "cross_modal": 0.1, "ranking": 0.2, "intra_modal": 0.2}
TEACHERS = {("teacher", "simcse"), ("teacher", "diffcse")}
TABLE = {
    "SimCSE": Expected(BERT, ROBERTA, set(), "random", {"text": 1.0}),
    "MCSE": Expected(  # λ belongs to the average over both views
        BERT, ROBERTA, {("image", RESNET)}, "random", {"text": 1.0, "image": 0.01 / 2}
    ),
    "KDMCSE": Expected(  # λ times the mean of both
        BERT,
        ROBERTA,
        {("image", CLIP), ("text", CLIP)},
        "all",
        {"text": 1.0, "image": 0.005, "teacher_text": 0.005},
    ),
    "DALR": Expected(
        (2e-5, 128, 4),
        (1e-5, 128, 4),
        {("image", CLIP)} | TEACHERS,
        "random",
        {"text": 1.0, "image": 1.0, **SOFT},
    ),
    "MCSEO": Expected(
        BERT,
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
    """(model, data) → (configuration, target or command) of the page's list."""
    page = (ROOT / "docs/papers.md").read_text().split("## What the configurations contain")[0]
    lines = re.findall(r"^- ([^,]+), (?:`([\w -]+)`|no training): (.+)$", page, re.M)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for data, name, rest in lines:
        for each in rest.split("; "):
            model, _, made_by = each.rstrip("`").rpartition(": `")
            found[model, data] = name, made_by
    return found


ROWS = rows()
TRAINED = [key for key, (name, _) in ROWS.items() if name]


def test_every_published_row_is_on_the_page():
    assert len(published_rows()) > 20
    for name in published_rows():
        model, _, data = name.partition(":")
        assert (model, data or "none") in ROWS


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


@pytest.fixture(scope="module")
def recipes():
    """Every configuration is read once."""
    return PaperRecipes()


@pytest.mark.parametrize(("model", "data"), TRAINED, ids=str)
def test_a_row_has_the_numbers_of_its_paper(model, data, recipes):
    name, made_by = ROWS[model, data]
    system, run = re.fullmatch(r"train-([\w-]+)@([\w-]+)-\*", made_by).groups()
    params = recipes.params(name)
    assert params.runs[run].system == system
    paper, clip, encoder = re.match(r"(\w+)-(CLIP-)?(BERT|RoBERTa)", model).groups()
    expected, alone = TABLE[paper], not data.startswith("wiki")
    spec = run_spec(params, run, 0)

    assert spec.student.model == {"BERT": "bert-base-uncased", "RoBERTa": "roberta-base"}[encoder]
    assert (spec.student.pooling, spec.student.max_length) == ("cls", 32)
    rate, batch, epochs = expected.bert if encoder == "BERT" else expected.roberta
    train, epochs = spec.train, 6 if data == "flickr" else epochs
    assert (train.learning_rate, train.batch_size, train.epochs) == (rate, batch, epochs)
    assert (train.optimizer, train.epsilon, train.weight_decay) == ("released", None, 0.0)
    assert (train.warmup, train.max_grad_norm, train.eval_steps) == (0.0, 1.0, 125)
    assert (train.precision, train.max_steps, train.text_stream) == ("fp32", None, not alone)
    assert params.graph.seeds == [0, 1, 2, 3, 4]

    objective = make_objective(spec.objective, spec.parameters)
    features = {("image", CLIP)} if clip else expected.features
    assert {(need.kind, need.encoder) for need in objective.features} == features
    weights = dict(expected.weights)
    if paper == "MCSE" and alone and encoder == "BERT":
        weights["image"] = 0.05 / 2
    assert objective.weights == pytest.approx(weights)
    described = objective.describe()
    caption = "longest" if "reproduced" in model else expected.caption
    assert described["caption"] == caption
    assert described["shuffle_images"] == ("shuffled" in model)
    if paper == "KDMCSE":
        assert (described["variant"], described["margin"]) == ("paper", 0.125)
        thresholds = described["image_threshold"], described["teacher_text_threshold"]
        assert thresholds == (0.9, 0.9)
    if paper == "DALR":
        teachers = {each["encoder"]: each["weight"] for each in described["teachers"]}
        assert teachers == {"simcse": 0.33, "diffcse": 0.67}
        assert params.run("dalr-all-captions").parameters["caption"] == "all"

    pairs, text = STREAMS[data]
    assert (spec.pairs.name if spec.pairs else "") == pairs
    assert (spec.sentences.name if spec.sentences else "") == text


def test_data_and_teachers_are_those_of_the_papers(recipes):
    source = recipes.params("coco").dataset("coco").model_dump(mode="json")
    assert source["folders"] == ["train2014", "val2014"]
    assert source["karpathy"] == "data/raw/coco/dataset_coco.json"
    assert not source["restval"]
    for name, base in (("flickr30k", "bert-base-uncased"), ("flickr30k roberta", "roberta-base")):
        teachers = recipes.params(name).encoders.teacher
        assert {teacher: config.model for teacher, config in teachers.items()} == {
            "simcse": f"princeton-nlp/unsup-simcse-{base}",
            "diffcse": f"voidism/diffcse-{base}-sts",
        }


def test_the_released_kdmcse_reads_vit_l(recipes):
    params = recipes.params("flickr30k-vit-l")
    run = params.run("kdmcse-released")
    needs = make_objective(run.objective, run.parameters).features
    assert {need.encoder for need in needs} == {"clip-vit-l-14"}
    assert run.parameters["variant"] == "released"
    assert params.encoder("image", "clip-vit-l-14").model == "ViT-L-14-quickgelu"


def test_a_row_without_training_is_an_evaluation():
    untrained = {key: command for key, (name, command) in ROWS.items() if not name}
    assert len(untrained) == 5
    assert all(command.startswith("sightline evaluate sts ") for command in untrained.values())


def test_the_page_is_up_to_date():
    assert page() == (ROOT / "docs/papers.md").read_text(), "run `make docs`"


ENTRIES = {entry.id: entry for entry in every_entry()}
assert len(ENTRIES) == len([*every_entry()])
each_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))


@each_entry
def test_every_entry_has_commands_or_a_reason(entry, recipes):
    commands = recipes.commands(entry)
    assert bool(commands) != bool(entry.reason)
    assert entry.kind != "illustration" or entry.reason
    columns = {column.name for column in entry.columns}
    for row in entry.rows:
        assert [row.configuration, row.command, row.reason].count("") == 2, row.title
        assert bool(row.run) != bool(row.reason), row.title
        assert {*row.scores, *row.std, *row.significant} <= columns, row.title
    for command in commands:
        words = [word for word in command.split() if word != "--diff"]
        if words[0] == "sightline":
            check_command(command)
            if words[1] == "configure":
                recipes.params(" ".join(words[2:]))
            continue
        if words[0] == "python":
            page = f"\n    {command}\n" in (ROOT / "docs/evaluation.md").read_text()
            assert page or (ROOT / words[1]).is_file()
            continue
        assert words[:3] == ["dvc", "repro", "--pull"]
        assert set(words[3:]) <= yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].keys()
    for name, run in entry.trainings:
        recipes.params(name).run(run)


@each_entry
def test_settings_of_the_papers_are_those_of_the_configurations(entry, recipes):
    for row in entry.rows if entry.kind == "settings" else ():
        found = recipes.expected(row.configuration, row.run).parameters
        for column in entry.columns:
            if column.name in row.scores:
                part, _, key = column.metric.partition(".")
                assert found[part][key] == pytest.approx(row.scores[column.name]), row.title


def test_an_ablation_runs_what_its_row_names(recipes):
    def changed(entry: str, model: str) -> dict:
        row = next(each for each in ENTRIES[entry].rows if each.model == model)
        return dict(recipes.params(row.configuration).run(row.run).parameters)

    assert changed("kdmcse:table-3", "KDMCSE-BERT without AdapACSE")["margin"] == 0.0
    assert changed("dalr:table-8", "DALR-BERT w/o L_Info")["image_weight"] == 0.0
    assert changed("mcse:table-4", "MCSE-RoBERTa, λ 0.5")["weight"] == 0.5
    assert changed("mcse:figure-3", "MCSE-BERT, 10,000 pairs")["pairs"] == 10000
    assert changed("kdmcse:figure-7", "KDMCSE-BERT, margin 0.225")["margin"] == 0.225


@pytest.mark.skipif(not GIVEN.is_file(), reason="the papers' figures are not here")
def test_no_table_figure_or_number_of_the_papers_is_missing():
    given = json.loads(GIVEN.read_text())
    every = {each["id"]: each for paper in given["papers"].values() for each in paper["entries"]}
    assert len(every) > 40
    assert {name: each["kind"] for name, each in every.items()} == {
        name: each.kind for name, each in ENTRIES.items()
    }
    shared = {(r["model"], r["data"]): r for r in json.loads(PUBLISHED.read_text())["sts"]}
    for name, entry in ENTRIES.items():
        values = every[name].get("values", [])
        rows = [row for row in values if isinstance(row, dict)] if isinstance(values, list) else []
        elsewhere = {(row["model"], row["data"]): row for row in rows if "see" in row}
        own = [row for row in rows if "see" not in row]
        if entry.kind == "table":
            scores = [n for row in own for n in row.get("scores", [])]
            scores += [n for key in elsewhere for n in shared[key]["scores"]]
            assert sorted(n for row in entry.rows for n in row.scores.values()) == sorted(scores)
            spread = [n for row in own for n in row.get("std", [])]
            ours = [row for row in entry.rows if (row.model, row.data) not in elsewhere]
            assert sorted(n for row in ours for n in row.std.values()) == sorted(spread), name
        seeds = every[name].get("seeds")
        assert entry.seeds == (seeds if isinstance(seeds, int) else None)


@pytest.fixture
def listed(tmp_path, monkeypatch, says):
    """What `compare --paper` says, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda table, *more: says("compare", "--paper", table, *more)


def test_the_list_shows_every_entry(listed):
    text = listed("list")
    for entry in every_entry():
        assert f"\n{entry.id} ({entry.kind}): {entry.shows}\n" in f"\n{text}"
    assert "not produced: an illustration" in text
    found = json.loads(listed("list", "--format", "json"))["entries"]
    assert [each["id"] for each in found] == list(ENTRIES)
    assert all(bool(each["commands"]) != bool(each["reason"]) for each in found)
    assert listed("mcseo").startswith("mcseo:figure-1")


def test_several_configurations_are_kept_apart(listed):
    hint = "`sightline compare --paper mcse:1 one/results other/results`"
    for table, several in {"mcse:1": True, "mcse:8": False, "mcse:3": False}.items():
        assert (hint in listed(table)) == several, table  # mcse:3 trains nothing


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("mcse:tabel-1", "mcse:table-1"), ("mcse:77", "mcse:table-7"), ("dalrr", "dalr")],
)
def test_an_unknown_entry_names_the_nearest(given, nearest, fails):
    err = fails("compare", "--paper", given)
    assert f"did you mean '{nearest}'?" in err
    assert "sightline compare --paper list" in err
