"""open_clip models: loading, the image tower with its own preprocessing, and the text tower."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.encoders.config import COMPUTED, ImageConfig
from pipeline.encoders.encoder import ImageEncoder, TextEncoder
from pipeline.encoders.preprocessing import (
    Deviation,
    Finite,
    ImagePreprocessing,
    Interpolation,
    Mean,
    Positive,
    ResizeMode,
)
from pipeline.encoders.weights import (
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
    unknown_tag,
)
from sightline.cache.record import EncoderRecord
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.models.config_digest import config_sha256
from sightline.models.pretrained import Pretrained, commit_of, from_hub, quiet, reaching
from sightline.models.sentence_transformers_folder import tokenizer_sha256
from sightline.optional_imports import require
from sightline.settings import explain, nearest_choices
from sightline.user_files import OBJECT, read_json, should_be

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OPEN_CLIP_FILE = "open_clip_config.json"
"""The model config in a folder that open_clip writes for the hub."""

_NEEDED = ("embed_dim", "vision_cfg", "text_cfg")
_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode", "fill_color")
_CHECKPOINTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pth",
)
"""Files of weights in the order in which open_clip chooses one of a folder."""
_Clean = Literal["lower", "whitespace", "canonicalize"]
_TEXT_MODULES = ("text", "text_decoder", "transformer", "token_embedding", "ln_final")


class OpenClipConfig(ImageConfig):
    """Both towers of a CLIP: images and texts.

    Attributes:
        model: an open_clip name, a model config (JSON), an open_clip folder or ``hf-hub:NAME``
            (weights: ``pretrained``).
        channels_last: the memory layout of images and convolutions, for towers made of these
            (ResNets are always run so).
    """

    family: Literal["open_clip"]
    channels_last: Annotated[bool, COMPUTED] = False

    @property
    def file(self) -> Path | None:
        """The JSON of a model config; None for a name or a folder."""
        return Path(self.model) if self.model.endswith(".json") else None

    def require_files(self) -> None:
        if self.file and not self.file.is_file():
            raise SightlineError(
                f"{self.model}: no such file; expected the JSON of an open_clip model config"
            )
        super().require_files()

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        """The image tower, on `device`: images → projected CLIP features.

        Raises:
            SightlineError: unknown model or tag, unreadable self, weights that do not fit or are
                unavailable, or a model and weights that disagree about QuickGELU.
        """
        from pipeline.encoders.frozen_model import FrozenModel

        model, identity, dim, _ = _towers(self, _TEXT_MODULES)

        def forward(images: Tensor) -> Tensor:
            # CoCa's towers normalise by default, which cannot be undone.
            return model.encode_image(images, normalize=False)

        preprocessing = _preprocessing(model.visual.preprocess_cfg, identity.name)
        frozen = FrozenModel(
            model,
            device,
            precision,
            forward,
            channels_last=self.channels_last,
            compiled=self.compile,
        )
        return frozen.image_encoder(identity, dim, preprocessing)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        """The text tower, on `device`: texts → projected CLIP features.

        Every text is computed at the context length, the only one that the tower accepts; longer
        texts are truncated to it, as CLIP does.

        Raises:
            SightlineError: as `build_image`; or a tokenizer with more tokens than the tower.
        """
        from pipeline.encoders.frozen_model import FrozenModel

        model, identity, dim, text = _towers(self, ("visual", "text_decoder"))
        context_length = text.context_length
        tokenizer = _tokenizer(text, identity.name)

        def forward(tokens: Tensor) -> Tensor:
            return model.encode_text(tokens, normalize=False)

        frozen = FrozenModel(model, device, precision, forward, compiled=self.compile)

        def count_cut(texts: Sequence[str]) -> int:
            return sum(count > context_length for count in _token_counts(tokenizer, texts))

        def lengths(texts: Sequence[str]) -> list[int]:
            return [context_length] * len(texts)

        def inputs(texts: Sequence[str], length: int) -> list[Tensor]:
            if length != context_length:
                raise ValueError(f"length is {length}; this tower takes {context_length} only")
            return [tokenizer(list(texts))]  # int64 [n, context length]

        preprocessing: dict[str, object] = {
            "tokenizer": type(tokenizer).__name__,
            "tokenizer_sha256": _tokenizer_sha256(tokenizer),
            "tokenizer_options": text.tokenizer_options,
            "context_length": context_length,
            "pooling": "the model's own: text projection",
        }
        if text.hf_model_name:
            preprocessing["config_sha256"] = config_sha256(Pretrained(text.hf_model_name))
        return frozen.text_encoder(identity, dim, preprocessing, lengths, inputs, count_cut)


def _open_clip() -> Any:
    return require("open_clip", "this encoder")


_Size = Annotated[int, Field(ge=1)]


class _Preprocessing(BaseModel):
    """What we read of `preprocess_cfg`; null leaves it to open_clip."""

    size: Annotated[
        _Size | tuple[_Size, _Size] | None, should_be("a number of pixels, or height and width")
    ] = None
    mean: Annotated[Finite | Mean | None, should_be("a number, or three")] = None
    std: Annotated[Positive | Deviation | None, should_be("a number above 0, or three")] = None
    interpolation: str | None = None
    resize_mode: str | None = None
    fill_color: Annotated[int, Field(ge=0, le=255)] | None = None


class _Architecture(BaseModel):
    """What a model config must have; open_clip reads the rest."""

    embed_dim: _Size
    vision_cfg: dict[str, Any]
    text_cfg: dict[str, Any]


class _ModelFile(BaseModel):
    """open_clip's nested layout; its flat one is made so."""

    model_cfg: _Architecture
    preprocess_cfg: _Preprocessing = _Preprocessing()


class _ClipTokenizer(BaseModel):
    """`tokenizer_kwargs` of CLIP's own tokenizer that a model config may choose."""

    model_config = ConfigDict(extra="forbid")
    clean: _Clean | None = None
    additional_special_tokens: list[str] | None = None


class _HubTokenizer(BaseModel):
    """The same of a tokenizer of transformers, which would take a permission to run code too."""

    model_config = ConfigDict(extra="forbid")
    clean: _Clean | None = None
    strip_sep_token: bool | None = None
    language: str | None = None


class _TextConfig(BaseModel):
    """What we read of `text_cfg` of a model config; open_clip reads the rest."""

    context_length: Annotated[int, Field(ge=1)] = 77  # CLIP's
    vocab_size: int | None = None
    hf_model_name: str | None = None
    hf_tokenizer_name: str | None = None
    tokenizer_mode: Literal["", "clips"] | None = None
    tokenizer_kwargs: dict[str, Any] = {}

    @property
    def tokenizer_options(self) -> dict[str, Any]:
        """Those of `tokenizer_kwargs` that are given; ValidationError if one is not allowed."""
        options = _HubTokenizer if self.hf_tokenizer_name else _ClipTokenizer
        return options.model_validate(self.tokenizer_kwargs).model_dump(exclude_unset=True)


def _text_config(architecture: Mapping[str, Any], name: str, file: Path | None) -> _TextConfig:
    """`text_cfg` of a model config, checked before open_clip builds anything of it.

    Names of folders become absolute paths.

    Args:
        name: of the model, for messages.
        file: of the config; what it names may lie beside it.

    Raises:
        SightlineError: a value of another type, an option of the tokenizer that is not allowed, or
            a Hugging Face tower that would run code.
    """
    where = "text_cfg"
    try:
        text = _TextConfig.model_validate(architecture[where])
        where += ".tokenizer_kwargs"
        text.tokenizer_options  # noqa: B018  (checked here)
    except ValidationError as error:
        raise SightlineError(f"{name}: {'; '.join(explain(error, where))}") from error
    if text.hf_model_name:
        text.hf_model_name = _located(text.hf_model_name, file)
        Pretrained(text.hf_model_name).config()
    if text.hf_tokenizer_name:
        settings = file and file.name == OPEN_CLIP_FILE and file.with_name("tokenizer_config.json")
        if settings and settings.is_file():  # as open_clip does, whatever the name
            text.hf_tokenizer_name = str(settings.parent.absolute())
        text.hf_tokenizer_name = _located(text.hf_tokenizer_name, file)
    return text


def _located(name: str, file: Path | None) -> str:
    """The absolute path of a folder beside `file` or in this one; else the name, of a hub model."""
    places = ([file.parent / name] if file else []) + [Path(name)]
    return next((str(folder.absolute()) for folder in places if folder.is_dir()), name)


def _digest(architecture: Mapping[str, Any], text: _TextConfig) -> str:
    """Digest of a model config: of a folder that it names, what lies there and not where."""
    tower = dict(architecture["text_cfg"])
    if text.hf_model_name and Path(text.hf_model_name).is_dir():
        tower["hf_model_name"] = config_sha256(Pretrained(text.hf_model_name))
    if Path(str(tower.get("hf_tokenizer_name"))).is_absolute():
        del tower["hf_tokenizer_name"]  # the digest of the tokenizer is in the rows' fingerprint
    return digest({**architecture, "text_cfg": tower})


def _towers(
    config: OpenClipConfig, unused: Sequence[str]
) -> tuple[Any, EncoderRecord, int, _TextConfig]:
    """The model that `config` names on the CPU, its identity, numbers of a row, `text_cfg`.

    Args:
        unused: modules that only the other tower needs; they are dropped.
    """
    import torch

    config.require_files()
    spec = config.weights_spec
    weights, source, revision = Path(spec.value), spec.value, ""
    preprocessing: dict[str, Any] = {}
    path, folder = config.file, _folder(config)
    if folder is not None:
        path = _file_of(folder, (OPEN_CLIP_FILE,))
        if folder.folder is None:
            revision = commit_of(path)
            folder = replace(folder, revision=revision)
    if path is not None:
        if spec.kind == "pretrained" and folder is None:
            raise SightlineError(
                f"{path}: a custom model config has no published weights; "
                "use file:PATH or random:SEED"
            )
        architecture, preprocessing = _read_config(path)
    else:
        name = config.model.replace("/", "-")
        architecture = _open_clip().get_model_config(name)
        if architecture is None:
            every = "open_clip.list_models() in Python"
            raise SightlineError(
                f"unknown open_clip model {config.model!r}; give the JSON file of a model config, "
                f"a folder with {OPEN_CLIP_FILE} or one of "
                f"{nearest_choices(config.model, _open_clip().list_models(), every)}"
            )
    text = _text_config(architecture, config.model, path)
    if path is not None:
        # weights do not reveal heads or activations, so the name does
        name = f"{folder.title if folder else path.stem}@{_digest(architecture, text)[:12]}"
    if spec.kind == "pretrained" and folder is not None:
        weights = _file_of(folder, _CHECKPOINTS)
        source = str(weights) if folder.folder else f"{weights.name} of {config.model}"
    elif spec.kind == "pretrained":
        source = config.weights
        published = _published(name, spec.value, architecture)
        preprocessing = {key: published.get(key) for key in _PREPROCESSING}
        with quiet(), from_hub(config.model, f"weights {spec.value!r}"):
            weights = Path(_open_clip().download_pretrained(published))
        revision = str(published.get("hf_hub") or weights.stem).rstrip("/")
    overrides = {"mean": config.mean, "std": config.std, "interpolation": config.interpolation}
    preprocessing |= {key: value for key, value in overrides.items() if value}
    if text.hf_model_name:
        tower = {**architecture["text_cfg"], "hf_model_name": text.hf_model_name}
        architecture = {**architecture, "text_cfg": tower}
    model = _untrained(config.model, architecture, preprocessing, spec.seed)
    if spec.kind != "random":
        _load(model, read_state_dict(weights), source, config.model)
    identity = identity_of(model, f"open_clip/{name}", spec, revision)
    for part in unused:
        if isinstance(getattr(model, part, None), torch.nn.Module):
            delattr(model, part)
    return model, identity, int(architecture["embed_dim"]), text


def _folder(config: OpenClipConfig) -> Pretrained | None:
    """The folder or hub model, written by open_clip's ``push_to_hf_hub``, that `config` names."""
    name = config.model.removeprefix("local-dir:")
    on_hub = name.removeprefix("hf-hub:")
    is_listed = config.model.replace("/", "-") in _open_clip().list_models()
    if on_hub != name or (Path(name).is_dir() and not is_listed):
        return Pretrained(on_hub, config.weights_spec.revision)
    return None


def _file_of(folder: Pretrained, names: Sequence[str]) -> Path:
    """The first of the files ``names`` that the folder or hub model has."""
    for name in names:
        if path := folder.files([name]).get(name):
            return path
    raise SightlineError(
        f"{folder.name}: not a folder of open_clip: no {' or '.join(names)} here; write it with "
        "open_clip.push_to_hf_hub.save_for_hf, give file:PATH as its weights, or name a model of "
        "transformers as transformers:FOLDER"
    )


def _untrained(
    name: str, architecture: Mapping[str, Any], preprocessing: Mapping[str, Any], seed: int
) -> Any:
    """The model of that architecture with weights drawn with that seed, in fp32 on the CPU.

    Args:
        name: as the user named it, for errors.
    """
    with tempfile.TemporaryDirectory() as folder:
        # open_clip reads a config from a folder, under this fixed name.
        text = json.dumps({"model_cfg": architecture, "preprocess_cfg": preprocessing})
        (Path(folder) / "open_clip_config.json").write_text(text, encoding="utf-8")
        with seeded(seed), quiet(), reaching(name, "model configuration"):
            try:
                return (
                    _open_clip()
                    .create_model(
                        f"local-dir:{folder}",
                        load_weights=False,
                        pretrained_image=False,
                        pretrained_text=False,
                        precision="fp32",
                        device="cpu",
                    )
                    .eval()
                )
            except (OSError, MemoryError, SightlineError):
                raise
            except Exception as error:  # whatever it meets in values that it does not check
                raise SightlineError(
                    f"{name}: open_clip cannot build this model config "
                    f"({type(error).__name__}: {error})"
                ) from error


def _read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(model config, preprocessing config) of a JSON file: open_clip's flat or nested layout."""
    content = read_json(path, OBJECT, "an open_clip model config")
    architecture = content.get("model_cfg", content)
    if not isinstance(architecture, dict):
        raise SightlineError(f"{path}: model_cfg: found {architecture!r}, expected an object")
    missing = [name for name in _NEEDED if name not in architecture]
    if missing:
        raise SightlineError(
            f"{path}: not an open_clip model config, {', '.join(missing)} missing; "
            f"expected {', '.join(_NEEDED)} and, where wanted, preprocess_cfg"
        )
    kept = {key: value for key, value in architecture.items() if key != "preprocess_cfg"}
    preprocessing = content.get("preprocess_cfg", {})
    try:
        _ModelFile.model_validate({"model_cfg": kept, "preprocess_cfg": preprocessing})
    except ValidationError as error:
        raise SightlineError(f"{path}: {'; '.join(explain(error))}") from error
    return kept, preprocessing


def _published(name: str, tag: str, architecture: Mapping[str, Any]) -> Mapping[str, Any]:
    """The library's record of published weights of the model `name`."""
    record = _open_clip().get_pretrained_cfg(name, tag)
    if not record:
        raise unknown_tag(name, tag, _open_clip().list_pretrained_tags_by_model(name))
    quick = bool(record.get("quick_gelu"))
    if quick != bool(architecture.get("quick_gelu")):
        # open_clip only warns and uses the wrong activation; the features would be wrong.
        twin = f"{name}-quickgelu" if quick else name.removesuffix("-quickgelu")
        raise SightlineError(
            f"weights {tag!r} of {name} were trained with {'QuickGELU' if quick else 'GELU'}; "
            f"use model {twin!r} with them"
        )
    return record


def _load(model: Any, state: Mapping[str, Tensor], source: str, name: str) -> None:
    """Load `state`, accepting the two older layouts that open_clip itself still reads."""
    tensors = dict(state)
    if "positional_embedding" in tensors and not hasattr(model, "positional_embedding"):
        tensors = _open_clip().model.convert_to_custom_text_state_dict(tensors)
    # Not trained and not used: the buffer of position numbers that old text towers saved.
    tensors.pop("text.transformer.embeddings.position_ids", None)
    expected = model.state_dict()
    for key in ("logit_scale", "logit_bias"):
        # A scalar, saved with shape [] by some trainers and [1] by others.
        if key in tensors and key in expected and tensors[key].numel() == expected[key].numel():
            tensors[key] = tensors[key].reshape(expected[key].shape)
    load_exactly(model, tensors, source, name)


def _preprocessing(cfg: Mapping[str, Any], name: str) -> ImagePreprocessing:
    """open_clip's evaluation transform for a model and its weights, on uint8 tensors."""
    size = cfg["size"]
    shape = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    if cfg["interpolation"] == "random":  # open_clip's name for "any"; it evaluates with bicubic
        cfg = {**cfg, "interpolation": "bicubic"}
    for key, choices in ("interpolation", Interpolation), ("resize_mode", ResizeMode):
        if cfg[key] not in get_args(choices):
            raise SightlineError(
                f"{name}: {key} {cfg[key]!r} in its preprocess_cfg; "
                f"expected {' or '.join(get_args(choices))}"
            )
    return ImagePreprocessing(
        resize=shape,
        crop=shape,
        interpolation=cfg["interpolation"],
        mean=_triple(cfg["mean"]),
        std=_triple(cfg["std"]),
        resize_mode=cfg["resize_mode"],
        fill=int(cfg.get("fill_color", 0)),
    )


def _triple(value: Any) -> tuple[float, float, float]:
    values = [float(value)] * 3 if isinstance(value, int | float) else [float(v) for v in value]
    return values[0], values[1], values[2]


def _tokenizer(text: _TextConfig, model: str) -> Any:
    """The tokenizer that the model config specifies.

    Args:
        model: named in errors.
    """
    options = {**text.tokenizer_options, "context_length": text.context_length}
    name = text.hf_tokenizer_name
    if name:
        is_folder = Path(name).is_dir()
        if is_folder:
            Pretrained(name).tokenizer()  # one that knows no word is refused
        fetching = reaching if is_folder else from_hub
        with fetching(model, f"tokenizer {name!r}"), quiet():
            tokenizer = _open_clip().tokenizer.HFTokenizer(
                name, tokenizer_mode=text.tokenizer_mode, trust_remote_code=False, **options
            )
        size = len(tokenizer.tokenizer)
    else:
        tokenizer = _open_clip().SimpleTokenizer(**options)
        size = tokenizer.vocab_size
    room = text.vocab_size or size
    if not text.hf_model_name and size > room:
        raise SightlineError(
            f"{model}: its tokenizer has {size} tokens and its text tower only "
            f"{room}; set text_cfg.vocab_size to {size}"
        )
    return tokenizer


def _token_counts(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Tokens, special ones included and none cut, of each text that may have too many."""
    # of ASCII text, no tokenizer makes more tokens than characters, but for special ones
    long = [t for t in texts if len(t) > tokenizer.context_length - 4 or not t.isascii()]
    if not isinstance(tokenizer, _open_clip().tokenizer.HFTokenizer):
        return [len(tokenizer.encode(text)) + 2 for text in long]
    clips = tokenizer.tokenizer_mode == "clips"  # adds its own special tokens
    clean = [tokenizer.clean_fn(text) for text in long]
    ids = tokenizer.tokenizer(clean, add_special_tokens=not clips)["input_ids"] if clean else []
    return [len(row) + 3 * clips for row in ids]


def _tokenizer_sha256(tokenizer: Any) -> str:
    """Digest (hex) of the vocabulary, merges and rules of either kind of tokenizer."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is not None:
        return tokenizer_sha256(inner)
    merges = sorted(tokenizer.bpe_ranks.items(), key=lambda item: item[1])
    rules = [sorted(tokenizer.encoder.items()), merges, tokenizer.pat.pattern]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
