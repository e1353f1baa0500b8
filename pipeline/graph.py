"""Where the graph keeps its files, relative to the root of the repository."""

from __future__ import annotations

from pathlib import Path

from pipeline.datasets.source import Source

FEATURES = Path("data/features")
"""Every feature set lies below."""


def dataset_folder(dataset: str) -> Path:
    """Manifests of a data set, and what a generated one consists of."""
    return Path("data/datasets") / dataset


def image_root(dataset: str, source: Source) -> Path:
    """The folder that the paths of a data set's image manifest are relative to."""
    root = getattr(source, "images", None)
    return Path(root) if root is not None else dataset_folder(dataset) / "images"


def grounding_folder(dataset: str) -> Path:
    """Records of a data set's grounding."""
    return Path("data/objects") / dataset


def ground_stats_folder(dataset: str) -> Path:
    """Figures of a data set's grounding, and the points that DVC plots."""
    return Path("data/ground-stats") / dataset


def cutouts_folder(dataset: str) -> Path:
    """Pictures of its objects; restricted photographs can stay out of a remote here."""
    return Path("data/cutouts") / dataset


def features_folder(dataset: str, kind: str, encoder: str) -> Path:
    """One feature set."""
    return FEATURES / dataset / kind / encoder


def tokens_folder(student: str) -> Path:
    """Every training text, tokenised for one student."""
    return Path("data/tokens") / student


def phrase_tokens_folder(dataset: str, student: str) -> Path:
    """Where the phrases of a data set stand among one student's tokens."""
    return Path("data/phrase-tokens") / dataset / student


def run_folder(run: str, seed: int) -> Path:
    """One training run: checkpoints, log and the finished model."""
    return Path("runs") / run / f"seed-{seed}"


def results_folder() -> Path:
    """The scores of every run, one folder each."""
    return Path("results")


def result_file(run: str, seed: int) -> Path:
    """The scores of one training run."""
    return results_folder() / run / f"seed-{seed}.json"
