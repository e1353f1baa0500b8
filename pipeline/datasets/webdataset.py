"""WebDataset shards, as img2dataset writes them: tar files with KEY.jpg, KEY.txt and KEY.json."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)

from pipeline.datasets.image_formats import image_suffixes
from pipeline.datasets.image_tars import (
    EVERY,
    Member,
    Shard,
    find_shards,
    members,
    note_others,
)
from pipeline.datasets.images import (
    any_pixel_count,
    read_by,
    readers,
    refuse_failed,
    suffix_of,
    upright_size,
)
from pipeline.datasets.manifests import ManifestRows, write_files
from pipeline.datasets.samples import Placed, Sample, captions_in
from pipeline.datasets.source import (
    Below,
    DatasetError,
    Location,
    PrepareReport,
    Progress,
    Source,
    below,
    split_name,
)
from sightline.cache.file_memory import FileMemory
from sightline.cache.keys import key_of_bytes
from sightline.digest import digest
from sightline.files.places import is_url, path_below, shown
from sightline.files.storage import StorageError, look, opened, reading
from sightline.user_files import OBJECT, read_lines
from sightline.wording import message_of

_MOST_IMAGE = 1 << 30  # bytes
_TEXTS = TypeAdapter(
    Annotated[list[str], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]
)
_MOST_TEXT = 1 << 24  # bytes of a .txt or .json

_MOST_PARTS = 12  # shown
_MOST_ENDINGS = 1000  # counted: a key with a dot makes an ending of its own
_Key = dict[str, tuple[Member, Any]]
"""Of one key: ``image`` and ``text`` → the member, and what `_content` is of it."""


class WebDatasetSource(Source):
    """WebDataset shards, as img2dataset writes them; nothing is unpacked.

    The members of a tar file belong together by the part of their name before the first dot.

    Attributes:
        images: folder of the shards, or its URL; by default `source` itself.
        shards: which files below it, as in ``cc12m/{00000..01242}.tar``, where every number of the
            range must be there; default: the lines of `source`, if that is a file, else ``*.tar``.
            A web server (``https://``) is never listed: there every file has a name or a number.
        splits: instead of ``shards``: for each split, its shards.
        image_part: part with the image, as WebDataset names parts: ``image.jpg`` of KEY.image.jpg;
            default: every usual suffix of an image.
        caption_part: part with the captions, one in each line, or in JSON one or a list of them;
            default: ``txt``, or ``json`` with ``caption_field``.
        caption_field: field of the caption's part, which is JSON, with the caption or a list of
            them.
        limit: read only this many images, in the order of the shards.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare webdataset --images cc12m --shards '{00000..00099}.tar' --out data/cc12m"
    )
    licence: ClassVar[str] = (
        "not known here; images from the web belong to their authors, and the terms of the data "
        "set that lists them apply"
    )

    kind: Literal["webdataset"] = "webdataset"
    images: Location = Path()
    shards: Below | None = None
    splits: dict[str, Below] | None = None
    image_part: str | None = Field(default=None, min_length=1)
    caption_part: str | None = Field(default=None, min_length=1)
    caption_field: str | None = Field(default=None, min_length=1)
    limit: int | None = Field(default=None, ge=1)
    strict: bool = False

    @model_validator(mode="after")
    def _one_pattern(self) -> Self:
        if self.splits and self.shards:
            raise ValueError("give `shards` or `splits`, but not both")
        return self

    def _patterns(self) -> dict[str, list[str]]:
        """Split, or nothing → the patterns of its shards."""
        if self.splits:
            return {split: [pattern] for split, pattern in self.splits.items()}
        if self.shards or is_url(self.source) or not Path(self.source).is_file():
            return {"": [self.shards or EVERY]}
        try:
            lines = map(str.strip, read_lines(Path(self.source)))
            return {"": [below(line) for line in lines if line]}
        except ValueError as error:
            raise DatasetError(f"{self.source}: {error}") from None

    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests of the data set into ``folder`` and fill ``report``.

        An image's place in the manifest is its shard, offset and length. A shard that ends early
        costs the samples that are not whole, and is reported.

        Raises:
            DatasetError: a pattern matches no file, a file is no uncompressed tar, or there are no
                images with captions.
        """
        shards = [
            Shard(name, split_name(split, "splits") if split else "", file)
            for split, patterns in self._patterns().items()
            for name, file in find_shards(self.images, patterns).items()
        ]
        names = [shard.name for shard in shards]
        if len({*names}) < len(shards):
            where = shown(self.images)
            raise DatasetError(f"{where}: a shard is in several of `splits`; use it once")
        if not self.splits and self._patterns() == {"": [EVERY]}:
            note_others(self.images, {*names}, report)
        parts, failed = _Parts.of(self), dict[str, StorageError]()
        try:
            write_files(
                folder,
                names,
                _read_all(self.images, shards, parts, report.memory, failed),
                report,
                unit="shards",
                where=shown(self.images),
                strict=self.strict,
                limit=self.limit or sys.maxsize,
                progress=progress,
            )
        except DatasetError as error:
            refuse_failed(self.images, failed, len(shards), "shards")
            raise DatasetError(f"{error}{parts.hint(report)}") from None
        refuse_failed(self.images, failed, len(shards), "shards")
        if report.counts["images"] < (self.limit or 0):
            report.notes.append(f"warning: limit is {self.limit:,}, but there are fewer images")


@dataclass
class _Parts:
    """Which members of a sample are its image and its caption.

    Attributes:
        image: ending of the image, with the dot; None: every suffix of an image.
        text: ending of the caption.
        schema: of the text, if it is JSON; its captions are in one field.
        endings: in the shards → how many members have them.
        fields: those of a member that is JSON.
    """

    image: str | None
    text: str
    schema: type[BaseModel] | None
    endings: Counter[str] = field(default_factory=Counter)
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: WebDatasetSource) -> _Parts:
        schema, text = None, source.caption_part or "txt"
        if source.caption_field is not None:
            text = source.caption_part or "json"
            captions = Annotated[str | list[str] | None, Field(alias=source.caption_field)]
            schema = create_model("Sample", captions=(captions, ...))
        return cls(source.image_part and _ending(source.image_part), _ending(text), schema)

    @property
    def digest(self) -> str:
        """What identifies the settings."""
        fields = [] if self.schema is None else [f.alias for f in self.schema.model_fields.values()]
        return digest([self.image, self.text, fields, "a caption in each line"])[:8]

    def is_image(self, ending: str) -> bool:
        return ending in image_suffixes() if self.image is None else ending == self.image

    def look(self, file: IO[bytes], member: Member, ending: str) -> None:
        """Remember the ending of a member, and the fields of the first that is JSON."""
        if ending in self.endings or len(self.endings) < _MOST_ENDINGS:
            self.endings[ending] += 1
        if ending.endswith(".json") and not self.fields and member.length <= _MOST_TEXT:
            with suppress(ValueError):
                self.fields = tuple(OBJECT.validate_json(_bytes_of(member, file)))

    def captions(self, data: bytes) -> list[str]:
        """The captions in a text's bytes; a DatasetError does not name the file."""
        try:
            if self.schema is None:
                text = data.decode("utf-8-sig")
                is_json = self.text.endswith(".json")
                return _TEXTS.validate_json(text) if is_json else captions_in(text)
            texts = self.schema.model_validate_json(data).model_dump()["captions"]
        except UnicodeDecodeError as error:
            raise DatasetError(f"byte {error.start} is not UTF-8") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"][:1]))
            fault = message_of(first)
            raise DatasetError(f"{where}: {fault}" if where else fault) from None
        return [texts] if isinstance(texts, str) else texts or []

    def hint(self, report: PrepareReport) -> str:
        """What the samples consist of, if nothing else explains why none could be used."""
        if report.counts.get("captions") or not self.endings:
            return ""
        parts = ", ".join(ascii(end[1:])[1:-1] for end, _ in self.endings.most_common(_MOST_PARTS))
        choices = f"; its samples have the parts {parts}: choose them with `image_part` and "
        choices += "`caption_part`"
        names = ", ".join(self.fields[:_MOST_PARTS])
        return choices + (f", and one of the fields {names} with `caption_field`" if names else "")


def _ending(part: str) -> str:
    return f".{part.lower().removeprefix('.')}"


def _read_all(
    root: Path | str,
    shards: list[Shard],
    parts: _Parts,
    memory: FileMemory,
    failed: dict[str, StorageError],
) -> Iterator[ManifestRows]:
    """Every shard in order, a few at a time: a `limit` stops soon after it is reached.

    Those that a server does not hand out are added to ``failed``, by their names.
    """
    names = [f"{shown(root)}/{shard.name}" for shard in shards]
    states = [
        f"{read_by()} {parts.digest} {shard.split} {shard.file.state}" if shard.file.state else ""
        for shard in shards
    ]
    recalled = memory.recall(names, states)

    def rows_of(number: int) -> ManifestRows:
        if (packed := recalled[number].as_py()) is not None:
            return ManifestRows.unpacked(packed)
        rows, shard = ManifestRows(), shards[number]
        try:
            for sample in of_shard(root, shard, parts, rows):
                image_id = f"{shard.name}/{sample.where}"
                assert isinstance(sample.image, Placed)  # in its tar
                rows.add_image(image_id, sample.image, shard.split)
                rows.add_captions(image_id, sample, shard.split)
        except StorageError as error:
            failed[shard.name] = error
            return ManifestRows()
        _, captions = rows.tables()
        if len(captions):  # of a shard without any, `_Parts.hint` says what it has instead
            memory.keep([names[number]], [states[number]], [rows.packed()])
        return rows

    workers, waiting = 8 if is_url(root) else readers(root), iter(range(len(shards)))
    with any_pixel_count(), reading(workers) as pool:
        while batch := list(islice(waiting, 2 * workers)):
            yield from pool.map(rows_of, batch)


def _content(member: Member, file: IO[bytes], part: str) -> Any:
    """The bytes of a text, or key and size of an image; None: it is too large."""
    if member.length > (_MOST_IMAGE if part == "image" else _MOST_TEXT):
        return None
    data = _bytes_of(member, file)
    return data if part == "text" else (key_of_bytes(data), upright_size(io.BytesIO(data)))


def of_shard(root: Path | str, shard: Shard, parts: _Parts, rows: ManifestRows) -> Iterator[Sample]:
    """The samples of a shard, which is read once from its beginning to its end.

    Args:
        rows: gets the problems, and what is ignored.
    """
    path = shard.name
    place = path_below(root, path)
    try:
        file = opened(place, shard.file)
    except OSError as error:
        raise DatasetError(f"{place}: cannot be read ({error.strerror})") from error
    with file:
        names: set[str] = set()
        keys: dict[str, _Key] = {}
        dotted: list[tuple[str, str, str]] = []  # folder, key and name of other members
        for member in members(file, path, rows):
            name = member.name
            if name in names:
                rows.problem("members_with_a_name_used_before", f"{path}/{name}")
                continue
            names.add(name)
            folder, _, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            extension = f".{extension.lower()}"
            parts.look(file, member, extension)
            if extension != parts.text and not parts.is_image(extension):
                dotted.append((folder, stem, base))
                continue
            part = "text" if extension == parts.text else "image"
            of_key = keys.setdefault(f"{folder}/{stem}", {})
            if part not in of_key:
                of_key[part] = member, _content(member, file, part)
            elif part == "image":
                rows.problem("images_whose_key_has_another", f"{path}/{name}")
            else:
                rows.problem("captions_whose_key_has_another", f"{path}/{name}")
    if is_url(place) and look(place) != shard.file:
        raise StorageError(place, "it changed while it was read", lasting=False)
    for of_key in keys.values():
        if "image" not in of_key:
            rows.problem("captions_without_image", f"{path}/{of_key['text'][0].name}")
            continue
        image, content = of_key["image"]
        if content is None:
            rows.problem("images_above_1_gib", f"{path}/{image.name}")
            continue
        texts = _texts(rows, path, of_key["text"], parts) if "text" in of_key else []
        key, size = content
        placed = Placed(path, key, size, image.offset, image.length)
        yield Sample(image.name, placed, texts, shard.split)
    if parts.image is None:
        _note_dotted(rows, path, dotted, keys, parts.text)
    else:
        rows.ignored += Counter(suffix_of(base) for _, _, base in dotted)
    if not any("image" in of_key for of_key in keys.values()):
        rows.problem("shards_without_images", path)


def _note_dotted(
    rows: ManifestRows,
    path: str,
    members: list[tuple[str, str, str]],
    keys: dict[str, _Key],
    suffix: str,
) -> None:
    """Note images and captions whose own key contains a dot, so that they belong to no sample.

    ``a.mask.png`` beside ``a.png`` is a further part of the sample ``a``; not if it has a caption
    of its own, ``a.mask.txt``.
    """
    captioned = {
        (folder, base[: -len(suffix)])
        for folder, _, base in members
        if base.lower().endswith(suffix)
    }
    for folder, stem, base in members:
        key, ending = os.path.splitext(base)  # noqa: PTH122
        if "." not in key or base.startswith("."):
            rows.ignored[suffix_of(base)] += 1
            continue
        of_key = keys.get(f"{folder}/{stem}", {})
        name = f"{path}/{folder}{'/' if folder else ''}{base}"
        if ending.lower() in image_suffixes() and (
            "image" not in of_key or (folder, key) in captioned
        ):
            rows.problem("images_whose_key_contains_a_dot", name)
        elif ending.lower() == suffix and not of_key:
            rows.problem("captions_whose_key_contains_a_dot", name)
        else:
            rows.ignored[suffix_of(base)] += 1


def _texts(rows: ManifestRows, path: str, part: tuple[Member, Any], parts: _Parts) -> list[str]:
    """The captions in a key's text; none, and why, if it cannot be used."""
    text, content = part
    try:
        if content is None:
            raise DatasetError(f"{text.length:,} bytes, expected at most {_MOST_TEXT:,}")
        return parts.captions(content)
    except DatasetError as error:
        rows.problem("unusable_captions", f"{path}/{text.name}: {error}")
        return []


def _bytes_of(member: Member, file: IO[bytes]) -> bytes:
    file.seek(member.offset)
    return file.read(member.length)
