"""The segmenter `sam2-hf`: SAM 2 by transformers' Sam2Model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.encoders.teacher_model import loading
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from pipeline.grounding.model import require_complete
from pipeline.grounding.segmenters.config import Sam2HfSettings
from pipeline.grounding.segmenters.prompted import Features, PromptedSegmenter
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.library_noise import quiet

_KINDS = ("sam2", "sam2_video")
"""Published checkpoints are of the video model; the image model is a part of it."""


def build(settings: Sam2HfSettings, device: torch.device, precision: str) -> PromptedSegmenter:
    """SAM 2 as ``settings`` describe it, on ``device``.

    Raises:
        SightlineError: no such folder and the hub cannot be reached, a checkpoint of another
            model, or weights that do not fit.
    """
    import transformers

    check_precision(precision)
    name, spec = settings.model, settings.weights_spec
    folder = Path(name) if Path(name).is_dir() else None
    where: dict[str, Any] = {"trust_remote_code": False}
    if spec.kind == "pretrained" and spec.value:
        where["revision"] = spec.value
    with quiet():
        with loading(name, folder, "configuration"):
            described = transformers.AutoConfig.from_pretrained(name, **where)
        if described.model_type not in _KINDS:
            raise SightlineError(
                f"{name}: this is a checkpoint of {described.model_type!r}, expected a SAM 2 "
                f"({' or '.join(map(repr, _KINDS))}); name one, such as facebook/sam2.1-hiera-large"
            )
        with loading(name, folder, "configuration"):
            config = transformers.Sam2Config.from_pretrained(name, **where)
        if spec.kind == "pretrained":
            with loading(name, folder, "weights"):
                loaded: Any = transformers.Sam2Model.from_pretrained(
                    name, config=config, dtype=torch.float32, output_loading_info=True, **where
                )
            model, report = loaded
            require_complete(name, report)
        else:
            with seeded(spec.seed if spec.kind == "random" else 0):
                model = transformers.Sam2Model(config)
    if spec.kind == "file":
        load_exactly(model, read_state_dict(Path(spec.value)), spec.value, name)
    identity: dict[str, object] = {
        "model": folder.resolve().name if folder else name,
        "source": describe_source(spec, folder=folder if spec.kind == "pretrained" else None),
        "weights_sha256": state_dict_sha256(model.state_dict()),
        "untrained": spec.kind == "random",
    }
    backend = Sam2HfBackend(model.eval().to(device))  # pyright: ignore[reportArgumentType]
    return PromptedSegmenter("sam2-hf", backend, identity, device, precision)


class Sam2HfBackend:
    """A `Sam2Model` of transformers; see `Backend`."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.image_size = int(model.config.prompt_encoder_config.image_size)

    def features(self, pixels: Tensor) -> Features:
        return list(self._model.get_image_embeddings(pixels))

    def logits(self, features: Features, boxes: Tensor) -> Tensor:
        output = self._model(
            image_embeddings=features, input_boxes=boxes[:, None], multimask_output=False
        )
        return output.pred_masks[:, 0, 0]
