"""Images and sentences in the space of trained runs: every objective, stages, report, commands."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import Case, Features
from conftest import World, make_world, silent
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from pipeline import stages
from pipeline.cli import main
from pipeline.configure import configuration
from pipeline.params import EvaluationTask, Params, validate_params
from sightline.cache import FeatureSet, key_of_text
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation
from train.evaluate.models import EvaluatedModel, image_space, open_features, rows_of_images
from train.evaluate.models import project as projected
from train.evaluate.results import TaskResult, load_result
from train.evaluate.retrieval import CHANCE, METRICS, evaluate_retrieval
from train.train_run import train_run

ROOT = Path(__file__).parents[2]
IMAGES, CAPTIONS = 18, 54  # of the split "train" of the tiny world
CLIP, RESNET = {"image": "clip"}, {"image": "resnet"}
TEACHER = [{"encoder": "clip", "weight": 1, "features": "text"}]
RUNS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # run and objective: parameters, head of sentences, head of images, image set
    "mcse": (CLIP, "grounding", "image", "image/clip"),
    "kdmcse": ({**CLIP, "text": "clip"}, "grounding", "image", "image/clip"),
    "dalr": ({**RESNET, "teachers": TEACHER}, "grounding", "image", "image/resnet"),
    "mcseo": (CLIP, "grounding", "image", "image/clip"),
    "combined": (
        {
            "parts": {
                "first": {"objective": "mcseo", "parameters": {**CLIP, "image_weight": 0}},
                "second": {"objective": "mcse", "parameters": {**RESNET, "text_weight": 0}},
            }
        },
        *("first-grounding", "second-image", "image/resnet"),
    ),
}


def scored(features: Features, objective: str, parameters: dict[str, Any], out: Path) -> TaskResult:
    """Retrieval with the heads of a short run."""
    case = Case(features, objective, {"caption": "all", **parameters})
    train_run(case.spec(out, max_steps=2), say=silent)
    where = {"data": features.world.root, "features": features.root, "split": "train"}
    task = Evaluation.load({"retrieval": where})
    return task.score(EvaluatedModel.load(str(out), device="cpu"))["retrieval"]


def by_hand(folder: Path, features: Features, run: str) -> list[float]:
    """METRICS from the exported files, in double precision."""
    _, of_sentences, of_images, name = RUNS[run]
    heads = load_file(folder / "heads.safetensors")

    def project(head: str, rows: np.ndarray) -> np.ndarray:
        weight, bias = (heads[f"{head}.0.{part}"].double().numpy() for part in ("weight", "bias"))
        return np.tanh(rows.astype(np.float64) @ weight.T + bias)

    rows = pq.read_table(features.world.root / "captions.parquet").to_pylist()
    rows = [row for row in rows if row["split"] == "train"]
    assert len(rows) == CAPTIONS
    texts = [row["text"] for row in rows]
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    images = np.array([features.rows[name][key_of_text(text)] for text in texts[::3]])
    found = evaluate_retrieval(
        project(of_images, images),
        project(of_sentences, np.asarray(model.encode(texts))),
        np.repeat(np.arange(IMAGES), 3),
    )
    return list(found.values())


@pytest.mark.parametrize("run", RUNS)
def test_every_objective_retrieves_in_its_own_space(features, tmp_path, run):
    found = scored(features, run, RUNS[run][0], tmp_path)
    assert [found.scores[each] for each in METRICS] == pytest.approx(
        by_hand(tmp_path, features, run)
    )


def test_an_objective_whose_images_are_off_has_no_scores(features, tmp_path):
    found = scored(features, "mcseo", {**CLIP, "image_weight": 0}, tmp_path)
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


# ---- images that are nearest to a sentence ------------------------------------------------------


def test_features_are_found_by_name_and_checked(project, features, tmp_path):
    model = EvaluatedModel.load(str(project / "runs/mcse-clip/seed-0"), device="cpu")
    space = image_space(model)
    name = model.summary.features["image-clip"].name
    below = tmp_path / name
    below.parent.mkdir(parents=True)
    below.symlink_to(features.root / "image/clip")
    for place in (below, tmp_path):
        assert open_features(space, model, place).fingerprint == space.fingerprint
    with pytest.raises(SightlineError, match=re.escape(str(tmp_path / "no" / name))):
        open_features(space, model, tmp_path / "no")
    other = replace(space, fingerprint="0" * 64)
    with pytest.raises(SightlineError, match="expected 0000"):
        open_features(other, model, features.root / "image/clip")


def test_failed_images_are_left_out(tmp_path):
    world = make_world(tmp_path, failed=3)
    found = FeatureSet.open(world.root / "features")
    rows, kept = rows_of_images(found, world.image_keys)
    assert kept.tolist() == list(range(3, 20))
    assert rows == pytest.approx(found.gather(found.rows(world.image_keys[3:])))
    with pytest.raises(SightlineError, match="all 3 images failed"):
        rows_of_images(found, world.image_keys[:3])


def to_images(project: Path, *models: str) -> list[object]:
    words: list[object] = ["look", "neighbours", "a red circle", "--to-images", "--device", "cpu"]
    words += ["--data", project / "data/datasets/scenes"]
    words += ["--features", project / "data/features/scenes/image/clip"]
    return [*words, *(f"--model={model}" for model in models)]


def test_the_command_finds_images(world, project, said):
    runs = [str(project / f"runs/{name}/seed-0") for name in ("simcse", "mcse-clip")]
    code, out, err = said(*to_images(project, *runs), "--json", "--k", "20")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["models"]["mcse-clip"]["queries"] == ["a red circle"]
    assert shown["models"]["simcse"]["pictures"]["neighbours"] == []
    assert "simcse, images: its objective, simcse, projects no image" in " ".join(shown["notes"])
    (images,) = shown["models"]["mcse-clip"]["pictures"]["neighbours"]
    assert sorted(each["images"][0] for each in images) == [f"{i:02d}.png" for i in range(20)]
    assert [each["images"][0] for each in images if each["own"]] == ["00.png"]
    model = EvaluatedModel.load(runs[1], device="cpu")
    space = image_space(model)
    text = projected(space.sentences, model.encode(["a red circle"]))[0]
    found = FeatureSet.open(project / "data/features/scenes/image/clip")
    grounded = projected(space.images, found.take(world.image_keys))
    cosines = grounded @ text / np.linalg.norm(grounded, axis=1) / np.linalg.norm(text)
    expected = np.sort(cosines)[::-1].tolist()
    assert [each["cosine"] for each in images] == pytest.approx(expected, abs=1e-5)


def test_a_run_of_an_older_version_is_one_clear_error(project, tmp_path, said):
    old = shutil.copytree(project / "runs/mcse-clip/seed-0", tmp_path / "old")
    summary = json.loads((old / "run.json").read_text())
    summary["features"] = {"image": summary["features"].pop("image-clip")}
    (old / "run.json").write_text(json.dumps(summary))
    code, out, err = said(*to_images(project, str(old)))
    assert (code, out) == (1, "")
    assert f"{old}: its objective reads image-clip, but the run learned from image" in err
    assert "train it again" in err
