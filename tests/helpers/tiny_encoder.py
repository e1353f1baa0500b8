"""Two-layer models of fixed random weights, an encoder with its tokenizer and a decoder."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
    RobertaConfig,
    RobertaModel,
)

TEXT = "a big small red blue round square Dog dog sits runs under near the tree house"
WORDS = TEXT.split()


def make_encoder(kind: str = "bert", positions: int = 40, lower: bool = True):
    """A two-layer encoder (d = 16) of fixed random weights, and its word-level tokenizer."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "attention_mask"],
    )
    shape = {
        "vocab_size": len(vocabulary),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": positions,
        "pad_token_id": 0,
        "initializer_range": 0.5,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "roberta":
            model = RobertaModel(RobertaConfig(**shape))
        else:
            model = BertModel(BertConfig(**shape))
    return model, tokenizer


def make_decoder(tokens: int, hidden: int) -> Qwen3Model:
    """A Qwen3 of two layers with spread weights, for a vocabulary of so many ``tokens``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3Model(
            Qwen3Config(
                vocab_size=tokens,
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=hidden // 2,
                max_position_embeddings=64,
                initializer_range=0.3,
            )
        )
