"""Models of transformers: teachers of texts, vision models, and the towers of CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pipeline.encoders.config import COMPUTED, OF_INPUT, OwnConfig
from pipeline.encoders.encoder import ImageEncoder, TextEncoder
from pipeline.encoders.image_processors import preprocessing_of
from pipeline.encoders.masked_attention import always_mask
from pipeline.encoders.weights import (
    build_model,
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
)
from sightline.cache.record import EncoderRecord
from sightline.errors import SightlineError
from sightline.models.config_digest import config_sha256
from sightline.models.pooling import Pooling, needs_hidden_states, pool
from sightline.models.pretrained import Pretrained
from sightline.models.sentence_transformers_folder import (
    SENTENCE_SETTINGS,
    Recipe,
    check_encoder,
    check_first_token,
    check_room,
    check_vocabulary,
    count_longer,
    fit_pooler,
    lower_case,
    own_max_length,
    positions,
    read_recipe,
    sentence_settings,
    token_ids,
    tokenizer_sha256,
)
from sightline.settings import unknown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FIRST_BUCKET = 16
"""The shortest padded length, in tokens; each further bucket doubles it."""


def bucket(tokens: int, max_length: int) -> int:
    """The padded length of a text of `tokens` tokens: 16, 32, 64, …, at most `max_length`."""
    return min(max(FIRST_BUCKET, 1 << (tokens - 1).bit_length()), max_length)


class TransformersConfig(OwnConfig):
    """A Hugging Face model: a teacher of texts, a vision model, or both towers of a CLIP or SigLIP.

    Attributes:
        model: a folder or a hub name.
        weights: ``pretrained`` alone uses the folder's content or the hub's main branch, and
            ``pretrained:REVISION`` one revision of a hub name.
        pooling: of a teacher by default that of its sentence-transformers folder, else ``cls``,
            the raw last layer at [CLS]; ``lasttoken`` is for decoders. Of images by default
            ``pooler``, the model's own.
        max_length: in tokens; default: the encoder's own.
        prompt: text before every text of a teacher, such as an instruction.
        prompt_name: the same by its name in config_sentence_transformers.json.
        compile: run the model with ``torch.compile``, once for each padded length.
    """

    family: Literal["transformers"]
    pooling: Annotated[Pooling | None, OF_INPUT] = None
    max_length: Annotated[Annotated[int, Field(ge=2)] | None, OF_INPUT] = None
    prompt: Annotated[str | None, OF_INPUT] = None
    prompt_name: Annotated[str | None, OF_INPUT] = None
    compile: Annotated[bool, COMPUTED] = False

    def require_files(self) -> None:
        Pretrained(self.model, self.weights_spec.revision)
        super().require_files()

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        """The vision model on `device`, with its image processor's values.

        Its pooling defaults to ``pooler``, the model's own: the projected features of a CLIP, the
        attention pooling of a SigLIP, the normalised [CLS] of DINOv2 and DINOv3. ``cls`` is the
        last layer at [CLS], ``mean`` that of all patches.

        Raises:
            SightlineError: see `Pretrained`; or not a vision model, a pooling that it does not
                have, weights that do not fit, or an image processor that does something else than
                resize, crop and normalise.
        """
        import torch

        from pipeline.encoders.frozen_model import FrozenModel

        _refuse(self, "max_length", "prompt", "prompt_name")
        source, settings, model, identity = _loaded_vision(self)
        preprocessing = preprocessing_of(source)
        pooling = self.pooling or "pooler"
        if pooling not in ("pooler", "cls", "mean"):
            raise SightlineError(
                f"{self.model}: pooling {pooling!r} is for texts; use pooler, cls or mean"
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
                        f"{self.model}: its weights have no pooler; use pooling cls or mean"
                    )
                return pooled.flatten(1)  # a ResNet's is [n, d, 1, 1]
            tokens = output.last_hidden_state
            if tokens.ndim == 4:  # [n, d, h, w] of a convolutional network
                tokens = tokens.flatten(2).transpose(1, 2)
            # [n, special tokens and patches, d]
            if pooling == "cls" and tokens.shape[1] <= patches:
                raise SightlineError(
                    f"{self.model}: a {settings.model_type!r} model has no [CLS] before its "
                    "patches; use pooling pooler or mean"
                )
            return tokens[:, 0] if pooling == "cls" else tokens[:, -patches:].mean(dim=1)

        with torch.no_grad():
            row = forward(torch.zeros(1, 3, *preprocessing.crop))
        frozen = FrozenModel(
            model, device, precision, forward, compiled=self.compile, cast_buffers=False
        )
        configuration = {"config_sha256": config_sha256(source)}
        return frozen.image_encoder(identity, row.shape[1], preprocessing, configuration)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        """A teacher of texts, or the text tower of a CLIP or SigLIP.

        Raises:
            SightlineError: see `Pretrained` and `read_recipe`; or weights that do not fit, pooling
                ``pooler`` without a pooler, a tokenizer without padding token, an unknown prompt, a
                maximum length beyond the model's positions, or a setting that a tower has itself.
        """
        settings = Pretrained(self.model, self.weights_spec.revision).config()
        if has_two_towers(settings):
            return self._text_tower(device, precision)
        return self._teacher(device, precision)

    def _teacher(self, device: torch.device, precision: str) -> TextEncoder:
        """A teacher on `device`, as its sentence-transformers folder says.

        Its rows are those of ``SentenceTransformer.encode`` before any normalisation. A text is
        padded on the right to its own number of tokens, rounded up to a bucket; a decoder does not
        see what comes after its last token, so padding on the left, as its authors have it, gives
        the same. It is truncated to the maximum length, never to the length of its batch.

        Raises:
            SightlineError: see `Pretrained` and `read_recipe`; or weights that do not fit, pooling
                ``pooler`` without a pooler, a tokenizer without padding token, an unknown prompt,
                or a maximum length beyond the model's positions.
        """
        from pipeline.encoders.frozen_model import FrozenModel

        spec = self.weights_spec
        recipe = read_recipe(self.model, bare=self.pooling is not None, revision=spec.revision)
        pooling, prompt = self.pooling or recipe.pooling or "cls", _prompt(self, recipe)
        recipe.check_prompt(self.model, prompt)
        source = Pretrained(self.model, spec.revision, recipe.subfolder).pinned()
        settings, tokenizer = _settings_and_tokenizer(source)
        if recipe.do_lower_case:
            lower_case(tokenizer)
        model = _loaded(self, source, settings, pooling)
        identity = identity_of(
            model, f"transformers/{source.title}", spec, revision=source.revision, source=source
        )
        max_length = _max_length(self, source, tokenizer, settings)
        check_room(self.model, tokenizer, prompt, max_length, setting="max_length")

        def forward(ids: Tensor, mask: Tensor) -> Tensor:
            output = model(
                input_ids=ids,
                attention_mask=mask,
                output_hidden_states=needs_hidden_states(pooling),
                return_dict=True,
            )
            return pool(output, mask, pooling)

        frozen = FrozenModel(
            model, device, precision, forward, compiled=self.compile, cast_buffers=False
        )

        def ids_of(texts: Sequence[str]) -> list[list[int]]:
            return token_ids(tokenizer, [prompt + text for text in texts], max_length)

        def count_cut(texts: Sequence[str]) -> int:
            return count_longer(tokenizer, [prompt + text for text in texts], max_length)

        def lengths(texts: Sequence[str]) -> list[int]:
            return [bucket(len(row), max_length) for row in ids_of(texts)]

        def inputs(texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
            ids = ids_of(texts)
            longest = max((len(row) for row in ids), default=0)
            if longest > length:
                raise ValueError(f"a text has {longest} tokens and the batch only {length}")
            batch = tokenizer.pad(
                {"input_ids": ids}, padding="max_length", max_length=length, return_tensors="pt"
            )
            return batch["input_ids"], batch["attention_mask"]

        preprocessing: dict[str, object] = {
            "tokenizer": type(tokenizer).__name__,
            "tokenizer_sha256": tokenizer_sha256(tokenizer),
            "max_length": max_length,
            "buckets": f"{FIRST_BUCKET} doubled, at most max_length",
            "pooling": pooling,
            "config_sha256": config_sha256(source),
        }
        if prompt:
            preprocessing["prompt"] = prompt
        dim = int(settings.hidden_size)
        return frozen.text_encoder(identity, dim, preprocessing, lengths, inputs, count_cut)

    def _text_tower(self, device: torch.device, precision: str) -> TextEncoder:
        """The text tower on `device`, in the space of its images.

        Every text is padded to the tower's number of positions and truncated to it, as the towers
        were trained.

        Raises:
            SightlineError: as `build_image`; or a pooling or a maximum length, since a tower has
                its own.
        """
        import torch

        from pipeline.encoders.frozen_model import FrozenModel

        _refuse(self, "pooling", "max_length", "prompt", "prompt_name")
        source, settings, model, identity = _loaded_vision(self)
        tokenizer = source.tokenizer()
        upper, lower = tokenizer(["A", "a"])["input_ids"]
        if tokenizer.init_kwargs.get("do_lower_case") and upper != lower:
            lower_case(tokenizer)  # SigLIP 2's, which Gemma's class in transformers ignores
        length = positions(settings.text_config)
        if length is None:
            raise SightlineError(f"{self.model}: self.json does not say how long texts may be")
        masked = "attention_mask" in tokenizer.model_input_names
        for part in ("vision_model", "visual_projection"):
            if hasattr(model, part):
                delattr(model, part)

        def inputs(
            texts: Sequence[str], length: int
        ) -> tuple[Tensor, ...]:  # int64 [n, length] each
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
            model, device, precision, forward, compiled=self.compile, cast_buffers=False
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


def has_two_towers(settings: Any) -> bool:
    """Whether a configuration is that of a model of images and texts, such as CLIP."""
    return hasattr(settings, "vision_config") and hasattr(settings, "text_config")


def _refuse(config: TransformersConfig, *names: str) -> None:
    """Refuse what only a teacher of texts has."""
    present = [name for name in names if getattr(config, name) is not None]
    if present:
        raise SightlineError(
            f"{config.model}: {' and '.join(present)}: for teachers alone; a vision model and its "
            "text tower take none, so leave it out"
        )


def _loaded_vision(config: TransformersConfig) -> tuple[Pretrained, Any, Any, EncoderRecord]:
    """Where a model comes from, its configuration, the model on the CPU, and its identity."""
    from transformers import AutoModel

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


def _settings_and_tokenizer(source: Pretrained) -> tuple[Any, Any]:
    """The configuration of an encoder, and its tokenizer, which pads on the right."""
    settings = source.config()
    check_encoder(source.name, settings)
    tokenizer = source.tokenizer()
    check_vocabulary(source.name, tokenizer, settings)
    if tokenizer.pad_token_id is None:
        raise SightlineError(
            f"{source.name}: its tokenizer has no padding token, so texts cannot share a batch; "
            "use an encoder (BERT, RoBERTa, MPNet, …)"
        )
    tokenizer.padding_side = "right"  # [CLS] stays the first token
    settings.use_cache = False  # of a decoder that only reads
    return settings, tokenizer


def _prompt(config: TransformersConfig, recipe: Recipe) -> str:
    """What comes before every text: the user's words, or those that the folder has for a name."""
    name = config.prompt_name
    if name is None:
        # a given pooling is the bare encoder
        default = recipe.prompt if config.pooling is None else ""
        return default if config.prompt is None else config.prompt
    if config.prompt is not None:
        raise SightlineError(f"{config.model}: prompt and prompt_name are both given; choose one")
    if name not in recipe.prompts:
        raise SightlineError(f"{config.model}: {unknown(name, recipe.prompts, 'prompt')}")
    return recipe.prompts[name]


def _loaded(config: TransformersConfig, source: Pretrained, settings: Any, pooling: Pooling) -> Any:
    """The encoder on the CPU with the weights that `config` names, and only the pooler in use."""
    import torch
    from transformers import AutoModel

    spec = config.weights_spec
    if spec.kind == "pretrained":
        model = source.model(AutoModel, settings, unpickle=True)
    else:
        with seeded(spec.seed), source.reading("configuration"):
            model = AutoModel.from_config(settings, dtype=torch.float32)
    fit_pooler(model, config.model, pooling)
    check_first_token(config.model, model, pooling)
    if spec.kind == "file":
        state = _encoder_part(model, read_state_dict(Path(spec.value)), pooling)
        load_exactly(model, state, spec.value, config.model)
    always_mask(model)
    return model


def _encoder_part(model: Any, state: dict[str, Tensor], pooling: str) -> dict[str, Tensor]:
    """The encoder's tensors from a state dict that may also contain a pooler or a head."""
    prefix = f"{model.base_model_prefix}."
    inside = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    return {
        name: tensor
        for name, tensor in (inside or state).items()
        if (pooling == "pooler" or not name.startswith("pooler."))
        # A buffer saved by early versions of transformers; not learned.
        and not name.endswith("embeddings.position_ids")
    }


def _max_length(
    config: TransformersConfig, source: Pretrained, tokenizer: Any, settings: Any
) -> int:
    """The user's value, else that of a published sentence encoder's settings, else its own."""
    if config.max_length is None:
        with source.reading(SENTENCE_SETTINGS[0]):
            published = sentence_settings(source, or_give="max_length").get("max_seq_length")
            published = int(published or 0) or None
        return own_max_length(tokenizer, settings, published)
    most = positions(settings)
    if most is not None and config.max_length > most:
        raise SightlineError(
            f"{config.model}: max_length {config.max_length} is beyond the {most} positions it was "
            f"trained with; use at most {most}"
        )
    return config.max_length
