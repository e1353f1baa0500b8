"""The grounder `sam3`: SAM 3 finds boxes, masks and scores of each noun phrase in one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pipeline.grounding import noun_phrases
from pipeline.grounding.grounding_model import ModelGrounder
from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded, Grounder
from pipeline.grounding.settings import DESCRIBED, ModelSettings, Share
from sightline.devices import computing
from sightline.models.sentence_transformers_folder import count_longer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Instances = tuple[Tensor, Tensor, Tensor]
    """Boxes float32 [k, 4] in pixels, scores float32 [k], masks bool [k, h, w] of one phrase."""

MAX_TOKENS = 32
"""Tokens of a phrase that the model reads, as in its processor."""


class Sam3Settings(ModelSettings):
    """SAM 3; the default thresholds are those of its processor. Its masks need no segmenter.

    Attributes:
        threshold: a box is kept if its score is higher.
        mask_threshold: a pixel belongs to a mask if its probability is higher.
    """

    family: Literal["sam3"]
    threshold: Annotated[Share, DESCRIBED] = 0.3
    mask_threshold: Annotated[Share, DESCRIBED] = 0.5

    def build(self, device: torch.device, precision: str) -> Grounder:
        return Sam3Grounder.load(self, device, precision)


class Sam3Grounder(ModelGrounder[Sam3Settings]):
    """Captions → boxes and masks of everything that each of their noun phrases names.

    A phrase is asked once for an image, however many of its captions have it, and an image is
    encoded once for all its phrases. Masks come with the boxes, so no segmenter is needed.
    """

    name = "sam3"
    model_types = ("sam3_video", "sam3")  # published is the video model, which includes this one
    architecture = "Sam3Model"

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "chunker": noun_phrases.NAME}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`."""
        spans = [noun_phrases.noun_phrases(caption.text) for caption in captions]
        first = {caption.image_key: i for i, caption in reversed(list(enumerate(captions)))}
        queries: dict[tuple[bytes, str], None] = {}
        for caption, places in zip(captions, spans, strict=True):
            for place in places:
                queries[caption.image_key, caption.text[slice(*place)].lower()] = None
        keys = list(dict.fromkeys(key for key, _ in queries))
        predictions_of = self._ask([images[first[key]] for key in keys], keys, list(queries))
        return [
            self._answer(caption, places, predictions_of)
            for caption, places in zip(captions, spans, strict=True)
        ]

    def _ask(
        self,
        images: Sequence[Tensor],
        keys: Sequence[bytes],
        queries: Sequence[tuple[bytes, str]],
    ) -> dict[tuple[bytes, str], Instances]:
        """What each phrase names in its image.

        Args:
            images: uint8 [3, h, w], the image of the key at the same index.
            queries: (image key, phrase), as many at a time as there are images.
        """
        if not queries:
            return {}
        pixels = self._processor.image_processor(images=list(images), return_tensors="pt")
        predictions: dict[tuple[bytes, str], Instances] = {}
        with computing(self._device, self._precision):
            features = self._model.get_vision_features(pixels["pixel_values"].to(self._device))
            for start in range(0, len(queries), len(images)):
                batch = queries[start : start + len(images)]
                rows = [keys.index(key) for key, _ in batch]
                text = self._processor.tokenizer(
                    [phrase for _, phrase in batch],
                    padding="max_length",
                    truncation=True,
                    max_length=MAX_TOKENS,
                    return_tensors="pt",
                ).to(self._device)
                output = self._model(
                    vision_embeds=_rows_of(features, rows),
                    input_ids=text["input_ids"],
                    attention_mask=text["attention_mask"],
                )
                sizes = [tuple(images[row].shape[1:]) for row in rows]
                predictions.update(zip(batch, self._read(output, sizes), strict=True))
        return predictions

    def _read(self, output: Any, sizes: Sequence[tuple[int, ...]]) -> list[Instances]:
        """The model's own post-processing, on the CPU."""
        for name in ("pred_logits", "pred_boxes", "pred_masks", "presence_logits"):
            tensor = output.get(name)
            if tensor is not None:
                output[name] = tensor.float().cpu()
        # the video model's processor has no such method of its own
        instances = self._processor.image_processor.post_process_instance_segmentation(
            output,
            threshold=self._settings.threshold,
            mask_threshold=self._settings.mask_threshold,
            target_sizes=sizes,
        )
        return [(result["boxes"], result["scores"], result["masks"].bool()) for result in instances]

    def _answer(
        self,
        caption: Caption,
        spans: Sequence[tuple[int, int]],
        instances: dict[tuple[bytes, str], Instances],
    ) -> Answer:
        grounded: list[Grounded] = []
        dropped: list[Dropped] = []
        for span in spans:
            phrase = caption.text[slice(*span)]
            if count_longer(self._processor.tokenizer, [phrase.lower()], MAX_TOKENS):
                detail = f"longer than the {MAX_TOKENS} tokens that the model reads"
                dropped.append(Dropped(phrase, "too_long", detail))
                continue
            boxes, scores, masks = instances[caption.image_key, phrase.lower()]
            if len(boxes):
                grounded.append(Grounded(phrase, *span, boxes, scores, masks))
            else:
                dropped.append(Dropped(phrase, "no_box", "nothing above the threshold"))
        if not spans:
            dropped.append(Dropped("", "no_phrase", "the caption has no noun phrase"))
        return grounded, dropped


def _rows_of(features: Any, rows: Sequence[int]) -> Any:
    """Encoded images, one for each of ``rows``; an image may occur several times."""
    return type(features)(
        **{
            name: tuple(level[list(rows)] for level in value)
            for name, value in features.items()
            if name in ("fpn_hidden_states", "fpn_position_encoding")
        }
    )
