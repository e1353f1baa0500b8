"""Loading a grounding model: exactly the one that was asked for, with exactly its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.encoders.config import parse_weights
from pipeline.encoders.teacher_model import loading
from pipeline.encoders.tokenizers import tokenizer_sha256
from pipeline.encoders.weights import describe_source, seeded, state_dict_sha256
from sightline.errors import SightlineError
from sightline.library_noise import quiet


@dataclass(frozen=True)
class LoadedModel:
    """A model, its processor, and the digests that name them.

    Attributes:
        model: in evaluation mode, float32, on the CPU.
        processor: image processor, tokenizer and post-processing, as the model's folder has them.
        identity: name, source, SHA-256 of weights, tokenizer and image processing; JSON values.
    """

    model: Any
    processor: Any
    identity: dict[str, object]


def load_model(name: str, weights: str, model_type: str, class_name: str) -> LoadedModel:
    """Load a model and its processor; nothing that a repository ships as code is run.

    Args:
        name: folder or hub name.
        weights: ``pretrained``, ``pretrained:REVISION`` or ``random:SEED``.
        model_type: that its configuration must say.
        class_name: of transformers.

    Raises:
        SightlineError: no such folder and the hub cannot be reached; a checkpoint of another
            model; weights that are missing, incomplete or of another shape.
    """
    import transformers

    spec = parse_weights(weights)
    folder = Path(name) if Path(name).is_dir() else None
    where: dict[str, Any] = {"trust_remote_code": False}
    if spec.kind == "pretrained" and spec.value:
        where["revision"] = spec.value
    with quiet():
        with loading(name, folder, "configuration"):
            settings = transformers.AutoConfig.from_pretrained(name, **where)
        if settings.model_type != model_type:
            raise SightlineError(
                f"{name}: this is a checkpoint of {settings.model_type!r}, expected "
                f"{model_type!r}; name a model of that family, or change `family`"
            )
        with loading(name, folder, "processor"):
            processor = transformers.AutoProcessor.from_pretrained(name, **where)
        architecture = getattr(transformers, class_name)
        if spec.kind == "random":
            with seeded(spec.seed), loading(name, folder, "configuration"):
                model = architecture(settings)
        else:
            with loading(name, folder, "weights"):
                model, report = architecture.from_pretrained(
                    name, config=settings, dtype=torch.float32, output_loading_info=True, **where
                )
            require_complete(name, report)
    identity: dict[str, object] = {
        "model": folder.resolve().name if folder else name,
        "source": describe_source(spec, folder=folder),
        "weights_sha256": state_dict_sha256(model.state_dict()),
        "tokenizer_sha256": tokenizer_sha256(processor.tokenizer),
        "image_processing": _plain(processor.image_processor.to_dict()),
        "untrained": spec.kind == "random",
    }
    return LoadedModel(model.eval(), processor, identity)


def require_complete(name: str, report: dict[str, Any]) -> None:
    """Refuse weights that left tensors of the model unset, by transformers' loading report."""
    missing = sorted(report.get("missing_keys", ()))
    unlike = sorted(str(entry) for entry in report.get("mismatched_keys", ()))
    if missing or unlike:
        raise SightlineError(
            f"{name}: its weights lack {len(missing)} tensors of the model and {len(unlike)} have "
            f"another shape ({', '.join((missing + unlike)[:3])}); name weights that were made "
            "for this model"
        )


def _plain(settings: dict[str, Any]) -> dict[str, object]:
    """Settings of an image processor that are JSON values."""
    kinds = (str, int, float, bool, list, tuple, dict, type(None))
    return {key: value for key, value in sorted(settings.items()) if isinstance(value, kinds)}
