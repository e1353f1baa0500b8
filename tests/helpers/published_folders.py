"""Folders of models in the layouts of published ones, older than what transformers writes now."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def edit(file: Path, changes: Mapping[str, object], removed: tuple[str, ...] = ()) -> None:
    """Change and remove keys of a JSON file."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if k not in removed}))


def in_half(folder: Path) -> None:
    """Make its weights float16, and its configuration name them as before transformers 5."""
    tensors = load_file(folder / WEIGHTS)
    halves = {k: v.half() if v.is_floating_point() else v for k, v in tensors.items()}
    save_file(halves, folder / WEIGHTS, {"format": "pt"})
    edit(folder / "config.json", {"torch_dtype": "float16"}, ("dtype",))


def add_tensors(folder: Path, more: Mapping[str, Tensor]) -> None:
    """Add tensors that older releases saved and newer ones derive."""
    save_file({**load_file(folder / WEIGHTS), **more}, folder / WEIGHTS, {"format": "pt"})


def split_processor(folder: Path) -> Path:
    """Write the image processor into a file of its own; its path."""
    values = json.loads((folder / "processor_config.json").read_text())
    images = {**values.pop("image_processor"), "processor_class": values["processor_class"]}
    (folder / "processor_config.json").write_text(json.dumps(values))
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder / "preprocessor_config.json"
