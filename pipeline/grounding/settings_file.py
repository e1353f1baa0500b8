"""Settings of a grounding in a separate YAML file."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pipeline.grounding.grounder_config import GroundingSettings
from sightline.errors import SightlineError
from sightline.outside import read_yaml
from sightline.settings import explain


def read_settings(path: Path) -> GroundingSettings:
    """Read and check ``path``, with the same content as `grounding` in params.yaml.

    Raises:
        SightlineError: no such file, not YAML, or an invalid key or value.
    """
    if not path.is_file():
        raise SightlineError(
            f"{path}: no such file; expected YAML with a `grounder` (see docs/grounding.md)"
        )
    try:
        return GroundingSettings.model_validate(read_yaml(path))
    except ValidationError as error:
        lines = [f"{path}: {line}" for line in explain(error)]
        raise SightlineError("\n".join(lines)) from error
