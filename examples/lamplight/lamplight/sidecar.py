"""Pictures with a text file beside each, one caption a line."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pipeline.datasets.caption_images import write_named
from pipeline.datasets.images import scan_images
from pipeline.datasets.samples import Sample
from pipeline.datasets.source import (
    DatasetError,
    ImageFolder,
    PrepareReport,
    Progress,
    Source,
)
from sightline.user_files import read_lines


class SidecarSource(Source):
    """Images and the files beside them.

    Attributes:
        images: folder of images, searched with its subfolders.
        suffix: of the files that hold the captions.
    """

    licence: ClassVar[str] = "the album's owner has all rights; do not pass on the pictures"

    images: ImageFolder
    suffix: str = ".txt"

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests into ``folder`` and fill ``report``.

        Raises:
            DatasetError: there are no images, or no captions.
        """
        images = scan_images(self.images, report, progress=progress)
        samples = []
        for image in images["image_id"].to_pylist():
            file = (self.images / image).with_suffix(self.suffix)
            if file.is_file():
                texts = [line for line in read_lines(file) if line.strip()]
                samples.append(Sample(where=file.name, image=image, texts=texts))
        if not samples:
            raise DatasetError(
                f"{self.images}: no file *{self.suffix} beside an image; check `suffix`"
            )
        write_named(folder, images, samples, report, where=str(self.images))
