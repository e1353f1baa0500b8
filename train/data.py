"""Training batches from the cache: pre-tokenised ids and frozen features, gathered by key.

Every input of a run is found, and everything missing is reported, before a model loads.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.cache import (
    SENTENCES,
    CacheError,
    FeatureSet,
    MissingKeys,
    RaggedPhrases,
    TokenSet,
    keys_of_texts,
    read_manifest,
)
from sightline.cache.feature_kind import RowOf
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from sightline.models.sentence_transformers_folder import prompt_of
from train.batch import Batch
from train.pairs import (
    drawn_at_random,
    exchanged,
    phrases_without,
    read_pairs,
    read_phrases,
    sample,
    with_next_objects,
    without_images,
)
from train.rows import Lookup, StreamRows, Texts, TrainedStream, extra_texts_of, order_of
from train.run_spec import RunSpec, StudentConfig
from train.schedule import Draw, Schedule, Stream

if TYPE_CHECKING:
    import torch

    from train.objectives import FeatureNeed, Objective


CONTROLLED: Mapping[str, set[Kind]] = {
    "shuffle_images": {"image"},
    "random_images": {"image"},
    "shuffle_teachers": {"text", "teacher"},
    "shuffle_objects": {"object"},
}
"""Control → the kinds of features that it removes the signal from."""


class TrainingData:
    """Item k is micro-batch k of the run.

    Attributes:
        schedule: which rows are in micro-batch k.
        feature_sets: by `FeatureNeed.name`.
        dropped_pairs: pairs left out because their image could not be extracted.
        dropped_phrases: phrases left out because their object could not be extracted.
        extra_digests: stream and block → digest of the extra texts that the objective brings.
        phrases_digest: content digest of the phrase tokens, if the objective reads them.
        source: what the streams were read from, for the model card.
    """

    def __init__(self, spec: RunSpec, objective: Objective) -> None:
        """Open and check every input of ``spec``."""
        _check(spec, objective)
        self.seed = spec.seed
        self.feature_sets = {need.name: _open(spec, need) for need in objective.features}
        objective.check_widths(self.dims)
        self.dropped_pairs = self.dropped_phrases = 0
        self.phrases_digest: str | None = None
        self.source: dict[str, str] = {}
        self.extra_digests: dict[str, str] = {}
        self._spec = spec
        self._streams: dict[Stream, TrainedStream] = {}
        pairs_per_epoch = (
            None if spec.pairs is None else self._add_pairs(spec, spec.pairs, objective)
        )
        if (sentences := spec.manifests.get("sentences")) is not None:
            self.source["text"] = str(sentences)
            texts = read_manifest(sentences, SENTENCES).column("text").to_pylist()
            rows = StreamRows("text", texts, keys_of_texts(texts))
            self._add(rows, objective, features={})
        sizes = {name: len(stream.rows) for name, stream in self._streams.items()}
        self.schedule = Schedule(
            sizes.get("pairs", 0),
            sizes.get("text", 0),
            spec.train.batch_size,
            spec.seed,
            pairs_per_epoch,
        )

    @cached_property
    def tokens(self) -> TokenSet:
        """Of every text; opened once the texts are read, whose absence is the plainer error."""
        return open_tokens(self._spec.tokens, self._spec.student)

    @property
    def dims(self) -> dict[str, int]:
        """Name of a feature set → width of its rows."""
        return {name: features.dim for name, features in self.feature_sets.items()}

    @property
    def nbytes(self) -> int:
        """What the token ids and features of all rows take on a device."""
        return sum(stream.nbytes for stream in self._streams.values())

    def move_to(self, device: torch.device) -> None:
        """Hold token ids and features on ``device``; batches are then looked up there."""
        self._streams = {name: stream.moved(device) for name, stream in self._streams.items()}

    def __len__(self) -> int:
        """Micro-batches of one epoch; items beyond it exist, for every further epoch."""
        return self.schedule.steps_per_epoch

    def __iter__(self) -> Iterator[Batch]:
        """The micro-batches of the first epoch."""
        return (self[k] for k in range(len(self)))

    def __getitem__(self, k: int) -> Batch:
        draw, stream, rows = self._draw(k)
        blocks, features = stream.blocks_and_features(rows)
        return Batch(k, self.seed, draw.stream, blocks, features, stream.rows.keys[rows])

    def _draw(self, k: int) -> tuple[Draw, TrainedStream, NDArray[np.int64]]:
        """Micro-batch ``k``: its draw, stream and row numbers."""
        draw = self.schedule.draw(k)
        stream = self._streams[draw.stream]
        return draw, stream, self.schedule.rows(draw, stream.order(draw.pass_number))

    def repeats(self, batches: int) -> tuple[int, int]:
        """Rows whose text or image their batch has twice, and all, of the first ``batches``."""
        repeated = total = 0
        for k in range(batches):
            _, stream, rows = self._draw(k)
            twice = _stands_twice(stream.rows.keys[rows])
            if stream.rows.images is not None:
                twice |= _stands_twice(stream.rows.images[rows])
            repeated, total = repeated + int(twice.sum()), total + len(rows)
        return repeated, total

    def _add(
        self,
        rows: StreamRows,
        objective: Objective,
        features: Mapping[str, Lookup],
        phrases: RaggedPhrases | None = None,
        of_objects: frozenset[str] = frozenset(),
    ) -> None:
        if len(rows) < 2:
            raise SightlineError(
                f"{self.source[rows.stream]}: too few rows to train on ({len(rows)}); a "
                "contrastive loss needs at least two"
            )
        texts, of_extra = self._extra(rows, objective)
        self._streams[rows.stream] = TrainedStream(
            rows,
            {"sentences": Texts.of(self.tokens, rows.keys), **texts},
            {**features, **of_extra},
            lru_cache(maxsize=2)(partial(order_of, objective, rows, self.seed)),
            phrases,
            of_objects,
        )

    def _extra(
        self, rows: StreamRows, objective: Objective
    ) -> tuple[dict[str, Texts], dict[str, Lookup]]:
        """The extra texts that the objective brings, by block, and their features."""
        texts, features = dict[str, Texts](), dict[str, Lookup]()
        needs = {need.name: need for need in objective.features}
        for block, second in extra_texts_of(objective, rows).items():
            keys: dict[RowOf, Any] = {"image": second.images, "caption": second.keys}
            for name in second.features:
                lookup = self._lookup(needs[name], keys[needs[name].row_of])
                features[f"{block}/{name}"] = lookup
            try:
                texts[block] = Texts.of(self.tokens, second.keys)
            except MissingKeys as error:
                raise MissingKeys(
                    f"{error}\n  They are the extra texts `{block}` of objective "
                    f"{objective.name}; make the tokens of their data set too: `sightline tokens`."
                ) from error
            self.extra_digests[f"{rows.stream}/{block}"] = second.digest
        return texts, features

    def _add_pairs(self, spec: RunSpec, folder: Path, objective: Objective) -> int | None:
        """Add the stream of pairs; returns how many pairs pace the schedule, if not these."""
        needs = objective.features
        manifests = spec.manifests["captions"], spec.manifests["images"]
        pairs = read_pairs(*manifests, objective.caption, objective.data_seed)
        count = len(pairs)
        pairs = without_images(pairs, self._failed("image", needs))
        self.dropped_pairs = count - len(pairs)
        self.source["pairs"] = str(folder)
        if not len(pairs):
            raise SightlineError(
                f"{folder}: the images of all {count} pairs could not be "
                "extracted; see the failures file beside the feature set"
            )
        pairs_per_epoch = None
        if objective.pairs is not None:
            pairs_per_epoch = len(pairs)
            pairs = sample(pairs, objective.pairs, objective.data_seed)
        of_objects = frozenset(need.name for need in needs if need.row_of == "object")
        phrases = None
        if of_objects:
            phrases = self._read_phrases(spec, needs, pairs)
            if objective.shuffle_objects:
                phrases = with_next_objects(phrases)
        images, of_captions, seed = pairs.images, pairs.keys, objective.data_seed
        assert images is not None
        if objective.shuffle_images:
            images = exchanged(images, seed, "shuffle_images")
        if objective.random_images:
            images = drawn_at_random(images, seed)
        if objective.shuffle_teachers:
            of_captions = exchanged(of_captions, seed, "shuffle_teachers")
        keys: dict[RowOf, NDArray[np.uint8]] = {"image": images, "caption": of_captions}
        if phrases is not None:
            keys["object"] = phrases.cutouts
        features = {need.name: self._lookup(need, keys[need.row_of]) for need in needs}
        of_rows = {name: lookup for name, lookup in features.items() if name not in of_objects}
        rows = replace(pairs, images=images, lookups=of_rows)
        self._add(rows, objective, features, phrases, of_objects)
        return pairs_per_epoch

    def _failed(self, row_of: RowOf, needs: Sequence[FeatureNeed]) -> set[bytes]:
        """Keys of what could not be extracted in a feature set whose rows are of these."""
        sets = (self.feature_sets[need.name] for need in needs if need.row_of == row_of)
        return {key for features in sets for key in features.failed}

    def _read_phrases(
        self,
        spec: RunSpec,
        needs: Sequence[FeatureNeed],
        pairs: StreamRows,
    ) -> RaggedPhrases:
        """The phrases of ``pairs``, without those whose object could not be extracted."""
        if spec.phrases is None:
            names = ", ".join(need.name for need in needs if need.row_of == "object")
            raise SightlineError(
                f"objective {spec.objective} reads features of objects ({names}), "
                "so it needs phrase tokens; make them with `sightline tokens --phrases` and give "
                "`--phrases` (in a RunSpec `phrases`)"
            )
        phrases, self.phrases_digest = read_phrases(spec.phrases, pairs, self.tokens)
        kept = phrases_without(phrases, self._failed("object", needs))
        self.dropped_phrases = len(phrases.starts) - len(kept.starts)
        return kept

    def _lookup(self, need: FeatureNeed, keys: NDArray[np.uint8]) -> Lookup:
        """Where the features of ``keys`` are; an error names the set that does not match."""
        features = self.feature_sets[need.name]
        try:
            return Lookup(features.gather, features.rows(keys))
        except MissingKeys as error:
            raise MissingKeys(
                f"{error}\n  They belong to training pairs, for {need.name}: {need}. "
                f"Features and captions must come from one data set; `{need.command}` makes them."
            ) from error


def _check(spec: RunSpec, objective: Objective) -> None:
    """Refuse inputs and parameters that the objective lacks, or that would do nothing."""
    needs, which = objective.features, f"objective {spec.objective}"
    names, kinds = [need.name for need in needs], {need.kind for need in needs}
    missing = [
        f"{need.name} ({need}; made by `{need.command}`)"
        for need in needs
        if need.name not in spec.features
    ]
    unused = [name for name in spec.features if name not in names]
    idle = [
        f"{control} is on, but {which} reads no {' or '.join(sorted(of_kinds))} features here; "
        "remove it"
        for control, of_kinds in CONTROLLED.items()
        if getattr(objective, control) and not kinds & of_kinds
    ]
    for refused, why in (
        (
            needs and spec.pairs is None,
            f"{which} needs pairs, for {', '.join(map(str, needs))}; give captions and images",
        ),
        (
            missing,
            f"{which} needs a feature set for {', '.join(missing)}; "
            f"given: {', '.join(spec.features) or 'none'}",
        ),
        (
            unused,
            f"{which} does not read features for {', '.join(unused)}; "
            f"it reads {', '.join(names) or 'none'}",
        ),
        (
            spec.sentences is not None and not objective.trains_on_text,
            f"{which}: its text term is off, so a batch of plain sentences trains nothing; omit "
            "the text stream, or set text_weight to a value above 0",
        ),
        (
            spec.phrases is not None and not any(need.row_of == "object" for need in needs),
            f"{which} reads no phrases; omit them",
        ),
        (idle, "; ".join(idle)),
    ):
        if refused:
            raise SightlineError(why)


def _stands_twice(keys: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which of [n, 32] appear among them more than once: bool [n]."""
    _, place, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return counts[place.ravel()] > 1


def first_paired(data: TrainingData, batches: int, count: int = 100) -> Iterator[Batch]:
    """The first ``count`` paired batches among micro-batches 0 … ``batches`` − 1 of a run."""
    paired = (k for k in range(batches) if data.schedule.draw(k).stream == "pairs")
    return (data[k] for k in itertools.islice(paired, count))


def _open(spec: RunSpec, need: FeatureNeed) -> FeatureSet:
    """The feature set of a need; an error says what it is for and how to make it."""
    path = spec.features[need.name]
    try:
        features = FeatureSet.open(path)
    except CacheError as error:
        raise SightlineError(
            f"{error}\n  Objective {spec.objective} needs it as {need.name}: {need}; "
            f"`{need.command}` makes it."
        ) from error
    kind = features.record.spec.kind
    if kind != need.kind:
        raise SightlineError(
            f"{path}: holds {kind} features, but objective {spec.objective} needs it as "
            f"{need.name}: {need}; `{need.command}` makes them"
        )
    return features


def open_tokens(path: Path, student: StudentConfig) -> TokenSet:
    """The token set in ``path``; refused if its length or prompt is not the student's."""
    tokens, max_length = TokenSet.open(path), student.max_length
    prompt = prompt_of(student.source, student.prompt)
    if tokens.header.prompt != prompt:
        raise SightlineError(
            f"{tokens.path}: made with the prompt {tokens.header.prompt!r}, but the student's is "
            f"{prompt!r}; run `sightline tokens` with `--prompt {shlex.quote(prompt)}`"
        )
    length = tokens.header.max_length
    if length != max_length:
        raise SightlineError(
            f"{tokens.path}: truncated to {length} tokens, but the student's max_length is "
            f"{max_length}; run `sightline tokens` with `--max-length {max_length}`, or train with "
            f"`--max-length {length}`"
        )
    return tokens


def make_feed(data: TrainingData, device: torch.device, share: float) -> Callable[[int], Batch]:
    """Micro-batch k of ``data``, on ``device``.

    Token ids and features move to a GPU if they take at most ``share`` of its memory; otherwise a
    thread reads the next batch while a step runs. A CPU reads the cache as it is.
    """
    import torch

    if device.type == "cpu":
        return data.__getitem__
    if device.type == "cuda" and data.nbytes > share * torch.cuda.mem_get_info(device)[1]:
        return ReadAhead(data, device)
    data.move_to(device)
    return lambda k: data[k].to(device)


class ReadAhead:
    """Micro-batches in order, the next one read and on its way while the caller uses one."""

    def __init__(self, data: TrainingData, device: torch.device) -> None:
        self._data, self._device = data, device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._next: tuple[int, Future[Batch]] | None = None

    def __call__(self, k: int) -> Batch:
        expected, self._next = self._next, None
        future = self._read(k) if expected is None or expected[0] != k else expected[1]
        self._next = k + 1, self._read(k + 1)
        return future.result()

    def _read(self, k: int) -> Future[Batch]:
        return self._pool.submit(lambda: self._data[k].to(self._device))
