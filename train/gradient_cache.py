"""A batch's embeddings in chunks, so that memory for activations does not grow with the batch.

Gradient caching (Gao et al. 2021, arXiv 2101.06983): the embeddings leave the encoder without a
graph, the loss is computed from all of them, and its gradient with respect to each embedding is
propagated back into the encoder chunk by chunk. For that, each chunk is encoded again with the same
dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from train.batch import TokenRows

Encode = Callable[[TokenRows], tuple[Tensor, Tensor | None]]
"""Sentence embeddings [2, n, d] of both views, and those of phrases [2, p, d] or None."""


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
        sentences: [2, n, d], the chunks concatenated.
        phrases: [2, p, d], or None if no chunk has any to embed.
    """

    def __init__(self, encode: Encode, chunks: Sequence[TokenRows], device: torch.device) -> None:
        """
        Args:
            chunks: at least one; a single chunk may have no rows.
        """
        self._encode, self._chunks, self._device = encode, chunks, device
        self._graph: tuple[Tensor, Tensor | None] | None = None
        self._states: list[tuple[Tensor, Tensor | None]] = []
        if len(chunks) == 1:
            self._graph = encode(chunks[0])
            embedded = [self._graph]
        else:
            embedded = [self._without_graph(chunk) for chunk in chunks]
        self.sentences = _joined([sentences for sentences, _ in embedded])
        phrases = [phrases for _, phrases in embedded if phrases is not None]
        self.phrases = _joined(phrases) if phrases else None

    def backward(self, of_sentences: Tensor | None, of_phrases: Tensor | None) -> None:
        """Backpropagate gradients of the embeddings into the encoder's; call once.

        Args:
            of_sentences: [2, n, d], or None if no term depends on them.
            of_phrases: [2, p, d], likewise.
        """
        row = phrase = 0
        for number, chunk in enumerate(self._chunks):
            sentences, phrases = self._with_graph(number, chunk)
            pairs = []
            if of_sentences is not None:
                pairs.append((sentences, of_sentences[:, row : row + len(chunk)]))
                row += len(chunk)
            if of_phrases is not None and phrases is not None:
                pairs.append((phrases, of_phrases[:, phrase : phrase + phrases.shape[1]]))
                phrase += phrases.shape[1]
            pairs = [pair for pair in pairs if pair[0].requires_grad]  # no rows have no graph
            torch.autograd.backward([root for root, _ in pairs], [grad for _, grad in pairs])

    def _without_graph(self, chunk: TokenRows) -> tuple[Tensor, Tensor | None]:
        self._states.append(_random_state(self._device))
        with torch.no_grad():
            return self._encode(chunk)

    def _with_graph(self, number: int, chunk: TokenRows) -> tuple[Tensor, Tensor | None]:
        if self._graph is not None:
            embedded, self._graph = self._graph, None
            return embedded
        _set_random_state(self._states[number], self._device)
        return self._encode(chunk)


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach() for tensor in tensors], dim=1)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The random state of dropout: that of the CPU's generator and of the accelerator's."""
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return torch.get_rng_state(), torch.mps.get_rng_state()
    return torch.get_rng_state(), None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    of_cpu, of_device = state
    torch.set_rng_state(of_cpu)
    if of_device is None:
        return
    if device.type == "cuda":
        torch.cuda.set_rng_state(of_device, device)
    else:
        torch.mps.set_rng_state(of_device)
