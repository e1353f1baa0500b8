"""How an encoder's folder says to use it, and loading the student or evaluated encoder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence
from yaml import YAMLError

from sightline.cache.keys import key_of_file
from sightline.digest import Pinned
from sightline.errors import SightlineError
from sightline.models.pooling import Pooling
from sightline.models.pretrained import Pretrained

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# A tokenizer without a limit reports 1e30; no position table is longer than this.
_NO_LIMIT = 1_000_000
_POSITIONS_FROM_PADDING = {
    "roberta",
    "xlm-roberta",
    "camembert",
    "mpnet",
    "longformer",
    "data2vec-text",
}


SENTENCE_SETTINGS = (
    "sentence_bert_config.json",
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert")),
    *("sentence_xlm-roberta_config.json", "sentence_xlnet_config.json"),
)
"""Names under which sentence-transformers looks for a model's own settings, in this order."""


@dataclass(frozen=True)
class Recipe:
    """How a sentence-transformers folder says to make an embedding.

    `pooling` is None for a plain Hugging Face folder, which does not specify it. `max_length` is in
    tokens, special tokens included; None leaves it to the tokenizer and the model. `prompt` comes
    before every text, `prompts` are those that its authors named; `pools_prompt` is False where the
    folder leaves a prompt's tokens out of the pooling. `similarity` is what its users compare
    embeddings by, and `modules` are the kinds of those after the encoder.
    """

    pooling: Pooling | None = None
    normalize: bool = False
    max_length: int | None = None
    do_lower_case: bool = False
    subfolder: str = ""
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    pools_prompt: bool = True
    similarity: str = "cosine"
    modules: tuple[str, ...] = ()

    def check_prompt(self, source: str | Path, prompt: str) -> None:
        """Refuse a ``prompt`` whose tokens would be pooled, against the folder."""
        if prompt and not self.pools_prompt:
            raise SightlineError(
                f"{source}: its Pooling module leaves the tokens of a prompt out (include_prompt), "
                f"which Sightline does not; use it without the prompt {prompt!r}"
            )


def read_recipe(source: str | Path, *, bare: bool = False, revision: str = "") -> Recipe:
    """The recipe of a folder or hub name; an empty `Recipe` for a plain Hugging Face folder.

    Args:
        bare: the caller chooses the pooling, so only the encoder's settings (maximum length,
            lower-casing, sub-folder, prompts) are read and the modules after it are ignored.
        revision: of a hub name.

    Raises:
        SightlineError: the folder has a pooling or a module that Sightline does not support;
            ignoring it would silently change the embeddings.
    """
    folder = Pretrained(str(source), revision)
    with folder.reading("sentence-transformers settings", silent=folder.folder is None):
        modules = folder.json("modules.json")
        if modules is None:
            return Recipe()
        pooling: Pooling | None = None
        normalize, pools_prompt = False, True
        subfolder, after = "", list[str]()
        for module in modules:
            kind = str(module["type"]).rsplit(".", 1)[-1]
            if kind == "Transformer":
                subfolder = str(module["path"])
                continue
            after.append(kind)
            if bare:
                continue
            if kind == "Pooling":
                pooling, pools_prompt = _read_pooling(folder, f"{module['path']}/config.json")
            elif kind == "Normalize":
                normalize = True
            elif kind != "Dropout":
                raise SightlineError(
                    f"{source}: modules.json lists a {kind} module, which Sightline does not "
                    "support; give a pooling (cls or mean) to use the encoder without the modules "
                    "after it"
                )
        described = folder.json("config_sentence_transformers.json") or {}
        prompts = {name: text or "" for name, text in (described.get("prompts") or {}).items()}
        settings = sentence_settings(Pretrained(folder.name, folder.revision, subfolder))
        length = settings.get("max_seq_length")
        return Recipe(
            pooling=pooling,
            normalize=normalize,
            max_length=None if length is None else int(length),
            do_lower_case=bool(settings.get("do_lower_case", False)),
            subfolder=subfolder,
            prompt=prompts.get(described.get("default_prompt_name"), ""),
            prompts=prompts,
            pools_prompt=pools_prompt,
            similarity=str(described.get("similarity_fn_name") or "cosine"),
            modules=tuple(after),
        )


def prompt_of(source: str | Path, prompt: str | None) -> str:
    """``prompt``, or the default one of a folder or hub name if it is None; empty for none."""
    return read_recipe(source, bare=True).prompt if prompt is None else prompt


def sentence_settings(folder: Pretrained, *, or_give: str = "") -> dict[str, Any]:
    """What the first of `SENTENCE_SETTINGS` in a folder or hub model says; empty without any.

    Args:
        or_give: see `Pretrained.json`; of the name that is used today.
    """
    for name in SENTENCE_SETTINGS:
        option = or_give if name == SENTENCE_SETTINGS[0] else ""
        if (settings := folder.json(name, or_give=option)) is not None:
            return settings
    return {}


def _read_pooling(folder: Pretrained, file: str) -> tuple[Pooling, bool]:
    """How a Pooling module pools, and whether the tokens of a prompt count."""
    config = folder.json(file)
    if config is None:
        raise SightlineError(
            f"{folder.name}: modules.json lists a Pooling module, but {file} is not here; copy the "
            "whole folder, or give a pooling"
        )
    modes = config.get("pooling_mode")
    if modes is None:  # folders of earlier versions of sentence-transformers have a key for each
        keys = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        modes = [re.sub("pooling_mode_|_tokens?$", "", key) for key in keys]
    if not modes:
        raise SightlineError(
            f"{folder.name}: {file} names no pooling_mode; correct it, or give a pooling"
        )
    for pooling in ("cls", "mean", "lasttoken"):
        if modes in (pooling, [pooling]):
            return pooling, bool(config.get("include_prompt", True))
    raise SightlineError(
        f"{folder.name}: {file} sets {modes} pooling, but Sightline supports only cls, mean or "
        "lasttoken from such a folder; give a pooling to override it"
    )


def load_model(source: str | Path, recipe: Recipe) -> PreTrainedModel:
    """The encoder in float32 on the CPU, in eval mode."""
    from transformers import AutoModel

    folder = Pretrained(str(source), subfolder=recipe.subfolder)
    config = folder.config()
    check_encoder(folder.name, config)
    return folder.model(AutoModel, config)


def check_encoder(name: str, config: PretrainedConfig) -> None:
    """Refuse what has no hidden states of its input alone."""
    takes_text = hasattr(config, "hidden_size") and hasattr(config, "vocab_size")
    if getattr(config, "is_encoder_decoder", False) or not takes_text:
        raise SightlineError(
            f"{name}: a {config.model_type!r} model is not a text encoder; use an encoder (BERT, "
            "RoBERTa, MPNet, …)"
        )


def check_first_token(name: str, model: PreTrainedModel, pooling: Pooling | None) -> None:
    """Refuse the first token of a decoder, which has seen none of the others."""
    import torch

    if pooling not in ("cls", "pooler"):
        return
    ids = torch.tensor([[1, 2, 3], [1, 2, 4]], device=model.device)
    with torch.inference_mode():
        first, second = model(input_ids=ids).last_hidden_state[:, 0]
    if torch.equal(first, second):
        raise SightlineError(
            f"{name}: pooling {pooling!r} reads the first token, which in this "
            f"{model.config.model_type} decoder has seen no other; give mean or lasttoken"
        )


def check_vocabulary(name: str, tokenizer: Any, config: PretrainedConfig) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for."""
    rows = int(config.vocab_size)
    beyond = {i: token for token, i in tokenizer.get_vocab().items() if i >= rows}
    if beyond:
        first = min(beyond)
        raise SightlineError(
            f"{name}: its tokenizer knows {len(tokenizer)} tokens, its embeddings hold {rows} "
            f"({beyond[first]} is {first}); call model.resize_token_embeddings(len(tokenizer)) and "
            "save both"
        )


def load_tokenizer(source: str | Path, recipe: Recipe) -> PreTrainedTokenizerBase:
    """The tokenizer, lower-casing where the folder's sentence_bert_config.json asks for it."""
    folder = Pretrained(str(source), subfolder=recipe.subfolder)
    tokenizer = folder.tokenizer()
    check_vocabulary(folder.name, tokenizer, folder.config())
    if recipe.do_lower_case:
        lower_case(tokenizer)
    return tokenizer


def lower_case(tokenizer: Any) -> None:
    """Let ``tokenizer`` lower-case its texts first; an uncased one stays as it is."""
    backend = tokenizer.backend_tokenizer
    backend.normalizer = NormalizerSequence(
        [Lowercase()] if backend.normalizer is None else [Lowercase(), backend.normalizer]
    )


def token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
) -> list[list[int]]:
    """Ids of each text with its special tokens, truncated to ``max_length`` tokens, not padded."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
    )
    return encoded["input_ids"]  # pyright: ignore[reportReturnType]


def check_room(
    source: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    max_length: int,
    *,
    setting: str = "max_length (`--max-length`)",
) -> None:
    """Refuse a ``prompt`` that leaves no token of ``max_length`` to the texts after it."""
    if not prompt:
        return
    count = len(token_ids(tokenizer, [prompt], _NO_LIMIT)[0])
    if count < max_length:
        return
    folder = Pretrained(str(source), subfolder=read_recipe(source, bare=True).subfolder)
    most = positions(folder.config())
    remedy = f"raise {setting} above {count}, or shorten the prompt"
    if most is not None and most <= count:
        remedy = f"shorten the prompt: the encoder has positions for {most} tokens"
    raise SightlineError(
        f"{source}: the prompt has {count} tokens, special tokens included, and of a text only "
        f"{max_length} are read, so all texts would be alike; {remedy}"
    )


def count_longer(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> int:
    """How many texts have more than ``max_length`` tokens, special tokens included."""
    # of ASCII text, no tokenizer makes more tokens than characters, but for special ones
    long = [text for text in texts if len(text) > max_length - 4 or not text.isascii()]
    return sum(len(ids) > max_length for ids in token_ids(tokenizer, long, max_length + 1))


def tokenizer_sha256(tokenizer: Any) -> str:
    """SHA-256 (hex) of a Hugging Face tokenizer: vocabulary, merges, rules, special tokens.

    Current truncation and padding settings are excluded.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = json.loads(backend.to_str())
        for state in ("version", "truncation", "padding"):
            content.pop(state, None)
    else:
        content = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    body = [content, sorted(tokenizer.all_special_tokens)]
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fit_pooler(model: Any, name: str | Path, pooling: Pooling) -> None:
    """Drop a pooler that `pooling` does not use: it would never be trained, and it costs time."""
    has_one = getattr(model, "pooler", None) is not None
    if pooling != "pooler" and has_one:
        model.pooler = None
    if pooling == "pooler" and not has_one:
        raise SightlineError(
            f"{name}: pooling 'pooler' was requested, but this {model.config.model_type} encoder "
            "has no pooler weights; use another, such as cls or mean"
        )


def own_max_length(
    tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig, length: int | None = None
) -> int:
    """The longest input of an encoder in tokens, special tokens included; never the training 32.

    That is ``length`` (sentence_bert_config.json's `max_seq_length`) or else the tokenizer's
    `model_max_length`, but at most the number of usable `positions`.
    """
    if length is None and tokenizer.model_max_length < _NO_LIMIT:
        length = int(tokenizer.model_max_length)
    limits = [limit for limit in (length, positions(config)) if limit is not None]
    if not limits:
        raise SightlineError(
            f"the maximum length of this {config.model_type} encoder is unknown: neither "
            "tokenizer_config.json (model_max_length) nor config.json "
            "(max_position_embeddings) gives it; add one of them"
        )
    return min(limits)


def positions(config: PretrainedConfig) -> int | None:
    """Tokens that an encoder has position embeddings for; None where its config does not say.

    RoBERTa-like models number their positions from `pad_token_id + 1`, so 514 hold 512 tokens.
    """
    count = getattr(config, "max_position_embeddings", None)
    if not isinstance(count, int) or count <= 0:
        return None
    from_padding = config.model_type in _POSITIONS_FROM_PADDING
    return count - (int(config.pad_token_id or 0) + 1 if from_padding else 0)


_INDEX = "model.safetensors.index.json"
_OF_WEIGHTS = ("config.json", "model.safetensors", _INDEX)
_OF_A_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model"),
    *("tokenizer.model", *SENTENCE_SETTINGS),
)


def is_of_tokenizer(name: str) -> bool:
    """Whether a file of a model's folder decides how it reads a text: its tokens, its prompt."""
    return name in (*_OF_A_TOKENIZER, "modules.json", "config_sentence_transformers.json")


def pin(source: str | Path) -> Pinned:
    """Identify the files that `load_model` and `load_tokenizer` read of a folder or hub model."""
    folder = Pretrained(str(source), subfolder=read_recipe(source, bare=True).subfolder).pinned()
    weights = folder.files(_OF_WEIGHTS)
    index = folder.json(_INDEX) if _INDEX in weights else None
    if index is not None:
        weights |= folder.files(sorted(set(index["weight_map"].values())))
    tokenizer = folder.files(_OF_A_TOKENIZER)
    return Pinned(folder.revision, _sha256_of(weights), _sha256_of(tokenizer))


class Licence(NamedTuple):
    """A licence as the front matter of a model card states it.

    Attributes:
        licence: identifiers, or one; ``other`` has a name and a link. Empty: not known.
        name: of one that has no identifier.
        link: to its text.
    """

    licence: str | tuple[str, ...] = ""
    name: str = ""
    link: str = ""


def licence_of(source: str | Path) -> Licence:
    """The licence that the model card beside a model states; of a model on the hub, the link to a
    file beside the card becomes one that leads there from elsewhere too.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.repocard import metadata_load

    model = Pretrained(str(source))
    path = model.files(["README.md"]).get("README.md")
    try:
        front = {} if path is None else metadata_load(path) or {}
    except (ValueError, OSError, YAMLError):
        return Licence()
    stated = front.get("license") or ""
    licence = tuple(map(str, stated)) if isinstance(stated, list) else str(stated)
    name, link = (str(front.get(f"license_{part}") or "") for part in ("name", "link"))
    if link and "://" not in link and model.folder is None:
        link = hf_hub_url(model.name, link, revision=model.revision or None)
    return Licence(licence, name, link)


def _sha256_of(files: Mapping[str, Path]) -> str:
    lines = [f"{key_of_file(path).hex()} {name}\n" for name, path in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
