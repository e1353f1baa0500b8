"""Images and sentences in the space of trained runs: every objective, stages, report, commands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cases import Case
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from training_world import silent

from pipeline import stages
from pipeline.configure import configuration
from pipeline.params import Params, validate_params
from sightline.cache import FeatureSet, key_of_text
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation
from train.evaluate.models import EvaluatedModel, image_space
from train.evaluate.models import project as projected
from train.evaluate.pools import open_features
from train.evaluate.results import load_result
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
}
SETTINGS = {"data": "data/datasets/scenes", "features": "data/features/scenes", "split": "train"}


def by_hand(folder, features, run):
    """METRICS from the exported files, in double precision."""
    _, of_sentences, of_images, name = RUNS[run]
    heads = load_file(folder / "heads.safetensors")

    def project(head, rows):
        weight, bias = (heads[f"{head}.0.{part}"].double().numpy() for part in ("weight", "bias"))
        return np.tanh(rows.astype(np.float64) @ weight.T + bias)

    rows = pq.read_table(features.world.root / "captions.parquet").to_pylist()
    texts = [row["text"] for row in rows if row["split"] == "train"]
    assert len(texts) == CAPTIONS
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
    case = Case(features, run, {"caption": "all", **RUNS[run][0]})
    train_run(case.spec(tmp_path, max_steps=2), say=silent)
    where = {"data": features.world.root, "features": features.root, "split": "train"}
    model = EvaluatedModel.load(str(tmp_path), device="cpu")
    found = Evaluation.load({"retrieval": where}).score(model)["retrieval"]
    expected = by_hand(tmp_path, features, run)
    assert [found.scores[each] for each in METRICS] == pytest.approx(expected)


def test_heads_read_what_they_were_trained_on_whether_or_not_embeddings_are_normalised(
    features, tmp_path
):
    case = Case(features, "mcse", {"caption": "all", **CLIP})
    train_run(case.spec(tmp_path, max_steps=2), say=silent)
    where = {"data": features.world.root, "features": features.root, "split": "train"}
    tasks = Evaluation.load({"retrieval": where})
    before = tasks.score(EvaluatedModel.load(str(tmp_path), device="cpu"))["retrieval"].scores
    file = tmp_path / "model/modules.json"
    last = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "Normalize"}
    file.write_text(json.dumps([*json.loads(file.read_text()), last]))
    model = EvaluatedModel.load(str(tmp_path), device="cpu")
    assert tasks.score(model)["retrieval"].scores == before
    rows = model.encode(["a red circle", "a blue square"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


# ---- stages -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(world, features, tmp_path_factory):
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


@pytest.fixture
def project(root, monkeypatch):
    monkeypatch.chdir(root)
    return root


def params_of(**tasks: dict[str, Any]) -> Params:
    """The demo's parameters with three runs and these tasks."""
    given = configuration("scenes", folder=ROOT / "configs", graph_file=ROOT / "dvc.yaml")
    kept = {"simcse": ["simcse"], "mcse-clip": ["mcse-clip", "mcse-shuffled"]}
    for name, system in given["systems"].items():
        system["runs"] = {run: system["runs"][run] for run in kept.get(name, [])}
    given["evaluation"]["tasks"] = tasks
    return validate_params(given, "params.yaml")


SIMILARITY = {"data": "data/datasets/scenes/dev.tsv"}
RETRIEVAL = {**SETTINGS, "frozen": "clip"}
BOTH = {"similarity": SIMILARITY, "retrieval": RETRIEVAL}


def evaluated(**tasks: dict[str, Any]) -> list[str]:
    """Lines of the stage, of which those of runs that need nothing end in `(already scored)`."""
    return list(stages.evaluate(params_of(**tasks)))


def result(run: str = "mcse-clip"):
    return load_result(f"results/{run}/seed-0.json")


def test_the_stage_says_how_far_each_run_is(project, monkeypatch, capfd):
    monkeypatch.setattr("sightline.machine.progress._SECONDS_BETWEEN_LINES", 0)
    assert len(evaluated(similarity=SIMILARITY)) == 3
    told = capfd.readouterr().err
    for run in ("simcse", "mcse-clip", "mcse-shuffled"):
        assert re.search(rf"^{run}: encoding: (\d+) of \1 sentences, ", told, re.M)


def test_a_result_keeps_its_neighbours_and_the_report_shows_them(project):
    shutil.rmtree("results", ignore_errors=True)  # it keeps the tasks of the tests before
    plain = {"neighbours": {**SETTINGS, "k": 2}}
    both = {**plain, "similarity": SIMILARITY}
    stages.evaluation_data(params_of(**both), "neighbours")
    file = Path("data/evaluation/neighbours.json")
    before = file.read_bytes()
    evaluated(**plain)
    first = result().tasks["neighbours"].neighbours
    assert first.captions.neighbours
    assert not any("already scored" in line for line in evaluated(**both))  # similarity is new
    assert result().tasks["neighbours"].neighbours == first
    page = stages.report(params_of(**both)).read_text()
    assert page.count('<section id="neighbours">') == 1
    assert first.queries[0] in page
    assert "Photographs are not shown" in page  # the tiny world has none
    changed = {"neighbours": {**SETTINGS, "k": 2, "sentences": ["a red circle"]}}
    stages.evaluation_data(params_of(**changed), "neighbours")
    assert file.read_bytes() != before  # so DVC runs `evaluate` again
    evaluated(**changed)
    assert result().tasks["neighbours"].neighbours.queries[0] == "a red circle"


def test_a_task_that_fails_leaves_the_others_and_the_other_runs(project):
    shutil.rmtree("results", ignore_errors=True)
    Path("data/features/scenes/image").rename("elsewhere")
    with pytest.raises(SightlineError) as caught:
        evaluated(**BOTH)
    for run in ("simcse", "mcse-clip", "mcse-shuffled"):
        # its references need them, too
        assert f"{run}, seed 0: retrieval failed: " in str(caught.value)
        assert list(result(run).tasks) == ["similarity"]
        assert result(run).scores["similarity"] is not None
    Path("elsewhere").rename("data/features/scenes/image")
    assert not any("already scored" in line for line in evaluated(**BOTH))
    assert list(result().tasks) == ["similarity", "retrieval"]
    assert result().scores["T2I R@1"] is not None


def test_the_stages_put_retrieval_and_its_references_into_the_report(project):
    stages.evaluation_data(params_of(**BOTH), "retrieval")
    assert '"I2T R@1"' in Path("data/evaluation/retrieval.json").read_text()
    lines = evaluated(**BOTH)
    assert len(lines) == 3
    assert "I2T R@1 not defined" in lines[0]
    page = stages.report(params_of(**BOTH)).read_text()
    body = json.loads(Path("report/report.json").read_text())
    rows = {row["name"]: row for row in body["table"]["rows"]}
    assert list(rows)[-2:] == ["clip (frozen)", CHANCE]
    assert [row["kind"] for row in rows.values()] == ["run"] * 3 + ["reference"] * 2
    assert set(rows[CHANCE]["cells"]) == set(METRICS)
    recall = {name: row["cells"].get("T2I R@1", {}).get("mean") for name, row in rows.items()}
    assert recall[CHANCE] == pytest.approx(100 / IMAGES)
    assert recall["clip (frozen)"] > recall["MCSE (CLIP)"]
    assert recall["clip (frozen)"] > recall["MCSE with shuffled images"]
    metrics = json.loads(Path("report/metrics.json").read_text())
    assert set(metrics) == {"SimCSE", "MCSE (CLIP)", "MCSE with shuffled images"}
    assert "SimCSE, I2T R@1, I2T R@5, I2T R@10, T2I R@1" in page
    assert "its objective, simcse, projects no image features" in page


def test_references_of_scores_that_are_kept_are_kept(project):
    evaluated(**BOTH)
    before = result().tasks["retrieval"]
    assert set(before.references) == {"clip (frozen)", CHANCE}
    assert evaluated(**BOTH)[1].endswith("(already scored)")
    assert evaluated(retrieval=RETRIEVAL)[1].endswith("(already scored)")
    assert result().tasks["retrieval"] == before
    assert not evaluated(similarity=SIMILARITY, retrieval=SETTINGS)[1].endswith("(already scored)")
    assert set(result().tasks["retrieval"].references) == {CHANCE}
    evaluated(retrieval={**RETRIEVAL, "folds": 2})
    chance = result().tasks["retrieval"].references[CHANCE]
    assert chance["T2I R@1"] == pytest.approx(200 / IMAGES)


# ---- commands -----------------------------------------------------------------------------------


def test_the_command_scores_runs_and_models_in_one_table(project, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    words = [f"--{key}={value}" for key, value in RETRIEVAL.items()]
    words += ["--device=cpu", "--out=out", "--model=runs/mcse-clip/seed-0"]
    code, out, _ = said("evaluate", "retrieval", *words, "--model=runs/mcse-clip/seed-0/model")
    assert code == 0
    assert "clip (frozen)" in out
    assert "it is not a training run of Sightline, and has no heads" in " ".join(out.split())
    evaluated(**BOTH)
    scores = load_result(Path("out/mcse-clip/seed-0.json")).scores
    assert [scores[each] for each in METRICS] == pytest.approx(
        [result().scores[each] for each in METRICS]
    )
    code, _, err = said("evaluate", "retrieval", *words, "--precision=bf16")
    assert code == 1
    assert "give this one a name, `--model NAME=runs/mcse-clip/seed-0`" in " ".join(err.split())
    words[-1] = "--model=bf16=runs/mcse-clip/seed-0"
    assert said("evaluate", "retrieval", *words, "--precision=bf16")[0] == 0
    found = load_result(Path("out/bf16/seed-0.json"))
    assert (found.precision, found.marks[-1]) == ("bf16", "scored in bf16")
    assert [found.scores[each] for each in METRICS] == pytest.approx(
        [scores[each] for each in METRICS], abs=5
    )


def test_a_failing_task_or_model_leaves_the_other_scores(project, said):
    words = ["--set=retrieval.data=data/datasets/scenes", "--set=features=nowhere"]
    words += ["--set=split=train", "--device=cpu", "--pooling=mean", "--out=kept"]
    words += ["--model=runs/mcse-clip/seed-0"]
    both = ["similarity", "retrieval", f"--set=similarity.data={SIMILARITY['data']}", *words]
    code, out, err = said("evaluate", *both, "--model=gone", "--model=runs/simcse/seed-0/model")
    assert code == 1
    assert err.startswith("evaluate: computing on cpu in fp32\n")
    assert "retrieval failed for mcse-clip: nowhere/image/clip: not a feature set" in err
    assert "gone was not scored: gone (no such folder" in err
    assert "the task failed: nowhere/image/clip" in " ".join(out.split())
    file = Path("kept/mcse-clip/seed-0.json")
    found, before = load_result(file), file.read_bytes()
    assert found.scores["similarity"] is not None
    assert found.scores["I2T R@1"] is None
    assert found.pooling == "mean"
    other = load_result(Path("kept/runs--simcse--seed-0--model/result.json"))
    assert other.scores["similarity"] is not None
    assert "such as one of mcse, kdmcse or dalr" in other.reasons["I2T R@1"]
    options = [word.replace("--set=retrieval.", "--").replace("--set=", "--") for word in words]
    for again, message in (
        (["retrieval", *options], "retrieval failed for mcse-clip"),  # nothing to replace it with
        (both, f"{file}: keeps its scores of retrieval, which failed"),
    ):
        code, _, err = said("evaluate", *again)
        assert code == 1
        assert message in err
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("retrieval", "Missing option '--features'"),
        ("retrieval similarity", "retrieval needs --set features=…: folder with its feature sets"),
        (
            "--features=none retrieval --split=test",
            "no caption in the split 'test'; found 'train' (54)",
        ),
        (
            "retrieval --features=none --split=train --frozen=clip",
            "`sightline stage image-features",
        ),
        ("retrieval --features=none --fold=5", "No such option: --fold (Possible options: --folds"),
        ("retrieval --features=none --set=folds=5", "folds is an option: give --folds"),
        ("retrieval --features=none --set=fold=5", "'fold'"),
        ("retrieval similarity --features=none", "No such option: --features"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(project, said, more, message):
    words = ["--data=data/datasets/scenes", *more.split(), "--model=runs/simcse/seed-0"]
    code, _, err = said("evaluate", *words)
    assert code in (1, 2)
    assert message in " ".join(err.replace("│", " ").split())


def test_runs_have_no_results_until_they_are_scored(project, said):
    code, _, err = said("compare", "runs")
    assert code == 1
    assert "`sightline evaluate` --out writes those of a run" in err
    words = ["--data=data/datasets/scenes", "--features=data/features/scenes"]
    words += ["--split=train", "--model=runs/simcse/seed-0", "--out=scored"]
    assert said("evaluate", "retrieval", *words)[0] == 0
    assert said("compare", "scored/simcse")[0] == 0


# ---- images that are nearest to a sentence ------------------------------------------------------


def test_features_are_found_by_name_and_checked(project, features, tmp_path):
    model = EvaluatedModel.load("runs/mcse-clip/seed-0", device="cpu")
    use = image_space(model).features
    below = tmp_path / use.name
    below.parent.mkdir(parents=True)
    below.symlink_to(features.root / "image/clip")
    looked_for = ("image", "clip", "mcse-clip", "scenes")
    for place in (below, tmp_path, below.parents[1]):
        assert open_features(place, *looked_for, use).fingerprint == use.fingerprint
    with pytest.raises(SightlineError, match=re.escape(str(tmp_path / "no/image/clip"))):
        open_features(tmp_path / "no", *looked_for, use)
    other = use.model_copy(update={"fingerprint": "0" * 64})
    with pytest.raises(SightlineError, match="expected 0000"):
        open_features(features.root / "image/clip", *looked_for, other)


TO_IMAGES = (
    *("look", "neighbours", "a red circle", "--to-images", "--device=cpu"),
    *("--data=data/datasets/scenes", "--features=data/features/scenes/image/clip"),
)


def test_the_command_finds_images(world, project, said):
    models = [f"--model=runs/{name}/seed-0" for name in ("simcse", "mcse-clip")]
    code, out, err = said(*TO_IMAGES, *models, "--json", "--k=20")
    assert code == 0, err
    shown = json.loads(out)
    assert shown["models"]["mcse-clip"]["queries"] == ["a red circle"]
    assert shown["models"]["simcse"]["pictures"]["neighbours"] == []
    assert "simcse, images: its objective, simcse, projects no image" in " ".join(shown["notes"])
    (images,) = shown["models"]["mcse-clip"]["pictures"]["neighbours"]
    assert sorted(each["images"][0] for each in images) == [f"{i:02d}.png" for i in range(20)]
    assert [each["images"][0] for each in images if each["own"]] == ["00.png"]
    model = EvaluatedModel.load("runs/mcse-clip/seed-0", device="cpu")
    space = image_space(model)
    text = projected(space.sentences, model.encode(["a red circle"]))[0]
    found = FeatureSet.open("data/features/scenes/image/clip")
    grounded = projected(space.images, found.take(world.image_keys))
    cosines = grounded @ text / np.linalg.norm(grounded, axis=1) / np.linalg.norm(text)
    expected = np.sort(cosines)[::-1].tolist()
    assert [each["cosine"] for each in images] == pytest.approx(expected, abs=1e-5)
    by_default = [word for word in TO_IMAGES if not word.startswith("--features")]
    assert json.loads(said(*by_default, *models, "--json", "--k=20")[1]) == shown


def test_a_run_of_an_older_version_is_one_clear_error(project, tmp_path, said):
    old = shutil.copytree("runs/mcse-clip/seed-0", tmp_path / "old")
    summary = json.loads((old / "run.json").read_text())
    summary["features"] = {"image": summary["features"].pop("image-clip")}
    (old / "run.json").write_text(json.dumps(summary))
    code, out, err = said(*TO_IMAGES, f"--model={old}")
    assert (code, out) == (1, "")
    assert f"{old}: its objective reads image-clip, but the run learned from image" in err
    assert "train it again" in err
