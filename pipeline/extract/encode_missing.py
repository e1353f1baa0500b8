"""Run one frozen encoder over the rows that a feature set lacks, on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.extract.account import SetSummary
from pipeline.extract.memory import HalvingCalls
from pipeline.extract.runner import Advance, Computed, Contents, Failures, Job, RunSettings, run
from sightline.cache import FeatureSetRecord, FeatureSetWriter, FeatureSpec, Place
from sightline.cache.keys import Keys, KeyTable, as_keys, keys_of_texts, sort_order
from sightline.cache.plan import Batch
from sightline.cache.record import DTypeName, EncoderRecord, Kind
from sightline.errors import SightlineError
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.encoders.protocols import EncoderIdentity, ImageEncoder, TextEncoder
    from pipeline.extract.batches import Failure, Reader
    from pipeline.extract.cutouts import CutoutRules
    from pipeline.extract.objects import CutoutEntry

_TOKENISED = 10_000  # texts at once; their token ids take many times the memory of the texts
WEIGHTS_CAST = ", weights cast"
"""Follows the precision in a record where weights were cast once, instead of autocast."""

Encoded = tuple[Batch, np.ndarray, Failures]
_Encode = Callable[[Iterator[Batch], int, HalvingCalls], Iterable[Encoded]]
"""Batches, batch size, calls → each batch, its rows float32 [n, dim], its failures."""


@dataclass(frozen=True)
class ExtractSettings(RunSettings):
    """How to run, as opposed to what to compute.

    Attributes:
        batch_size: rows per batch; the last one is padded.
        workers: decode processes; 0 decodes in this one.
        dtype: storage dtype.
        precision: compute precision, ``fp32``, ``bf16`` or ``fp16``.
        max_pixels: images that declare more are rejected.
        copy_from: folder of other feature sets; rows with the same fingerprint are copied.
    """

    batch_size: int = 64
    workers: int = 2
    dtype: DTypeName = "float16"
    precision: str = "fp32"
    max_pixels: int = 89_478_485
    copy_from: Path | None = None


class ImageEntry(NamedTuple):
    """Where one image is, and the SHA-256 of its bytes."""

    place: Place
    key: bytes


def extract_images(
    entries: Sequence[ImageEntry],
    encoder: ImageEncoder,
    out: Path,
    settings: ExtractSettings,
) -> SetSummary:
    """Encode image files into the feature set ``out``.

    Worker processes decode images; they are encoded in batches of fixed shape and written by a
    separate thread. One unreadable image costs one row.

    Raises:
        SightlineError: no images, more failures than ``settings.max_failed`` (good rows are
            published first), or no disk space.
    """
    from pipeline.extract.batches import ImageReader

    by_key = {entry.key: entry for entry in entries}
    read = ImageReader(encoder.preprocessing, settings.max_pixels)
    described = encoder.preprocessing.describe()
    spec = _spec("image", encoder.identity, described, encoder.dim, settings)
    encode = _encode_pictures(by_key, read, encoder, settings)
    keys, identity = as_keys(list(by_key)), encoder.identity
    return _extract(keys, None, None, spec, identity, encode, out, settings, "images")


def extract_objects(
    entries: Sequence[CutoutEntry],
    encoder: ImageEncoder,
    rules: CutoutRules,
    out: Path,
    settings: ExtractSettings,
) -> SetSummary:
    """Encode objects, cut out of their images, into the feature set ``out``.

    An object that several captions name counts once, and an image with several is decoded once
    (twice where a batch ends between them).

    Raises:
        SightlineError: as `extract_images`.
    """
    from pipeline.extract.cutouts import CutoutPreprocessing
    from pipeline.extract.objects import ObjectReader

    by_key = {entry.key: entry for entry in entries}
    groups = as_keys([entry.image_key for entry in by_key.values()])
    preprocessing = CutoutPreprocessing(encoder.preprocessing, rules)
    read = ObjectReader(preprocessing, settings.max_pixels)
    spec = _spec("object", encoder.identity, preprocessing.describe(), encoder.dim, settings)
    encode = _encode_pictures(by_key, read, encoder, settings)
    keys, identity = as_keys(list(by_key)), encoder.identity
    return _extract(keys, None, groups, spec, identity, encode, out, settings, "objects")


def extract_texts(
    texts: Sequence[str],
    encoder: TextEncoder,
    out: Path,
    settings: ExtractSettings,
    kind: Kind,
) -> SetSummary:
    """Encode texts into the feature set ``out``; repeated texts count once.

    A text is padded to a length that depends only on itself and shares a batch only with texts of
    that length, so its row does not depend on the other texts.

    Raises:
        SightlineError: no texts, too many failures, or no disk space.
    """
    distinct = list(dict.fromkeys(texts))
    keys = keys_of_texts(distinct)
    lengths = np.empty(len(distinct), dtype=np.int32)
    for start in range(0, len(distinct), _TOKENISED):
        part = distinct[start : start + _TOKENISED]
        lengths[start : start + len(part)] = encoder.lengths(part)
    order = sort_order(keys)
    table = KeyTable(keys[order])
    spec = _spec(kind, encoder.identity, encoder.preprocessing, encoder.dim, settings)

    def encode(batches: Iterator[Batch], batch_size: int, calls: HalvingCalls) -> Iterator[Encoded]:
        for batch in batches:
            rows = [distinct[i] for i in order[table.find(batch.keys)]]

            def call(
                start: int, stop: int, rows: list[str] = rows, length: int = batch.length
            ) -> np.ndarray:
                part = rows[start:stop]
                return encoder.encode(part + [""] * (stop - start - len(part)), length).numpy()

            yield batch, np.concatenate(calls.run(len(rows), call))[: len(rows)], {}

    return _extract(keys, lengths, None, spec, encoder.identity, encode, out, settings, "texts")


def _extract(
    keys: Keys,
    lengths: np.ndarray | None,
    groups: Keys | None,
    spec: FeatureSpec,
    identity: EncoderIdentity,
    encode: _Encode,
    out: Path,
    settings: ExtractSettings,
    unit: str,
) -> SetSummary:
    """Plan, encode, write and publish; shared by images, objects and texts."""
    if not len(keys):
        raise SightlineError(f"{out}: there are no {unit} to encode; check the manifest")
    writer = FeatureSetWriter(out, spec, settings.inputs, settings.worker)
    calls = HalvingCalls(out.as_posix())
    shape, options = settings.shape, ", ".join(identity.options)
    if options:
        shape["code"] += f", {options}"

    def plan() -> list[Batch]:
        batches = writer.plan(
            keys,
            lengths,
            batch_size=settings.batch_size,
            groups=groups,
            retry_failed=settings.retry_failed,
            copy_from=settings.copy_from,
            **shape,
        )
        calls.begin(writer.shape.batch_size, (block.computed for block in writer.blocks))
        return batches

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[Computed]:
        for batch, features, failed in encode(batches, writer.shape.batch_size, calls):
            good = np.array([key.tobytes() not in failed for key in batch.keys])
            yield Computed(batch, batch.keys[good], features[good], failed)
            advance(len(batch.keys))

    about = {"options": options} if options else {}
    job = Job(
        writer, plan, compute, [calls], lambda: writer.shape.batch_size, _contents, unit, about
    )
    return run(job, settings)


def _contents(record: FeatureSetRecord) -> Contents:
    remarks = ("untrained weights",) if record.spec.encoder.untrained else ()
    total = record.rows + record.failed
    return Contents(counted(record.rows, "row"), record.failed, total, remarks)


def _encode_pictures(
    by_key: Mapping[bytes, ImageEntry | CutoutEntry],
    read: Reader,
    encoder: ImageEncoder,
    settings: ExtractSettings,
) -> _Encode:
    """Encode the inputs that ``read`` makes from the entries of a batch's keys."""
    from pipeline.extract.feed import Feed

    def encode(batches: Iterator[Batch], batch_size: int, calls: HalvingCalls) -> Iterator[Encoded]:
        feed = Feed(encoder, read)
        ahead: deque[tuple[Batch, list[ImageEntry | CutoutEntry]]] = deque()
        launched: deque[Callable[[], Encoded]] = deque()

        def entries() -> Iterator[list[ImageEntry | CutoutEntry]]:
            for batch in batches:
                ahead.append((batch, [by_key[key.tobytes()] for key in batch.keys]))
                yield ahead[-1][1]

        for inputs, failures in feed.decoded(entries(), batch_size, settings.workers):
            batch, own = ahead.popleft()
            results = calls.run(len(own), partial(feed.launch, inputs))
            launched.append(partial(_encoded, batch, own, results, failures))
            if len(launched) > feed.ahead:
                yield launched.popleft()()
        for finish in launched:
            yield finish()

    return encode


def _encoded(
    batch: Batch,
    own: list[ImageEntry | CutoutEntry],
    results: list[Callable[[], np.ndarray]],
    failures: list[Failure],
) -> Encoded:
    """Wait for the features of a batch."""
    features = np.concatenate([result() for result in results])[: len(own)]
    failed: Failures = {
        own[row].key: {"code": code, "path": str(own[row].place), "reason": reason}
        for row, code, reason in failures
    }
    return batch, features, failed


def precision_rule(identity: EncoderIdentity, precision: str) -> str:
    """How rows are computed, for the fingerprint: the precision, and how weights are lowered to it.

    Without a rule, reduced precision means autocast.
    """
    cast = identity.casts_weights and precision != "fp32"
    return f"{precision}{WEIGHTS_CAST}" if cast else precision


def _spec(
    kind: Kind,
    identity: EncoderIdentity,
    preprocessing: dict[str, object],
    dim: int,
    settings: ExtractSettings,
) -> FeatureSpec:
    return FeatureSpec(
        kind=kind,
        encoder=EncoderRecord(
            name=identity.name,
            source=identity.source,
            revision=identity.revision,
            weights_sha256=identity.weights_sha256,
            untrained=identity.untrained,
        ),
        preprocessing=preprocessing,
        precision=precision_rule(identity, settings.precision),
        dim=dim,
        dtype=settings.dtype,
    )
