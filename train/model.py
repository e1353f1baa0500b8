"""The student and its heads: both dropout views of a batch in one pass, with little padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sightline.encoder_folder import (
    fit_pooler,
    load_model,
    load_tokenizer,
    positions,
    read_recipe,
)
from sightline.errors import SightlineError
from sightline.pooling import needs_hidden_states, pool
from sightline.pooling_names import Pooling
from train.batch import Batch, Sentences
from train.length_groups import group_overhead, length_groups
from train.objectives.objective import Objective, Views
from train.phrase_embeddings import phrase_embeddings
from train.run_spec import StudentConfig

TOTAL = "total"
"""Name under which the weighted sum of the terms is returned."""


class GroundedModel(nn.Module):
    """A student encoder with the heads of one objective; its forward pass gives the loss terms."""

    def __init__(
        self,
        encoder: PreTrainedModel,
        objective: Objective,
        pooling: Pooling,
        dims: Mapping[str, int],
        group_overhead: int | None = None,
    ) -> None:
        """
        Args:
            encoder: any transformers encoder.
            dims: slot → width of the objective's cached features.
            group_overhead: cost of another length group, in tokens; None uses the value measured
                for the batch's device and the encoder's width (see `length_groups`).
        """
        super().__init__()
        self.encoder = encoder
        self.width = int(encoder.config.hidden_size)
        self.heads = objective.heads(self.width, dims)
        self.objective = objective
        self.pooling: Pooling = pooling
        self.group_overhead = group_overhead

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Unweighted loss terms of ``batch`` by name, and their weighted sum as `total`."""
        (first, second), phrases = self.encode(batch.sentences)
        return self.terms(batch, Views(first, second, phrases))

    def terms(self, batch: Batch, views: Views) -> dict[str, Tensor]:
        """The result of the forward pass, from the two views of ``batch``."""
        terms = self.objective.terms(batch, views, self.heads)
        return {**terms, TOTAL: self.objective.total(terms)}

    def encode(self, sentences: Sentences) -> tuple[Tensor, Tensor | None]:
        """Two dropout views of every row of ``sentences``, in their order.

        Each length group holds both views of its rows, so one pass draws independent dropout for
        them. A row's embedding does not depend on which rows it is padded with, so the grouping
        changes only the time.

        Returns:
            Sentence embeddings [2, n, d] in the dtype of the encoder's weights, and phrase
            embeddings [2, p, d] (None without phrases, or if the objective does not read them).
        """
        if not len(sentences):
            nothing = next(self.encoder.parameters()).new_zeros(2, 0, self.width)
            return nothing, None if sentences.phrases is None else nothing
        overhead = self.group_overhead
        if overhead is None:
            overhead = group_overhead(sentences.input_ids.device.type, self.width)
        total, widest = sentences.input_ids.shape
        # one group needs no lengths on the host, and so no wait for the accelerator
        lengths = [widest] * total if overhead is None else sentences.lengths.tolist()
        groups = length_groups(lengths, overhead)
        pooled, of_phrases, order = [], [], []
        for rows in groups:
            longest = max(lengths[row] for row in rows)
            part, numbers = (sentences, None) if len(groups) == 1 else _group(sentences, rows)
            ids = part.input_ids[:, :longest]
            mask = torch.arange(longest, device=ids.device) < part.lengths[:, None]  # (n, L)
            vectors, states = self._encode(torch.cat([ids, ids]), torch.cat([mask, mask]))
            pooled.append(vectors.unflatten(0, (2, len(rows))))  # (2, n, d)
            if self.objective.needs_phrases and part.phrases is not None:
                views = states.unflatten(0, (2, len(rows)))
                of_phrases.append(
                    torch.stack([phrase_embeddings(each, part.phrases) for each in views])
                )
                order.append(numbers)
        dtype = self.encoder.dtype
        whole = torch.tensor([row for rows in groups for row in rows], device=mask.device)
        embeddings = torch.cat(pooled, dim=1)[:, torch.argsort(whole)].to(dtype)
        if not of_phrases:
            return embeddings, None
        phrases = torch.cat(of_phrases, dim=1)  # (2, p, d)
        if len(groups) > 1:
            phrases = phrases[:, torch.argsort(torch.cat(order))]
        return embeddings, phrases.to(dtype)

    def _encode(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Sentence embeddings [n, d] and last hidden states [n, L, d] of one padded group."""
        output: Any = self.encoder(
            input_ids=ids,
            attention_mask=mask.to(torch.int64),
            output_hidden_states=needs_hidden_states(self.pooling),
        )
        last = output.last_hidden_state
        vectors = pool(
            last,
            mask,
            self.pooling,
            hidden_states=output.hidden_states,
            pooler_output=output.get("pooler_output"),
        )
        return vectors, last


def _group(sentences: Sentences, rows: list[int]) -> tuple[Sentences, Tensor | None]:
    """Some ``rows``, in that order, and the numbers of their phrases."""
    ids, lengths = sentences.input_ids[rows], sentences.lengths[rows]
    if sentences.phrases is None:
        return Sentences(ids, lengths), None
    place = torch.full((len(sentences),), -1, device=ids.device)
    place[rows] = torch.arange(len(rows), device=ids.device)
    owners = place[sentences.phrases.owners]
    numbers = torch.nonzero(owners >= 0).ravel()
    phrases = sentences.phrases.map(lambda each: each[numbers])
    return Sentences(ids, lengths, replace(phrases, owners=owners[numbers])), numbers


def load_student(config: StudentConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The encoder to fine-tune, in float32, and its tokenizer.

    The pooler is dropped unless the pooling is `pooler`: it would not be trained.

    Raises:
        SightlineError: no such folder or hub model, an incomplete or unsafe folder, fewer layers
            than asked for, or `pooler` without a pooler.
    """
    recipe = read_recipe(config.model, bare=True)
    encoder = load_model(config.model, recipe)
    tokenizer = load_tokenizer(config.model, recipe)
    fit_pooler(encoder, config.model, config.pooling)
    if config.layers is not None:
        _keep_first_layers(encoder, config)
    return encoder, tokenizer


def _keep_first_layers(encoder: PreTrainedModel, config: StudentConfig) -> None:
    """Drop the layers above ``config.layers``, as if the encoder never had them."""
    stack: Any = getattr(encoder, "encoder", None)
    layers = getattr(stack, "layer", None)
    if not isinstance(layers, nn.ModuleList):
        raise SightlineError(
            f"{config.model}: `layers` works for BERT and RoBERTa encoders, not for "
            f"{encoder.config.model_type}; remove it"
        )
    assert config.layers is not None
    if config.layers > len(layers):
        raise SightlineError(
            f"{config.model}: layers is {config.layers}, but the encoder has {len(layers)}"
        )
    stack.layer = layers[: config.layers]
    encoder.config.num_hidden_layers = config.layers


def check_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
    encoder: PreTrainedModel,
    samples: Mapping[str, list[tuple[str, list[int]]]],
    max_length: int,
    vocabulary_size: int,
) -> None:
    """Refuse token sets made with another tokenizer, by tokenising a few of their texts again.

    Raises:
        SightlineError: ids differ, or the token sets hold ids that the encoder has no embedding
            for, or rows longer than its number of positions.
    """
    limit = positions(encoder.config)
    if limit is not None and max_length > limit:
        raise SightlineError(
            f"max_length is {max_length}, but the student has positions for {limit} tokens; run "
            f"`sightline tokens` with a max_length of at most {limit}, and train with the same"
        )
    rows = int(encoder.config.vocab_size)
    if vocabulary_size > rows:
        raise SightlineError(
            f"the token sets have a vocabulary of {vocabulary_size}, but the student has "
            f"embeddings for {rows}; run `sightline tokens` with this student"
        )
    for stream, texts in samples.items():
        for text, ids in texts:
            found: Any = tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
            if list(found) != ids:
                raise SightlineError(
                    f"the token set of the {stream} stream was not made with the student's "
                    f"tokenizer: {text[:60]!r} is {ids[:8]} … there and {list(found)[:8]} … here; "
                    "run `sightline tokens` with this student"
                )
