"""Arrays and files for Arrow: its own conversion imports pandas, its own paths are UTF-8."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def os_file(path: Path, mode: Literal["r", "w"] = "r") -> pa.NativeFile:
    """An open file, whatever the bytes of its name; as a path, Arrow may take it for a URL."""
    return pa.OSFile(os.fsencode(path), mode)


def number_array(values: NDArray[Any]) -> pa.Array:
    """Numbers, of any one type."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])


def text_array(texts: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """Strings or binaries, of up to 2 GiB; None is null."""
    data = [text.encode() if isinstance(text, str) else text or b"" for text in texts]
    filled = np.array([text is not None for text in texts], dtype=bool)
    validity = np.packbits(filled, bitorder="little")
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    buffers = [pa.py_buffer(part) for part in (validity, ends, b"".join(data))]
    return pa.Array.from_buffers(kind, len(texts), buffers)
