"""Attention with its mask in every batch, so that no row depends on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MASKED_ATTENTION = "sightline_masked_sdpa"


def always_mask(model: Any) -> None:
    """Pass the attention mask even for a batch without padding.

    transformers omits the mask if no text in a batch is padded, which selects a different kernel:
    on a GPU, a text's row would depend on the other texts in its batch.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation != "sdpa":
        return

    def masked(*args: Any, **options: Any) -> Tensor | None:
        kept = {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        return sdpa_mask(*args, **{**options, **kept})

    AttentionInterface.register(MASKED_ATTENTION, sdpa_attention_forward)
    AttentionMaskInterface.register(MASKED_ATTENTION, masked)
    model.set_attn_implementation(MASKED_ATTENTION)
