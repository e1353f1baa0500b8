"""Training batches from the cache: pre-tokenised ids and frozen features, gathered by key.

Every input of a run is found, and everything missing is reported, before a model loads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

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
from sightline.cache.record import Kind
from sightline.devices import to_device
from sightline.errors import SightlineError
from train.batch import Batch
from train.pairs import (
    Pairs,
    describe_source,
    phrases_without,
    read_pairs,
    read_phrases,
    take_phrases,
    with_next_objects,
)
from train.run_spec import RunSpec, TextSource
from train.schedule import Schedule, Stream

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from train.objectives.objective import FeatureNeed, Objective


CONTROLLED: Mapping[str, set[Kind]] = {
    "shuffle_images": {"image"},
    "random_images": {"image"},
    "shuffle_teachers": {"text", "teacher"},
    "shuffle_objects": {"object"},
}
"""Control → the kinds of features that it removes the signal from."""


@dataclass(frozen=True)
class FeatureLookup:
    """Cached features of rows 0 … n − 1 of a stream, from the host or a device.

    A run reads the same rows in every epoch. On a GPU they are moved there once if they fit, and a
    batch is then a lookup on the device; the values are the same.

    Attributes:
        table: the feature set, read on the host, or the rows of it that are needed, on a device:
            [distinct, D], in the type of the cache.
        rows: int64 [n], row of the table for each row of the stream.
    """

    table: FeatureSet | Tensor
    rows: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of ``rows``: float32 [len(rows), D]."""
        import torch

        at = self.rows[rows]
        if not isinstance(self.table, FeatureSet):
            return self.table[_index(at, self.table.device)].float()
        return torch.from_numpy(self.table.gather(at).astype(np.float32, copy=False))

    @property
    def nbytes(self) -> int:
        """What the distinct rows take on a device."""
        if not isinstance(self.table, FeatureSet):
            return self.table.nbytes
        return len(np.unique(self.rows)) * self.table.dim * self.table.dtype.itemsize

    def moved(self, device: torch.device) -> FeatureLookup:
        """The same features on ``device``, each distinct row once."""
        import torch

        if not isinstance(self.table, FeatureSet):
            return replace(self, table=self.table.to(device))
        distinct, places = np.unique(self.rows, return_inverse=True)
        dtype = torch.from_numpy(np.empty(0, self.table.dtype)).dtype
        table = torch.empty(len(distinct), self.table.dim, dtype=dtype, device=device)
        chunk = 1 << 15  # the host may not have the memory for all
        for start in range(0, len(distinct), chunk):
            part = self.table.gather(distinct[start : start + chunk])
            table[start : start + len(part)] = torch.from_numpy(part).to(device)
        return FeatureLookup(table, places.astype(np.int64))


@dataclass(frozen=True)
class TokenLookup:
    """Token ids of rows 0 … n − 1 of a stream, likewise.

    Attributes:
        tokens: their token set.
        rows: int64 [n], row of the set for each row of the stream.
        table: the padded ids of all rows, on a device: int32 [n, longest]; None reads the set.
    """

    tokens: TokenSet
    rows: NDArray[np.int64]
    table: Tensor | None = None

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [n]."""
        return self.tokens.lengths[self.rows].astype(np.int64)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Token ids of ``rows``, padded to the longest: int64 [len(rows), L]."""
        import torch

        if self.table is None:
            return torch.from_numpy(self._padded(rows).astype(np.int64))
        longest = int(self.lengths[rows].max())
        return self.table[:, :longest][_index(rows, self.table.device)].long()

    @property
    def nbytes(self) -> int:
        """What the padded rows take on a device."""
        return len(self.rows) * int(self.lengths.max(initial=0)) * 4

    def moved(self, device: torch.device) -> TokenLookup:
        """The same ids on ``device``, padded to the longest of all rows."""
        import torch

        padded = torch.from_numpy(self._padded(np.arange(len(self.rows))))
        return replace(self, table=padded.to(device))

    def _padded(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Token ids of ``rows`` from the set, padded to the longest of them: int32 [n, L]."""
        flat, lengths = self.tokens.gather(self.rows[rows])
        inside = np.arange(lengths.max()) < lengths[:, None]  # (n, L)
        ids = np.full(inside.shape, self.tokens.header.pad_token_id, dtype=np.int32)
        ids[inside] = flat
        return ids


def _index(rows: NDArray[np.int64], device: torch.device) -> Tensor:
    import torch

    return to_device(torch.tensor(rows), device)  # a copy: rows may be read-only


@dataclass(frozen=True)
class _Stream:
    """One stream, resolved: where each of its rows is in its token set and feature sets.

    Attributes:
        features: by name, of the rows; of the phrases' objects for the names in `of_objects`.
    """

    keys: NDArray[np.uint8]
    tokens: TokenLookup
    features: Mapping[str, FeatureLookup] = field(default_factory=dict)
    phrases: RaggedPhrases | None = None
    of_objects: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + sum(lookup.nbytes for lookup in self.features.values())

    def moved(self, device: torch.device) -> _Stream:
        features = {name: lookup.moved(device) for name, lookup in self.features.items()}
        return replace(self, tokens=self.tokens.moved(device), features=features)


class TrainingData:
    """Item k is micro-batch k of the run.

    Attributes:
        schedule: which rows are in micro-batch k.
        feature_sets: by `FeatureNeed.name`.
        dropped_pairs: pairs left out because their image could not be extracted.
        dropped_phrases: phrases left out because their object could not be extracted.
        phrases_digest: content digest of the phrase tokens, if the objective reads them.
        source: what the streams were read from, for the model card.
        samples: stream → a few texts with their token ids, to check the student's tokenizer.
    """

    def __init__(self, spec: RunSpec, objective: Objective) -> None:
        """Open and check every input of ``spec``.

        Raises:
            SightlineError: an input is missing, damaged, or does not match the objective or the
                other inputs: a feature set not given, keys missing from a set, too few rows.
        """
        _check(spec, objective)
        needs = objective.features
        self.seed = spec.seed
        self.feature_sets = {need.name: _open(spec, need) for need in needs}
        objective.check_widths(self.dims)
        self.dropped_pairs = self.dropped_phrases = 0
        self.phrases_digest: str | None = None
        self.source: dict[str, str] = {}
        self.samples: dict[str, list[tuple[str, list[int]]]] = {}
        self._streams: dict[Stream, _Stream] = {}
        self._paced_by: int | None = None
        if spec.pairs is not None:
            self._add_pairs(spec, objective, needs)
        if spec.text is not None:
            self._add_text(spec.text, spec.student.max_length)
        sizes = {stream: len(rows.keys) for stream, rows in self._streams.items()}
        for stream, size in sizes.items():
            if size < 2:
                raise SightlineError(
                    f"{self.source[stream]}: too few rows to train on ({size}); a contrastive loss "
                    "needs at least two"
                )
        self.schedule = Schedule(
            sizes.get("pairs", 0),
            sizes.get("text", 0),
            spec.train.batch_size,
            spec.seed,
            self._paced_by,
        )
        self._check_one_tokenizer()

    @property
    def dims(self) -> dict[str, int]:
        """Name of a feature set → width of its rows."""
        return {name: features.dim for name, features in self.feature_sets.items()}

    @property
    def token_digests(self) -> dict[str, str]:
        """Stream → content digest of its token set."""
        return {
            stream: rows.tokens.tokens.record.content_digest
            for stream, rows in self._streams.items()
        }

    @property
    def vocabulary_size(self) -> int:
        """Size of the vocabulary that the token ids are from."""
        return max(rows.tokens.tokens.header.vocabulary_size for rows in self._streams.values())

    @property
    def nbytes(self) -> int:
        """What the token ids and features of all rows take on a device."""
        return sum(rows.nbytes for rows in self._streams.values())

    def move_to(self, device: torch.device) -> None:
        """Hold token ids and features on ``device``; batches are then looked up there."""
        self._streams = {stream: rows.moved(device) for stream, rows in self._streams.items()}

    def __len__(self) -> int:
        """Micro-batches of one epoch; items beyond it exist, for every further epoch."""
        return self.schedule.steps_per_epoch

    def __getitem__(self, k: int) -> Batch:
        draw = self.schedule.draw(k)
        rows = self.schedule.rows(draw)
        stream = self._streams[draw.stream]
        phrases, numbers = None, rows
        if stream.phrases is not None:
            phrases, numbers = take_phrases(stream.phrases, rows)
        features = {
            name: lookup.take(numbers if name in stream.of_objects else rows)
            for name, lookup in stream.features.items()
        }
        return Batch(
            k,
            self.seed,
            draw.stream,
            stream.tokens.take(rows),
            stream.tokens.lengths[rows],
            features,
            stream.keys[rows],
            phrases,
        )

    def _add_pairs(self, spec: RunSpec, objective: Objective, needs: Sequence[FeatureNeed]) -> None:
        assert spec.pairs is not None
        params, source = objective.params, spec.pairs
        pairs = read_pairs(source.captions, source.images, params.caption, params.data_seed)
        of_images = [self.feature_sets[need.name] for need in needs if need.kind == "image"]
        failed = {key for features in of_images for key in features.failed}
        if failed:
            pairs = pairs.without_images(failed)
        self.dropped_pairs = pairs.dropped
        self.source["pairs"] = describe_source(source)
        if not len(pairs):
            raise SightlineError(
                f"{self.source['pairs']}: the images of all {pairs.dropped} pairs could not be "
                "extracted; see the failures file beside the feature set"
            )
        if params.pairs is not None:
            self._paced_by = len(pairs)
            pairs = pairs.sample(params.pairs, params.data_seed)
        tokens = open_tokens(source.tokens, spec.student.max_length)
        of_objects = frozenset(need.name for need in needs if need.kind == "object")
        phrases = self._phrases(spec, of_objects, pairs, tokens) if of_objects else None
        if phrases is not None and params.shuffle_objects:
            phrases = with_next_objects(phrases)
        if params.shuffle_images:
            pairs = pairs.with_shuffled_images(params.data_seed)
        if params.random_images:
            pairs = pairs.with_random_images(params.data_seed)
        of_captions = pairs.caption_keys
        if params.shuffle_teachers:
            of_captions = pairs.shuffled_captions(params.data_seed)
        by_kind: dict[Kind, NDArray[np.uint8]] = {
            "image": pairs.image_keys,
            "text": of_captions,
            "teacher": of_captions,
        }
        if phrases is not None:
            by_kind["object"] = phrases.cutouts
        features = {need.name: self._lookup(need, by_kind[need.kind]) for need in needs}
        rows = tokens.rows(pairs.caption_keys)
        lookup = TokenLookup(tokens, rows)
        self._streams["pairs"] = _Stream(pairs.caption_keys, lookup, features, phrases, of_objects)
        self.samples["pairs"] = _samples(pairs.texts, tokens, rows)

    def _phrases(
        self, spec: RunSpec, of_objects: Iterable[str], pairs: Pairs, tokens: TokenSet
    ) -> RaggedPhrases:
        """The phrases of ``pairs``, without those whose object could not be extracted."""
        assert spec.pairs is not None
        if spec.pairs.phrases is None:
            raise SightlineError(
                f"objective {spec.objective} reads features of objects ({', '.join(of_objects)}), "
                "so it needs phrase tokens; make them with `sightline phrase-tokens` and give "
                "`--phrases` (in a RunSpec `pairs.phrases`)"
            )
        phrases, self.phrases_digest = read_phrases(spec.pairs.phrases, pairs, tokens)
        failed = {key for name in of_objects for key in self.feature_sets[name].failed}
        kept = phrases_without(phrases, failed)
        self.dropped_phrases = len(phrases.starts) - len(kept.starts)
        return kept

    def _lookup(self, need: FeatureNeed, keys: NDArray[np.uint8]) -> FeatureLookup:
        """Where the features of ``keys`` are; an error names the set that does not match."""
        features = self.feature_sets[need.name]
        try:
            return FeatureLookup(features, features.rows(keys))
        except MissingKeys as error:
            raise MissingKeys(
                f"{error}\n  They belong to training pairs, for {need.name}: {need}. "
                f"Features and captions must come from one data set; `{need.command}` makes them."
            ) from error

    def _add_text(self, source: TextSource, max_length: int) -> None:
        texts = read_manifest(source.sentences, SENTENCES).column("text").to_pylist()
        if not texts:
            raise SightlineError(
                f"{source.sentences}: contains no sentence to train on; prepare the data set again"
            )
        keys = keys_of_texts(texts)
        tokens = open_tokens(source.tokens, max_length)
        rows = tokens.rows(keys)
        self.source["text"] = str(source.sentences)
        self._streams["text"] = _Stream(keys, TokenLookup(tokens, rows))
        self.samples["text"] = _samples(texts, tokens, rows)

    def _check_one_tokenizer(self) -> None:
        sets = [rows.tokens.tokens for rows in self._streams.values()]
        if len({tokens.header.tokenizer_sha256 for tokens in sets}) > 1:
            raise SightlineError(
                f"{', '.join(str(tokens.path) for tokens in sets)}: made with different "
                "tokenizers; run `sightline tokens` for both streams with the same student"
            )


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
        if getattr(objective.params, control) and not kinds & of_kinds
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
            spec.text is not None and not objective.trains_on_text,
            f"{which}: its text term is off, so a batch of plain sentences trains nothing; omit "
            "the text stream, or set text_weight to a value above 0",
        ),
        (idle, "; ".join(idle)),
    ):
        if refused:
            raise SightlineError(why)


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


def open_tokens(path: Path, max_length: int) -> TokenSet:
    """The token set in ``path``; refused if it was truncated to another length."""
    tokens = TokenSet.open(path)
    found = tokens.header.max_length
    if found != max_length:
        raise SightlineError(
            f"{tokens.path}: truncated to {found} tokens, but the student's max_length is "
            f"{max_length}; run `sightline tokens` again, or set max_length to {found}"
        )
    return tokens


def _samples(
    texts: list[str], tokens: TokenSet, rows: NDArray[np.int64], count: int = 16
) -> list[tuple[str, list[int]]]:
    """Some texts, spread over the stream, with the ids that the token set has for them."""
    chosen = np.unique(np.linspace(0, len(texts) - 1, min(count, len(texts))).astype(int))
    flat, lengths = tokens.gather(rows[chosen])
    parts = np.split(flat, np.cumsum(lengths)[:-1])
    return [(texts[i], ids.tolist()) for i, ids in zip(chosen, parts, strict=True)]


Feed = Callable[[int], Batch]
"""Micro-batch k, on the device."""


def make_feed(data: TrainingData, device: torch.device, share: float) -> Feed:
    """The micro-batches of ``data``, on ``device``.

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
