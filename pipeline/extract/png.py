"""Check that a PNG is complete before decoding: chunks, checksums, and enough rows."""

from __future__ import annotations

import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CRITICAL = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2))
_ADAM7 += ((0, 1, 1, 2),)  # first column and row, step to the right and down
_PIECE = 1 << 20


def png_fault(data: bytes) -> tuple[str, str] | None:
    """An error code and a reason if a decoder could not read the whole image, else None.

    Args:
        data: a file that starts with `SIGNATURE` and whose header a decoder has accepted.
    """
    at, name = len(SIGNATURE), b""
    rows = zlib.decompressobj()
    left = _bytes_of_rows(data)
    while name != b"IEND":
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            return "truncated", "the file ends before the image does"
        name, body = data[at + 4 : at + 8], memoryview(data)[at + 8 : end - 4]
        if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            return "undecodable", f"the chunk at byte {at} has a wrong checksum"
        if not name[:1].islower() and name not in _CRITICAL:
            return "undecodable", f"the chunk at byte {at} is critical but unknown"
        if name == b"IDAT":
            try:
                left -= _inflated(rows, body)
            except zlib.error as error:
                return "undecodable", f"its rows are not zlib data ({error})"
        at = end
    if left > 0 or (data[24] == 16 and not rows.eof):  # its decoder needs the stream's end
        return "truncated", "its rows end before the image does"
    return None


def _inflated(rows: zlib._Decompress, body: bytes | memoryview) -> int:
    """Number of bytes in the decompressed rows, decompressing at most `_PIECE` at a time."""
    count = len(rows.decompress(body, _PIECE))
    while rows.unconsumed_tail and not rows.eof:
        count += len(rows.decompress(rows.unconsumed_tail, _PIECE))
    return count


def _bytes_of_rows(data: bytes) -> int:
    """Bytes of all rows, each with its filter byte, from IHDR: the first chunk, at byte 8."""
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    bits = data[24] * _CHANNELS.get(data[25], 1)
    total = 0
    for x, y, right, down in _ADAM7 if data[28] else ((0, 0, 1, 1),):
        columns, lines = -(-(width - x) // right), -(-(height - y) // down)
        if columns > 0 and lines > 0:
            total += lines * (1 + (columns * bits + 7) // 8)
    return total
