"""Run one frozen encoder over the rows that a feature set lacks, on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.extract.memory import HalvingCalls
from pipeline.extract.runner import Advance, Computed, Job, RunSettings, SetSummary, run
from sightline.cache import FeatureSetRecord, FeatureSpec, Place, SetWriter
from sightline.cache.keys import Keys, KeyTable, as_keys, keys_of_texts, sort_order
from sightline.cache.plan import Batch
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.encoders.encoder import ImageEncoder, TextEncoder
    from pipeline.extract.batches import Reader, Result
    from pipeline.extract.cutouts import CutoutEntry, CutoutRules
    from pipeline.extract.objects import StoredCutouts
    from sightline.cache.parts import Failure

_TOKENISED = 10_000  # texts at once; their token ids take many times the memory of the texts
WEIGHTS_CAST = ", weights cast"
"""Follows the precision in a record where weights were cast once, instead of autocast."""


class ImageEntry(NamedTuple):
    """Where one image is, and the SHA-256 of its bytes."""

    place: Place
    key: bytes


def extract_images(
    entries: Sequence[ImageEntry],
    encoder: ImageEncoder,
    out: Path,
    settings: RunSettings,
) -> SetSummary:
    """Encode image files into the feature set ``out``.

    Worker processes decode images; they are encoded in batches of fixed shape and written by a
    separate thread. One unreadable image costs one row.

    Raises:
        SightlineError: no images, more failures than ``settings.max_failed`` (good rows are
            published first), or no disk space.
    """
    from pipeline.extract.batches import ImageReader

    read = ImageReader(encoder.preprocessing, settings.max_pixels)
    by_key = {entry.key: entry for entry in entries}
    return _extract_pictures("image", by_key, read, encoder, out, settings)


def extract_objects(
    entries: Sequence[CutoutEntry],
    encoder: ImageEncoder,
    rules: CutoutRules,
    out: Path,
    settings: RunSettings,
    stored: StoredCutouts | None = None,
) -> SetSummary:
    """Encode objects, stored or cut out of their images, into the feature set ``out``.

    An object that several captions name counts once, and an image with several is decoded once
    (twice where a batch ends between them).

    Args:
        stored: cut-outs; objects that it lacks are cut out of their images.

    Raises:
        SightlineError: as `extract_images`.
    """
    from pipeline.extract.cutouts import CutoutPreprocessing
    from pipeline.extract.objects import ObjectReader

    read = ObjectReader(CutoutPreprocessing(encoder.preprocessing, rules), settings.max_pixels)
    by_key = {entry.key: entry for entry in entries}
    groups = as_keys([entry.image_key for entry in by_key.values()])
    if stored is None:
        return _extract_pictures("object", by_key, read, encoder, out, settings, groups)
    keys = as_keys(list(by_key))  # of what is stored, so that it is read shard by shard
    groups = np.where(stored.holds(keys)[:, None], keys, groups)
    return _extract_pictures("object", by_key, read, encoder, out, settings, groups, stored.filled)


def extract_texts(
    texts: Sequence[str],
    encoder: TextEncoder,
    out: Path,
    settings: RunSettings,
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

    def encode(batches: Iterator[Batch], calls: HalvingCalls) -> Iterator[Computed]:
        for batch in batches:
            own = [distinct[i] for i in order[table.find(batch.keys)]]

            def call(
                start: int, stop: int, own: list[str] = own, length: int = batch.length
            ) -> np.ndarray:
                part = own[start:stop]
                return encoder.encode(part + [""] * (stop - start - len(part)), length).numpy()

            rows = np.concatenate(calls.run(len(own), call))
            yield Computed(batch, rows[: len(own)], {})

    return _extract(
        kind, keys, encode, encoder, encoder.preprocessing, out, settings, lengths=lengths
    )


def _extract_pictures(
    kind: Kind,
    by_key: Mapping[bytes, ImageEntry | CutoutEntry],
    read: Reader,
    encoder: ImageEncoder,
    out: Path,
    settings: RunSettings,
    groups: Keys | None = None,
    fill: Callable[[list[Any]], list[Any]] = list,
) -> SetSummary:
    """Encode the inputs that ``read`` makes of the entries; those of a group stay together.

    Args:
        fill: completes the entries of a batch.
    """
    from pipeline.extract.batches import Feed, decoded_batches

    feed = Feed(encoder, read)

    def encode(batches: Iterator[Batch], calls: HalvingCalls) -> Iterator[Computed]:
        batches, planned = tee(batches)
        entries = (fill([by_key[key.tobytes()] for key in batch.keys]) for batch in planned)
        decoded = decoded_batches(
            entries, calls.begun_with, read, settings.workers, pinned=feed.on_gpu
        )
        launched: deque[tuple[Batch, list[Result], dict[bytes, Failure]]] = deque()
        for (inputs, failed), batch in zip(decoded, batches, strict=True):
            results = calls.run(len(batch.keys), partial(feed.launch, inputs))
            launched.append((batch, results, failed))
            if len(launched) > feed.on_gpu:  # there the next is launched before this one is read
                yield _finished(*launched.popleft())
        for last in launched:
            yield _finished(*last)

    described = read.preprocessing.describe()
    keys = as_keys(list(by_key))
    return _extract(kind, keys, encode, encoder, described, out, settings, groups=groups)


def _finished(batch: Batch, results: list[Result], failed: dict[bytes, Failure]) -> Computed:
    """Wait for the features of a batch."""
    features = np.concatenate([result() for result in results])[: len(batch.keys)]
    good = [key.tobytes() not in failed for key in batch.keys]
    return Computed(batch, features[good], failed)


def _extract(
    kind: Kind,
    keys: Keys,
    encode: Callable[[Iterator[Batch], HalvingCalls], Iterator[Computed]],
    encoder: ImageEncoder | TextEncoder,
    preprocessing: dict[str, object],
    out: Path,
    settings: RunSettings,
    *,
    lengths: np.ndarray | None = None,
    groups: Keys | None = None,
) -> SetSummary:
    """Plan, encode, write and publish; shared by images, objects and texts.

    Args:
        encode: batches, calls of the model → the rows of each batch, float32 [n, dim].
        preprocessing: what determines the model's input, as JSON values.
    """
    unit = {"image": "images", "object": "objects"}.get(kind, "texts")
    if not len(keys):
        raise SightlineError(f"{out}: there are no {unit} to encode; check the manifest")
    spec = FeatureSpec(
        kind=kind,
        encoder=encoder.identity,
        preprocessing=preprocessing,
        precision=precision_rule(encoder, settings.precision),
        dim=encoder.dim,
        dtype=settings.dtype,
    )
    writer = SetWriter(out, spec, settings.inputs, settings.worker)
    calls = HalvingCalls(out.as_posix())
    shape, options = settings.shape, ", ".join(encoder.options)
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
        calls.begin(writer.shape.batch_size, (part.computed for part in writer.parts))
        return batches

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[Computed]:
        for computed in encode(batches, calls):
            yield computed
            advance(len(computed.batch.keys))

    about = {"options": options} if options else {}
    return run(Job(writer, plan, compute, _described, unit, [calls], about), settings)


def _described(record: FeatureSetRecord) -> list[str]:
    words = counted(record.rows, "row")
    return [words, "untrained weights"] if record.spec.encoder.untrained else [words]


def precision_rule(encoder: ImageEncoder | TextEncoder, precision: str) -> str:
    """How rows are computed, for the fingerprint: the precision, and how weights are lowered to it.

    Without a rule, reduced precision means autocast.
    """
    cast = encoder.casts_weights and precision != "fp32"
    return f"{precision}{WEIGHTS_CAST}" if cast else precision
