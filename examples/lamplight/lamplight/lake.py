"""Pictures and captions in a table of Lance or Delta Lake, at any of its versions."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pipeline.datasets.source import DatasetError, PrepareReport, Progress, Source
from pipeline.datasets.table_rows import WRITES, rows_to_manifests


class LakeSource(Source):
    """A table with a column of pictures and one of captions.

    Attributes:
        path: its folder.
        format: lance or delta.
        version: of the table; None: the newest.
        picture: column of the pictures' bytes.
        said: column of the captions, texts or lists of texts.
    """

    writes: ClassVar[tuple[str, ...]] = WRITES

    path: Path = Path()
    format: Literal["lance", "delta"]
    version: int | None = None
    picture: str = "picture"
    said: str = "caption"

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        if not self.path.is_dir():
            raise DatasetError(f"{self.path}: no such table; check `path`")
        if self.format == "lance":
            import lance

            table = lance.dataset(str(self.path), version=self.version)
        else:
            from deltalake import DeltaTable

            table = DeltaTable(str(self.path), version=self.version).to_pyarrow_dataset()
        rows_to_manifests(
            table.to_batches(columns=[self.picture, self.said], batch_size=64),
            folder,
            report,
            where=str(self.path),
            image=self.picture,
            caption=self.said,
            total=table.count_rows(),
            progress=progress,
        )
