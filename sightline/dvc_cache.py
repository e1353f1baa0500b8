"""The DVC cache of a project, into which DVC makes links with ``cache.type`` symlink."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from sightline.errors import SightlineError


def leads_into_dvc_cache(link: Path) -> bool:
    """Whether a link leads into the DVC cache of its own project or of the working folder's."""
    target, places = Path(os.path.realpath(link)), (link.absolute(), Path.cwd() / "here")
    projects = {project for place in places if (project := _project_of(place))}
    return any(target.is_relative_to(_cache_of(project)) for project in projects)


def _project_of(path: Path) -> Path | None:
    return next((folder for folder in path.parents if (folder / ".dvc").is_dir()), None)


@lru_cache(maxsize=16)
def _cache_of(project: Path) -> Path:
    """Where a project's cache is, links resolved; without DVC installed, where it is by default."""
    own = project / ".dvc"
    try:
        from dvc.config import Config
    except ModuleNotFoundError:
        return (own / "cache").resolve()
    from dvc.exceptions import DvcException

    try:
        return Path(Config(os.fspath(own))["cache"].get("dir") or own / "cache").resolve()
    except DvcException as error:
        raise SightlineError(f"DVC: {error}") from error
