"""Files from outside: read whole, and checked before anything else sees them.

One function per format of text, and one error that names the file and the place for every fault.
JSON and the values of CSV and TSV are checked against a pydantic schema; Parquet has
`sightline.cache.manifest.read_manifest`.
"""

from __future__ import annotations

import re
import reprlib
import shlex
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import GetPydanticSchema, StrictInt, StringConstraints, TypeAdapter, ValidationError
from pydantic_core import core_schema

from sightline.errors import SightlineError
from sightline.files.file_kinds import data_kind, unexpected, ungzipped
from sightline.wording import message_of, place_of

# Every control character that is not white space, except those that published texts contain by
# mistake, U+0080 to U+009F: there, Windows-1252 punctuation was read as Latin-1. Of these only
# the ones that begin a terminal's escape sequence are refused.
_CONTROL = r"\x00-\x08\x0e-\x1f\x7f\x90\x98\x9b\x9d-\x9f"
CONTROL = re.compile(f"[{_CONTROL}]")
_LONE_CR = re.compile(r"\r(?!\r*(?:\n|\Z))")

Name = Annotated[str, StringConstraints(pattern=rf"^[^{_CONTROL}]*[^{_CONTROL}\s][^{_CONTROL}]*$")]
"""Text without control characters, with at least one character that is not white space."""


def should_be(words: str) -> GetPydanticSchema:
    """One message for whatever is wrong inside a value: what it should be."""
    return GetPydanticSchema(
        lambda kind, handler: core_schema.custom_error_schema(
            handler(kind),
            custom_error_type="form",
            custom_error_message=f"Input should be {words}",
        )
    )


Identifier = Annotated[StrictInt | Name, should_be("a whole number or a non-empty text")]
"""A number or name that identifies something."""

OBJECT = TypeAdapter(dict[str, Any])
"""Any JSON object."""

Loc = tuple[int | str, ...]
T = TypeVar("T")


def read_data(path: Path, expected: str = "") -> bytes:
    """The bytes of a file.

    Args:
        expected: what the file should be, for the message if it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise SightlineError(f"{path}: not a file, but a folder, a pipe or a device; give a file")
    try:
        return path.read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        fault = "no such file" if missing else f"cannot be read ({error.strerror})"
        hint = f"expected {expected}" if expected else "check the path"
        raise SightlineError(f"{path}: {fault}; {hint}") from None


def read_text(path: Path, expected: str = "") -> str:
    """The text of a UTF-8 file without a byte-order mark, with its original line ends.

    It contains no control characters. A file compressed by gzip is unpacked.

    Args:
        expected: as for `read_data`.
    """
    data = read_data(path, expected)
    kind = data_kind(data)
    if kind == "gzip":
        data = ungzipped(path, data)
        kind = data_kind(data)
    if kind is not None:
        raise unexpected(path, kind, expected or "text")
    data = data.removeprefix(BOM_UTF8)
    if wide := _wide(data):
        raise _recoded(path, f"is {wide.upper()}, expected UTF-8", wide)
    if _is_binary(data[:_HEAD]):
        raise SightlineError(
            f"{path}: a binary file of a kind that is not known here; expected "
            f"{expected or 'text'}; write that with the tool that this file is of"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        fault = f"line {line}: the byte 0x{data[error.start]:02x} is not UTF-8"
        raise _recoded(path, fault, "windows-1252" if _windows(data) else None) from None
    if match := CONTROL.search(text):
        raise SightlineError(f"{path}: line {_line(text, match)}: {control_fault(match[0])}")
    return text


_MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Byte-order marks; that of UTF-32 begins with that of UTF-16."""

_IN_A_WORD = re.compile(rb"[A-Za-z][\x80-\x91\x93-\x9f][A-Za-z]")
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1f]")
_HEAD = 1024
_HIGH = re.compile(rb"[\x80-\xff]")
_ALONE = re.compile(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])")


def _wide(data: bytes) -> str | None:
    """UTF-16 or UTF-32 as iconv names them, by a byte-order mark or zeros beside the letters."""
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            return name
    even, odd = data[:4096:2].count(0), data[1:4096:2].count(0)
    if max(even, odd) > min(len(data), 4096) // 4 and not min(even, odd):
        return "utf-16le" if odd else "utf-16be"
    return None


def _is_binary(head: bytes) -> bool:
    """Whether so many control characters are no slip: more than one in twenty bytes."""
    return 20 * len(_CONTROLS.findall(head)) > len(head)


def _windows(data: bytes) -> bool:
    """Whether bytes are likely of Windows-1252, which contains Latin-1.

    Then most bytes beyond ASCII stand alone, as accents among letters do, and its punctuation
    stands in no word, where other encodings have letters.
    """
    try:
        data.decode("windows-1252")
    except UnicodeDecodeError:
        return False
    return 2 * len(_ALONE.findall(data)) > len(_HIGH.findall(data)) and not _IN_A_WORD.search(data)


def _recoded(path: Path, fault: str, encoding: str | None) -> SightlineError:
    """The error for a file that is not UTF-8, with the command that makes one of it."""
    first = "" if encoding else f"find out its encoding, such as by `file {_quoted(path)}`, and "
    old, new = _quoted(path), _quoted(f"{path}.utf8")
    command = f"iconv -f {encoding or 'ENCODING'} -t utf-8 {old} > {new} && mv {new} {old}"
    return SightlineError(f"{path}: {fault}; {first}convert it: `{command}`")


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def read_lines(path: Path, expected: str = "") -> list[str]:
    """The lines of a UTF-8 file, read as by `read_text`, without their ends: LF, CR LF, or only CR.

    `str.splitlines` would also split at characters that occur inside sentences (U+0085, U+2028).
    """
    text = with_line_feeds(read_text(path, expected))
    if match := _LONE_CR.search(text):
        new = _quoted(f"{path.stem}-lf{path.suffix}")
        raise SightlineError(
            f"{path}: line {_line(text, match)}: a carriage return inside the line; expected lines "
            "that end in LF or CR LF; remove it or, if it ends a line, write "
            f"LF in its place: `tr '\\r' '\\n' < {_quoted(path)} > {new}`"
        )
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def with_line_feeds(text: str) -> str:
    """A text whose lines end in CR alone, as of an old Mac, with LF in their place; or ``text``."""
    return text.replace("\r", "\n") if "\n" not in text and _LONE_CR.search(text) else text


def read_json(path: Path, schema: TypeAdapter[T], expected: str) -> T:
    """The content of a UTF-8 JSON file, checked against ``schema``.

    Args:
        expected: what the file should be, for messages.
    """
    text = read_text(path, expected)
    try:
        return schema.validate_json(text)
    except ValidationError as error:
        raise refusal(path, error, dotted, f"; expected {expected}") from None


def read_yaml(path: Path) -> Any:
    """The content of a UTF-8 YAML file."""
    try:
        return parse_yaml(read_text(path))
    except ValueError as error:
        raise SightlineError(f"{path}: not YAML: {error}") from None


_SHORT_YAML = 20_000
"""Characters that libyaml reads: 200,000 opening brackets overflow its stack."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        ValueError: it is not YAML; the message says why.
    """
    import yaml

    loader = yaml.SafeLoader
    if len(text) <= _SHORT_YAML:  # ten times faster, where it was built
        loader = getattr(yaml, "CSafeLoader", loader)
    try:
        document = loader(text)
        if (node := document.get_single_node()) is None:
            return None
        _require_one_meaning(node)
        return document.construct_document(node)
    except yaml.YAMLError as error:  # a number or date that does not exist is a ValueError already
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


_OTHER_BASE = re.compile(r"[-+]?0[\d_]+$|.*:")
"""Whole numbers of base 8 or 60, which YAML 1.2, and so DVC, reads otherwise."""


def _require_one_meaning(document: Any) -> None:
    """Refuse what readers of YAML read differently: a key that is there twice, and 010."""
    nodes = [document]
    visited = {id(document)}
    for node in nodes:  # grows, as a document may contain itself
        at, inner = f"line {node.start_mark.line + 1}: found", node.value
        if node.tag.endswith(":int") and _OTHER_BASE.match(inner):
            raise ValueError(f"{at} {inner}, not one number to all readers; write it in decimals")
        if isinstance(inner, str):
            continue
        if node.tag.endswith(":map"):
            keys = [key for key, _ in inner if isinstance(key.value, str)]
            first = {key.value: key for key in reversed(keys)}
            for key in keys:
                if first[key.value] is not key:
                    at = f"line {key.start_mark.line + 1}: found"
                    raise ValueError(f"{at} the key {key.value!r} twice; remove one")
            inner = [child for pair in inner for child in pair]
        nodes += [child for child in inner if id(child) not in visited]
        visited.update(map(id, inner))


def control_fault(text: str) -> str | None:
    """What is wrong with ``text`` if it contains a control character; else None."""
    if match := CONTROL.search(text):
        return f"contains the control character U+{ord(match[0]):04X}, expected text; remove it"
    return None


def dotted(place: Loc) -> str:
    """A place in a JSON file, such as ``annotations[3].caption``."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).removeprefix(".")


def refusal(
    path: Path, error: ValidationError, where: Callable[[Loc], str], hint: str = ""
) -> SightlineError:
    """The error for what a schema found in ``path``: the first fault, and how many more there are.

    Args:
        where: turns pydantic's location into words.
        hint: follows the fault.
    """
    first: dict[str, Any] = dict(error.errors(include_url=False)[0])
    further = error.error_count() - 1
    place, fault = where(place_of(first["loc"])), _fault(first)
    if place:  # of a part of the file: the lines that pydantic counts begin there
        fault = fault.replace(" at line 1 column", " at column")
    parts = [str(path), place, fault]
    end = f" ({further:,} more such faults in this file)" if further else ""
    return SightlineError(": ".join(filter(None, parts)) + hint + end)


def short(value: object) -> str:
    """``repr`` on one line of at most 60 characters, whatever ``value`` holds."""
    return " ".join(_SHORT.repr(value).split())


def _fault(error: dict[str, Any]) -> str:
    """What was found and what was expected, from pydantic's description of an error."""
    kind, value = error["type"], error["input"]
    if kind == "json_invalid":
        reason = error["ctx"]["error"]
        surrogate = "hex escape" in reason or "surrogate" in reason
        half = ": half a surrogate pair (\\ud800–\\udfff) is not a character" if surrogate else ""
        return f"not JSON ({reason}{half})"
    if kind == "missing":
        return "is missing"
    if kind == "string_pattern_mismatch":
        return control_fault(value) or "is empty"
    if kind == "string_unicode":
        return "contains half a surrogate pair, which is not a character; write the text as UTF-8"
    if kind in ("string_too_short", "too_short"):
        return "is empty"
    return f"found {short(value)}, expected {message_of(error).removeprefix('Input should be ')}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2
