"""Sentence embeddings from an encoder, each distinct sentence encoded once, sorted by length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.devices import AUTOCAST, Precision, check_precision, float32_products, use_device
from sightline.errors import SightlineError
from sightline.machine.out_of_memory import is_out_of_memory
from sightline.models.pooling import Pooling, check_pooling, needs_hidden_states, pool
from sightline.models.sentence_transformers_folder import (
    SENTENCE_SETTINGS,
    Recipe,
    check_first_token,
    check_room,
    count_longer,
    load_model,
    load_tokenizer,
    own_max_length,
    read_recipe,
    token_ids,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_BLOCK = 65_536
"""Sentences that are tokenised at once: their ids as Python's integers take the most memory."""


def refuse_text(sentences: Iterable[str]) -> None:
    """Refuse one string, whose characters would each get a row.

    Raises:
        TypeError: it is one.
    """
    if isinstance(sentences, str):
        raise TypeError("sentences is one string; give a list of strings")


class Embedder:
    """An encoder with its tokenizer, pooling and maximum length: sentences → float32 [n, d].

    The embedding is the pooled output itself, before any training head. The encoder's own maximum
    length is the default: evaluation and export never use the training 32 (METHODS, section 8:
    it moves MiniLM's STS-B score from 82.03 to 81.80).

    The model may be one that is being trained: `encode` puts every module's train/eval mode back,
    draws no random number and records no gradient.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pooling: Pooling,
        max_length: int | None = None,
        *,
        prompt: str = "",
        precision: Precision = "fp32",
        normalize: bool = False,
    ) -> None:
        """
        Args:
            prompt: text before every sentence.
            model: a transformers encoder, on the device to compute on.
            max_length: in tokens, special tokens included; None for the encoder's own maximum.
            precision: `bf16` and `fp16` compute under autocast; results are always float32.
            normalize: divide each embedding by its norm, as a Normalize module would.

        Raises:
            SightlineError: unknown pooling or precision, or `pooler` without a pooler.
        """
        check_precision(precision)
        self.pooling: Pooling = check_pooling(pooling)
        if self.pooling == "pooler" and getattr(model, "pooler", None) is None:
            raise SightlineError(
                f"pooling 'pooler' was requested, but this {model.config.model_type} encoder has "
                "no pooler weights; use cls, mean, lasttoken or first_last_mean"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length or own_max_length(tokenizer, model.config)
        self.prompt = prompt
        self.precision = precision
        self.normalize = normalize

    @classmethod
    def load(
        cls,
        source: str | Path,
        pooling: Pooling | None = None,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
    ) -> Embedder:
        """An encoder from a Hugging Face or sentence-transformers folder, or a hub name.

        Without `pooling`, a sentence-transformers folder is followed in full (pooling, maximum
        length, lower-casing, prompt, normalisation), so that embeddings equal
        `SentenceTransformer(source).encode`. With it, the bare encoder is pooled that way.

        Args:
            device: `auto` (CUDA, else MPS, else the CPU) or a name that torch knows.

        Raises:
            SightlineError: no such model, no safetensors, a device that is not available, or a
                plain Hugging Face folder (which does not say how to pool) without `pooling`.
        """
        recipe = read_recipe(source, bare=pooling is not None)
        if pooling is not None:
            recipe = replace(recipe, pooling=pooling, prompt="")
        return cls.by_recipe(source, recipe, device=device, precision=precision)

    @classmethod
    def by_recipe(
        cls,
        source: str | Path,
        recipe: Recipe,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
    ) -> Embedder:
        """The encoder in ``source``, used as ``recipe`` says, which has a pooling; see `load`."""
        recipe.check_prompt(source, recipe.prompt)
        where = use_device(device)
        model = load_model(source, recipe)
        if recipe.pooling is None:
            raise SightlineError(
                f"{source}: the folder does not say how to pool (it has no modules.json with a "
                "Pooling module); give a pooling: cls, pooler, mean, lasttoken or first_last_mean"
            )
        check_first_token(str(source), model, recipe.pooling)
        tokenizer = load_tokenizer(source, recipe)
        length = own_max_length(tokenizer, model.config, recipe.max_length)
        in_file = f"max_seq_length in its {SENTENCE_SETTINGS[0]}"
        check_room(source, tokenizer, recipe.prompt, length, setting=in_file)
        return cls(
            model.to(where),  # pyright: ignore[reportArgumentType]
            tokenizer,
            recipe.pooling,
            length,
            prompt=recipe.prompt,
            precision=precision,
            normalize=recipe.normalize,
        )

    @property
    def dim(self) -> int:
        """Length of an embedding, d."""
        return int(self.model.config.hidden_size)

    def count_cut(self, sentences: Sequence[str]) -> int:
        """How many have more tokens than the maximum length, which are cut."""
        refuse_text(sentences)
        return count_longer(self.tokenizer, self._prompted(sentences), self.max_length)

    def _prompted(self, sentences: Iterable[str]) -> list[str]:
        return [self.prompt + sentence for sentence in sentences]

    def encode(
        self,
        sentences: Sequence[str],
        *,
        batch_size: int | None = None,
        normalize: bool | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> np.ndarray:
        """Embeddings of `sentences`, float32 [n, d], in their order.

        Each distinct sentence is encoded once. Batches hold sentences of similar length, at most
        `batch_size` × 32 tokens with padding, so that a batch of long ones needs no more memory
        than one of short ones. Where a device has no room for a batch, batches are halved: scores
        do not depend on them to the second decimal, though last bits of rows do.

        Args:
            batch_size: sentences of 32 tokens per batch; shorter ones share a batch in larger
                numbers, longer ones in smaller (never fewer than one). None: 64 on a CPU, 1,024
                elsewhere.
            normalize: overrides the embedder's own setting.
            advance: called with how many more distinct sentences are encoded.
        """
        refuse_text(sentences)
        row_of = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
        distinct = np.empty((len(row_of), self.dim), dtype=np.float32)
        if row_of:
            tokens, starts = self._tokens(list(row_of))
            size = batch_size or (64 if self.model.device.type == "cpu" else 1024)
            lengths, budget = np.diff(starts), size * 32
            # longest first: the batch that needs the most memory fails at once or not at all
            left = np.argsort(-lengths, kind="stable")
            with self._evaluating():
                while len(left):
                    longest = max(1, int(lengths[left[0]]))
                    rows = left[: max(1, budget // longest)]
                    batch = [tokens[starts[row] : starts[row + 1]] for row in rows]
                    try:
                        distinct[rows] = self._embed(batch).float().cpu().numpy()
                    except (RuntimeError, MemoryError) as error:
                        if len(rows) == 1 or not is_out_of_memory(error):
                            raise
                        budget = len(rows) // 2 * longest
                        continue
                    left = left[len(rows) :]
                    advance(len(rows))
        if self.normalize if normalize is None else normalize:
            distinct = of_length_one(distinct)
        if len(row_of) == len(sentences):
            return distinct
        return distinct[[row_of[sentence] for sentence in sentences]]

    def _tokens(self, sentences: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Ids of n sentences, one after another, and where those of each begin, [n + 1]."""
        ids, starts = [], [0]
        for start in range(0, len(sentences), _BLOCK):
            texts = self._prompted(sentences[start : start + _BLOCK])
            block = token_ids(self.tokenizer, texts, self.max_length)
            ids.append(np.fromiter(chain.from_iterable(block), np.int32))
            starts += list(accumulate(map(len, block), initial=starts.pop()))
        return np.concatenate(ids), np.array(starts, dtype=np.int64)

    def _embed(self, batch: Sequence[NDArray[np.int32]]) -> Tensor:
        """Embeddings [B, d] of one batch of token ids."""
        import torch

        lengths = torch.tensor([len(ids) for ids in batch])
        longest = int(lengths.max())
        mask = torch.arange(longest) < lengths[:, None]  # [B, L]
        input_ids = torch.full((len(batch), longest), self._pad_id())
        input_ids[mask] = torch.from_numpy(np.concatenate(batch)).long()
        device = self.model.device
        mask = mask.to(device, torch.int64)
        with torch.autocast(
            device.type,
            dtype=getattr(torch, AUTOCAST.get(self.precision, "bfloat16")),
            enabled=self.precision != "fp32",
        ):
            output = self.model(
                input_ids=input_ids.to(device),
                attention_mask=mask,
                output_hidden_states=needs_hidden_states(self.pooling),
            )
        return pool(output, mask, self.pooling)  # outside autocast

    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(pad) if isinstance(pad, int) else int(self.model.config.pad_token_id or 0)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        import torch

        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.inference_mode(), float32_products(tf32=False):
                yield
        finally:
            # Module by module: a part that was already in eval mode stays in it.
            for module in training:
                module.training = True


def of_length_one(rows: np.ndarray) -> np.ndarray:
    """Embeddings [n, d], each divided by its norm, as a Normalize module does."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(norms, 1e-12)
