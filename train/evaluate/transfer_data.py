"""The seven transfer tasks from SentEval's folder: MR, CR, SUBJ, MPQA, SST-2, TREC, MRPC.

Files are read as SentEval reads them: encodings, line ends, empty lines that count as examples,
words joined by single spaces. Examples are in its order too (by number of words, then by label;
equal ones as in the file), because folds and batches depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sightline.errors import SightlineError
from sightline.outside import read_data, read_lines
from train.evaluate.similarity import squeeze

Protocol = Literal["nested", "k-fold", "split"]
"""How the accuracy is measured and l2 is chosen.

`nested`: no test set; every outer fold is tested once, inner folds choose. `k-fold`: folds of the
training set choose. `split`: a dev set chooses.
"""

LABELS = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}
"""TREC's question types."""

SOURCE = (
    "SentEval's data/downstream folder, which data/downstream/get_transfer_data.bash of "
    "facebookresearch/SentEval makes"
)

# Positive file (label 1; objective sentences for SUBJ), negative file (label 0).
_POLARITY = {
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
_SST = {
    "train": "SST/binary/sentiment-train",
    "dev": "SST/binary/sentiment-dev",
    "test": "SST/binary/sentiment-test",
}
_TREC = {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"}
_MRPC = {"train": "MRPC/msr_paraphrase_train.txt", "test": "MRPC/msr_paraphrase_test.txt"}

TASKS: tuple[str, ...] = (*_POLARITY, "SST-2", "TREC", "MRPC")

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
    def sha256(self) -> str:
        """Digest of labels and sentences of all splits, in SentEval's order."""
        digest = hashlib.sha256()
        for name, examples in self.splits.items():
            digest.update(f"{name} {len(examples)}\n".encode())
            digest.update(examples.labels.astype("<i8").tobytes())
            for side in (examples.first, examples.second):
                digest.update("\n".join((str(len(side)), *side)).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class TransferData:
    """Tasks by name, in the requested order, and warnings about them."""

    tasks: dict[str, TransferTask]
    warnings: tuple[str, ...] = ()


def load_transfer(folder: str | Path, tasks: Sequence[str] = TASKS) -> TransferData:
    """The transfer tasks from SentEval's `downstream` folder.

    Counts of examples are compared with the published ones; a difference is a warning.

    Raises:
        SightlineError: an unknown task; a missing, empty or unreadable file; a bad line (named).
    """
    root = Path(folder)
    loaded: dict[str, TransferTask] = {}
    for name in tasks:
        if name in _POLARITY:
            loaded[name] = TransferTask(name, "nested", 2, {"train": _polarity(root, name)})
        elif name == "SST-2":
            loaded[name] = TransferTask(name, "split", 2, _splits(root, _SST, _sst))
        elif name == "TREC":
            splits = _splits(root, _TREC, _trec)
            loaded[name] = TransferTask(name, "k-fold", len(LABELS), splits)
        elif name == "MRPC":
            loaded[name] = TransferTask(name, "k-fold", 2, _splits(root, _MRPC, _mrpc))
        else:
            raise SightlineError(f"unknown transfer task {name!r}; choose from {', '.join(TASKS)}")
    warnings = []
    for name, task in loaded.items():
        for split, expected in EXPECTED_EXAMPLES[name].items():
            found = len(task.splits[split])
            if found != expected:
                warnings.append(
                    f"{name} {split}: {found} examples, but published results have {expected}; "
                    "accuracies are not comparable with them"
                )
    return TransferData(loaded, tuple(warnings))


def _splits(
    root: Path, files: dict[str, str], read: Callable[[Path], list[tuple[int, str, str | None]]]
) -> dict[str, Examples]:
    splits = {}
    for split, name in files.items():
        rows = read(root / name)
        if not rows:
            raise SightlineError(f"{root / name}: no examples; expected {SOURCE}")
        splits[split] = _examples(rows)
    return splits


def _polarity(root: Path, task: str) -> Examples:
    rows: list[tuple[int, str, str | None]] = []
    for label, name in zip((1, 0), _POLARITY[task], strict=True):
        # `splitlines` also ends a line at U+0085, a byte that UTF-8 text read as Latin-1 may have.
        lines = _latin1(root / name).splitlines()
        if not lines:
            raise SightlineError(f"{root / name}: no examples; expected {SOURCE}")
        rows += [(label, squeeze(line), None) for line in lines]
    return _examples(rows)


def _sst(file: Path) -> list[tuple[int, str, str | None]]:
    rows: list[tuple[int, str, str | None]] = []
    for number, line in enumerate(read_lines(file, SOURCE), start=1):
        columns = line.strip().split("\t")
        if len(columns) < 2 or columns[1] not in ("0", "1"):
            raise _bad_line(file, number, line, "sentence<TAB>0 or sentence<TAB>1")
        rows.append((int(columns[1]), squeeze(columns[0]), None))
    return rows


def _trec(file: Path) -> list[tuple[int, str, str | None]]:
    rows: list[tuple[int, str, str | None]] = []
    lines = _latin1(file).removesuffix("\n").split("\n")
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        label, _, question = line.strip().partition(":")
        fine, _, words = question.partition(" ")
        if label not in LABELS or not fine or not words:
            raise _bad_line(
                file, number, line, f"TYPE:subtype question, TYPE of {', '.join(LABELS)}"
            )
        rows.append((LABELS[label], squeeze(words), None))
    return rows


def _mrpc(file: Path) -> list[tuple[int, str, str | None]]:
    rows: list[tuple[int, str, str | None]] = []
    # The first line names the columns.
    for number, line in enumerate(read_lines(file, SOURCE)[1:], start=2):
        columns = line.strip().split("\t")
        if len(columns) < 5 or columns[0] not in ("0", "1"):
            raise _bad_line(file, number, line, "0 or 1, two numbers, two sentences (5 columns)")
        rows.append((int(columns[0]), squeeze(columns[3]), squeeze(columns[4])))
    return rows


def _examples(rows: Sequence[tuple[int, str, str | None]]) -> Examples:
    def order(row: tuple[int, str, str | None]) -> tuple[int, int, int]:
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
