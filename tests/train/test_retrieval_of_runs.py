"""Retrieval with the heads of trained runs: every objective, then stages, report, command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import World, silent
from feature_sets import Features
from phrase_world import Objects
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from step_oracle import Case

from pipeline import stages
from pipeline.cli import main
from pipeline.configure import configuration
from pipeline.params import EvaluationTask, Params, validate_params
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import load_result
from train.evaluate.retrieval import CHANCE, METRICS, evaluate_retrieval
from train.train_run import train_run

ROOT = Path(__file__).parents[2]
IMAGES, CAPTIONS = 18, 54  # of the split "train" of the tiny world
CLIP, RESNET = {"image": "clip"}, {"image": "resnet"}
TEACHER = [{"encoder": "clip", "weight": 1, "features": "text"}]
NO_TEXT = {"text_weight": 0}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, str], str, str, str]] = {
    # run: objective, parameters, feature → set, head of sentences, head of images, image set
    "mcse": ("mcse", CLIP, {"image-clip": "image/clip"}, "grounding", "image", "image/clip"),
    "kdmcse": (
        "kdmcse",
        {**CLIP, "text": "clip"},
        {"image-clip": "image/clip", "text-clip": "text/clip"},
        *("grounding", "image", "image/clip"),
    ),
    "dalr": (
        "dalr",
        {**RESNET, "teachers": TEACHER},
        {"image-resnet": "image/resnet", "text-clip": "text/clip"},
        *("grounding", "image", "image/resnet"),
    ),
    "mcseo": (
        "mcseo",
        CLIP,
        {"image-clip": "image/clip", "object-clip": "object/clip"},
        *("grounding", "image", "image/clip"),
    ),
    "combined": (
        "combined",
        {
            "parts": {
                "first": {"objective": "mcseo", "parameters": {**CLIP, "image_weight": 0}},
                "second": {"objective": "mcse", "parameters": {**RESNET, **NO_TEXT}},
            }
        },
        {"object-clip": "object/clip", "image-resnet": "image/resnet"},
        *("first-grounding", "second-image", "image/resnet"),
    ),
}


@pytest.fixture(scope="module")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    made = Features(world, tmp_path_factory.mktemp("features"))
    made.add("image/clip", "image", dim=7)
    made.add("image/resnet", "image", dim=5)
    made.add("text/clip", "text", dim=7)
    return made


@pytest.fixture(scope="module")
def objects(world: World, features: Features) -> Objects:
    return Objects(world, features, "object/clip", dim=7)


def settings(world: World, features: Features, **more: Any) -> dict[str, Any]:
    return {"data": world.root, "features": features.root, "split": "train", **more}


def by_hand(folder: Path, features: Features, run: str) -> list[float]:
    """METRICS from the exported files, in double precision."""
    _, _, _, of_sentences, of_images, name = RUNS[run]
    heads = load_file(folder / "heads.safetensors")

    def project(head: str, rows: np.ndarray) -> np.ndarray:
        weight, bias = (heads[f"{head}.0.{part}"].double().numpy() for part in ("weight", "bias"))
        return np.tanh(rows.astype(np.float64) @ weight.T + bias)

    rows = pq.read_table(features.world.root / "captions.parquet").to_pylist()
    rows = [row for row in rows if row["split"] == "train"]
    assert len(rows) == CAPTIONS
    texts = [row["text"] for row in rows]
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    from sightline.cache import key_of_text

    images = np.array([features.rows[name][key_of_text(text)] for text in texts[::3]])
    found = evaluate_retrieval(
        project(of_images, images),
        project(of_sentences, np.asarray(model.encode(texts))),
        np.repeat(np.arange(IMAGES), 3),
    )
    return list(found.values())


@pytest.mark.parametrize("run", RUNS)
def test_every_objective_retrieves_in_its_own_space(world, features, objects, tmp_path, run):
    objective, parameters, sets, *_ = RUNS[run]
    pairs = {"phrases": objects.path} if "object" in "".join(sets) else {}
    case = Case(world, features, objective, {"caption": "all", **parameters}, sets, pairs)
    train_run(case.spec(tmp_path / "run", max_steps=3), say=silent)
    task = Evaluation.load({"retrieval": settings(world, features)})
    found = task.score(EvaluatedModel.load(str(tmp_path / "run"), device="cpu"))["retrieval"]
    assert [found.scores[each] for each in METRICS] == pytest.approx(
        by_hand(tmp_path / "run", features, run)
    )


def test_an_objective_whose_images_are_off_has_no_scores(world, features, objects, tmp_path):
    parameters = {**CLIP, "image_weight": 0, "caption": "all"}
    sets, pairs = {"object-clip": "object/clip"}, {"phrases": objects.path}
    case = Case(world, features, "mcseo", parameters, sets, pairs)
    train_run(case.spec(tmp_path / "run", max_steps=1), say=silent)
    task = Evaluation.load({"retrieval": settings(world, features)})
    found = task.score(EvaluatedModel.load(str(tmp_path / "run"), device="cpu"))["retrieval"]
    assert found.scores == dict.fromkeys(METRICS)
    assert found.reasons["I2T R@1"] == (
        "its objective, mcseo, projects no image features; runs that learned from images, such as "
        "those of mcse, kdmcse or dalr, have heads for them"
    )


@pytest.fixture(scope="module")
def project(world: World, features: Features, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph's layout with three finished runs: SimCSE, MCSE and its control."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(world.root, root / "data/datasets/scenes")
    shutil.copytree(features.root, root / "data/features/scenes")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").touch()
    for run, more in (("mcse-clip", {}), ("mcse-shuffled", {"shuffle_images": True})):
        spec = world.spec(
            root / f"runs/{run}/seed-0",
            "mcse",
            run=run,
            parameters={**CLIP, "weight": 0.5, **more},
            features={"image-clip": features.root / "image/clip"},
        )
        train_run(spec, say=silent)
    train_run(world.spec(root / "runs/simcse/seed-0"), say=silent)
    return root


def params_of(**retrieval: Any) -> Params:
    """The demo's parameters with three runs; retrieval is on the split train."""
    given = configuration("scenes", folder=ROOT / "configs", graph_file=ROOT / "dvc.yaml")
    kept = {"simcse": ["simcse"], "mcse-clip": ["mcse-clip", "mcse-shuffled"]}
    for name, system in given["systems"].items():
        system["runs"] = {run: system["runs"][run] for run in kept.get(name, [])}
    task = {**given["evaluation"]["tasks"]["retrieval"], "split": "train", **retrieval}
    tasks = {"similarity": {"data": "data/datasets/scenes/dev.tsv"}, "retrieval": task}
    given["evaluation"]["tasks"] = tasks
    return validate_params(given, "params.yaml")


def test_a_result_keeps_its_neighbours_and_the_report_shows_them(project, monkeypatch):
    monkeypatch.chdir(project)
    given = {"data": "data/datasets/scenes", "features": "data/features/scenes", "split": "train"}
    params = params_of()
    similarity = params.evaluation.tasks["similarity"]

    def with_tasks(**tasks: Any) -> Params:
        evaluation = params.evaluation.model_copy(update={"tasks": tasks})
        return params.model_copy(update={"evaluation": evaluation})

    both = {
        "neighbours": EvaluationTask.model_validate({**given, "k": 2}),
        "similarity": similarity,
    }
    stages.evaluation_data(with_tasks(**both), "neighbours")
    file = Path("data/evaluation/neighbours.json")
    before = file.read_bytes()
    list(stages.evaluate(with_tasks(neighbours=both["neighbours"])))
    first = load_result("results/mcse-clip/seed-0.json").tasks["neighbours"].neighbours
    assert first.captions.neighbours
    lines = list(stages.evaluate(with_tasks(**both)))  # only similarity is new
    assert not any("already scored" in line for line in lines)
    assert load_result("results/mcse-clip/seed-0.json").tasks["neighbours"].neighbours == first
    assert all("already scored" in line for line in stages.evaluate(with_tasks(**both)))
    page = stages.report(with_tasks(**both)).read_text()
    assert page.count('<section id="neighbours">') == 1
    assert first.queries[0] in page
    assert "Photographs are not shown" in page  # the tiny world has none
    asked = EvaluationTask.model_validate({**given, "k": 2, "sentences": ["a red circle"]})
    changed = with_tasks(neighbours=asked, similarity=similarity)
    stages.evaluation_data(changed, "neighbours")
    assert file.read_bytes() != before  # so DVC runs `evaluate` again
    list(stages.evaluate(changed))
    second = load_result("results/mcse-clip/seed-0.json").tasks["neighbours"].neighbours
    assert second.queries[0] == "a red circle"


def test_a_task_that_fails_leaves_the_others_and_the_other_runs(project, monkeypatch):
    monkeypatch.chdir(project)
    shutil.rmtree("results", ignore_errors=True)
    params = params_of()
    Path("data/features/scenes/image").rename("elsewhere")
    lines: list[str] = []
    with pytest.raises(SightlineError) as caught:
        lines += stages.evaluate(params)
    message = str(caught.value)
    for run in ("simcse", "mcse-clip", "mcse-shuffled"):
        assert f"{run}, seed 0: retrieval failed: " in message  # its references need them, too
        result = load_result(f"results/{run}/seed-0.json")
        assert list(result.tasks) == ["similarity"]
        assert result.scores["similarity"] is not None
    Path("elsewhere").rename("data/features/scenes/image")
    lines = list(stages.evaluate(params))
    assert not any("already scored" in line for line in lines)
    result = load_result("results/mcse-clip/seed-0.json")
    assert list(result.tasks) == ["similarity", "retrieval"]
    assert result.scores["T2I R@1"] is not None


def test_the_stages_put_retrieval_and_its_references_into_the_report(project, monkeypatch):
    monkeypatch.chdir(project)
    params = params_of()
    stages.evaluation_data(params, "retrieval")
    assert '"I2T R@1"' in Path("data/evaluation/retrieval.json").read_text()
    lines = list(stages.evaluate(params))
    assert len(lines) == 3
    assert "I2T R@1 not defined" in lines[0]
    page = stages.report(params)
    body = json.loads(Path("report/report.json").read_text())
    rows = {row["name"]: row for row in body["table"]["rows"]}
    assert list(rows)[-2:] == ["clip (frozen)", CHANCE]
    assert [row["kind"] for row in rows.values()] == ["run"] * 3 + ["reference"] * 2
    assert set(rows[CHANCE]["cells"]) == set(METRICS)
    assert rows[CHANCE]["cells"]["T2I R@1"]["mean"] == pytest.approx(100 / IMAGES)
    frozen = rows["clip (frozen)"]["cells"]["T2I R@1"]["mean"]
    assert frozen > max(
        rows[run]["cells"]["T2I R@1"]["mean"]
        for run in ("MCSE (CLIP)", "MCSE with shuffled images")
    )
    metrics = json.loads(Path("report/metrics.json").read_text())
    assert set(metrics) == {"SimCSE", "MCSE (CLIP)", "MCSE with shuffled images"}
    text = Path("report/report.md").read_text()
    (row,) = (line for line in text.splitlines() if "clip (frozen)" in line)
    assert row.startswith("| *clip (frozen)* | – |")
    assert "**" not in row  # the best is among the runs
    assert "SimCSE, I2T R@1, I2T R@5, I2T R@10, T2I R@1" in page.read_text()
    assert "its objective, simcse, projects no image features" in page.read_text()


def test_references_of_scores_that_are_kept_are_kept(project, monkeypatch):
    monkeypatch.chdir(project)
    list(stages.evaluate(params_of()))
    result = Path("results/mcse-clip/seed-0.json")
    before = load_result(result)
    assert list(stages.evaluate(params_of()))[1].endswith("(already scored)")
    without = params_of()
    del without.evaluation.tasks["similarity"]
    assert list(stages.evaluate(without))[1].endswith("(already scored)")
    assert load_result(result).tasks["retrieval"] == before.tasks["retrieval"]
    assert set(before.tasks["retrieval"].references) == {"clip (frozen)", CHANCE}
    assert not list(stages.evaluate(params_of(frozen=None)))[1].endswith("(already scored)")
    assert set(load_result(result).tasks["retrieval"].references) == {CHANCE}
    list(stages.evaluate(params_of(folds=2)))
    assert load_result(result).tasks["retrieval"].references[CHANCE]["T2I R@1"] == pytest.approx(
        200 / IMAGES
    )


def test_the_command_scores_runs_and_models_in_one_table(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    words = "evaluate retrieval --set data=data/datasets/scenes --set features=data/features/scenes"
    words += " --set split=train --set frozen=clip --device cpu --out out"
    words += " --model runs/mcse-clip/seed-0 --model runs/mcse-clip/seed-0/model"
    monkeypatch.setattr("sys.argv", ["sightline", *words.split()])
    monkeypatch.setenv("COLUMNS", "140")
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    shown = " ".join(capsys.readouterr().out.split())
    assert "clip (frozen)" in shown
    assert "it is not a training run of Sightline, and has no heads" in shown
    found = load_result(Path("out/mcse-clip/seed-0.json"))
    expected = by_hand_of(project, found.scores)
    assert [found.scores[each] for each in METRICS] == pytest.approx(expected)


def by_hand_of(project: Path, scores: dict[str, float | None]) -> list[float | None]:
    """The same run's scores from its stage."""
    list(stages.evaluate(params_of()))
    stored = load_result(project / "results/mcse-clip/seed-0.json")
    return [stored.scores[each] for each in scores]


def test_a_failing_task_or_model_leaves_the_other_scores(project, monkeypatch, said):
    monkeypatch.chdir(project)
    words = "evaluate similarity retrieval --set similarity.data=data/datasets/scenes/dev.tsv"
    words += " --set retrieval.data=data/datasets/scenes --set features=nowhere --set split=train"
    words += " --device cpu --pooling mean --out kept --model runs/mcse-clip/seed-0"
    code, out, err = said(*words.split(), "--model", "gone", "--model", "runs/simcse/seed-0/model")
    assert code == 1
    assert err.startswith("evaluate: computing on cpu in fp32\n")
    assert "retrieval failed for mcse-clip: nowhere/image/clip: no feature set here" in err
    assert "gone was not scored: gone (no such folder" in err
    assert "the task failed: nowhere/image/clip" in " ".join(out.split())
    found = load_result(Path("kept/mcse-clip/seed-0.json"))
    assert found.scores["similarity"] is not None
    assert found.scores["I2T R@1"] is None
    assert found.pooling == "mean"
    other = load_result(Path("kept/runs--simcse--seed-0--model/result.json"))
    assert other.scores["similarity"] is not None
    assert "such as one of mcse, kdmcse or dalr" in other.reasons["I2T R@1"]
    before = Path("kept/mcse-clip/seed-0.json").read_bytes()
    alone = words.replace(
        "similarity retrieval --set similarity.data=data/datasets/scenes/dev.tsv", "retrieval"
    )
    code, _, err = said(*alone.split())
    assert code == 1
    assert "retrieval failed for mcse-clip" in err
    assert Path("kept/mcse-clip/seed-0.json").read_bytes() == before  # nothing to replace it with
    code, _, err = said(*words.split())
    assert code == 1
    assert "kept/mcse-clip/seed-0.json: kept, as a task failed this time" in err
    assert Path("kept/mcse-clip/seed-0.json").read_bytes() == before


def test_a_mistake_in_the_settings_is_one_line(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    base = "evaluate retrieval --set data=data/datasets/scenes --model runs/simcse/seed-0"
    for more, message in (
        ("", "retrieval needs features=…: folder with its feature sets"),
        (
            "--set features=none --set split=test",
            "no caption in the split 'test'; found 'train' (54)",
        ),
        (
            "--set features=none --set split=train --set frozen=clip",
            "`sightline stage image-features scenes",
        ),
        ("--set features=none --set fold=5", "'fold'"),
    ):
        monkeypatch.setattr("sys.argv", ["sightline", *base.split(), *more.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (1, 2)
        shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert message in shown
        assert "Traceback" not in shown
