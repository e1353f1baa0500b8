"""An image with its captions, as every source has them; readers of Flickr's, Karpathy's and COCO's.

Files of captions are read in `pipeline.datasets.caption_files`. Samples that name their images
are matched to a folder (`pipeline.datasets.caption_images`); those that hold them, or know where
they lie, are written as they come (`pipeline.datasets.table_rows`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.datasets.source import DatasetError, PrepareReport, Source, split_name
from sightline.errors import SightlineError
from sightline.plugins import expect_count, expect_valid, wrong
from sightline.tables.outside_tables import QUOTED, SUFFIXES
from sightline.user_files import Identifier, Name, read_json, read_lines, refusal, short


class Placed(NamedTuple):
    """An image that lies in a larger file, or in one of its own.

    Attributes:
        path: relative to the data set's image root.
        key: SHA-256 of its bytes.
        size: width and height as displayed; (0, 0) if its header cannot be read.
        offset, length: of its bytes; None: it is the whole file.
    """

    path: str
    key: bytes
    size: tuple[int, int]
    offset: int | None = None
    length: int | None = None


@dataclass(slots=True)
class Sample:
    """An image with its captions, as a source has them.

    Attributes:
        where: line, row, file or member, for messages.
        image: its name; or its bytes; or where it lies.
        texts: its captions, verbatim.
        split: train, dev or test; empty: none is given; None: it is not chosen, so that the image
            is left out as well.
        ids: of the captions; None: they are numbered.
        numbers: of the captions, in place of those in their order, as in Flickr's files.
    """

    where: int | str
    image: str | bytes | Placed
    texts: Sequence[str]
    split: str | None = ""
    ids: Sequence[str] | None = None
    numbers: Sequence[str] | None = None


class Plain(NamedTuple):
    """Rows of a table that give nothing but a name and a caption each, in columns."""

    lines: Sequence[int | str]
    images: Sequence[str]
    texts: Sequence[str]

    def samples(self) -> Iterator[Sample]:
        """The same one by one."""
        for line, image, text in zip(*self, strict=True):
            yield Sample(line, image, (text,))


_SPLITS = ("train", "dev", "test", "", None)
Samples = Iterable[Sample | Plain]
Split = tuple[str, str, str]
"""The name of an image, its split, and the file that says so."""


def one_by_one(samples: Samples) -> Iterator[Sample]:
    """Samples without columns among them."""
    for sample in samples:
        if isinstance(sample, Plain):
            yield from sample.samples()
        else:
            yield sample


def checked(samples: Samples, kind: str) -> Samples:
    """The samples of a kind of data set, those of another package each as it must be.

    Raises:
        SightlineError: one is not, and of which package.
    """
    registry = Source.families
    if kind in registry.built_in or kind not in registry.places:
        return samples
    return _checked(samples, registry.subclass(kind, Source))


def _checked(samples: Samples, source: type[Source]) -> Samples:
    for sample in samples:
        if not isinstance(sample, Plain):
            expect_valid(sample, Sample, source, "sample")
            if sample.split not in _SPLITS:
                expected = "train, dev, test, an empty text or None"
                raise wrong(source, "sample.split", sample.split, expected)
            for name in ("ids", "numbers"):
                if (values := getattr(sample, name)) is not None:
                    expect_count(values, len(sample.texts), source, f"sample, {name}", "texts")
        yield sample


def splits_in(samples: Iterable[Sample], where: str) -> list[Split]:
    """The split of each image that samples of the file ``where`` name."""
    splits = ((sample.image, sample.split) for sample in samples if isinstance(sample.image, str))
    return list(dict.fromkeys((name, split, where) for name, split in splits if split is not None))


def captions_in(text: str) -> list[str]:
    """The captions of a text that belongs to an image: its lines, but for blank ones.

    One that shows nothing is an empty caption.
    """
    lines = text.removesuffix("\n").split("\n")  # `str.splitlines` splits inside sentences, too
    return [line.removesuffix("\r") for line in lines if line.strip()] or [""]


class _Sentence(TypedDict):
    raw: str


class _KarpathyImage(TypedDict):
    """An image of Karpathy's files (dataset_flickr30k.json, dataset_coco.json)."""

    filename: Name
    split: Name
    sentences: NotRequired[list[Any] | None]


class _Karpathy(TypedDict):
    images: Annotated[list[_KarpathyImage], Field(min_length=1)]


class _CocoImage(TypedDict):
    id: Identifier
    file_name: Name


class _CocoAnnotation(TypedDict):
    id: Identifier
    image_id: Identifier
    caption: str


class _Coco(TypedDict):
    """A captions file of COCO."""

    images: list[_CocoImage]
    annotations: Annotated[list[Any], Field(min_length=1)]


_KARPATHY, _COCO = TypeAdapter(_Karpathy), TypeAdapter(_Coco)
_SENTENCE, _ANNOTATION = TypeAdapter(_Sentence), TypeAdapter(_CocoAnnotation)
_T = TypeVar("_T")


def of_karpathy(path: Path, report: PrepareReport, restval: str | None = "restval") -> list[Sample]:
    """Karpathy's images with their splits; the captions are numbered within their image.

    Args:
        restval: what his split of that name is here; None: its images are left out.
    """
    expected = "Karpathy's dataset_….json: 'images' with filename, split and sentences"
    where, damaged = str(path), _Damaged(path)
    samples: list[Sample] = []
    for number, image in enumerate(read_json(path, _KARPATHY, expected)["images"]):
        name, split = image["filename"], image["split"]
        split = restval if split == "restval" else split
        if split is None:
            samples.append(Sample("", name, (), None))
            continue
        if split == "restval":
            raise DatasetError(
                f"{where}: has COCO's split restval, which `pairs` does not know; use the kind "
                "`coco` with this file as `karpathy`, which leaves it out or, with `restval`, "
                "trains on it"
            )
        ours = split_name(split, where)
        sentences = [
            damaged.checked(_SENTENCE, sentence, f"images[{number}].sentences[{k}]")
            for k, sentence in enumerate(image.get("sentences") or [])
        ]
        kept = [(str(k), entry["raw"]) for k, entry in enumerate(sentences) if entry is not None]
        numbers, texts = [k for k, _ in kept], [text for _, text in kept]
        samples.append(Sample("", name, texts, ours, numbers=numbers))
    damaged.note(report, any(sample.texts for sample in samples))
    return samples


def of_coco(files: Mapping[str, Path], report: PrepareReport) -> tuple[list[Sample], list[Split]]:
    """The annotations of one file of COCO per split, and the split of each image in them.

    A caption's number is the id of its annotation.
    """
    samples, splits = list[Sample](), list[Split]()
    expected = (
        "COCO's captions_*.json: 'images' with id and file_name, and 'annotations' with id, "
        "image_id and caption"
    )
    lost: list[str] = []
    for name, path in files.items():
        split, damaged, first = split_name(name, "captions"), _Damaged(path), len(samples)
        body = read_json(path, _COCO, expected)
        names = {str(image["id"]): image["file_name"] for image in body["images"]}
        if len(names) != len(body["images"]):
            twice, _ = Counter(str(image["id"]) for image in body["images"]).most_common(1)[0]
            raise DatasetError(f"{path}: images: several have the id {twice}; give each its own")
        splits += [(image, split, str(path)) for image in names.values()]
        for number, item in enumerate(body["annotations"]):
            annotation = damaged.checked(_ANNOTATION, item, f"annotations[{number}]")
            if annotation is None:
                continue
            own_id, image = str(annotation["id"]), str(annotation["image_id"])
            if image in names:
                texts = (annotation["caption"],)
                samples.append(Sample("", names[image], texts, split, numbers=(own_id,)))
            else:
                lost.append(f"image_id {image}#{own_id}")
        damaged.note(report, len(samples) > first)
    report.note("captions_without_image", lost)
    if not samples:
        raise DatasetError(
            f"{', '.join(map(str, files.values()))}: no annotation has the image_id of one of the "
            "'images' in its file"
        )
    return samples, splits


def of_flickr(path: Path, report: PrepareReport) -> Iterator[Sample]:
    """The captions of Flickr's files: ``name.jpg#k<TAB>caption``."""
    quoted = QuotedTexts()
    for line, row in enumerate(read_lines(path), start=1):
        if not row.strip():
            continue
        head, tab, text = row.partition("\t")
        image, mark, number = head.rpartition("#")
        if not (tab and mark and image and number.strip()):
            raise DatasetError(
                f"{path}: line {line}: found {short(row)}, expected `name.jpg#k<TAB>caption`; a "
                f"table must end in {', '.join(SUFFIXES)}. Of names and captions in two files make "
                "one: `(printf 'image\\tcaption\\n'; paste NAMES CAPTIONS) > captions.tsv`"
            )
        quoted.see([line], [text])
        yield Sample(line, image, (text,), numbers=(number,))
    quoted.note(report)


class QuotedTexts:
    """Finds texts that have marks around them and doubled within, as CSV has them.

    Where all texts have marks around them, those without any within too.
    """

    def __init__(self) -> None:
        self._all: list[int | str] | None = []  # None: some text is not quoted
        self._doubled: list[int | str] = []

    def see(self, lines: Sequence[int | str], texts: Sequence[str]) -> None:
        """Look at the texts of some lines, in their order."""
        for line, text in zip(lines, texts, strict=True):
            if not text.startswith('"') or not QUOTED.fullmatch(text):
                self._all = None
                continue
            if self._all is not None:
                self._all.append(line)
            if '""' in text[1:-1]:
                self._doubled.append(line)

    def note(self, report: PrepareReport) -> None:
        """Report what was found."""
        lines = self._all if self._all is not None and len(self._all) > 1 else self._doubled
        report.note("captions_that_look_quoted", (f"line {line}" for line in lines))


class _Damaged:
    """The items of a JSON file that its schema refuses: one among many costs itself alone."""

    def __init__(self, path: Path) -> None:
        self._path, self._faults = path, list[SightlineError]()

    def checked(self, schema: TypeAdapter[_T], item: Any, place: str) -> _T | None:
        """The item, or None if it is damaged."""
        try:
            return schema.validate_python(item)
        except ValidationError as error:

            def where(loc: tuple[int | str, ...]) -> str:
                return ".".join((place, *map(str, loc)))

            self._faults.append(refusal(self._path, error, where))
            return None

    def note(self, report: PrepareReport, any_sound: bool) -> None:
        """Report what is damaged.

        Args:
            any_sound: whether any item is not.

        Raises:
            SightlineError: none is sound, so that the file is of another form.
        """
        if self._faults and not any_sound:
            further = len(self._faults) - 1
            remark = f" ({further:,} more such faults in this file)" if further else ""
            raise SightlineError(f"{self._faults[0]}{remark}")
        report.note("unusable_captions", map(str, self._faults))
