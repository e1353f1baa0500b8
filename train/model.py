"""The student and its objective: both dropout views of a batch in one pass, little padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from sightline import devices
from sightline.devices import TrainPrecision, to_device
from sightline.errors import SightlineError
from sightline.models.pooling import pool
from sightline.plugins import wrong
from train.batch import Batch, Blocks, Embeddings, TokenRows, TokenSpans
from train.objectives.module import module_of, terms_of
from train.objectives.objective import Objective
from train.run_spec import TrainedPooling

Forward = Callable[..., tuple[Tensor, Tensor]]
TOTAL = "total"
"""Name under which the weighted sum of the terms is returned."""


_TOKENS_A_GROUP = 48
_WIDTH = 768
"""Cost of one more length group on a CPU, in tokens of a model of that width. At a width of 128 the
best is between 200 and 400 tokens (90 ms a step of the demo against 112 ms with one group), which
agrees with 48 at 768 divided by the width (bench/training.py)."""
_TAKE_4D = {"bert", "roberta", "xlm-roberta"}
"""Encoders that take a mask for every query."""


class Student(nn.Module):
    """A student encoder with one objective: embeddings of a batch, and loss terms.

    What requires a gradient is trained, of both.

    Precision is that of the encoder, whose weights stay float32. Under ``bf16`` they are rounded
    once per forward pass, which then runs in bfloat16 throughout: gradients reach the float32
    weights. ``fp16``, whose range is too small for that, runs under autocast. Embeddings leave the
    encoder as float32; heads and losses are at least float32. ``tf32`` is ``fp32`` here: products
    are rounded where a run asks for it (`sightline.devices.float32_products`).
    """

    def __init__(
        self,
        encoder: PreTrainedModel,
        objective: Objective,
        pooling: TrainedPooling,
        dims: Mapping[str, int],
        *,
        precision: TrainPrecision = "fp32",
        compiled: bool = False,
    ) -> None:
        """
        Args:
            encoder: any transformers encoder.
            dims: name of a need → width of the objective's cached features.
            compiled: compile the encoder (`torch.compile`), for batches of any shape.
        """
        super().__init__()
        self.encoder = encoder
        self.width = int(encoder.config.hidden_size)
        self.objective = module_of(objective, self.width, dims)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.pooling: TrainedPooling = pooling
        self.precision: TrainPrecision = precision
        self._forward = _compiled(self._encoded) if compiled else self._encoded

    def terms(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        """Unweighted loss terms of ``batch`` by name, and their weighted sum as `total`.

        Args:
            embeddings: of each block of the batch, as `embed` returns them.
        """
        terms, weights = terms_of(self.objective, batch, embeddings), self.objective.params.weights
        if not terms:
            expected = f"terms of a batch of {batch.stream}"
            raise wrong(self.objective.params, "terms", terms, expected)
        total: Any = sum(weights[name] * term for name, term in terms.items())
        return {**terms, TOTAL: total}

    def begin(self) -> None:
        """Let the objective prepare for the first step of this process."""
        self.objective.start(self)
        trained = {id(weight) for weight in self.encoder.parameters()}
        if any(id(weight) in trained for weight in self.objective.parameters()):
            expected = "copies of its modules: `copy.deepcopy`, or its method `encode`"
            raise wrong(self.objective, "start", self, expected)
        self._shapes = {
            name: tuple(value.shape) for name, value in self.trainable_state_dict().items()
        }

    def trainable_state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint holds: all of the objective, and what changes of the encoder.

        Returns:
            Name → the parameter or buffer itself, each once.
        """
        kept: dict[int, tuple[str, Tensor]] = {}
        for name, value in self.state_dict(keep_vars=True).items():
            if not isinstance(value, Tensor):
                params = self.objective.params
                raise wrong(params, name, value, "its state in parameters and buffers")
            fixed = isinstance(value, nn.Parameter) and not value.requires_grad
            if name.startswith("objective.") or not fixed:
                kept.setdefault(id(value), (name, value))
        tensors = {name: value.detach() for name, value in kept.values()}
        if self._shapes:
            self._expect_shapes("after_step", tensors, "", self._shapes)
        return tensors

    def load_trainable_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what `trainable_state_dict` was."""
        state = self.trainable_state_dict()
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        self._expect_shapes("start", tensors, " in its checkpoint", shapes)
        with torch.no_grad():
            for name, value in state.items():
                value.copy_(tensors[name])

    def _expect_shapes(
        self,
        method: str,
        tensors: Mapping[str, Tensor],
        where: str,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Refuse an objective whose ``method`` left tensors of other names or shapes."""
        actual = {name: tuple(value.shape) for name, value in tensors.items()}
        if actual != shapes:
            name = min(dict(actual.items() ^ shapes.items()))
            text, expected = (
                f"{name} {[*shape_of.get(name, ())]}" for shape_of in (actual, shapes)
            )
            raise wrong(self.objective, method, text + where, expected)

    def embed(self, blocks: Blocks) -> dict[str, Tensor]:
        """Two dropout views of the rows of every block, in their order.

        Returns:
            Name → [2, n, d], in the dtype of the encoder's weights.
        """
        embeddings: dict[str, Tensor] = {}
        for name, rows in blocks.items():
            if isinstance(rows, TokenRows):
                spans = {
                    spans_name: block
                    for spans_name, block in blocks.items()
                    if isinstance(block, TokenSpans) and block.of == name
                }
                embeddings[name], of_spans = self._views(rows, spans, self.encoder)
                embeddings |= of_spans
        return {name: embeddings[name] for name in blocks}

    @torch.no_grad()
    def encode(self, rows: TokenRows, module: nn.Module | None = None) -> Tensor:
        """Two dropout views of one block of texts: [2, n, d], as `embed` has them, without a graph.

        Texts whose embeddings are to have a gradient are a block of the batch.

        Args:
            module: encodes in place of the student's encoder, of the same class; two views are
                equal if it is in eval mode.
        """
        return self._views(rows, {}, module or self.encoder)[0]

    def _views(
        self, rows: TokenRows, spans: Mapping[str, TokenSpans], encoder: nn.Module
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Two dropout views of every row [2, n, d], and of every block of spans in these rows.

        Each length group holds both views of its rows, so one pass draws independent dropout for
        them. A row's embedding does not depend on which rows it is padded with, so the grouping
        changes only the time.
        """
        device, dtype = rows.input_ids.device, self.encoder.dtype
        if not len(rows):
            nothing = next(self.encoder.parameters()).new_zeros(2, 0, self.width)
            return nothing, dict.fromkeys(spans, nothing)
        groups = length_groups(rows.lengths.tolist(), self._overhead(device))
        weights = None  # the encoder's own; else rounded ones, with a graph to these
        if self.precision == "bf16":
            weights = {name: w.to(torch.bfloat16) for name, w in encoder.named_parameters()}
        pooled: list[Tensor] = []
        means: dict[str, list[Tensor]] = {name: [] for name in spans}
        places: dict[str, list[Tensor]] = {name: [] for name in spans}
        for numbers in groups:
            of_group = rows
            if len(groups) > 1:
                of_group = TokenRows(rows.input_ids[numbers], rows.lengths[numbers])
            ids, mask = _padded(of_group)
            with torch.autocast(device.type, torch.float16, enabled=self.precision == "fp16"):
                vectors, states = self._forward(
                    encoder, torch.cat([ids, ids]), torch.cat([mask, mask]), weights
                )
            pooled.append(vectors.unflatten(0, (2, len(numbers))))  # (2, n, d)
            views = states.unflatten(0, (2, len(numbers)))  # (2, n, L, d)
            for name, block in spans.items():
                if len(groups) > 1:
                    block, place = _spans(block, len(rows), numbers)
                    places[name].append(place)
                means[name].append(torch.stack([span_means(view, block) for view in views]))
        if len(groups) == 1:
            return pooled[0].to(dtype), {name: parts[0].to(dtype) for name, parts in means.items()}
        order = torch.tensor([row for numbers in groups for row in numbers], device=device)
        return torch.cat(pooled, dim=1)[:, torch.argsort(order)].to(dtype), {
            name: torch.cat(parts, dim=1)[:, torch.argsort(torch.cat(places[name]))].to(dtype)
            for name, parts in means.items()
        }

    def _overhead(self, device: torch.device) -> int | None:
        """Cost of one more length group, in tokens; None makes one group.

        On a CPU, time is proportional to the number of tokens; the overhead of a group grows more
        slowly with the width. A GPU that waits for kernel launches is fastest with one group.
        """
        return round(_TOKENS_A_GROUP * _WIDTH / self.width) if device.type == "cpu" else None

    def _attention_mask(self, mask: Tensor) -> Tensor:
        """``mask`` as the encoder takes it: [n, L], or what is added for every query, [n, 1, L, L].

        From [n, L] transformers reads back whether anything is masked, which on a GPU would wait
        for all that came before. It takes [n, 1, L, L] as it is.
        """
        if not devices.runs_ahead(mask.device) or self.encoder.config.model_type not in _TAKE_4D:
            return mask.to(torch.int64)
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}
        dtype = low.get(self.precision, self.encoder.dtype)
        added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        added = added.masked_fill(~mask, torch.finfo(dtype).min)
        return added[:, None, None, :].expand(-1, 1, mask.shape[1], -1)

    def _encoded(
        self, encoder: nn.Module, ids: Tensor, mask: Tensor, weights: dict[str, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Sentence embeddings [n, d] and last hidden states [n, L, d] of one padded group.

        Args:
            weights: of the encoder, in place of its own.
        """
        inputs = {"input_ids": ids, "attention_mask": self._attention_mask(mask)}
        output: Any = (
            encoder(**inputs) if weights is None else functional_call(encoder, weights, (), inputs)
        )
        return pool(output, mask, self.pooling), output.last_hidden_state


def _compiled(function: Forward) -> Forward:
    """``function`` by `torch.compile`, once for all shapes."""
    from torch._dynamo import exc  # takes seconds

    compiled = torch.compile(function, dynamic=True)

    def run(*inputs: Any) -> tuple[Tensor, Tensor]:
        try:
            return compiled(*inputs)
        except exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise SightlineError(
                f"train.compile is on, but torch.compile fails here: {reason}; install a C++ "
                "compiler (and on a GPU triton), or set it to off"
            ) from error

    return run


def length_groups(lengths: Sequence[int], overhead: int | None) -> list[list[int]]:
    """The partition of a batch with the lowest cost: Σ over groups of (rows × longest + overhead).

    Sorted by length, an optimal partition is a cut into runs that never separates rows of equal
    length; so this is a shortest path over the distinct lengths (at most 32 of them in training).

    Args:
        lengths: tokens of each row.
        overhead: cost of a group, in tokens; None makes one group.

    Returns:
        Row numbers of each group; in the batch's own order if there is only one group.
    """
    whole = list(range(len(lengths)))
    if overhead is None:
        return [whole]
    order = sorted(whole, key=lengths.__getitem__)
    runs = [list(rows) for _, rows in groupby(order, key=lengths.__getitem__)]
    ends = np.cumsum([len(run) for run in runs]).tolist()
    best, cut = [0], [0]  # of the first i runs: lowest cost, where their last group begins
    for end in ends:
        longest = lengths[order[end - 1]]
        starts = [0, *ends[: len(best) - 1]]
        costs = [best[i] + (end - start) * longest + overhead for i, start in enumerate(starts)]
        cut.append(min(range(len(costs)), key=costs.__getitem__))
        best.append(costs[cut[-1]])
    groups: list[list[int]] = []
    position = len(runs)
    while position:
        groups.append([row for run in runs[cut[position] : position] for row in run])
        position = cut[position]
    return groups[::-1] if len(groups) > 1 else [whole]


def span_means(tokens: Tensor, spans: TokenSpans) -> Tensor:
    """The mean of each span's token embeddings: [N, L, d] → [P, d].

    One matrix product with the P × N·L matrix of token weights: no loop over captions, and no
    scatter with a nondeterministic order of addition.
    """
    count, longest, _ = tokens.shape
    position = torch.arange(longest, device=tokens.device)
    inside = (position >= spans.starts[:, None]) & (position < spans.ends[:, None])  # (P, L)
    shares = inside / (spans.ends - spans.starts)[:, None]
    # not one_hot, which reads the largest owner back from the device
    owners = spans.owners[:, None] == torch.arange(count, device=tokens.device)  # (P, N)
    of_tokens = owners[:, :, None] * shares[:, None, :]  # (P, N, L)
    return of_tokens.flatten(1).to(tokens.dtype) @ tokens.flatten(0, 1)


def _padded(rows: TokenRows) -> tuple[Tensor, Tensor]:
    """Token ids [n, L] and mask: bool [n, L]; L is the longest row."""
    longest = int(rows.lengths.max())
    ids = rows.input_ids[:, :longest]
    inside = np.arange(longest) < rows.lengths[:, None]
    return ids, to_device(torch.from_numpy(inside), ids.device)


def _spans(spans: TokenSpans, rows: int, numbers: list[int]) -> tuple[TokenSpans, Tensor]:
    """The spans in the rows of these ``numbers``, of ``rows``, and the numbers of the spans."""
    place = torch.full((rows,), -1, device=spans.owners.device)
    place[numbers] = torch.arange(len(numbers), device=place.device)
    owners = place[spans.owners]
    inside = torch.nonzero(owners >= 0).ravel()
    kept = (owners[inside], spans.starts[inside], spans.ends[inside])
    return TokenSpans(*kept, spans.counts[numbers], spans.of), inside
