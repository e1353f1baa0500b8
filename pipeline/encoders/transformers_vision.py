"""Vision models of transformers: ViT, DINOv2, DINOv3, and the towers of CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from pipeline.encoders.config import TransformersConfig
from pipeline.encoders.encoder import ImageEncoder, TextEncoder
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.preprocessing import ImagePreprocessing, Interpolation
from pipeline.encoders.weights import build_model, identity_of
from sightline.cache.record import EncoderRecord
from sightline.config_digest import config_sha256
from sightline.errors import SightlineError
from sightline.pretrained import Pretrained
from sightline.sentence_transformers_folder import (
    count_longer,
    lower_case,
    positions,
    tokenizer_sha256,
)

_FILTERS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of resize filters, as image processors name them, that `resize` has."""


def has_two_towers(settings: Any) -> bool:
    """Whether a configuration is that of a model of images and texts, such as CLIP."""
    return hasattr(settings, "vision_config") and hasattr(settings, "text_config")


def build_image(config: TransformersConfig, device: torch.device, precision: str) -> ImageEncoder:
    """The vision model that `config` names, on `device`, with its image processor's values.

    Its pooling defaults to ``pooler``, the model's own: the projected features of a CLIP, the
    attention pooling of a SigLIP, the normalised [CLS] of DINOv2 and DINOv3. ``cls`` is the last
    layer at [CLS], ``mean`` that of all patches.

    Raises:
        SightlineError: see `Pretrained`; or not a vision model, a pooling that it does not have,
            weights that do not fit, or an image processor that does something else than resize,
            crop and normalise.
    """
    _refuse(config, "max_length", "prompt", "prompt_name")
    source, settings, model, identity = _loaded(config)
    preprocessing = _preprocessing(source)
    pooling = config.pooling or "pooler"
    if pooling not in ("pooler", "cls", "mean"):
        raise SightlineError(
            f"{config.model}: pooling {pooling!r} is for texts; use pooler, cls or mean"
        )
    if has_two_towers(settings):
        for part in ("text_model", "text_projection"):
            if hasattr(model, part):
                delattr(model, part)
    encode_pixels = model.get_image_features if has_two_towers(settings) else model
    patches = _patches(getattr(settings, "vision_config", settings), preprocessing.crop)

    def forward(images: Tensor) -> Tensor:
        """[n, 3, h, w] → [n, dim]."""
        output = encode_pixels(pixel_values=images)
        if pooling == "pooler":
            pooled = getattr(output, "pooler_output", output)
            if pooled is None:
                raise SightlineError(
                    f"{config.model}: its weights have no pooler; use pooling cls or mean"
                )
            return pooled.flatten(1)  # a ResNet's is [n, d, 1, 1]
        tokens = output.last_hidden_state
        if tokens.ndim == 4:  # [n, d, h, w] of a convolutional network
            tokens = tokens.flatten(2).transpose(1, 2)
        # [n, special tokens and patches, d]
        if pooling == "cls" and tokens.shape[1] <= patches:
            raise SightlineError(
                f"{config.model}: a {settings.model_type!r} model has no [CLS] before its patches; "
                "use pooling pooler or mean"
            )
        return tokens[:, 0] if pooling == "cls" else tokens[:, -patches:].mean(dim=1)

    with torch.no_grad():
        row = forward(torch.zeros(1, 3, *preprocessing.crop))
    frozen = FrozenModel(
        model, device, precision, forward, compiled=config.compile, cast_buffers=False
    )
    configuration = {"config_sha256": config_sha256(source)}
    return frozen.image_encoder(identity, row.shape[1], preprocessing, configuration)


def build_text(config: TransformersConfig, device: torch.device, precision: str) -> TextEncoder:
    """The text tower that `config` names, on `device`, in the space of its images.

    Every text is padded to the tower's number of positions and truncated to it, as the towers were
    trained.

    Raises:
        SightlineError: as `build_image`; or a pooling or a maximum length, since a tower has its
            own.
    """
    _refuse(config, "pooling", "max_length", "prompt", "prompt_name")
    source, settings, model, identity = _loaded(config)
    tokenizer = source.tokenizer()
    upper, lower = tokenizer(["A", "a"])["input_ids"]
    if tokenizer.init_kwargs.get("do_lower_case") and upper != lower:
        lower_case(tokenizer)  # SigLIP 2's, which Gemma's class in transformers ignores
    length = positions(settings.text_config)
    if length is None:
        raise SightlineError(f"{config.model}: config.json does not say how long texts may be")
    masked = "attention_mask" in tokenizer.model_input_names
    for part in ("vision_model", "visual_projection"):
        if hasattr(model, part):
            delattr(model, part)

    def inputs(texts: Sequence[str], length: int) -> tuple[Tensor, ...]:  # int64 [n, length] each
        batch = tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=length,
            return_tensors="pt",
        )
        return tuple(batch[name] for name in ("input_ids", "attention_mask")[: 1 + masked])

    def forward(ids: Tensor, mask: Tensor | None = None) -> Tensor:
        output = model.get_text_features(input_ids=ids, attention_mask=mask)
        return getattr(output, "pooler_output", output)

    frozen = FrozenModel(
        model, device, precision, forward, compiled=config.compile, cast_buffers=False
    )

    def count_cut(texts: Sequence[str]) -> int:
        return count_longer(tokenizer, texts, length)

    def lengths(texts: Sequence[str]) -> list[int]:
        return [length] * len(texts)

    with torch.no_grad():
        dim = forward(*inputs([""], length)).shape[1]
    preprocessing: dict[str, object] = {
        "tokenizer": type(tokenizer).__name__,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "context_length": length,
        "masked": masked,
        "pooling": "the model's own",
        "config_sha256": config_sha256(source),
    }
    return frozen.text_encoder(identity, dim, preprocessing, lengths, inputs, count_cut)


def _refuse(config: TransformersConfig, *names: str) -> None:
    """Refuse what only a teacher of texts has."""
    present = [name for name in names if getattr(config, name) is not None]
    if present:
        raise SightlineError(
            f"{config.model}: {' and '.join(present)}: for teachers alone; a vision model and its "
            "text tower take none, so leave it out"
        )


def _loaded(config: TransformersConfig) -> tuple[Pretrained, Any, Any, EncoderRecord]:
    """Where a model comes from, its configuration, the model on the CPU, and its identity."""
    spec = config.weights_spec
    source = Pretrained(config.model, spec.revision).pinned()
    settings = source.config()
    if not has_two_towers(settings) and not hasattr(settings, "num_channels"):
        raise SightlineError(
            f"{config.model}: a {settings.model_type!r} model does not encode images; use a vision "
            "model (ViT, DINOv2, DINOv3, CLIP, SigLIP, …)"
        )
    model = build_model(source, spec, AutoModel, settings)
    # its pooling is part of what a row is, and an image encoder's preprocessing has no room for it
    pooling = f"@{config.pooling}" if config.pooling not in (None, "pooler") else ""
    name = f"transformers/{source.title}{pooling}"
    identity = identity_of(model, name, spec, revision=source.revision, source=source)
    return source, settings, model, identity


def _patches(settings: Any, crop: tuple[int, int]) -> int:
    """Tokens of an image of this size that are patches; the others come before them."""
    size = getattr(settings, "patch_size", None) or 1
    height, width = (size, size) if isinstance(size, int) else size
    return (crop[0] // height) * (crop[1] // width)


def _preprocessing(source: Pretrained) -> ImagePreprocessing:
    """What the image processor does, on our own path: decode, resize on uint8, crop, normalise.

    The processors of DINOv3 scale to floats before they resize, so their pixels are not rounded
    to 1/255 in between; all others do the same as here.
    """
    values = source.image_processor().to_dict()

    def refuse(key: str, expected: str) -> SightlineError:
        return SightlineError(
            f"{source.name}: its image processor has {key} {values.get(key)!r}, expected "
            f"{expected}; this model cannot be used as an image encoder"
        )

    size = values.get("size") or {}
    if not values.get("do_resize", False) or not size.keys() & {"height", "shortest_edge"}:
        raise refuse("size", "height and width, or the shortest edge, to resize to")
    squash = "height" in size
    edges = (size["height"], size["width"]) if squash else (size["shortest_edge"],) * 2
    crop = values.get("crop_size") if values.get("do_center_crop") else None
    if crop is None and not squash:
        raise refuse("do_center_crop", "a centre crop after resizing the shortest edge")
    if values.get("resample") not in _FILTERS:
        raise refuse("resample", "2 (bilinear) or 3 (bicubic)")
    if values.get("do_pad"):
        raise refuse("do_pad", "no padding")
    if not values.get("do_rescale") or abs(values["rescale_factor"] * 255 - 1) > 1e-6:
        raise refuse("rescale_factor", "1/255")
    plain = not values.get("do_normalize")
    return ImagePreprocessing(
        resize=edges,
        crop=(crop["height"], crop["width"]) if crop else edges,
        interpolation=_FILTERS[int(values["resample"])],
        mean=(0.0, 0.0, 0.0) if plain else tuple(values["image_mean"]),
        std=(1.0, 1.0, 1.0) if plain else tuple(values["image_std"]),
        resize_mode="squash" if squash else "shortest",
    )
