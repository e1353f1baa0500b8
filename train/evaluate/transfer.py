"""Accuracy of classifiers on frozen embeddings: SentEval's seven transfer tasks (METHODS §8).

    sightline evaluate transfer --model PATH --data senteval/downstream --pooling cls

Files are read as SentEval reads them: encodings, line ends, empty lines that count as examples,
words joined by single spaces. Examples are in its order too (by number of words, then by label;
equal ones as in the file), because folds and batches depend on it.

MR, CR, SUBJ and MPQA use nested 10-fold cross-validation; l2 is chosen with 10 folds of the
training set for TREC and MRPC, with the dev set for SST-2. Folds are those of scikit-learn's
`StratifiedKFold`, shuffled from seed 1111, as in SentEval (`senteval/tools/validation.py`). A
pair's features are |u − v| and u · v.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from sightline.devices import pick_device, threads_here, using_threads
from sightline.errors import SightlineError
from sightline.user_files import read_data, read_lines
from train.evaluate.results import EvaluationSet, TaskResult
from train.evaluate.similarity import Encode, squeeze
from train.evaluate.task import Metric, SubsetSettings, Task, add_mean, unlike_published

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel
    from train.evaluate.softmax_classifiers import ClassifierSettings, Fold

TRANSFER_AVERAGE = "transfer Avg"
"""Mean over the seven tasks."""

LABELS = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}
"""TREC's question types."""

SOURCE = (
    "SentEval's data/downstream folder, which data/downstream/get_transfer_data.bash of "
    "facebookresearch/SentEval makes"
)

FOLDS = 10
"""Outer and inner ones of the published figures."""

TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC")

# Examples of each split behind the published results.
EXPECTED_EXAMPLES: dict[str, dict[str, int]] = {
    "MR": {"train": 10662},
    "CR": {"train": 3775},
    "SUBJ": {"train": 10000},
    "MPQA": {"train": 10606},
    "SST-2": {"train": 67349, "dev": 872, "test": 1821},
    "TREC": {"train": 5452, "test": 500},
    "MRPC": {"train": 4076, "test": 1725},
}


Protocol = Literal["nested", "k-fold", "split"]
"""How the accuracy is measured and l2 is chosen.

`nested`: no test set; every outer fold is tested once, inner folds choose. `k-fold`: folds of the
training set choose. `split`: a dev set chooses.
"""


@dataclass(frozen=True)
class Examples:
    """Sentences with their classes; `labels` is int64 [n]. `second` is empty except for pairs."""

    labels: np.ndarray
    first: tuple[str, ...]
    second: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TransferTask:
    """One task: its splits by name, `train` first."""

    name: str
    protocol: Protocol
    classes: int
    splits: dict[str, Examples]

    def __len__(self) -> int:
        """Examples of all splits."""
        return sum(map(len, self.splits.values()))

    @property
    def labels(self) -> np.ndarray:
        """Labels of all splits: int64 [n]."""
        return np.concatenate([examples.labels for examples in self.splits.values()])

    @property
    def sentences(self) -> Iterator[str]:
        """Every sentence of every split, the first ones of a split's pairs before the second."""
        for examples in self.splits.values():
            yield from (*examples.first, *examples.second)

    @property
    def sha256(self) -> str:
        """Digest of labels and sentences of all splits, in SentEval's order."""
        digest = hashlib.sha256()
        for name, examples in self.splits.items():
            digest.update(f"{name} {len(examples)}\n".encode())
            digest.update(examples.labels.astype("<i8").tobytes())
            for side in (examples.first, examples.second):
                digest.update("\n".join((str(len(side)), *side)).encode())
        return digest.hexdigest()


def load_transfer(
    folder: str | Path, tasks: Sequence[str] = TRANSFER_TASKS
) -> dict[str, TransferTask]:
    """The transfer tasks from SentEval's `downstream` folder, in the order of ``tasks``."""
    root, loaded = Path(folder), {}
    for name in tasks:
        if name not in TRANSFER_TASKS:
            raise SightlineError(
                f"unknown transfer task {name!r}; choose from {', '.join(TRANSFER_TASKS)}"
            )
        protocol, classes, files, read = _FORMATS[name]
        splits = {
            split: _examples([row for file in names for row in _rows(root / file, read)])
            for split, names in files.items()
        }
        loaded[name] = TransferTask(name, protocol, classes, splits)
    return loaded


def evaluate_transfer(
    encode: Encode,
    tasks: Mapping[str, TransferTask],
    *,
    device: str = "cpu",
    folds: int = FOLDS,
    recipe: ClassifierSettings | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> TaskResult:
    """Accuracy ×100 of every task, rounded as SentEval rounds it, and the mean of all seven.

    All sentences are encoded in one call of ``encode``. On a CPU the tasks are side by side, with
    one thread each: their steps are too small for more.

    Args:
        encode: sentences → float [n, d], e.g. `Embedder.encode`; used as float32.
        tasks: see `load_transfer`.
        device: where classifiers are trained: auto, cpu, cuda, cuda:1 or mps.
        folds: number of outer and of inner folds.
        recipe: None uses that of SimCSE's evaluation.
        advance: called, by any thread, with how many more of `folds_of` the tasks are done.
    """
    texts = [list(task.sentences) for task in tasks.values()]
    embeddings = np.asarray(encode([text for part in texts for text in part]), dtype=np.float32)
    of_tasks = np.split(embeddings, np.cumsum([len(part) for part in texts])[:-1])
    where = str(pick_device(device))
    for task in tasks.values():
        selections(task, folds, 0)  # before a minute is spent on another

    def accuracy(task: TransferTask, rows: np.ndarray) -> tuple[float | None, str]:
        features = features_of(task, rows)
        if broken := int((~np.isfinite(features).all(axis=1)).sum()):
            return None, f"features of {broken} of {len(features)} examples are not finite"
        choices = choices_of(task, features, where, folds, recipe, advance)
        return round(float(np.mean([tested for *_, tested in choices])), 2), ""

    threads, on_cpu = threads_here(), where == "cpu"
    with (
        using_threads(1 if on_cpu else threads),
        ThreadPoolExecutor(threads if on_cpu else 1) as together,
    ):
        outcomes = dict(zip(tasks, together.map(accuracy, tasks.values(), of_tasks), strict=True))
    scores = {name: score for name, (score, _) in outcomes.items()}
    reasons = {name: reason for name, (_, reason) in outcomes.items() if reason}
    if tasks.keys() == set(TRANSFER_TASKS):
        add_mean(TRANSFER_AVERAGE, TRANSFER_TASKS, scores, reasons)
    return TaskResult(scores=scores, reasons=reasons)


def features_of(task: TransferTask, embeddings: np.ndarray) -> np.ndarray:
    """Features of all examples of all splits: float32 [n, d], [n, 2 d] for pairs.

    Args:
        embeddings: float32 [m, d], of `TransferTask.sentences`.
    """
    sides = [
        side for examples in task.splits.values() for side in (examples.first, examples.second)
    ]
    rows = np.split(embeddings, np.cumsum([len(side) for side in sides])[:-1])
    return np.concatenate(
        [
            np.concatenate([np.abs(u - v), u * v], axis=1) if len(v) else u
            for u, v in zip(rows[::2], rows[1::2], strict=True)
        ]
    )


def choices_of(
    task: TransferTask,
    features: np.ndarray,
    device: str,
    folds: int,
    recipe: ClassifierSettings | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> list[tuple[float, float, float]]:
    """What every selection of a task chooses; all its classifiers are trained together.

    A final classifier is trained for every value of l2, since the best one is not known yet.
    SentEval trains SST-2's once more on the same rows, which gives the same weights.

    Args:
        features: float32 [n, d], of all examples.

    Returns:
        The penalty, its accuracy ×100 over the inner folds, and its accuracy ×100 on test.
    """
    import torch

    from train.evaluate.softmax_classifiers import ClassifierSettings, fit_classifiers, predict

    recipe = recipe or ClassifierSettings()
    planned = selections(task, folds, recipe.seed)
    every = dict.fromkeys(fold for plan in planned for fold in (*plan.inner, plan.final))
    numbers = {fold: number for number, fold in enumerate(every)}
    x, y = torch.from_numpy(features).to(device), torch.from_numpy(task.labels).to(device)
    fitted = fit_classifiers(x, y, task.classes, list(every), recipe, advance)
    choices = []
    for selection in planned:
        inner = [numbers[fold] for fold in selection.inner]
        best, dev_accuracy = choose(fitted.dev_accuracy[inner])
        test = torch.from_numpy(selection.test).to(device)
        predicted = predict(fitted.weights[numbers[selection.final], best], x[test])
        right = int((predicted == y[test]).sum())
        choices.append((recipe.l2[best], dev_accuracy, percent(right / len(test))))
    return choices


@dataclass(frozen=True, eq=False)
class Selection:
    """One choice of a penalty: the best mean accuracy over `inner`; `final` is tested on `test`."""

    inner: tuple[Fold, ...]
    final: Fold
    test: np.ndarray


def selections(task: TransferTask, count: int, seed: int) -> list[Selection]:
    """The selections of a task: one for each outer fold if it is nested, else one.

    Rows are numbered across all splits of the task, `train` first.

    Args:
        count: number of outer and of inner folds.
    """
    from train.evaluate.softmax_classifiers import Fold

    _check_classes(task, count)
    labels, ends = task.labels, np.cumsum([len(split) for split in task.splits.values()])
    rows = dict(zip(task.splits, np.split(np.arange(len(labels)), ends[:-1]), strict=True))
    train = rows["train"]
    if task.protocol == "split":
        fold = Fold(train, rows["dev"])
        return [Selection((fold,), fold, rows["test"])]
    if task.protocol == "k-fold":
        return [Selection(_folds(train, labels, count, seed), Fold(train), rows["test"])]
    return [
        Selection(_folds(outer.train, labels, count, seed), Fold(outer.train), outer.dev)
        for outer in _folds(train, labels, count, seed)
        if outer.dev is not None
    ]


def folds_of(task: TransferTask, count: int) -> int:
    """How many distinct folds the `selections` of a task have."""
    return {"nested": count * (count + 1), "k-fold": count + 1, "split": 1}[task.protocol]


def choose(accuracies: np.ndarray) -> tuple[int, float]:
    """Index of the best penalty, the first if several tie, and its mean accuracy ×100.

    Args:
        accuracies: float64 [inner folds, penalties], 0 to 1. SentEval compares means rounded to
            two decimals.
    """
    means = [
        percent(float(np.mean(accuracies[:, penalty]))) for penalty in range(accuracies.shape[1])
    ]
    best = int(np.argmax(means))
    return best, means[best]


def percent(share: float) -> float:
    """×100, to two decimals, as SentEval rounds."""
    return round(100 * share, 2)


def _folds(rows: np.ndarray, labels: np.ndarray, count: int, seed: int) -> tuple[Fold, ...]:
    from sklearn.model_selection import StratifiedKFold  # takes seconds

    from train.evaluate.softmax_classifiers import Fold

    splitter = StratifiedKFold(n_splits=count, shuffle=True, random_state=seed)
    return tuple(Fold(rows[train], rows[dev]) for train, dev in splitter.split(rows, labels[rows]))


def _check_classes(task: TransferTask, count: int) -> None:
    counts = np.bincount(task.splits["train"].labels, minlength=task.classes)
    smallest = int(counts.min())
    if task.protocol == "split":
        if not smallest:
            raise SightlineError(
                f"{task.name}: class {int(counts.argmin())} of {task.classes} has no training "
                "example; expected SentEval's complete files"
            )
        return
    # An outer fold takes its share before the inner ones do.
    left = smallest - math.ceil(smallest / count) if task.protocol == "nested" else smallest
    if left < count:
        raise SightlineError(
            f"{task.name}: the smallest class has {smallest} training examples, too few for "
            f"{count} stratified folds; expected SentEval's complete files"
        )


class Transfer(Task[SubsetSettings]):
    """Accuracy × 100 of logistic regression on frozen embeddings."""

    about = "MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC: accuracy ×100 of a linear classifier"
    needs = "SentEval's `downstream` folder (its data/downstream/get_transfer_data.bash)"
    title = "Transfer: accuracy ×100"
    Settings = SubsetSettings

    def __init__(self, settings: SubsetSettings) -> None:
        self.tasks = load_transfer(settings.data, settings.subsets or TRANSFER_TASKS)
        for name, task in self.tasks.items():
            counts = {split: len(examples) for split, examples in task.splits.items()}
            told = unlike_published(counts, EXPECTED_EXAMPLES[name], "examples")
            self.warnings += tuple(f"{name} {warning}" for warning in told)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = {name: EvaluationSet.of(len(t), t.sha256) for name, t in self.tasks.items()}
        average = []
        if self.tasks.keys() == set(TRANSFER_TASKS):
            examples = sum(map(len, self.tasks.values()))
            every = EvaluationSet.of(examples, *(measured.sha256 for measured in data.values()))
            average = [Metric(TRANSFER_AVERAGE, every)]
        return (*(Metric(name, test) for name, test in data.items()), *average)

    def sentences(self) -> Iterable[str]:
        return (text for task in self.tasks.values() for text in task.sentences)

    def score(self, model: EvaluatedModel) -> TaskResult:
        device = str(model.embedder.model.device)
        total = sum(folds_of(task, FOLDS) for task in self.tasks.values())
        with model.progress("transfer", total, "folds") as advance:
            return evaluate_transfer(model.encode, self.tasks, device=device, advance=advance)


Row = tuple[int, str, str | None]
"""Label, sentence, and the second one of a pair."""


def _polarity(file: Path) -> Iterator[Row]:
    # SUBJ's positive sentences are the objective ones. `splitlines` also ends a line at U+0085, a
    # byte that UTF-8 text read as Latin-1 may have.
    label = int(file.suffix in (".pos", ".objective"))
    yield from ((label, squeeze(line), None) for line in _latin1(file).splitlines())


def _sst(file: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(file, SOURCE), start=1):
        columns = line.strip().split("\t")
        if len(columns) < 2 or columns[1] not in ("0", "1"):
            raise _bad_line(file, number, line, "sentence<TAB>0 or sentence<TAB>1")
        yield int(columns[1]), squeeze(columns[0]), None


def _trec(file: Path) -> Iterator[Row]:
    lines = _latin1(file).removesuffix("\n").split("\n")
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        label, _, question = line.strip().partition(":")
        fine, _, words = question.partition(" ")
        if label not in LABELS or not fine or not words:
            raise _bad_line(
                file, number, line, f"TYPE:subtype question, TYPE of {', '.join(LABELS)}"
            )
        yield LABELS[label], squeeze(words), None


def _mrpc(file: Path) -> Iterator[Row]:
    # The first line names the columns.
    for number, line in enumerate(read_lines(file, SOURCE)[1:], start=2):
        columns = line.strip().split("\t")
        if len(columns) < 5 or columns[0] not in ("0", "1"):
            raise _bad_line(file, number, line, "0 or 1, two numbers, two sentences (5 columns)")
        yield int(columns[0]), squeeze(columns[3]), squeeze(columns[4])


_Format = tuple[Protocol, int, dict[str, tuple[str, ...]], Callable[[Path], Iterator[Row]]]
_FORMATS: dict[str, _Format] = {
    "MR": ("nested", 2, {"train": ("MR/rt-polarity.pos", "MR/rt-polarity.neg")}, _polarity),
    "CR": ("nested", 2, {"train": ("CR/custrev.pos", "CR/custrev.neg")}, _polarity),
    "SUBJ": ("nested", 2, {"train": ("SUBJ/subj.objective", "SUBJ/subj.subjective")}, _polarity),
    "MPQA": ("nested", 2, {"train": ("MPQA/mpqa.pos", "MPQA/mpqa.neg")}, _polarity),
    "SST-2": (
        "split",
        2,
        {split: (f"SST/binary/sentiment-{split}",) for split in ("train", "dev", "test")},
        _sst,
    ),
    "TREC": (
        "k-fold",
        len(LABELS),
        {"train": ("TREC/train_5500.label",), "test": ("TREC/TREC_10.label",)},
        _trec,
    ),
    "MRPC": (
        "k-fold",
        2,
        {"train": ("MRPC/msr_paraphrase_train.txt",), "test": ("MRPC/msr_paraphrase_test.txt",)},
        _mrpc,
    ),
}
"""Task → protocol, number of classes, files of each split, and what reads one."""


def _rows(file: Path, read: Callable[[Path], Iterator[Row]]) -> list[Row]:
    if not (rows := list(read(file))):
        raise SightlineError(f"{file}: no examples; expected {SOURCE}")
    return rows


def _examples(rows: Sequence[Row]) -> Examples:
    def order(row: Row) -> tuple[int, int, int]:
        label, first, second = row
        return len(first.split()), len((second or "").split()), label

    rows = sorted(rows, key=order)
    labels = np.array([label for label, _, _ in rows], dtype=np.int64)
    first = tuple(first for _, first, _ in rows)
    return Examples(labels, first, tuple(second for _, _, second in rows if second is not None))


def _latin1(file: Path) -> str:
    text = read_data(file, SOURCE).decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bad_line(file: Path, number: int, line: str, expected: str) -> SightlineError:
    return SightlineError(
        f"{file}, line {number}: found {line[:80]!r}, expected {expected}; fetch the file again"
    )
