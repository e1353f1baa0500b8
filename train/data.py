"""Training batches from the cache: pre-tokenised ids and frozen features, gathered by key.

Every input of a run is found, and everything missing is reported, before a model loads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.cache import (
    SENTENCES,
    CacheError,
    FeatureSet,
    MissingKeys,
    TokenSet,
    keys_of_texts,
    read_manifest,
)
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.batch import Batch
from train.lookup import FeatureLookup, TokenLookup
from train.object_rows import ObjectRows
from train.pairs import Pairs, describe_source, read_pairs
from train.run_spec import RunSpec, TextSource
from train.schedule import Schedule, Stream

if TYPE_CHECKING:
    import torch

    from train.objectives.objective import FeatureNeed, Objective


CONTROLLED: Mapping[str, set[Kind]] = {
    "shuffle_images": {"image"},
    "random_images": {"image"},
    "shuffle_teachers": {"text", "teacher"},
    "shuffle_objects": {"object"},
}
"""Control → the kinds of features that it removes the signal from."""


@dataclass(frozen=True)
class _Rows:
    """One stream, resolved: where each of its rows is in its token set and feature sets."""

    set: TokenSet
    tokens: TokenLookup
    keys: NDArray[np.uint8]
    features: Mapping[str, FeatureLookup]
    objects: ObjectRows | None = None

    @property
    def nbytes(self) -> int:
        of_objects = {} if self.objects is None else self.objects.features
        lookups = (*self.features.values(), *of_objects.values())
        return self.tokens.nbytes + sum(each.nbytes for each in lookups)

    def moved(self, device: torch.device) -> _Rows:
        features = {name: each.moved(device) for name, each in self.features.items()}
        objects = None if self.objects is None else self.objects.moved(device)
        return replace(self, tokens=self.tokens.moved(device), features=features, objects=objects)


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
        needs = objective.features
        self._check_features(spec, needs)
        self._check_streams(spec, objective)
        self._check_controls(objective)
        self.seed = spec.seed
        self.feature_sets = {need.name: _open(spec, need) for need in needs}
        objective.check_widths(self.dims)
        self.dropped_pairs = self.dropped_phrases = 0
        self.phrases_digest: str | None = None
        self.source: dict[str, str] = {}
        self.samples: dict[str, list[tuple[str, list[int]]]] = {}
        self._streams: dict[Stream, _Rows] = {}
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
        return {stream: rows.set.record.content_digest for stream, rows in self._streams.items()}

    @property
    def vocabulary_size(self) -> int:
        """Size of the vocabulary that the token ids are from."""
        return max(rows.set.header.vocabulary_size for rows in self._streams.values())

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
        features = {name: each.take(rows) for name, each in stream.features.items()}
        phrases = None
        if stream.objects is not None:
            phrases, of_objects = stream.objects.take(rows)
            features |= of_objects
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
        params = objective.params
        source = spec.pairs
        pairs = read_pairs(source.captions, source.images, params.caption, params.data_seed)
        of_images = [self.feature_sets[need.name] for need in needs if need.kind == "image"]
        failed = {key for features in of_images for key in features.failed}
        if failed:
            pairs = pairs.without_images(failed)
        self.dropped_pairs = pairs.dropped
        self.source["pairs"] = describe_source(spec.pairs)
        if not len(pairs):
            raise SightlineError(
                f"{self.source['pairs']}: the images of all {pairs.dropped} pairs could not be "
                "extracted; see the failures file beside the feature set"
            )
        if params.pairs is not None:
            self._paced_by = len(pairs)
            pairs = pairs.sample(params.pairs, params.data_seed)
        tokens = open_tokens(spec.pairs.tokens, spec.student.max_length)
        objects = self._objects(spec, needs, pairs, tokens, params.shuffle_objects)
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
        features: dict[str, FeatureLookup] = {}
        for need in needs:
            if need.kind != "object":
                table = self.feature_sets[need.name]
                features[need.name] = FeatureLookup(table, _rows(table, by_kind[need.kind], need))
        rows = tokens.rows(pairs.caption_keys)
        self._streams["pairs"] = _Rows(
            tokens, TokenLookup.of(tokens, rows), pairs.caption_keys, features, objects
        )
        self.samples["pairs"] = _samples(pairs.texts, tokens, rows)

    def _objects(
        self,
        spec: RunSpec,
        needs: Sequence[FeatureNeed],
        pairs: Pairs,
        tokens: TokenSet,
        exchanged: bool,
    ) -> ObjectRows | None:
        """The phrases of ``pairs`` and the rows of their objects, if the objective reads any."""
        of_objects = {need.name: need for need in needs if need.kind == "object"}
        sets = {name: self.feature_sets[name] for name in of_objects}
        if not sets:
            return None
        assert spec.pairs is not None
        if spec.pairs.phrases is None:
            raise SightlineError(
                f"objective {spec.objective} reads features of objects ({', '.join(sets)}), so it "
                "needs phrase tokens; make them with `sightline phrase-tokens` and give "
                "`--phrases` (in a RunSpec `pairs.phrases`)"
            )
        objects = ObjectRows.find(
            spec.pairs.phrases,
            pairs,
            sets,
            tokens,
            lambda name, keys: _rows(sets[name], keys, of_objects[name]),
        )
        self.phrases_digest = objects.content_digest
        self.dropped_phrases = objects.dropped
        return objects.exchanged() if exchanged else objects

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
        self._streams["text"] = _Rows(tokens, TokenLookup.of(tokens, rows), keys, {})
        self.samples["text"] = _samples(texts, tokens, rows)

    def _check_features(self, spec: RunSpec, needs: Sequence[FeatureNeed]) -> None:
        names = [need.name for need in needs]
        if needs and spec.pairs is None:
            raise SightlineError(
                f"objective {spec.objective} needs pairs, for {', '.join(map(str, needs))}; give "
                "captions and images"
            )
        missing = [
            f"{need.name} ({need}; made by `{need.command}`)"
            for need in needs
            if need.name not in spec.features
        ]
        if missing:
            raise SightlineError(
                f"objective {spec.objective} needs a feature set for {', '.join(missing)}; "
                f"given: {', '.join(spec.features) or 'none'}"
            )
        unused = [name for name in spec.features if name not in names]
        if unused:
            raise SightlineError(
                f"objective {spec.objective} does not read features for {', '.join(unused)}; "
                f"it reads {', '.join(names) or 'none'}"
            )

    def _check_streams(self, spec: RunSpec, objective: Objective) -> None:
        if spec.text is not None and not objective.trains_on_text:
            raise SightlineError(
                f"objective {spec.objective}: its text term is off, so a batch of plain sentences "
                "trains nothing; omit the text stream, or set text_weight to a value above 0"
            )

    def _check_controls(self, objective: Objective) -> None:
        """Refuse a control for features that the objective does not read: it would do nothing."""
        kinds = {need.kind for need in objective.features}
        for control, of_kinds in CONTROLLED.items():
            if getattr(objective.params, control) and not kinds & of_kinds:
                raise SightlineError(
                    f"{control} is on, but objective {objective.name} reads no "
                    f"{' or '.join(sorted(of_kinds))} features here; remove it"
                )

    def _check_one_tokenizer(self) -> None:
        digests = {rows.set.header.tokenizer_sha256 for rows in self._streams.values()}
        if len(digests) > 1:
            paths = ", ".join(str(rows.set.path) for rows in self._streams.values())
            raise SightlineError(
                f"{paths}: made with different tokenizers; run `sightline tokens` for both streams "
                "with the same student"
            )


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


def _rows(features: FeatureSet, keys: NDArray[np.uint8], need: FeatureNeed) -> NDArray[np.int64]:
    """Row of each key; an error names the feature set that does not match the pairs."""
    try:
        return features.rows(keys)
    except MissingKeys as error:
        raise MissingKeys(
            f"{error}\n  They belong to training pairs, for {need.name}: {need}. "
            f"Features and captions must come from one data set; `{need.command}` makes them."
        ) from error


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
