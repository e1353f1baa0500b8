"""A batch's embeddings in chunks, so that memory for activations does not grow with the batch.

Gradient caching (Gao et al. 2021, arXiv 2101.06983): the embeddings leave the encoder without a
graph, the loss is computed from all of them, and its gradient with respect to each embedding is
propagated back into the encoder chunk by chunk. For that, each chunk is encoded again with the same
dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from train.batch import Blocks

EmbedBlocks = Callable[[Blocks], Mapping[str, Tensor]]
"""Embeddings [views, n, d] of every block."""


def split(rows: range, parts: int) -> list[range]:
    """``rows`` in ``parts`` consecutive parts, as even as possible, the larger ones first."""
    size, larger = divmod(len(rows), parts)
    ends = [rows.start + size * part + min(part, larger) for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def chunks_of(rows: range, chunk: int | None) -> list[range]:
    """``rows`` in parts of at most ``chunk``, and at least one part; exactly one if None."""
    return split(rows, 1 if chunk is None else max(1, -(-len(rows) // chunk)))


class CachedEmbeddings:
    """Embeddings of some chunks, without a graph, and the backward pass of their gradients.

    The graph of a single chunk is kept, so nothing is encoded twice. With several chunks it is not:
    `backward` encodes each again, from the random state it had the first time.

    Attributes:
        embeddings: name of a block → [views, n, d], the chunks concatenated.
    """

    def __init__(self, embed: EmbedBlocks, chunks: Sequence[Blocks], device: torch.device) -> None:
        """
        Args:
            chunks: at least one; a single chunk may have no rows.
        """
        self._embed, self._chunks = embed, chunks
        self._generators = _generators(device)
        self._graph: Mapping[str, Tensor] | None = None
        self._states: list[list[Tensor]] = []  # of each chunk
        if len(chunks) == 1:
            self._graph = embed(chunks[0])
            embedded = [self._graph]
        else:
            embedded = [self._without_graph(chunk) for chunk in chunks]
        self.embeddings = {
            name: torch.cat([chunk[name].detach() for chunk in embedded], dim=1)
            for name in embedded[0]
        }

    def backward(self, gradients: Mapping[str, Tensor]) -> None:
        """Backpropagate gradients of the embeddings into the encoder's; call once.

        Args:
            gradients: name of a block → [views, n, d]; a block on which no term depends is left
                out.
        """
        starts = dict.fromkeys(gradients, 0)
        for number, chunk in enumerate(self._chunks):
            embedded = self._with_graph(number, chunk)
            pairs: list[tuple[Tensor, Tensor]] = []
            for name, gradient in gradients.items():
                root, start = embedded[name], starts[name]
                starts[name] += root.shape[1]
                if root.requires_grad:  # no rows have no graph
                    pairs.append((root, gradient[:, start : starts[name]]))
            torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs])

    def _without_graph(self, chunk: Blocks) -> Mapping[str, Tensor]:
        self._states.append([generator.get_rng_state() for generator in self._generators])
        with torch.no_grad():
            return self._embed(chunk)

    def _with_graph(self, number: int, chunk: Blocks) -> Mapping[str, Tensor]:
        if self._graph is not None:
            embedded, self._graph = self._graph, None
            return embedded
        for generator, state in zip(self._generators, self._states[number], strict=True):
            generator.set_rng_state(state)
        return self._embed(chunk)


def _generators(device: torch.device) -> list[Any]:
    """What keeps the random state of dropout: the CPU's generator, and the accelerator's."""
    cpu = [torch.random]
    return cpu if device.type == "cpu" else [*cpu, torch.get_device_module(device)]
