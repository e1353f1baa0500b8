"""Runs MTEB's own evaluation of a task on one of our models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mteb
import numpy as np
from mteb.models import ModelMeta
from mteb.similarity_functions import cos_sim, pairwise_cos_sim
from mteb.types import PromptType

from train.evaluate.evaluated_model import EvaluatedModel
from train.evaluate.mteb_data import ReadTask, reading


class MtebEncoder:
    """One of our models as MTEB's `EncoderProtocol`.

    Prompts are ignored: they instruct models that were trained with instructions, and sentence
    encoders trained without them would read them as text. The similarity is the cosine.
    """

    def __init__(self, model: EvaluatedModel) -> None:
        self.model = model
        self.mteb_model_meta = ModelMeta.create_empty({"name": "sightline/model"})

    def encode(
        self, inputs: Any, *, prompt_type: PromptType | None = None, **about: Any
    ) -> np.ndarray:
        """Embeddings float32 [n, d] of the texts in MTEB's batches.

        Each distinct text is encoded once for all tasks, except the documents of retrieval: MS
        MARCO's 8.8 million would fill 27 GB of memory.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        if prompt_type == PromptType.document:
            return self.model.embedder.encode(texts)
        return self.model.encode(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines [n, m] of every row with every row."""
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines [n] of the rows with the same number."""
        return pairwise_cos_sim(embeddings1, embeddings2)


def evaluate(model: EvaluatedModel, read: ReadTask, cache: Path) -> dict[str, float | None]:
    """Main score × 100 of each evaluated split and subset (`MtebTask.parts`).

    MTEB's own store of results is neither read nor written.
    """
    with reading(read.task, cache) as task:
        found = mteb.evaluate(
            MtebEncoder(model),  # pyright: ignore[reportArgumentType]
            task,
            co2_tracker=False,
            cache=None,
            show_progress_bar=False,
        )
    return read.about.parts(found.task_results[0].scores)  # pyright: ignore[reportArgumentType]
