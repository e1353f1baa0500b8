"""The result of a run: a sentence-transformers folder, its card, and the heads beside it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sightline.encoder_folder import own_max_length
from sightline.errors import SightlineError
from sightline.pooling_names import Pooling

EXPORTED_POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
"""What the Pooling module of sentence-transformers supports."""

HEADS_FILE = "heads.safetensors"
LAST_FILE = "last.safetensors"
"""The encoder after the last step, if the exported one is from an earlier step."""
MODEL_FOLDER = "model"
EXPORTED_FILES = (
    *("README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)
"""What an export of BERT or RoBERTa may write into its folder."""


def check_exportable(pooling: Pooling) -> None:
    """Refuse, before training, a pooling that the exported folder cannot express."""
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
    """Fill the new folder ``folder``: safetensors, modules Transformer + Pooling, and README.md.

    The maximum length is the encoder's own, never that of training (METHODS §8).

    Raises:
        SightlineError: a pooling other than `cls` and `mean`.
    """
    check_exportable(pooling)
    max_length = own_max_length(tokenizer, encoder.config)
    with tempfile.TemporaryDirectory() as scratch:
        encoder.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        # built from the saved files, so that the modules are what a user of the folder gets
        transformer = Transformer(scratch, max_seq_length=max_length)
        _drop_pooler(transformer.model, encoder)
        vectors = PoolingModule(
            int(encoder.config.hidden_size), pooling_mode="cls" if pooling == "cls" else "mean"
        )
        exported = SentenceTransformer(modules=[transformer, vectors], device="cpu")
        exported.save(str(folder), create_model_card=False)
        (folder / "README.md").write_text(card, encoding="utf-8")


def export_heads(path: Path, heads: nn.ModuleDict) -> None:
    """Write the trained heads (names as in the objective: `grounding.0.weight` …)."""
    save_file(_on_the_host(heads), path)


def export_last(path: Path, encoder: nn.Module) -> None:
    """Write the weights of the last step, to be scored beside the best ones."""
    state = {
        name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()
    }
    save_file(state, path)


def load_last(path: Path, encoder: nn.Module) -> None:
    """Replace the exported weights with those of the last step.

    Raises:
        SightlineError: the file is damaged, or does not belong to this encoder.
    """
    try:
        missing, strange = encoder.load_state_dict(load_file(path), strict=False)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise SightlineError(f"{path}: cannot be read ({error}); train the run again") from error
    missing = [name for name in missing if not name.startswith("pooler.")]
    if missing or strange:
        names = ", ".join([*missing, *strange][:3])
        raise SightlineError(
            f"{path}: does not belong to the model beside it ({names}); train the run again"
        )


def _on_the_host(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}


def _drop_pooler(exported: nn.Module, trained: PreTrainedModel) -> None:
    """Drop the random pooler that transformers adds if the weights have none."""
    if getattr(trained, "pooler", None) is None and getattr(exported, "pooler", None) is not None:
        exported.pooler = None  # pyright: ignore[reportArgumentType]
