"""STS12-16, STS-B and SICK-R from SentEval's folder, scored in the "all" setting.

    sightline evaluate sts --model PATH --data senteval/downstream --pooling cls

SimCSE, appendix B: the subsets of a year are concatenated and correlated once; cosine of the two
embeddings; Spearman. Pairs without a gold score are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from sightline.errors import SightlineError
from sightline.outside import read_lines
from train.evaluate.results import TaskResult
from train.evaluate.similarity import (
    Encode,
    GradedPairs,
    correlate,
    load_pairs,
    pair_cosines,
    parse_score,
    sentences_of,
    set_of_pairs,
    squeeze,
)
from train.evaluate.task import Metric, Names, Task, TaskSettings, mean

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

AVERAGE = "Avg"
"""Mean over the seven tasks."""

# The scored subsets of each year. STS13's SMT is not free and is left out everywhere.
SUBSETS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
TASKS: tuple[str, ...] = (*SUBSETS, "STS-B", "SICK-R")

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
SICK_FILES = {
    "train": "SICK_train.txt",
    "dev": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
LAYOUT = (
    "SentEval's data/downstream folder: STS/STS12-en-test/STS.input.*.txt and STS.gs.*.txt (and so "
    "on to STS16), STS/STSBenchmark/sts-{train,dev,test}.csv, SICK/SICK_test_annotated.txt"
)


@dataclass(frozen=True)
class StsData:
    """Test sets by task, in the requested order, each by subset; and warnings about them."""

    tasks: dict[str, tuple[GradedPairs, ...]]
    warnings: tuple[str, ...] = ()

    @property
    def every(self) -> list[GradedPairs]:
        """The subsets of all tasks."""
        return [pairs for subsets in self.tasks.values() for pairs in subsets]

    @property
    def whole(self) -> bool:
        """Whether these are all seven tasks, whose mean is published."""
        return self.tasks.keys() == set(TASKS)


def load_sts(folder: str | Path, tasks: Sequence[str] = TASKS) -> StsData:
    """The test sets of `tasks` from SentEval's `downstream` folder.

    Counts of scored pairs are compared with the published ones; a difference is a warning.

    Raises:
        SightlineError: an unknown task; a missing file (named, with the layout expected); an input
            and a gold file of different lengths; a bad line (named).
    """
    root = Path(folder)
    loaded: dict[str, tuple[GradedPairs, ...]] = {}
    for task in tasks:
        if task not in TASKS:
            raise SightlineError(f"unknown STS task {task!r}; choose from {', '.join(TASKS)}")
        if task == "STS-B":
            loaded[task] = (load_sts_benchmark(root, "test"),)
        elif task == "SICK-R":
            loaded[task] = (load_sick(root, "test"),)
        else:
            loaded[task] = tuple(_load_subset(root, task, name) for name in SUBSETS[task])
    warnings = []
    for task, subsets in loaded.items():
        found = sum(len(pairs) for pairs in subsets)
        if found != EXPECTED_PAIRS[task]:
            warnings.append(
                f"{task}: {found} scored pairs, but published results have {EXPECTED_PAIRS[task]}; "
                "scores are not comparable with them"
            )
    return StsData(loaded, tuple(warnings))


def load_sts_benchmark(folder: str | Path, split: str) -> GradedPairs:
    """STS Benchmark's `train`, `dev` or `test` split (5749, 1500, 1379 pairs).

    Rows are genre, file, year, id, score, sentence1, sentence2 and up to two licence columns,
    separated by tabs, without quoting.
    """
    file = Path(folder) / "STS" / "STSBenchmark" / _split_file(STS_BENCHMARK_FILES, split)
    rows = []
    for number, line in enumerate(_lines(file), start=1):
        columns = line.split("\t")
        if len(columns) < 7:
            raise SightlineError(
                f"{file}, line {number}: {len(columns)} tab-separated columns, expected at least 7 "
                "(genre, file, year, id, score, sentence1, sentence2); fetch the file again"
            )
        rows.append((parse_score(columns[4], file, number), columns[5], columns[6]))
    return _graded(f"STS-B {split}", rows)


def load_dev_set(path: Path) -> GradedPairs:
    """STS-B's dev split from SentEval's `downstream` folder, or a similarity TSV.

    Raises:
        SightlineError: neither exists.
    """
    if path.is_dir():
        return load_sts_benchmark(path, "dev")
    if not path.is_file():
        raise SightlineError(
            f"{path}: no such dev set; give a TSV file with the columns score, sentence1, "
            "sentence2, or SentEval's `downstream` folder, which holds STS/STSBenchmark"
        )
    return load_pairs(path)


def load_graded_pairs(path: Path, split: str = "dev") -> GradedPairs:
    """The pairs of a similarity TSV; or of STS-B, from SentEval's `downstream` folder.

    Args:
        split: of STS-B: `train`, `dev` or `test`; `all` joins them.

    Raises:
        SightlineError: neither exists.
    """
    if split == "dev" or not path.is_dir():
        return load_dev_set(path)
    if split != "all":
        return load_sts_benchmark(path, split)
    parts = [load_sts_benchmark(path, each) for each in STS_BENCHMARK_FILES]
    return GradedPairs(
        "STS-B",
        tuple(text for part in parts for text in part.first),
        tuple(text for part in parts for text in part.second),
        np.concatenate([part.gold for part in parts]),
    )


def load_sick(folder: str | Path, split: str) -> GradedPairs:
    """SICK relatedness, `train`, `dev` (its "trial") or `test` (4500, 500, 4927 pairs)."""
    file = Path(folder) / "SICK" / _split_file(SICK_FILES, split)
    lines = _lines(file)
    header = lines[0].split("\t") if lines else []
    wanted = ("relatedness_score", "sentence_A", "sentence_B")
    if any(name not in header for name in wanted):
        raise SightlineError(
            f"{file}, line 1: found {' '.join(header)[:80]!r}, expected a header with "
            f"{', '.join(wanted)}; fetch the file again"
        )
    score, first, second = (header.index(name) for name in wanted)
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        columns = line.split("\t")
        if len(columns) <= max(score, first, second):
            raise SightlineError(
                f"{file}, line {number}: {len(columns)} tab-separated columns, expected "
                f"{len(header)}; fetch the file again"
            )
        rows.append((parse_score(columns[score], file, number), columns[first], columns[second]))
    return _graded(f"SICK-R {split}", rows)


def evaluate_sts(encode: Encode, data: StsData) -> TaskResult:
    """Spearman ×100 of every task and subset, and the mean over the tasks if all seven are there.

    All sentences of all tasks are encoded in one call of ``encode``.

    Args:
        encode: sentences → float [n, d], e.g. `Embedder.encode`.
    """
    cosines = iter(pair_cosines(encode, data.every))
    scores: dict[str, float | None] = {}
    subsets: dict[str, dict[str, float | None]] = {}
    reasons: dict[str, str] = {}
    for task, parts in data.tasks.items():
        of_parts = [next(cosines) for _ in parts]
        gold = np.concatenate([pairs.gold for pairs in parts])
        overall = correlate(np.concatenate(of_parts), gold)
        scores[task] = overall.spearman
        if overall.reason:
            reasons[task] = overall.reason
        if len(parts) == 1:
            continue
        subsets[task] = {}
        for pairs, cosine in zip(parts, of_parts, strict=True):
            score = correlate(cosine, pairs.gold)
            subsets[task][pairs.name] = score.spearman
            if score.reason:
                reasons[f"{task}/{pairs.name}"] = score.reason
    if data.whole:
        undefined = [task for task, score in scores.items() if score is None]
        if undefined:
            reasons[AVERAGE] = reasons[undefined[-1]]
        scores[AVERAGE] = mean(list(scores.values()))
    return TaskResult(scores=scores, subsets=subsets, reasons=reasons)


def _load_subset(root: Path, task: str, name: str) -> GradedPairs:
    folder = root / "STS" / f"{task}-en-test"
    inputs, gold = folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt"
    sentences, scores = _lines(inputs), _lines(gold)
    # A gold file may end in unscored rows, and editors tend to strip their empty lines: then the
    # rows may no longer line up, and guessing would score the wrong pairs.
    if len(sentences) != len(scores):
        raise SightlineError(
            f"{gold}: {len(scores)} lines, but {inputs.name} has {len(sentences)}; expected one "
            "line of gold per pair, empty where a pair is not scored. Fetch both files again"
        )
    rows = []
    for number, (line, score) in enumerate(zip(sentences, scores, strict=True), start=1):
        if not score.strip():
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise SightlineError(
                f"{inputs}, line {number}: one column, expected two sentences separated by a tab; "
                "fetch the file again"
            )
        rows.append((parse_score(score, gold, number), columns[0], columns[1]))
    return _graded(name, rows)


def _split_file(files: dict[str, str], split: str) -> str:
    if split not in files:
        raise SightlineError(f"unknown split {split!r}; use one of {', '.join(files)}")
    return files[split]


def _lines(file: Path) -> list[str]:
    return read_lines(file, LAYOUT)


def _graded(name: str, rows: Sequence[tuple[float, str, str]]) -> GradedPairs:
    return GradedPairs(
        name,
        tuple(squeeze(first) for _, first, _ in rows),
        tuple(squeeze(second) for _, _, second in rows),
        np.array([score for score, _, _ in rows], dtype=np.float64),
    )


class StsSettings(TaskSettings):
    """
    Attributes:
        subsets: see `load_sts`.
    """

    subsets: Names = Field(
        default=(), description="score only these test sets, such as STS-B,SICK-R, and no mean"
    )


class Sts(Task[StsSettings]):
    """Spearman × 100 in the "all" setting (SimCSE, appendix B)."""

    about = "STS12-16, STS-B, SICK-R: Spearman ×100 of cosines with gold scores"
    needs = "SentEval's `downstream` folder (its data/downstream/get_transfer_data.bash)"
    Settings = StsSettings

    def __init__(self, settings: StsSettings) -> None:
        self.data = load_sts(settings.data, settings.subsets or TASKS)
        self.warnings = self.data.warnings

    @property
    def metrics(self) -> tuple[Metric, ...]:
        of_tasks = [Metric(name, set_of_pairs(parts)) for name, parts in self.data.tasks.items()]
        average = [Metric(AVERAGE, set_of_pairs(self.data.every))] if self.data.whole else []
        return (*of_tasks, *average)

    def sentences(self) -> Iterable[str]:
        return sentences_of(self.data.every)

    def score(self, model: EvaluatedModel) -> TaskResult:
        return evaluate_sts(model.encode, self.data)
