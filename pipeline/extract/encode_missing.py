"""Run one frozen encoder over what a feature set lacks, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.cache import FeatureSetWriter, FeatureSpec, Place
from pipeline.cache.keys import Keys, as_keys, keys_of_texts
from pipeline.cache.plan import Batch
from pipeline.cache.record import DTypeName, EncoderRecord, Kind
from pipeline.extract.account import ExtractSummary, account, check_failures, say_why
from pipeline.extract.memory import RowsPerCall
from sightline.errors import SightlineError
from sightline.progress import progress

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.protocols import EncoderIdentity, ImageEncoder, TextEncoder
    from pipeline.extract.batches import Reader
    from pipeline.extract.cutouts import CutoutRules
    from pipeline.extract.objects import CutoutEntry

_WRITES_AHEAD = 4

Failures = dict[bytes, dict[str, str]]
"""Key → code, path and reason of a row that could not be computed."""

Encoded = tuple[Batch, np.ndarray, Failures]
_Encode = Callable[[Sequence[Batch], int, RowsPerCall], Iterable[Encoded]]
"""Batches, batch size, rows per call → each batch, its rows float32 [n, dim], its failures."""


@dataclass(frozen=True)
class ExtractSettings:
    """How to run, as opposed to what to compute.

    Attributes:
        batch_size: rows of every batch; the last one is padded to it.
        workers: decode processes; 0 decodes in this one.
        max_failed: share of rows that may fail before the stage ends with an error.
        dtype: storage dtype.
        precision: compute precision, ``fp32``, ``bf16`` or ``fp16``.
        max_pixels: images that declare more are refused.
        device: where the encoder runs, for the record.
        retry_failed: compute rows in error again.
        copy_from: folder above other feature sets whose rows of the same fingerprint are copied.
        inputs: files and folders that the run reads, which its output must not touch.
    """

    batch_size: int = 64
    workers: int = 2
    max_failed: float = 0.01
    dtype: DTypeName = "float16"
    precision: str = "fp32"
    max_pixels: int = 89_478_485
    device: str = "cpu"
    retry_failed: bool = False
    copy_from: Path | None = None
    inputs: tuple[Path, ...] = ()


class ImageEntry(NamedTuple):
    """Where one image is, and the SHA-256 of its bytes."""

    place: Place
    key: bytes


def extract_images(
    entries: Sequence[ImageEntry],
    encoder: ImageEncoder,
    out: Path,
    settings: ExtractSettings,
) -> ExtractSummary:
    """Encode image files into the feature set ``out``.

    Images are decoded in worker processes, encoded in batches of a fixed shape, and written by a
    thread of their own. One unreadable image costs one row.

    Raises:
        SightlineError: no images, more failures than ``settings.max_failed`` (everything good was
            published before), or no room on the disk.
    """
    from pipeline.extract.batches import ImageReader

    by_key = {entry.key: entry for entry in entries}
    read = ImageReader(encoder.preprocessing, settings.max_pixels)
    described = encoder.preprocessing.describe()
    spec = _spec("image", encoder.identity, described, encoder.dim, settings)
    encode = _encode_pictures(by_key, read, encoder, settings)
    return _extract(as_keys(list(by_key)), None, None, spec, encode, out, settings, "images")


def extract_objects(
    entries: Sequence[CutoutEntry],
    encoder: ImageEncoder,
    rules: CutoutRules,
    out: Path,
    settings: ExtractSettings,
) -> ExtractSummary:
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
    return _extract(as_keys(list(by_key)), None, groups, spec, encode, out, settings, "objects")


def extract_texts(
    texts: Sequence[str],
    encoder: TextEncoder,
    out: Path,
    settings: ExtractSettings,
    kind: Kind,
) -> ExtractSummary:
    """Encode texts into the feature set ``out``; repeated texts count once.

    A text is padded to a length that depends on itself alone and shares a batch only with texts of
    that length, so its row is the same whatever else there is to encode.

    Raises:
        SightlineError: no texts, too many failures, or no room on the disk.
    """
    distinct = list(dict.fromkeys(texts))
    keys = keys_of_texts(distinct)
    by_key = {key.tobytes(): text for key, text in zip(keys, distinct, strict=True)}
    lengths = np.array(encoder.lengths(distinct), dtype=np.int32)
    spec = _spec(kind, encoder.identity, encoder.preprocessing, encoder.dim, settings)

    def encode(batches: Sequence[Batch], batch_size: int, calls: RowsPerCall) -> Iterator[Encoded]:
        for batch in batches:
            rows = [by_key[key.tobytes()] for key in batch.keys]

            def call(
                start: int, stop: int, rows: list[str] = rows, length: int = batch.length
            ) -> torch.Tensor:
                part = rows[start:stop]
                return encoder.encode(part + [""] * (stop - start - len(part)), length)

            yield batch, calls.encode(len(rows), call), {}

    return _extract(keys, lengths, None, spec, encode, out, settings, "texts")


def _extract(
    keys: Keys,
    lengths: np.ndarray | None,
    groups: Keys | None,
    spec: FeatureSpec,
    encode: _Encode,
    out: Path,
    settings: ExtractSettings,
    unit: str,
) -> ExtractSummary:
    """Plan, encode, write and publish; the part that images, objects and texts share."""
    if not len(keys):
        raise SightlineError(f"{out}: there are no {unit} to encode; look at the manifest")
    start = time.monotonic()
    writer = FeatureSetWriter(out, spec, settings.inputs)
    with account(writer, unit), writer:
        batches = writer.plan(
            keys,
            lengths,
            batch_size=settings.batch_size,
            groups=groups,
            retry_failed=settings.retry_failed,
            copy_from=settings.copy_from,
        )
        say_why(writer)
        count = sum(len(batch.keys) for batch in batches)
        calls = RowsPerCall(writer.rows_per_call, out.as_posix())
        with (
            progress(out.as_posix(), writer.planned_rows, unit, writer.resumed_rows) as advance,
            _writing_behind(writer) as write,
        ):
            for batch, features, failed in encode(batches, writer.batch_size, calls):
                good = np.array([key.tobytes() not in failed for key in batch.keys])
                write(batch.keys[good], features[good], failed, calls.count)
                advance(len(batch.keys))
        record = writer.publish(_computed_by(settings.device, writer.batch_size))
    summary = ExtractSummary(
        record=record,
        computed=count,
        copied=writer.copied_rows,
        resumed=writer.resumed_rows,
        failed=record.failed,
        seconds=time.monotonic() - start,
        unit=unit,
    )
    total = record.rows + record.failed
    check_failures(out, writer.failures, record.failed, total, unit, settings.max_failed)
    return summary


@contextmanager
def _writing_behind(writer: FeatureSetWriter) -> Iterator:
    """Yield a ``writer.add`` that runs in a thread of its own, a few batches behind at most."""
    pending: list[Future[None]] = []

    with ThreadPoolExecutor(max_workers=1) as pool:

        def write(keys: Keys, features: np.ndarray, failed: Failures, rows_per_call: int) -> None:
            while len(pending) >= _WRITES_AHEAD:
                pending.pop(0).result()
            pending.append(pool.submit(writer.add, keys, features, failed, rows_per_call))

        yield write
        for future in pending:
            future.result()


def _encode_pictures(
    by_key: Mapping[bytes, ImageEntry | CutoutEntry],
    read: Reader,
    encoder: ImageEncoder,
    settings: ExtractSettings,
) -> _Encode:
    """Encode what ``read`` makes of the entries behind a batch's keys."""
    from pipeline.extract.batches import decoded_batches, padded

    def encode(batches: Sequence[Batch], batch_size: int, calls: RowsPerCall) -> Iterator[Encoded]:
        entries = [[by_key[key.tobytes()] for key in batch.keys] for batch in batches]
        decoded = decoded_batches(entries, batch_size, read, settings.workers)
        for batch, own, (inputs, failures) in zip(batches, entries, decoded, strict=True):

            def call(start: int, stop: int, inputs: torch.Tensor = inputs) -> torch.Tensor:
                return encoder.encode(padded(inputs[start:stop], stop - start))

            features = calls.encode(len(own), call)
            failed = {
                own[row].key: {"code": code, "path": str(own[row].place), "reason": reason}
                for row, code, reason in failures
            }
            yield batch, features, failed

    return encode


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
        precision=settings.precision,
        dim=dim,
        dtype=settings.dtype,
    )


def _computed_by(device: str, batch_size: int) -> dict[str, str | int]:
    """Device and library versions, for the record; they do not enter the fingerprint."""
    import torch

    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    return {"device": name, "torch": torch.__version__, "batch_size": batch_size}
