"""Pooling: one vector per sentence from an encoder's token vectors.

The four names are those of the field. SimCSE calls `cls` "cls_before_pooler". Nothing here imports
torch, so that checking a name costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from torch import Tensor


Pooling = Literal["cls", "pooler", "mean", "first_last_mean"]
"""How token vectors become one sentence vector."""


POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def check_pooling(name: str) -> Pooling:
    """`name` as a `Pooling`; otherwise a SightlineError lists the valid names."""
    for known in POOLINGS:
        if name == known:
            return known
    raise SightlineError(f"unknown pooling {name!r}; use one of {', '.join(POOLINGS)}")


def needs_hidden_states(pooling: Pooling) -> bool:
    """Whether the encoder must be run with `output_hidden_states=True` for `pooling`."""
    return pooling == "first_last_mean"


def pool(
    last_hidden_state: Tensor,
    attention_mask: Tensor,
    pooling: Pooling,
    *,
    hidden_states: Sequence[Tensor] | None = None,
    pooler_output: Tensor | None = None,
) -> Tensor:
    """One vector per sentence.

    - `cls`: the last layer at the first token, before any pooler (SimCSE, section 6.3).
    - `pooler`: the output of the model's own pooler (BERT: Linear + Tanh).
    - `mean`: mean of the last layer over the tokens that the mask keeps.
    - `first_last_mean`: mean over those tokens of (embedding output + last layer) / 2. "First" is
      `hidden_states[0]`, the output of the embeddings, as in SimCSE's released `avg_first_last`.

    Args:
        last_hidden_state: float [B, L, d].
        attention_mask: bool or integer [B, L]; nonzero where there is a token.
        hidden_states: the encoder's `hidden_states`, each [B, L, d]; `first_last_mean` only.
        pooler_output: the encoder's `pooler_output` [B, d]; `pooler` only.

    Returns:
        [B, d] in the dtype of `last_hidden_state`.

    Raises:
        SightlineError: `pooler` without a pooler, `first_last_mean` without hidden states, or a
            name that is not one of the four.
    """
    if pooling == "cls":
        return last_hidden_state[:, 0]
    if pooling == "pooler":
        if pooler_output is None:
            raise SightlineError(
                "pooling 'pooler' was requested, but the encoder has no pooler; "
                "use cls, mean or first_last_mean"
            )
        return pooler_output
    if pooling == "mean":
        return _masked_mean(last_hidden_state, attention_mask)
    if pooling == "first_last_mean":
        if hidden_states is None:
            raise SightlineError(
                "pooling 'first_last_mean' needs the hidden states of every layer; "
                "run the encoder with output_hidden_states=True"
            )
        return _masked_mean((hidden_states[0] + last_hidden_state) / 2, attention_mask)
    raise SightlineError(f"unknown pooling {pooling!r}; use one of {', '.join(POOLINGS)}")


def pool_output(output: Any, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """`pool` of what a transformers encoder returned, in float32: [B, d].

    A mean over many tokens would lose digits in a lower precision.

    Args:
        output: with `hidden_states` if `needs_hidden_states`.

    Raises:
        SightlineError: see `pool`.
    """
    layers, pooler = output.get("hidden_states"), output.get("pooler_output")
    return pool(
        output.last_hidden_state.float(),
        attention_mask,
        pooling,
        hidden_states=None if layers is None else [layers[0].float()],
        pooler_output=None if pooler is None else pooler.float(),
    )


def _masked_mean(tokens: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of tokens [B, L, d] over the positions that the mask keeps: [B, d]."""
    mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
    # A row without any token gives zeros rather than NaN, as sentence-transformers does.
    return (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
