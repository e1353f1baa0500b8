"""Pooling: one vector per sentence from an encoder's token vectors.

The names are those of the field. SimCSE calls `cls` "cls_before_pooler". Nothing here imports
torch, so that checking a name costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from torch import Tensor


Pooling = Literal["cls", "pooler", "mean", "lasttoken", "first_last_mean"]
"""How token vectors become one sentence vector; of a decoder only the last token has seen all."""


def check_pooling(name: str) -> Pooling:
    """`name` as a `Pooling`; otherwise a SightlineError lists the valid names."""
    poolings: tuple[Pooling, ...] = get_args(Pooling)
    for pooling in poolings:
        if name == pooling:
            return pooling
    raise SightlineError(f"unknown pooling {name!r}; use one of {', '.join(poolings)}")


def needs_hidden_states(pooling: Pooling) -> bool:
    """Whether the encoder must be run with `output_hidden_states=True` for `pooling`."""
    return pooling == "first_last_mean"


def pool(output: Any, attention_mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per sentence.

    - `cls`: the last layer at the first token, before any pooler (SimCSE, section 6.3).
    - `pooler`: the output of the model's own pooler (BERT: Linear + Tanh).
    - `mean`: mean of the last layer over the tokens that the mask keeps.
    - `lasttoken`: the last layer at the last token that the mask keeps.
    - `first_last_mean`: mean over those tokens of (embedding output + last layer) / 2. "First" is
      `hidden_states[0]`, the output of the embeddings, as in SimCSE's released `avg_first_last`.

    Args:
        output: what a transformers encoder returned: `last_hidden_state`, float [B, L, d];
            `pooler_output` [B, d] for `pooler`; `hidden_states`, each [B, L, d], if
            `needs_hidden_states`.
        attention_mask: bool or integer [B, L]; nonzero where there is a token.

    Returns:
        [B, d] in the encoder's dtype, but at least float32: a mean over many tokens would lose
        digits in a lower precision.
    """
    last = output.last_hidden_state
    if pooling == "cls":
        return _wide(last[:, 0])
    if pooling == "pooler":
        return _wide(output.pooler_output)
    if pooling == "lasttoken":
        ends = (attention_mask.cumsum(dim=1) * attention_mask).argmax(dim=1)
        return _wide(last.take_along_dim(ends[:, None, None], dim=1)[:, 0])
    last = _wide(last)
    if pooling == "first_last_mean":
        last = (_wide(output.hidden_states[0]) + last) / 2
    mask = attention_mask.unsqueeze(-1).to(last.dtype)
    # A row without any token gives zeros rather than NaN, as sentence-transformers does.
    return (last * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.element_size() < 4 else tensor
