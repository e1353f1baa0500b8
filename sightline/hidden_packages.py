"""Our own packages whose names a module of the user has, which then hides them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from sightline.errors import SightlineError


def require_not_hidden(package: str) -> None:
    """Check that another module of its name, such as a user's script, does not hide a package.

    Python looks for modules in the folder of the running script first. Importing that module would
    run it, a second time if it is the script itself.
    """
    ours = Path(__file__).parents[1] / package
    loaded = sys.modules.get(package)
    spec = getattr(loaded, "__spec__", None) if loaded else find_spec(package)
    origin = spec.origin if spec else None
    if origin is not None and not ours.samefile(Path(origin).parent):
        place = Path(origin)
        place = place.parent if place.stem == "__init__" else place
        raise SightlineError(
            f"{place}: hides Sightline's own package `{package}`, because Python looks in the "
            "folder of the running script, then in those of PYTHONPATH, first; rename it, for "
            f"example to my_{package}{place.suffix}"
        )
