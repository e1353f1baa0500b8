"""The demo's CLIP: a small open_clip model, trained to match images and captions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes.targets import batches, normalised

if TYPE_CHECKING:
    import torch

BATCH = 64
LEARNING_RATE = 3e-3
EMBEDDING = 128
CONTEXT = 48  # CLIP's byte-pair tokens: three things of up to ten, and the frame


def clip_config(edge: int) -> dict[str, Any]:
    """The model as an open_clip configuration, for images of ``edge`` pixels.

    The tokenizer is open_clip's own, which needs no file and no hub.
    """
    return {
        "embed_dim": EMBEDDING,
        "vision_cfg": {"image_size": edge, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32},
        "text_cfg": {
            "context_length": CONTEXT,
            "vocab_size": 49408,
            "width": 64,
            "heads": 2,
            "layers": 2,
        },
    }


def train_clip(
    pixels: NDArray[np.uint8],
    captions: Sequence[Sequence[str]],
    *,
    steps: int,
    seed: int,
    done: Callable[[int], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Weights of open_clip's ``CLIP`` with `clip_config`, trained contrastively (Radford 2021).

    Args:
        pixels: uint8 [n, edge, edge, 3].
        captions: [n], several captions per image; each epoch uses the next one.
    """
    import open_clip
    import torch
    from torch.nn import functional

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = open_clip.CLIP(**clip_config(pixels.shape[1]))
    torch.set_rng_state(state)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, max(2, steps), pct_start=0.15
    )
    model.train()
    for step, (images, texts) in enumerate(_pairs(pixels, captions, steps=steps, seed=seed)):
        image, text = model.encode_image(images, True), model.encode_text(texts, True)
        logits = model.logit_scale.exp() * image @ text.T  # [N, N]
        own = torch.arange(len(images))
        loss = functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=float(np.log(100)))
        if done is not None:
            done(step + 1)
    return {name: value.contiguous() for name, value in model.state_dict().items()}


def _pairs(
    pixels: NDArray[np.uint8], captions: Sequence[Sequence[str]], *, steps: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images float32 [N, 3, edge, edge] and token ids int64 [N, CONTEXT]."""
    import open_clip

    tokenizer = open_clip.SimpleTokenizer(context_length=CONTEXT)
    used = [0] * len(captions)
    for rows in batches(len(captions), BATCH, steps, seed):
        texts = []
        for row in rows.tolist():
            texts.append(captions[row][used[row] % len(captions[row])])
            used[row] += 1
        images = normalised(
            pixels[rows.numpy()], open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
        )
        yield images, tokenizer(texts)
