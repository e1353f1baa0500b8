"""The result of a run: a sentence-transformers folder, its card, and the heads beside it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.cache import SightlineError
from pipeline.cache.atomic import fsync_file, fsync_folder
from train.encoder_folder import own_max_length
from train.pooling import Pooling

EXPORTED_POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
"""What the Pooling module of sentence-transformers can do by itself."""

HEADS_FILE = "heads.safetensors"
MODEL_FOLDER = "model"


def check_exportable(pooling: Pooling) -> None:
    """Refuse, before training, a pooling that the exported folder could not express."""
    if pooling not in EXPORTED_POOLINGS:
        raise SightlineError(
            f"pooling {pooling!r} cannot be written as a sentence-transformers folder; train with "
            f"{' or '.join(EXPORTED_POOLINGS)} (METHODS trains the raw [CLS] vector, `cls`)"
        )


def export_model(
    folder: Path,
    encoder: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooling: Pooling,
    card: str,
) -> None:
    """Write ``folder``: safetensors, modules Transformer + Pooling, and README.md.

    The maximum length is the encoder's own, never the one of training (METHODS §8). The folder
    appears whole or not at all.

    Raises:
        SightlineError: a pooling other than `cls` and `mean`.
    """
    check_exportable(pooling)
    max_length = own_max_length(tokenizer, encoder.config)
    with _replacing_folder(folder) as part, tempfile.TemporaryDirectory() as scratch:
        encoder.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        # built from the saved files, so that the modules are what a reader of the folder gets
        transformer = Transformer(scratch, max_seq_length=max_length)
        _drop_pooler(transformer.model, encoder)
        vectors = PoolingModule(
            int(encoder.config.hidden_size), pooling_mode="cls" if pooling == "cls" else "mean"
        )
        exported = SentenceTransformer(modules=[transformer, vectors], device="cpu")
        exported.save(str(part), create_model_card=False)
        (part / "README.md").write_text(card, encoding="utf-8")


def export_heads(path: Path, heads: nn.ModuleDict) -> None:
    """Write the trained heads (names as in the objective: `grounding.0.weight` …)."""
    state: dict[str, Tensor] = {
        name: value.detach().cpu().contiguous() for name, value in heads.state_dict().items()
    }
    part = path.with_name(f".{path.name}.tmp")
    save_file(state, part)
    fsync_file(part)
    part.replace(path)
    fsync_folder(path.parent)


def _drop_pooler(exported: nn.Module, trained: PreTrainedModel) -> None:
    """Leave out the random pooler that transformers adds to weights that have none."""
    if getattr(trained, "pooler", None) is None and getattr(exported, "pooler", None) is not None:
        exported.pooler = None  # pyright: ignore[reportArgumentType]


@contextmanager
def _replacing_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of ``folder`` when the block ends without error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        for path in part.rglob("*"):
            if path.is_file():
                fsync_file(path)
        old = folder.with_name(f".{folder.name}.old.tmp")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        fsync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
