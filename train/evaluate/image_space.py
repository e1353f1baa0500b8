"""The space that a run's heads project sentences and images into."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from train.evaluate.evaluated_model import EvaluatedModel, NoHeadsError


@dataclass(frozen=True)
class ImageSpace:
    """Two trained heads with one output space.

    Attributes:
        sentences: projects embeddings: [n, hidden] → [n, d].
        images: projects image features: [n, dim] → [n, d].
        encoder: the encoder of those features, as in the run's parameters.
        fingerprint: of the feature set that the run learned from.
    """

    sentences: nn.Module
    images: nn.Module
    encoder: str
    fingerprint: str


def image_space(model: EvaluatedModel, encoder: str | None = None) -> ImageSpace:
    """The space of sentences and images of a training run.

    It is found through the objective (`features`, `projected_slots`, `sentence_head`), so any
    objective that projects image features has one. Of several heads for images of one encoder, as a
    combination may have, it is the first.

    Args:
        encoder: which image encoder, for a run with heads for several.

    Raises:
        NoHeadsError: the run has no such space, or several (says what there is).
        SightlineError: see `EvaluatedModel.heads`.
    """
    trained = model.heads()
    assert model.summary is not None  # it has heads
    objective, modules = trained.objective, trained.modules
    needs = objective.features(objective.params)
    found: dict[str, ImageSpace] = {}
    for head, slots in objective.projected_slots.items():
        for slot in slots:
            if head not in modules or slot not in needs or needs[slot].kind != "image":
                continue
            space = ImageSpace(
                modules[objective.sentence_head(head)],
                modules[head],
                needs[slot].encoder,
                model.summary.features[slot].fingerprint,
            )
            found.setdefault(space.encoder, space)
    if not found:
        raise NoHeadsError(f"its objective, {objective.name}, projects no image features")
    if encoder is None and len(found) == 1:
        return next(iter(found.values()))
    if encoder in found:
        return found[encoder]
    raise NoHeadsError(
        f"it has heads for images of {', '.join(found)}"
        + ("; choose one with `encoder`" if encoder is None else f", not of {encoder}")
    )
