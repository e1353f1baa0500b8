"""The demo's sentence encoder, a teacher: a small BERT trained on graded pairs of captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.datasets.scenes.similarity import HIGHEST, GradedPair
from pipeline.datasets.scenes.student import new_bert, new_tokenizer
from pipeline.datasets.scenes.targets import batches

if TYPE_CHECKING:
    from transformers import BertModel

BATCH = 64
LEARNING_RATE = 1e-3
LAYERS, HIDDEN = 2, 128
_FORWARDED = 32  # sentences at once


def train_teacher(
    pairs: Sequence[GradedPair], *, steps: int, seed: int, done: Callable[[int], None] | None = None
) -> BertModel:
    """A BERT whose raw [CLS] vectors have the pairs' similarity as their cosine.

    Cosine regression with squared error (Reimers and Gurevych 2019, section 3), score / 5.
    """
    import torch
    from torch.nn import functional

    model = new_bert(layers=LAYERS, hidden=HIDDEN, seed=seed)
    tokenizer = new_tokenizer()
    texts = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
    sides = [tokenizer(side)["input_ids"] for side in texts]
    scores = torch.tensor([pair.score / HIGHEST for pair in pairs])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, max(2, steps))
    model.eval()  # no dropout: the targets are exact
    for step, rows in enumerate(batches(len(pairs), BATCH, steps, seed)):
        ids = [side[row] for side in sides for row in rows.tolist()]
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        parts = [by_length[i : i + _FORWARDED] for i in range(0, len(ids), _FORWARDED)]
        vectors = []
        for part in parts:  # similar lengths: little padding
            padded = tokenizer.pad({"input_ids": [ids[i] for i in part]}, return_tensors="pt")
            vectors.append(model(**padded).last_hidden_state[:, 0])
        back = torch.tensor(by_length).argsort()
        one, other = torch.cat(vectors)[back].chunk(2)  # [N, hidden] each
        loss = functional.mse_loss(functional.cosine_similarity(one, other), scores[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if done is not None:
            done(step + 1)
    return model
