"""Run one frozen encoder over the rows that a feature set lacks, on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.encoders.encoder import ImageFileEncoder, checked_encoder
from pipeline.extract.code_change import stays_unchecked
from pipeline.extract.inputs import FeatureInputs, inputs_of
from pipeline.extract.run_options import RunOptions
from pipeline.extract.runner import Advance, BatchResult, Compute, Job, SetSummary, good_rows, run
from pipeline.extract.services import Service
from pipeline.extract.settings import ExtractSettings
from pipeline.machine import Machine
from sightline.cache import FeatureSet, FeatureSpec, SetRecord
from sightline.cache.feature_kind import feature_kind
from sightline.cache.keys import Keys, as_keys, at, find_keys, unique_sorted
from sightline.cache.parts import Failure
from sightline.cache.plan import Batch
from sightline.cache.record import set_output
from sightline.devices import pick_device, use_device
from sightline.errors import SightlineError
from sightline.files.atomic_files import model_paths
from sightline.files.places import required_location
from sightline.identity import also, identity
from sightline.machine.out_of_memory import HalvingCalls
from sightline.machine.progress import to_stderr
from sightline.plugins import expect, expect_array, expect_count, wrong
from sightline.source_code import digest_of_others
from sightline.user_files import short
from sightline.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.encoders.config import EncoderConfig
    from pipeline.encoders.encoder import ImageEncoder, TextEncoder
    from pipeline.encoders.preprocessing import ImagePreprocessing
    from pipeline.extract.decode_batches import EntryDecoder, PendingFeatures
    from pipeline.extract.objects import CutoutPreprocessing
    from sightline.cache.prepared import PreparedDataset

_TOKENISED = 10_000  # texts at once; their token ids take many times the memory of the texts
WEIGHTS_CAST = ", weights cast"
"""Follows the precision in a record where weights were cast once, instead of autocast."""


def extract_features(
    data: PreparedDataset | Path | str,
    encoder: EncoderConfig,
    out: Path | str,
    kind: str = "image",
    *,
    phrases: Path | None = None,
    cutouts: Path | None = None,
    device: str = "auto",
    workers: int = Machine().workers,
    settings: ExtractSettings = ExtractSettings(),  # noqa: B008
) -> FeatureSet:
    """Make ``out`` hold one row for every image, object or caption of ``data``, and open it.

    Rows that are there already are kept; after a kill, the same call resumes.

    Args:
        data: a prepared data set; or a folder of images, or its URL; or for texts a file, one
            a line.
        kind: ``image``; ``object`` (cut-outs); ``text`` or ``teacher`` (captions).
        phrases: for objects: the records of a grounding, or a phrases manifest.
        cutouts: for objects: stored cut-outs, which stand in for the photographs.
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        workers: processes that decode images (0: none besides this one).
        settings: batch size, precision, storage type, rules of cut-outs and so on.

    Raises:
        SightlineError: the images are missing, or as `extract_job` and `run`.
    """
    data = required_location(data) if isinstance(data, str) else data
    inputs = inputs_of(kind, data, phrases=phrases, cutouts=cutouts)
    machine = Machine.model_validate({"devices": device, "workers": workers})
    fill_features(inputs, encoder, Path(out), settings, machine)
    return FeatureSet.open(out)


def fill_features(
    inputs: FeatureInputs,
    config: EncoderConfig,
    out: Path,
    settings: ExtractSettings,
    machine: Machine,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
) -> SetSummary | str:
    """Encode what the feature set ``out`` lacks; raises as `extract_job` and `run`.

    Where only the code of a package has changed and the encoder cannot be built here, as without
    its weights, a whole set stays; the line that says so is returned.
    """
    try:
        job = extract_job(inputs, config, out, settings, machine)
    except SightlineError as error:
        code = code_of_rows(inputs.kind, config)
        if remark := stays_unchecked(out, inputs.entries.keys, config, settings, code):
            return f"{remark} ({error})"
        raise
    return run(job, settings.max_failed, machine, options)


def extract_job(
    inputs: FeatureInputs,
    config: EncoderConfig,
    out: Path,
    settings: ExtractSettings,
    machine: Machine,
) -> Job:
    """Encoding ``inputs`` into the feature set ``out``, with an encoder built for ``machine``.

    Raises:
        SightlineError: the device is not available, the encoder cannot be built, ``out`` is not
            the place for it, or there is nothing to encode.
    """
    models = model_paths(config.model, config.weights.removeprefix("file:"))
    inputs = replace(inputs, paths=(*models, *inputs.paths))
    set_output(out, inputs.paths, kind=inputs.kind).check_place()
    config.require_files()
    kind = feature_kind(inputs.kind)
    build = getattr(config, kind.builder, None)
    if build is None:
        raise SightlineError(
            f"family {config.family!r} ({config.model}) does not encode {kind.unit}: it has no "
            f"method {kind.builder}"
        )
    needs_device = config.needs_device
    device = use_device(machine.device) if needs_device else pick_device("cpu")
    encoder = checked_encoder(build(device, settings.precision), build, kind.builder)
    identities = {"encoder": identity(config), "extract": identity(settings)}
    job = feature_job(inputs, encoder, out, settings, machine.workers, identities)
    spec = job.spec.model_copy(update={"code": code_of_rows(inputs.kind, config)})
    return replace(job, spec=spec, needs_device=needs_device)


def code_of_rows(kind: str, config: EncoderConfig) -> str:
    """Digest of the code of other packages that makes rows of this kind; empty: of none."""
    of_kind = feature_kind(kind)
    return digest_of_others(config, of_kind.function(of_kind.encode))


@dataclass(frozen=True)
class Encoding:
    """How the rows of a kind are encoded.

    Attributes:
        preprocessing: what determines the model's input, JSON values; part of the fingerprint.
        compute: computes batches.
        groups, lengths: as `plan_set` takes them, for the distinct keys in their order.
        cut: number of texts that are longer than the model takes; None: not known.
    """

    preprocessing: Mapping[str, object]
    compute: Compute
    groups: Keys | None = None
    lengths: NDArray[np.int32] | None = None
    cut: int | None = None


@dataclass(frozen=True)
class ToEncode:
    """What a kind's function makes an `Encoding` of.

    Attributes:
        inputs: what is encoded.
        keys: its distinct keys, sorted: uint8 [n, 32].
        encoder: what the kind's builder has made.
        settings: batch size, precision, storage type, rules of cut-outs.
        calls: runs the model for a batch, halved for lack of memory.
        workers: processes that decode (0: none besides this one).
        positions: of each key in ``inputs``: int64 [n].
        service: makes the calls of a model behind an API; None: it computes here.
    """

    inputs: FeatureInputs
    keys: Keys
    encoder: Any
    settings: ExtractSettings
    calls: HalvingCalls
    workers: int
    positions: NDArray[np.int64]
    service: Service | None = None

    def entries_of(self, batch: Batch) -> list[Any]:
        """The entries of a batch."""
        return self.entries(find_keys(self.keys, batch.keys))

    def entries(self, rows: NDArray[np.int64]) -> list[Any]:
        """The entries of some of the `keys`."""
        entries = self.inputs.entries.take(self.positions[rows])
        kind = feature_kind(self.inputs.kind)
        expect_count(entries, len(rows), kind.function(kind.read), "entries", "keys")
        return entries

    def name_of(self, key: bytes) -> str:
        """The place of a key's entry; the beginning of a text."""
        (entry,) = self.entries(find_keys(self.keys, as_keys([key])))
        return str(entry.place) if hasattr(entry, "place") else short(entry)


def feature_job(
    inputs: FeatureInputs,
    encoder: Any,
    out: Path,
    settings: ExtractSettings,
    workers: int = 0,
    identities: Mapping[str, Mapping[str, object]] = {},
) -> Job:
    """Encoding ``inputs`` into the feature set ``out``.

    Worker processes decode images, or cut objects out of them: an image with several is decoded
    once (twice where a batch ends between them). They are encoded in batches of fixed shape, and
    one unreadable image costs one row. A text is padded to a length that depends only on itself
    and shares a batch only with texts of that length. So no row depends on the others.

    Args:
        encoder: what the kind's builder has made: a `TextEncoder` for texts, an `ImageEncoder` or
            `ImageFileEncoder` for images and objects.
        workers: processes that decode images (0: none besides this one).
        identities: settings that the rows are named by, besides what ``encoder`` says of itself.

    Raises:
        SightlineError: nothing to encode.
    """
    kind = feature_kind(inputs.kind)
    if not len(inputs.entries):
        raise SightlineError(f"{out}: there are no {kind.unit} to encode; check the manifest")
    distinct = unique_sorted(inputs.entries.keys)
    keys, calls = at(inputs.entries.keys, distinct), HalvingCalls(out.as_posix())
    at_once = getattr(encoder, "concurrency", None)
    service = Service(at_once) if at_once else None
    task = ToEncode(inputs, keys, encoder, settings, calls, workers, distinct, service)
    encode = kind.function(kind.encode)
    encoding = expect(encode(task), Encoding, encode, "it")
    for name, of_keys in (("groups", encoding.groups), ("lengths", encoding.lengths)):
        if of_keys is not None:
            expect_count(of_keys, len(keys), encode, f"`{name}` of what it makes", "keys")
    spec = FeatureSpec(
        kind=inputs.kind,
        encoder=encoder.identity,
        preprocessing={**encoding.preprocessing, **also(identities)},
        precision=precision_rule(encoder, "fp32" if service else settings.precision),
        dim=encoder.dim,
        dtype=settings.dtype,
    )
    return Job(
        out,
        spec,
        inputs.paths,
        kind.unit,
        keys,
        settings.batch_size,
        partial(_checked_results, encoding.compute, encode, encoder.dim),
        _described,
        encoding.groups,
        encoding.lengths,
        calls=[calls],
        options=encoder.options,
        cut=encoding.cut,
        name_of=task.name_of,
        service=service,
    )


def _checked_results(
    compute: Compute,
    encode: Callable[..., object],
    dim: int,
    batches: Iterator[Batch],
    advance: Advance,
) -> Iterator[BatchResult]:
    """The results of ``compute``, which ``encode`` of a kind has made: each as it must be."""
    results = compute(batches, advance)
    for result in results:
        subject = "a result of `compute`"
        expect(result, BatchResult, encode, subject)
        shape = sum(good_rows(result.batch, result.failed)), dim
        expect_array(result.rows, "float32", shape, encode, f"{subject}, rows that did not fail")
        yield result


def encode_texts(task: ToEncode) -> Encoding:
    """Rows of texts, padded to one length in a batch."""
    encoder = task.encoder
    lengths = np.empty(len(task.keys), dtype=np.int32)
    count_cut, cut = encoder.count_cut, 0
    for start in range(0, len(lengths), _TOKENISED):
        rows = np.arange(start, min(start + _TOKENISED, len(lengths)))
        texts = task.entries(rows)
        lengths[rows] = encoder.lengths(texts)
        if count_cut is not None:
            cut += count_cut(texts)
    compute = partial(_rows_of_texts, task)
    if task.service is not None:
        encode = task.service.with_retries(encoder.encode)

        def answer(batch: Batch, texts: list[str]) -> BatchResult:
            return BatchResult(batch, encode(texts, batch.length).cpu().numpy(), {})

        compute = _through(task.service, task, answer)
    cut = cut if count_cut is not None else None
    return Encoding(encoder.preprocessing, compute, lengths=lengths, cut=cut)


def encode_images(task: ToEncode) -> Encoding:
    """Rows of whole images."""
    from pipeline.extract.decode import load_bytes, load_entry

    if isinstance(task.encoder, ImageFileEncoder):
        return _encoded_files(task, lambda: lambda entry: load_bytes(entry.place, entry.key))
    return _encoded_pixels(task, load_entry, task.encoder.preprocessing)


def encode_objects(task: ToEncode) -> Encoding:
    """Rows of cut-outs; those of one image are read one after the other."""
    from pipeline.extract.objects import CutoutPreprocessing, Cutter, file_reader

    groups = task.inputs.entries.groups
    groups = None if groups is None else groups[task.positions]
    if isinstance(task.encoder, ImageFileEncoder):
        return replace(_encoded_files(task, file_reader), groups=groups)
    preprocessing = CutoutPreprocessing(task.encoder.preprocessing, task.settings.cutouts)
    return replace(_encoded_pixels(task, Cutter(), preprocessing), groups=groups)


def _encoded_files(task: ToEncode, reader: Callable[[], Callable[[Any], bytes]]) -> Encoding:
    """Rows of the files of pictures, from a service.

    Args:
        reader: makes a function from an entry to its file, for one batch.
    """
    from pipeline.extract.decode import ImageError

    service, encoder = task.service, task.encoder
    assert service is not None  # such an encoder always has one
    encode = service.with_retries(encoder.encode)

    def answer(batch: Batch, entries: list[Any]) -> BatchResult:
        read, files, failed = reader(), list[bytes](), dict[bytes, Failure]()
        for entry in entries:
            try:
                files.append(read(entry))
            except ImageError as error:
                failed[entry.key] = error.at(entry.place)
        rows = encode(files).cpu().numpy() if files else np.empty((0, encoder.dim), np.float32)
        return BatchResult(batch, rows, failed)

    return Encoding(encoder.preprocessing, _through(service, task, answer))


def _through(
    service: Service, task: ToEncode, answer: Callable[[Batch, Any], BatchResult]
) -> Compute:
    return lambda batches, advance: service.results(batches, task.entries_of, answer, advance)


def _encoded_pixels(
    task: ToEncode,
    load: Callable[[Any], Tensor],
    preprocessing: ImagePreprocessing | CutoutPreprocessing,
) -> Encoding:
    from pipeline.extract.decode_batches import EntryDecoder

    described, configuration = preprocessing.describe(), task.encoder.configuration
    if twice := sorted(described.keys() & configuration.keys()):
        raise wrong(
            task.encoder.preprocessing,
            "`configuration` of its encoder",
            twice[0],
            "names that the preprocessing has for nothing else",
        )
    return Encoding(
        {**described, **configuration},
        partial(_rows_of_pixels, task, EntryDecoder(load, preprocessing)),
    )


def _rows_of_texts(
    task: ToEncode, batches: Iterator[Batch], advance: Advance
) -> Iterator[BatchResult]:
    """The features of each batch: float32 [n, dim]."""
    for batch in batches:
        texts = task.entries_of(batch)

        def call(
            start: int, stop: int, texts: list[str] = texts, length: int = batch.length
        ) -> np.ndarray:
            part = texts[start:stop]
            padded = part + [""] * (stop - start - len(part))
            return task.encoder.encode(padded, length).cpu().numpy()

        rows = np.concatenate(task.calls.run(len(texts), call))
        yield BatchResult(batch, rows[: len(texts)], {})
        advance(len(texts))


def _rows_of_pixels(
    task: ToEncode, read: EntryDecoder, batches: Iterator[Batch], advance: Advance
) -> Iterator[BatchResult]:
    """The features of each batch, those that could be read: float32 [n, dim]."""
    from pipeline.extract.decode_batches import NEARLY_BLACK, EncoderFeed, decoded_batches

    feed, calls = EncoderFeed(task.encoder, read), task.calls
    launched: deque[tuple[Batch, list[PendingFeatures], dict[bytes, Failure]]] = deque()

    def finished() -> BatchResult:
        """Wait for the features of the first batch."""
        batch, results, failed = launched.popleft()
        features = np.concatenate([result() for result in results])[: len(batch.keys)]
        advance(len(batch.keys))
        return BatchResult(batch, features[good_rows(batch, failed)], failed)

    dark: list[str] = []
    batches, planned = tee(batches)
    entries = map(task.entries_of, planned)
    decoded = decoded_batches(entries, calls.begun_with, read, task.workers, pinned=feed.on_gpu)
    for (inputs, failed, dark_here), batch in zip(decoded, batches, strict=True):
        dark += dark_here
        results = calls.run(len(batch.keys), partial(feed.launch, inputs))
        launched.append((batch, results, failed))
        if len(launched) > feed.on_gpu:  # there the next is launched before this one is read
            yield finished()
    while launched:
        yield finished()
    if dark:
        to_stderr(
            f"warning: {counted(len(dark), 'picture')} came out nearly black (no value above "
            f"{NEARLY_BLACK} of 255), such as {dark[0]}; 10 or 12 bits in a file of 16 do: "
            "multiply such values by 64 or 16, and prepare the data set again"
        )


def _described(record: SetRecord[FeatureSpec]) -> list[str]:
    untrained = "untrained weights" if record.spec.encoder.untrained else ""
    return [counted(record.rows, "row"), *filter(None, (untrained, record.cut_in_words))]


def precision_rule(encoder: ImageEncoder | TextEncoder, precision: str) -> str:
    """How rows are computed, for the fingerprint: the precision, and how weights are lowered to it.

    Without a rule, reduced precision means autocast.
    """
    cast = encoder.casts_weights and precision != "fp32"
    return f"{precision}{WEIGHTS_CAST}" if cast else precision
