"""The embedding of a phrase: the mean of its tokens' embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from train.batch import Phrases


def phrase_embeddings(tokens: Tensor, phrases: Phrases) -> Tensor:
    """The mean of each phrase's token embeddings: [N, L, d] → [P, d].

    One matrix product with the P × N·L matrix of token weights: no loop over captions, and no
    scatter with a nondeterministic order of addition.
    """
    count, longest, _ = tokens.shape
    position = torch.arange(longest, device=tokens.device)
    inside = (position >= phrases.starts[:, None]) & (position < phrases.ends[:, None])  # (P, L)
    shares = inside / (phrases.ends - phrases.starts)[:, None]
    # not one_hot, which reads the largest owner back from the device
    owners = phrases.owners[:, None] == torch.arange(count, device=tokens.device)  # (P, N)
    of_tokens = owners[:, :, None] * shares[:, None, :]  # (P, N, L)
    return of_tokens.flatten(1).to(tokens.dtype) @ tokens.flatten(0, 1)
