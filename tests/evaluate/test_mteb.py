"""MTEB's own evaluation of our models, on tasks defined here and on STS files."""

# ruff: noqa: E402 (without mteb this file is skipped before its imports)
from __future__ import annotations

import copy
import json
import os
import shutil
import sys

import numpy as np
import pytest

mteb = pytest.importorskip("mteb")

from datasets import Dataset, DatasetDict, load_dataset
from letters import Letters, model
from mteb.abstasks import AbsTaskClassification, AbsTaskClustering, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.aggregate_task_metadata import AggregateTaskMetadata
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskMetadata

from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.models import EvaluatedModel
from train.evaluate.mteb import MtebSettings
from train.evaluate.mteb_run import MtebEncoder, find_tasks
from train.evaluate.results import save_result
from train.evaluate.similarity import GradedPairs, evaluate_pairs
from train.evaluate.task import make_task
from train.report.comparison import compare_runs, find_runs

REVISION = "b" * 40
STS12 = "a0d554a64d88156834ff5ae9920b964011b16384"
"""The revision of mteb/sts12-sts that MTEB pins."""
PAIRS = [
    (5.0, "a dog runs", "the dog is running"),
    (3.5, "a boat on the sea", "ships at sea"),
    (2.0, "the cat sat", "a hat on a cat"),
    (0.5, "children eat", "the engine started"),
    (1.0, "a dog runs", "cats and dogs"),
    (4.0, "rain fell all day", "it rained the whole day"),
]
REVERSED = [(5 - score, one, two) for score, one, two in PAIRS]
COLUMNS = ("score", "sentence1", "sentence2")
DOGS = {"text": ["dog", "dogs", "a dog", "dogged", "sea", "the sea", "seas", "a sea"]}
SEARCH = {
    "corpus": Dataset.from_dict({"id": ["1", "2", "3"], "text": ["aaa bbb", "ccc ddd", "eee fff"]}),
    "queries": Dataset.from_dict({"id": ["a", "b"], "text": ["aab", "ccd"]}),
    "relevant_docs": {"a": {"1": 1}, "b": {"3": 1}},  # b has no letter of its document
    "top_ranked": None,
}


def described(name, kind, score, **more):
    given = {"name": name, "type": kind, "main_score": score, "description": name}
    given["dataset"] = {"path": f"tests/{name}", "revision": REVISION}
    given |= {"eval_langs": ["eng-Latn"], "eval_splits": ["test"]}
    given |= {"category": "t2t", "modalities": ["text"]}
    return TaskMetadata(**{**given, **more})


def made(base, about, data):
    """A task of MTEB's class ``base`` that has its data."""

    class Made(base):
        metadata = about
        samples_per_label, n_experiments = 2, 3

        def load_data(self, **given):
            self.dataset, self.data_loaded = copy.deepcopy(data), True

    return Made


def graded(pairs):
    return Dataset.from_dict(dict(zip(COLUMNS, zip(*pairs, strict=True), strict=True)))


def made_sts(name, pairs=PAIRS, **more):
    about = described(name, "STS", "cosine_spearman", **more)
    return made(AbsTaskSTS, about, DatasetDict(test=graded(pairs)))


def made_classification(name):
    rows = Dataset.from_dict({**DOGS, "label": [0] * 4 + [1] * 4})
    about = described(name, "Classification", "accuracy")
    return made(AbsTaskClassification, about, DatasetDict(train=rows, test=rows))


def made_multilingual(name):
    spoken = {"en": ["eng-Latn"], "en-de": ["eng-Latn", "deu-Latn"], "de": ["deu-Latn"]}
    splits = {"eval_langs": spoken, "eval_splits": ["validation", "test"]}
    data = {
        part: DatasetDict(test=graded(pairs), validation=graded(REVERSED))
        for part, pairs in (("en", PAIRS), ("en-de", REVERSED), ("de", PAIRS))
    }
    return made(AbsTaskSTS, described(name, "STS", "cosine_spearman", **splits), data)


def register(monkeypatch, *tasks):
    """Add tasks, by name, to MTEB's own."""
    for task in tasks:
        registry = sys.modules["mteb.get_tasks"]._TASKS_REGISTRY
        monkeypatch.setitem(registry, task.metadata.name, task)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    about = described("Search", "Retrieval", "ndcg_at_10")
    search = made(AbsTaskRetrieval, about, {"default": {"test": SEARCH}})
    pictures = made_sts("Pictures", modalities=["image"], category="i2i")
    tasks = made_sts("Pairs"), made_classification("Dogs"), made_multilingual("Languages")
    register(monkeypatch, *tasks, search, pictures)


def task(tasks, cache, **more):
    return make_task("mteb", {"tasks": tasks, "data": cache, **more})


def spearman(pairs):
    """Of our own evaluation."""
    score, first, second = zip(*pairs, strict=True)
    own = GradedPairs("own", first, second, np.array(score))
    return evaluate_pairs(Letters().encode, own).spearman


def test_tasks_of_every_kind_and_their_means(tmp_path):
    given, one = task("Pairs, Dogs,Search,Languages", tmp_path), model()
    found = given.score(one).scores
    assert set(one._row_of).isdisjoint(["aaa bbb", "ccc ddd"])  # documents are not kept in memory
    assert list(found) == [metric.name for metric in given.metrics]
    assert found["MTEB Pairs"] == pytest.approx(spearman(PAIRS), abs=1e-6)
    assert found["MTEB Dogs"] == 100  # "d", "g" and "s", "e" separate the two classes
    # a finds its document first, b last of three: (1 + 1 / log2(4)) / 2
    assert found["MTEB Search"] == pytest.approx(75)
    assert found["MTEB Languages"] == found["MTEB Avg STS"] == found["MTEB Pairs"]
    assert found["MTEB Avg Classification"] == 100
    assert found["MTEB Avg"] == pytest.approx((2 * found["MTEB Pairs"] + 100 + 75) / 4)
    assert task("Pairs", tmp_path).score(model()).scores.keys() == {"MTEB Pairs", "MTEB Avg"}
    alone = {metric.name: metric.data.examples for metric in given.metrics}
    assert [alone[f"MTEB {name}"] for name in ("Pairs", "Dogs", "Search")] == [6, 8, 5]
    assert alone["MTEB Avg"] == 6 + 8 + 5 + 6


def test_of_a_named_task_english_and_the_test_split_are_evaluated(tmp_path):
    splits = task("Languages", tmp_path).settings_of_result()["tasks"]["Languages"]["splits"]
    assert splits == {"test": ["en"]}
    both = task("Languages", tmp_path, languages="eng,deu")
    found = both.score(model())
    own = spearman(PAIRS)
    parts = {"test en": own, "test en-de": -own, "test de": own}
    assert found.subsets["MTEB Languages"] == pytest.approx(parts)
    assert found.scores["MTEB Languages"] == pytest.approx(own / 3)
    with pytest.raises(SightlineError, match="'Languages' has no subset in fra alone"):
        task("Languages", tmp_path, languages="fra")


def test_every_model_sees_the_same_random_choices(tmp_path, monkeypatch):
    """Clustering draws its documents from the task's own random numbers."""
    generator = np.random.default_rng(0)
    text = ["".join(generator.choice(list("abcd"), 5)) for _ in range(200)]
    rows = {"sentences": text, "labels": [[min(3, each.count("a"))] for each in text]}
    data = DatasetDict(test=Dataset.from_dict(rows))
    about = described("Groups", "Clustering", "v_measure")
    register(monkeypatch, made(AbsTaskClustering, about, data))
    given = task("Groups", tmp_path)
    first = given.score(model()).scores
    assert 0 < first["MTEB Groups"] < 100
    assert given.score(model()).scores == first


def test_each_sentence_is_encoded_once_for_all_tasks(tmp_path):
    letters, pairs = Letters(), tmp_path / "pairs.tsv"
    rows = ["\t".join(COLUMNS), *(f"{s}\t{a}\t{b}" for s, a, b in PAIRS)]
    pairs.write_text("\n".join(rows) + "\n")
    given = {"mteb": {"tasks": "Pairs,Languages,Dogs", "data": tmp_path}}
    tasks = Evaluation.load({"similarity": {"data": pairs}, **given})
    found = tasks.score(EvaluatedModel("letters", letters))
    encoded = [sentence for call in letters.calls for sentence in call]
    assert sorted(encoded) == sorted({s for _, *two in PAIRS for s in two} | set(DOGS["text"]))
    pairs_of_mteb = found["mteb"].scores["MTEB Pairs"]
    assert found["similarity"].scores["similarity"] == pytest.approx(pairs_of_mteb)


def test_an_undefined_score_has_a_reason(tmp_path):
    found = task("Pairs,Dogs", tmp_path).score(model(constant=True))
    assert found.scores["MTEB Pairs"] is None
    assert "not a number" in found.reasons["MTEB Pairs"]
    assert found.scores["MTEB Avg"] is None
    assert found.reasons["MTEB Avg"] == found.reasons["MTEB Pairs"]


def test_a_task_of_tasks_is_their_mean(tmp_path, monkeypatch):
    """As CQADupstackRetrieval is the mean of twelve."""
    rows = [*REVERSED[:4], *PAIRS[4:]]
    tasks = [made_sts("Pairs")(), made_sts("Reversed", rows)()]

    about = {"name": "Both", "description": "both", "main_score": "cosine_spearman"}

    class Both(AbsTaskAggregate):
        metadata = AggregateTaskMetadata(**about, tasks=tasks, type="STS", eval_splits=["test"])

    register(monkeypatch, Both)
    given = task("Both,Pairs", tmp_path)
    assert [each.data.examples for each in given.metrics] == [12, 6, 18]
    for _ in range(2):  # the parts are shared by all models
        scores = given.score(model()).scores
        expected = (spearman(PAIRS) + spearman(rows)) / 2
        assert scores["MTEB Both"] == pytest.approx(expected, abs=1e-6)


def test_many_tasks_are_shown_by_their_means(tmp_path, monkeypatch):
    monkeypatch.setattr("train.evaluate.mteb.MOST_COLUMNS", 1)
    shown = [each.name for each in task("Pairs,Dogs", tmp_path).metrics if each.shown]
    assert shown == ["MTEB Avg STS", "MTEB Avg Classification", "MTEB Avg"]


def test_types_of_a_benchmark(tmp_path):
    names = [each.metadata.name for each in find_tasks("MTEB(eng, v2),STS16", "STS", "eng")]
    assert len(names) == 10
    assert names[-1] == "STS16"
    table = find_tasks("MTEB(eng, v1)", "Reranking,Classification,Retrieval,STS", "eng")
    assert len(table) == 4 + 12 + 15 + 10  # DALR's table 5, docs/evaluation.md
    with pytest.raises(SightlineError, match=r"no tasks of type 'Sts', only .*PairClass.*, STS, "):
        find_tasks("MTEB(eng, v2)", "Sts", "eng")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("SST12", "no task or benchmark 'SST12'. Did you mean: 'STS12'. `mteb ava"),
        ("MTEB(eng, v9)", r"'MTEB\(eng, v9\)'. Did you mean: MTEB\(eng, v"),
        (" , ", "no MTEB task is named"),
        ("Pictures", "'Pictures' is about image"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(tmp_path, tasks, message):
    with pytest.raises(SightlineError, match=message):
        task(tasks, tmp_path)


def test_data_that_is_missing_is_one_error_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    with pytest.raises(SightlineError) as caught:
        task("STS12,Pairs,STS13", tmp_path / "cache")
    said = str(caught.value)
    assert f"MTEB's data of STS12, STS13 is not in {tmp_path / 'cache'}" in said
    command = said.splitlines()[-1].strip()
    assert command.startswith(f'HF_DATASETS_CACHE="{tmp_path / "cache"}" python -c "import mteb;')
    loaded = []
    stub = type("Stub", (), {"load_data": lambda self: loaded.append(1)})
    # the command as it stands, with a stub for the network
    monkeypatch.setattr(mteb, "get_task", lambda name, hf_subsets: loaded.append(name) or stub())
    exec(command.partition('python -c "')[2].removesuffix('"'))
    assert loaded == ["STS12", 1, "STS13", 1]


def test_without_the_package_one_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(SightlineError, match=r"mteb is not installed, .*'sightline\[mteb\]'"):
        task("Pairs", tmp_path)


def test_the_cache_is_that_of_this_machine_by_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert MtebSettings().data == tmp_path
    monkeypatch.delenv("HF_DATASETS_CACHE")
    assert MtebSettings().data.name == "datasets"


def test_compare_reads_the_folder_that_mteb_writes(tmp_path, monkeypatch):
    """The scores of one model, evaluated by us and by MTEB's own command, agree."""
    monkeypatch.chdir(tmp_path)
    mteb.evaluate(
        MtebEncoder(model()),
        mteb.get_tasks(tasks=["Pairs", "Dogs", "Search", "Languages"]),
        cache=mteb.ResultCache(tmp_path / "theirs"),
        co2_tracker=False,
        show_progress_bar=False,
    )
    given = {"mteb": {"tasks": "Pairs,Dogs,Languages", "data": tmp_path}}
    ours = evaluate_model(model(), Evaluation.load(given))
    save_result(ours, tmp_path / "ours.json")
    settings = ours.tasks["mteb"].settings
    assert settings["mteb"] == mteb.__version__
    about = {"type": "STS", "revision": REVISION, "splits": {"test": ["default"]}}
    assert settings["tasks"]["Pairs"] == about
    folder = "theirs/results/sightline__model"
    runs, baseline = find_runs(["ours.json", f"theirs={folder}"], tmp_path)
    ours, theirs = compare_runs(runs, baseline).table.rows
    metrics = ("Pairs", "Dogs", "Languages", "Avg", "Avg STS", "Avg Classification")
    assert set(ours.cells) == {f"MTEB {name}" for name in metrics}
    assert theirs.name == "theirs"
    for metric, cell in ours.cells.items():
        assert theirs.cells[metric].mean == pytest.approx(cell.mean, abs=1e-3), metric


def cached(cache, path, revision, rows, config="default"):
    """The test split of a data set, as a download leaves it in the cache of `datasets`."""
    work = cache.parent / f"work-{path.replace('/', '-')}-{config}-{revision}"
    work.mkdir()
    file = work / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load_dataset("json", data_files={"test": str(file)}, cache_dir=str(work))
    (built,) = (each.parent for each in work.glob("json/*/*/*/dataset_info.json"))
    owner, name = path.split("/")
    place = cache / f"{owner}___{name}" / config / "0.0.0" / revision
    shutil.copytree(built, place)
    info = json.loads((place / "dataset_info.json").read_text())
    info.update(config_name=config, dataset_name=name, builder_name="parquet")
    (place / "dataset_info.json").write_text(json.dumps(info))
    for arrow in place.glob("json-*.arrow"):
        arrow.rename(place / arrow.name.replace("json-", f"{name}-"))
    return place


@pytest.mark.parametrize("config", ["default", "qrels"])
def test_reranking_from_the_cache_ranks_the_candidates_alone(tmp_path, monkeypatch, config):
    """Without a network `datasets` lists no configurations; mteb would rank the whole corpus."""

    class Rerank(AbsTaskRetrieval):
        metadata = described("rerank", "Reranking", "ndcg_at_10")

    register(monkeypatch, Rerank)
    cache = tmp_path / "cache"
    texts = {"d1": "aaa bbb", "d2": "ccc ddd", "d3": "aab aab", "d4": "eee"}
    given = {
        "corpus": [{"_id": key, "title": "", "text": text} for key, text in texts.items()],
        "queries": [{"_id": "q1", "text": "aab"}],
        config: [{"query-id": "q1", "corpus-id": "d1", "score": 1}],
        "top_ranked": [{"query-id": "q1", "corpus-ids": ["d2", "d1", "d4"]}],
    }
    for name, rows in given.items():
        cached(cache, "tests/rerank", REVISION, rows, name)
    found = task("rerank", cache)
    assert found.metrics[0].data.examples == 5
    assert found.score(model()).scores["MTEB rerank"] == pytest.approx(100)  # d3 is no candidate
    shutil.rmtree(cache / "tests___rerank/top_ranked")
    with pytest.raises(SightlineError, match=r"candidates \(top_ranked\) are not cached"):
        task("rerank", cache)


def test_the_pinned_revision_is_read_even_if_another_is_newer(tmp_path):
    cache = tmp_path / "cache"
    rows = [dict(zip(COLUMNS, pair, strict=True)) for pair in PAIRS]
    place = cached(cache, "mteb/sts12-sts", STS12, rows)
    pinned = task("STS12", cache)
    assert pinned.metrics[0].data.examples == len(PAIRS)
    later = cached(cache, "mteb/sts12-sts", "c" * 40, rows[:4])
    os.utime(later, (2**31 - 1, 2**31 - 1))
    again = task("STS12", cache)
    assert again.settings_of_result() == pinned.settings_of_result()
    found = again.score(model()).scores["MTEB STS12"]
    assert found == pytest.approx(spearman(PAIRS), abs=1e-6)
    shutil.rmtree(place)
    with pytest.raises(SightlineError, match="data of STS12 is not in"):
        task("STS12", cache)
