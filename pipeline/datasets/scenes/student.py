"""The demo's students: small BERTs with a WordPiece vocabulary of the scenes' own words."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.datasets.scenes.vocabulary import words

if TYPE_CHECKING:
    from transformers import BertModel, BertTokenizer

HEADS = 4
MAX_POSITIONS = 64
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def wordpieces() -> dict[str, int]:
    """WordPiece vocabulary: piece → id. Special tokens, every letter (also inside a word), words.

    Known words are one piece; any other word in lower-case Latin letters is split into letters.
    """
    letters = [*string.ascii_lowercase, *string.digits, *".,;:!?'-"]
    spelling = [f"##{letter}" for letter in letters]
    pieces = [*_SPECIAL, *letters, *spelling, *(word for word in words() if len(word) > 1)]
    return {piece: number for number, piece in enumerate(pieces)}


def new_tokenizer() -> BertTokenizer:
    """A lower-casing BERT tokenizer over `wordpieces`."""
    from transformers import BertTokenizer

    # the default of do_lower_case is False before transformers 5.3
    return BertTokenizer(vocab=wordpieces(), do_lower_case=True, model_max_length=MAX_POSITIONS)


def new_bert(*, layers: int, hidden: int, seed: int) -> BertModel:
    """A BERT with random weights drawn from ``seed``.

    Their standard deviation is 1 / √``hidden``. With BERT's 0.02, which suits a width of 768, any
    two sentences start with a cosine of 0.9999, and training waits until dropout breaks the tie.
    """
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(wordpieces()),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * hidden,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        initializer_range=hidden**-0.5,
    )
    with seeded(seed):
        return BertModel(config)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights are drawn from ``seed``; the generator of torch is as before afterwards."""
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    yield
    torch.set_rng_state(state)


def save(folder: Path, model: BertModel) -> None:
    """Write ``model`` and its tokenizer as a Hugging Face folder (safetensors)."""
    from sightline.pretrained import quiet

    with quiet():
        model.save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)
