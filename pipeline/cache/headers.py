"""A table whose file says, beside its columns, what it was made with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from pipeline.cache.errors import CacheError
from pipeline.cache.manifest import read_manifest, write_manifest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

H = TypeVar("H", bound="DataclassInstance")


@dataclass(frozen=True)
class HeadedTable(Generic[H]):
    """One kind of table that is a folder's only Parquet file and has a header.

    Attributes:
        file_name: of the table within its folder.
        schema: its columns.
        header: a dataclass of what JSON can hold.
        mark: where the file's metadata has it.
        command: what writes such a table.
        what: what it is called.
    """

    file_name: str
    schema: pa.Schema
    header: type[H]
    mark: bytes
    command: str
    what: str

    def read(self, path: Path) -> tuple[Path, pa.Table, H]:
        """The file, its rows and its header; ``path`` is the folder or the file itself.

        Raises:
            CacheError: the file is missing, damaged, or of another kind.
        """
        file = path if path.suffix == ".parquet" else path / self.file_name
        if not file.is_file():
            raise CacheError(f"{file}: no such {self.what}; write it with `{self.command}`")
        table = read_manifest(file, self.schema).combine_chunks()
        try:
            header = self.header(**json.loads((table.schema.metadata or {})[self.mark]))
        except (KeyError, TypeError, ValueError) as error:
            raise CacheError(
                f"{file}: its header is missing or of another version; {self.again}"
            ) from error
        return file, table, header

    def write(self, folder: Path, header: H, columns: dict[str, pa.Array]) -> None:
        """Write the table into ``folder``."""
        text = json.dumps(asdict(header), sort_keys=True)
        schema = self.schema.with_metadata({self.mark: text.encode()})
        write_manifest(folder / self.file_name, pa.table(columns, schema=schema), self.schema)

    @property
    def again(self) -> str:
        """What to do about a damaged one."""
        return f"run `{self.command}` again"
