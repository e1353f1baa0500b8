"""Join data sets of image–caption pairs: MCSE's table 5 trains on Flickr30k and COCO."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator

from pipeline.datasets.manifests import shared_images, write_captioned
from pipeline.datasets.source import DatasetError, Location, PrepareReport, Progress, Source
from sightline.cache.manifest import CAPTIONS, IMAGES, read_manifest
from sightline.cache.prepared import (
    HUB_DATASET,
    LICENCE,
    PreparedDataset,
    dataset_facts,
    hub_datasets,
)
from sightline.files.places import here, is_url, shown


class JoinedSource(Source):
    """Several prepared data sets of pairs as one.

    Attributes:
        parts: name → folder of a prepared data set. Ids of images and captions are prefixed with
            the name, as in ``coco/COCO_train2014_000000000009.jpg``.
        images: name → base folder of that data set's image paths; default: where it was prepared.
    """

    example: ClassVar[str] = (
        "sightline prepare joined --parts flickr=data/flickr30k --parts coco=data/coco "
        "--out data/flickr30k-coco"
    )

    kind: Literal["joined"] = "joined"
    parts: dict[str, Path]
    images: dict[str, Location] = {}

    @field_validator("parts")
    @classmethod
    def _at_least_two(cls, parts: dict[str, Path]) -> dict[str, Path]:
        if len(parts) < 2:
            raise ValueError(f"found {len(parts)} data set(s), expected at least two to join")
        if odd := [name for name in parts if not name or "/" in name]:
            raise ValueError(f"{odd[0]!r} cannot name a part: use one word without a slash")
        return parts

    @property
    def image_folders(self) -> dict[str, Path | str]:
        """Name → base folder of its image paths, or its URL, of every part."""
        return self.images or {
            name: PreparedDataset.open(folder).require_images()
            for name, folder in self.parts.items()
        }

    def image_root(self, prepared: Path) -> Path | str:
        return common_root(self.image_folders.values())

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests of all parts as one; paths are relative to `common_root`.

        Raises:
            DatasetError: a part has no captions or no image folder, or two parts hold the same
                image.
        """
        folders = self.image_folders
        if odd := sorted(self.parts.keys() ^ folders.keys()):
            raise DatasetError(f"part {odd[0]!r}: give both its manifests and its image folder")
        root = common_root(folders.values())
        images, captions, owners = [], [], []
        for name, part in self.parts.items():
            pictures = read_manifest(part / "images.parquet", IMAGES)
            texts = read_manifest(part / "captions.parquet", CAPTIONS)
            if not len(texts):
                raise DatasetError(f"{part}: contains no captions, so it cannot be joined to pairs")
            below = _path_from(root, folders[name])
            below = f"{below}/" if below else ""
            images.append(_prefixed(pictures, image_id=f"{name}/", path=below))
            captions.append(_prefixed(texts, image_id=f"{name}/", caption_id=f"{name}/"))
            owners += [name] * len(pictures)
            report.counts[f"images_of_{name}"] = len(pictures)
            report.counts[f"captions_of_{name}"] = len(texts)
        all_images, texts = pa.concat_tables(images), pa.concat_tables(captions)
        if shared := shared_images(all_images.append_column("part", [owners]), "part"):
            raise DatasetError(
                f"joining {', '.join(self.parts)}: {len(shared)} image(s) are in two data sets "
                f"under different names, such as {' and '.join(shared[0])}, which are the same "
                "file; remove them from one data set, so that no caption has its own image as a "
                "negative"
            )
        licences = [dataset_facts(part).licence for part in self.parts.values()]
        report.facts[LICENCE] = "; ".join(dict.fromkeys(licences))
        if on_hub := hub_datasets(self.parts.values()):
            report.facts[HUB_DATASET] = ",".join(on_hub)
        write_captioned(
            folder, all_images, texts, report, where=", ".join(map(str, self.parts.values()))
        )
        if progress is not None:
            progress("joining", len(all_images), len(all_images), "images")


def common_root(folders: Iterable[Path | str]) -> Path | str:
    """The common parent of all ``folders``, or its URL; relative if all of them are."""
    folders = list(folders)
    paths = here(*folders)
    if not paths:
        parts = zip(*(shown(folder).split("/") for folder in folders), strict=False)
        shared = [part[0] for part in takewhile(lambda part: len({*part}) == 1, parts)]
        if len(shared) > 2:  # the protocol, nothing, and the server or bucket
            return "/".join(shared)
    if len(paths) < len(folders):
        raise DatasetError(
            f"images are at {', '.join(map(shown, folders))}: joined data sets have theirs in one "
            "place; copy those of one of them"
        )
    if any(path.is_absolute() for path in paths):
        paths = [path.absolute() for path in paths]
    return Path(os.path.commonpath([os.path.normpath(path) for path in paths]) or ".")


def _path_from(root: Path | str, folder: Path | str) -> str:
    if is_url(root):
        return shown(folder).removeprefix(str(root)).strip("/")
    below = PurePosixPath(os.path.relpath(folder, root)).as_posix()
    return "" if below == "." else below


def _prefixed(table: pa.Table, **prefixes: str) -> pa.Table:
    """``table`` with a prefix before every value of some columns."""
    for name, prefix in prefixes.items():
        values = table[name]
        before, between = (pa.scalar(text, values.type) for text in (prefix, ""))
        values = pc.binary_join_element_wise(before, values, between)
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table.replace_schema_metadata(None)
