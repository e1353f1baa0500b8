"""Weights: read a state dict safely, load it exactly, and say which they are."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from pipeline.encoders.config import WEIGHTS_FILE, WeightsSpec, require_weights
from sightline.cache.record import EncoderRecord
from sightline.errors import SightlineError
from sightline.files.file_kinds import file_kind, unexpected
from sightline.models.pretrained import Pretrained, check_finite, quiet
from sightline.user_files import OBJECT, read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

_SHOWN = 3
_SINGLE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files of weights in the order in which transformers chooses one."""
_PROVENANCE = "provenance.json"
_COMPILED = re.compile(r"(?<![^.])_orig_mod\.")
"""What `torch.compile` puts before the names of a module, which may be part of another."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the CPU generator temporarily; the global random state is restored.

    Models are always built on the CPU, so that a seed gives the same model on every device.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def state_dict_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 (hex) over names in order, data types, shapes and raw little-endian bytes.

    It does not depend on the tensors' file format or order.
    """
    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        header = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(header).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a state dict from ``torch.save``, by its content.

    Unpacks a state dict nested under ``state_dict`` or ``model``, and leaves out what wrappers put
    before its names: ``_orig_mod.`` of compiled modules, ``module.`` of data-parallel training.

    Raises:
        SightlineError: no such file, unreadable, or containing more than tensors. Nothing is
            unpickled beyond what ``weights_only=True`` allows.
    """
    import torch
    from safetensors.torch import load_file

    require_weights(path)
    try:
        kind = file_kind(path)
        if kind == "safetensors":
            state: object = load_file(path)
        elif kind in ("pytorch", "pickle") or (kind == "zip" and not zipfile.is_zipfile(path)):
            # of a path, torch.load reads .safetensors by its suffix
            with quiet(), path.open("rb") as file:
                state = torch.load(file, map_location="cpu", weights_only=True)
        elif kind is not None:
            raise unexpected(path, kind, WEIGHTS_FILE)
        else:
            raise ValueError("it begins as neither does")
    except pickle.UnpicklingError as error:
        raise SightlineError(
            f"{path}: contains more than tensors, and Sightline never unpickles objects; load it "
            "where you trust it, save its state dict, `torch.save(model.state_dict(), FILE)`, and "
            "use that file"
        ) from error
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        first = str(error).partition("\n")[0] or "it ends too early"
        raise SightlineError(
            f"{path}: expected {WEIGHTS_FILE}; damaged, or neither of them ({first}); "
            "recreate or download it again"
        ) from error
    for nested in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(nested), Mapping):
            state = state[nested]
    if not isinstance(state, Mapping) or not all(
        isinstance(t, torch.Tensor) for t in state.values()
    ):
        raise SightlineError(f"{path}: expected a state dict (name → tensor), found something else")
    return _unwrapped({str(name): tensor for name, tensor in state.items()})


def _unwrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names that they have in the module itself, not in its wrappers."""
    plain = {_COMPILED.sub("", name): tensor for name, tensor in tensors.items()}
    if len(plain) < len(tensors):  # of two modules
        return tensors
    if plain and all(name.startswith("module.") for name in plain):
        plain = {name.removeprefix("module."): tensor for name, tensor in plain.items()}
    return plain


def checkpoint_sha256(source: Pretrained) -> str:
    """`state_dict_sha256` of the tensors as they lie in a model's files.

    Not of the loaded model: transformers renames its tensors from one release to the next.
    """
    single = source.files(_SINGLE)
    chosen = next((name for name in _SINGLE if name in single), None)
    if chosen is None:
        raise SightlineError(
            f"{source.name}: none of {', '.join(_SINGLE)}; save the whole model there "
            "(an adapter merged into it)"
        )
    if not chosen.endswith(".json"):
        return state_dict_sha256(read_state_dict(single[chosen]))
    shards = sorted(set(source.json(chosen)["weight_map"].values()))
    tensors: dict[str, Tensor] = {}
    for path in source.files(shards).values():
        tensors |= read_state_dict(path)
    return state_dict_sha256(tensors)


def unknown_tag(model: str, tag: str, published: Sequence[str]) -> SightlineError:
    """The error for weights ``pretrained:TAG`` that are not among a model's published ones."""
    if not published:
        return SightlineError(f"{model} has no published weights; use file:PATH or random:SEED")
    fault = f"has no weights {tag!r}" if tag else "needs the tag of its weights"
    return SightlineError(f"{model} {fault}; use pretrained: with one of {', '.join(published)}")


def load_exactly(module: nn.Module, state: Mapping[str, Tensor], source: str, model: str) -> None:
    """Load `state` into `module`: every name and shape must match.

    Raises:
        SightlineError: one message with a few missing and unexpected names and shapes; `source`
            and `model` are the file and architecture that it mentions.
    """
    expected = module.state_dict()
    # BatchNorm's training counters; early checkpoints have none, and a frozen model never reads
    # them.
    counters = {name for name in expected if name.endswith("num_batches_tracked")}
    missing = sorted(expected.keys() - state.keys() - counters)
    unexpected = sorted(state.keys() - expected.keys())
    unlike = [
        f"{name} is {list(state[name].shape)}, expected {list(expected[name].shape)}"
        for name in sorted(expected.keys() & state.keys())
        if state[name].shape != expected[name].shape
    ]
    problems = [
        f"{len(names)} {fault} ({_few(names)})"
        for fault, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("with a different shape", unlike),
        )
        if names
    ]
    if problems:
        raise SightlineError(
            f"{source} does not fit {model}: of {len(expected)} tensors "
            f"{'; '.join(problems)}. Use the model these weights were made for, or other weights"
        )
    module.load_state_dict(dict(state), strict=False)
    check_finite(source, module)


def build_model(source: Pretrained, spec: WeightsSpec, architecture: Any, settings: Any) -> Any:
    """A model of transformers with the weights that ``spec`` names, as `Pretrained.model` has it.

    Args:
        architecture: its class, or ``AutoModel``.
        settings: its configuration.

    Raises:
        SightlineError: see `Pretrained` and `load_exactly`.
    """
    import torch

    if spec.kind == "pretrained":
        return source.model(architecture, settings)
    with seeded(spec.seed), source.reading("configuration"):
        if hasattr(architecture, "from_config"):
            model = architecture.from_config(settings, dtype=torch.float32).eval()
        else:
            model = architecture(settings).eval()
    if spec.kind == "file":
        load_exactly(model, read_state_dict(Path(spec.value)), spec.value, source.name)
    return model


def identity_of(
    model: nn.Module,
    name: str,
    spec: WeightsSpec,
    revision: str = "",
    source: Pretrained | None = None,
) -> EncoderRecord:
    """The identity of a model as it was loaded.

    Its source is ``random:0``, ``pretrained:TAG`` or ``file:NAME``, never a path, followed by the
    sentence in a ``provenance.json`` beside the weights; for the file ``NAME.safetensors``, that in
    ``NAME.provenance.json`` comes first.

    Args:
        name: family and architecture, such as ``torchvision/resnet50``.
        spec: the weights that it was loaded with.
        revision: of published weights, if they have one: a commit, or a file name.
        source: of published weights of a model of transformers.
    """
    published, value = spec.kind == "pretrained", spec.value
    notes = [source.folder / _PROVENANCE] if published and source and source.folder else []
    if spec.kind == "file":
        file = Path(value)
        value, notes = file.name, [file.with_suffix(f".{_PROVENANCE}"), file.parent / _PROVENANCE]
    origin = f"{spec.kind}:{value}" if value else spec.kind
    digest = checkpoint_sha256(source) if published and source else None
    return EncoderRecord(
        name=name,
        source=origin + _provenance(notes),
        revision=revision if published else "",
        weights_sha256=digest or state_dict_sha256(model.state_dict()),
        untrained=spec.kind == "random",
    )


def _provenance(notes: Sequence[Path]) -> str:
    """The sentence about the weights in the first of ``notes`` that is there: `` (sentence)``."""
    path = next((path for path in notes if path.is_file()), None)
    if path is None:
        return ""
    claim = read_json(path, OBJECT, "a note on weights; fix or remove it")
    sentence = claim.get("source")
    return f" ({sentence})" if isinstance(sentence, str) and sentence else ""


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, …"
