"""STS12-16, STS-B and SICK-R from SentEval's folder, in the "all" setting, or your own pairs.

    sightline evaluate sts --model PATH --data senteval/downstream --pooling cls
    sightline evaluate similarity --model PATH --data pairs.tsv

SimCSE, appendix B: the subsets of a year are concatenated and correlated once; cosine of the two
embeddings; Spearman. Pairs without a gold score are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.errors import SightlineError
from sightline.user_files import read_lines
from train.evaluate.results import TaskResult
from train.evaluate.similarity import (
    EXPECTED,
    Encode,
    GradedPairs,
    correlate,
    load_pairs,
    pair_cosines,
    sentences_of,
    set_of_pairs,
)
from train.evaluate.task import (
    Metric,
    SubsetSettings,
    Task,
    TaskSettings,
    add_mean,
    unlike_published,
)

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

STS_AVERAGE = "Avg"
"""Mean over the seven tasks."""

# The scored subsets of each year. STS13's SMT is not free and is left out everywhere.
SUBSETS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
STS_TASKS: tuple[str, ...] = (*SUBSETS, "STS-B", "SICK-R")

# Scored pairs of the test sets that the papers report on.
EXPECTED_PAIRS: dict[str, int] = {
    "STS12": 3108,
    "STS13": 1500,
    "STS14": 3750,
    "STS15": 3000,
    "STS16": 1186,
    "STS-B": 1379,
    "SICK-R": 4927,
}

STS_BENCHMARK_FILES = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}
LAYOUT = (
    "SentEval's data/downstream folder: STS/STS12-en-test/STS.input.*.txt and STS.gs.*.txt (and so "
    "on to STS16), STS/STSBenchmark/sts-{train,dev,test}.csv, SICK/SICK_test_annotated.txt"
)


TestSets = Mapping[str, tuple[GradedPairs, ...]]
"""Task → its test set, subset by subset."""


def load_sts(folder: str | Path, tasks: Sequence[str] = STS_TASKS) -> TestSets:
    """The test sets of `tasks` from SentEval's `downstream` folder."""
    root = Path(folder)
    tests: dict[str, tuple[GradedPairs, ...]] = {}
    for task in tasks:
        if task not in STS_TASKS:
            raise SightlineError(f"unknown STS task {task!r}; choose from {', '.join(STS_TASKS)}")
        if task == "STS-B":
            tests[task] = (load_sts_benchmark(root, "test"),)
        elif task == "SICK-R":
            tests[task] = (load_sick(root),)
        else:
            of_year = root / "STS" / f"{task}-en-test"
            tests[task] = tuple(_load_subset(of_year, name) for name in SUBSETS[task])
    return tests


def load_sts_benchmark(folder: str | Path, split: str) -> GradedPairs:
    """STS Benchmark's `train`, `dev` or `test` split (5749, 1500, 1379 pairs).

    Rows are genre, file, year, id, score, sentence1, sentence2 and up to two licence columns,
    separated by tabs, without quoting.
    """
    file = Path(folder) / "STS" / "STSBenchmark" / STS_BENCHMARK_FILES[split]
    names = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
    rows = (
        (number, _columns(file, number, line, names)[4:7])
        for number, line in enumerate(read_lines(file, LAYOUT), start=1)
    )
    return GradedPairs.of(f"STS-B {split}", file, rows)


def load_graded_pairs(path: Path, split: str = "dev") -> GradedPairs:
    """The pairs of a table; or of STS-B, from SentEval's `downstream` folder.

    Args:
        split: of STS-B: `train`, `dev` or `test`; `all` joins them.
    """
    if path.is_file():
        return load_pairs(path)
    if not path.is_dir():
        raise SightlineError(
            f"{path}: no such dev set; give {EXPECTED}; or SentEval's `downstream` folder, which "
            "holds STS/STSBenchmark"
        )
    if split != "all":
        return load_sts_benchmark(path, split)
    parts = [load_sts_benchmark(path, name) for name in STS_BENCHMARK_FILES]
    return GradedPairs(
        "STS-B",
        tuple(text for part in parts for text in part.first),
        tuple(text for part in parts for text in part.second),
        np.concatenate([part.gold for part in parts]),
    )


def load_sick(folder: str | Path) -> GradedPairs:
    """The test split of SICK relatedness (4927 pairs)."""
    file = Path(folder) / "SICK" / "SICK_test_annotated.txt"
    first, *lines = read_lines(file, LAYOUT) or [""]
    header, columns_needed = first.split("\t"), ("relatedness_score", "sentence_A", "sentence_B")
    if any(name not in header for name in columns_needed):
        raise SightlineError(
            f"{file}, line 1: found {' '.join(header)[:80]!r}, expected a header with "
            f"{', '.join(columns_needed)}; fetch the file again"
        )
    score, left, right = (header.index(name) for name in columns_needed)
    every = ((n, _columns(file, n, line, header)) for n, line in enumerate(lines, start=2))
    rows = ((number, (columns[score], columns[left], columns[right])) for number, columns in every)
    return GradedPairs.of("SICK-R test", file, rows)


def evaluate_sts(encode: Encode, tests: TestSets) -> TaskResult:
    """Spearman ×100 of every task and subset, and the mean over the tasks if all seven are there.

    All sentences of all tasks are encoded in one call of ``encode``.

    Args:
        encode: sentences → float [n, d], e.g. `Embedder.encode`.
    """
    cosines = iter(pair_cosines(encode, _every(tests)))
    scores: dict[str, float | None] = {}
    subsets: dict[str, dict[str, float | None]] = {}
    reasons: dict[str, str] = {}

    def spearman(name: str, cosines: Sequence[np.ndarray], parts: Sequence[GradedPairs]):
        gold = np.concatenate([pairs.gold for pairs in parts])
        correlation = correlate(np.concatenate(cosines), gold)
        if correlation.reason:
            reasons[name] = correlation.reason
        return correlation.spearman

    for task, parts in tests.items():
        of_parts = [next(cosines) for _ in parts]
        scores[task] = spearman(task, of_parts, parts)
        if len(parts) > 1:
            subsets[task] = {
                pairs.name: spearman(f"{task}/{pairs.name}", [of_part], [pairs])
                for pairs, of_part in zip(parts, of_parts, strict=True)
            }
    if tests.keys() == set(STS_TASKS):
        add_mean(STS_AVERAGE, STS_TASKS, scores, reasons)
    return TaskResult(scores=scores, subsets=subsets, reasons=reasons)


def _every(tests: TestSets) -> list[GradedPairs]:
    return [pairs for parts in tests.values() for pairs in parts]


def _load_subset(folder: Path, name: str) -> GradedPairs:
    inputs, gold = folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt"
    sentences, scores = read_lines(inputs, LAYOUT), read_lines(gold, LAYOUT)
    # A gold file may end in unscored rows, and editors tend to strip their empty lines: then the
    # rows may no longer line up, and guessing would score the wrong pairs.
    if len(sentences) != len(scores):
        raise SightlineError(
            f"{gold}: {len(scores)} lines, but {inputs.name} has {len(sentences)}; expected one "
            "line of gold per pair, empty where a pair is not scored. Fetch both files again"
        )
    both = ("first sentence", "second sentence")
    rows = (
        (number, (score, *_columns(inputs, number, line, both)[:2]))
        for number, (line, score) in enumerate(zip(sentences, scores, strict=True), start=1)
        if score.strip()
    )
    return GradedPairs.of(name, gold, rows)


def _columns(file: Path, number: int, line: str, names: Sequence[str]) -> list[str]:
    columns = line.split("\t")
    if len(columns) < len(names):
        raise SightlineError(
            f"{file}, line {number}: {len(columns)} tab-separated columns, expected at least "
            f"{len(names)} ({', '.join(names)}); fetch the file again"
        )
    return columns


class Sts(Task[SubsetSettings]):
    """Spearman × 100 in the "all" setting (SimCSE, appendix B)."""

    about = "STS12-16, STS-B, SICK-R: Spearman ×100 of cosines with gold scores"
    needs = "SentEval's `downstream` folder (its data/downstream/get_transfer_data.bash)"
    Settings = SubsetSettings

    def __init__(self, settings: SubsetSettings) -> None:
        self.tests = load_sts(settings.data, settings.subsets or STS_TASKS)
        counts = {task: sum(map(len, parts)) for task, parts in self.tests.items()}
        self.warnings = unlike_published(counts, EXPECTED_PAIRS, "scored pairs")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        of_tasks = [Metric(name, set_of_pairs(parts)) for name, parts in self.tests.items()]
        whole = self.tests.keys() == set(STS_TASKS)
        average = [Metric(STS_AVERAGE, set_of_pairs(_every(self.tests)))] if whole else []
        return (*of_tasks, *average)

    def sentences(self) -> Iterable[str]:
        return sentences_of(_every(self.tests))

    def score(self, model: EvaluatedModel) -> TaskResult:
        return evaluate_sts(model.encode, self.tests)


class Similarity(Sts):
    """The same on one set of graded pairs."""

    about = "your own graded pairs: Spearman ×100 of cosines with gold scores"
    needs = EXPECTED
    Settings = TaskSettings

    def __init__(self, settings: TaskSettings) -> None:
        pairs = load_pairs(settings.data)
        self.tests = {"similarity": (pairs,)}
        self.warnings = pairs.notes
