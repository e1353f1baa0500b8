"""Ground blocks of images: decoding runs ahead of the grounder; masks and rows follow behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import torch
from pydantic import PositiveInt
from torch import Tensor

from pipeline.extract.decode import EncodedImage, ImageError, load_bytes
from pipeline.extract.failed_rows import WRONG_SIZE
from pipeline.extract.services import Service
from pipeline.grounding.captioned_images import CaptionedImage
from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.protocols import (
    Answer,
    Caption,
    Dropped,
    Grounded,
    Grounder,
    GroundingError,
    Segmenter,
    checked_answers,
)
from pipeline.grounding.rules import hull, select
from sightline.cache import key_of_text
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.parts import Failure
from sightline.cache.rle import encode_mask
from sightline.cache.tables import GROUNDED
from sightline.machine.out_of_memory import HalvingCalls
from sightline.plugins import expect, expect_array, expect_count, expect_valid, wrong

_BATCHES_AHEAD = 2


@dataclass
class _Image:
    """An image of a batch.

    Attributes:
        file: the image; None once it has failed.
        failure: why it failed.
        answers: for each caption, its phrases and drops.
    """

    unit: CaptionedImage
    file: EncodedImage | None = None
    failure: Failure | None = None
    answers: list[Answer] = field(default_factory=list)

    def fail(self, error: ImageError) -> None:
        """Release the image and keep the error in its place."""
        self.file, self.failure = None, error.at(self.unit.place)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels, while it is intact."""
        assert self.file is not None
        return self.file.size

    @property
    def phrases(self) -> list[Grounded]:
        """The phrases of every caption, in order."""
        return [phrase for phrases, _ in self.answers for phrase in phrases]

    def distinct_boxes(self) -> tuple[Tensor, Tensor]:
        """float32 [d, 4], since captions mostly name the same objects; and int64 [k]: the row
        there of each box of each phrase, in order.
        """
        boxes = torch.cat([torch.zeros(0, 4), *(phrase.boxes for phrase in self.phrases)])
        return torch.unique(boxes, dim=0, return_inverse=True)


class BlockGrounder:
    """Grounds blocks, halving model calls if memory runs out.

    Decoding runs ahead in threads; rules, masks and rows follow in a separate thread, one batch
    behind the grounder. The result of a block depends on none of this.

    Args:
        segmenter: None: use the masks that come with the grounder's boxes.
        batch_size: captions, and images, per model call.
        workers: threads that decode images.
        service: makes the calls if the grounder or the segmenter is behind an API; `ground_one`
            may then be called in threads.

    Attributes:
        calls: calls of those of the grounder and the segmenter that compute here.
    """

    def __init__(
        self,
        grounder: Grounder,
        segmenter: Segmenter | None,
        rules: Rules,
        batch_size: int,
        workers: int,
        service: Service | None = None,
    ) -> None:
        self._grounder = grounder
        self._segmenter = segmenter
        self._rules = rules
        self._batch_size = batch_size
        self._workers = max(workers, 1)
        self._ask: Callable[..., Any] = grounder.ground
        self._segment: Callable[..., Any] | None = segmenter.segment if segmenter else None
        if service is not None:  # what computes here does so once at a time
            self._ask = service.with_retries(self._ask, concurrency_of(grounder) or 1)
            if self._segment is not None:
                self._segment = service.with_retries(self._segment, concurrency_of(segmenter) or 1)
        self._decodes = not all(map(_takes_files, filter(None, (grounder, segmenter))))
        name = segmenter.name if segmenter else "annotations"
        self._calls = [
            HalvingCalls(f"grounder {grounder.name}", "captions", "grounder", batch_size),
            HalvingCalls(f"segmenter {name}", "images", "segmenter", batch_size),
        ]
        parts = zip(self._calls, (grounder, segmenter), strict=True)
        self.calls = [calls for calls, part in parts if concurrency_of(part) is None]

    def ground(
        self, units: Sequence[CaptionedImage], advance: Callable[[int], None]
    ) -> tuple[pa.Table, dict[bytes, Failure]]:
        """The rows of a block's images, in order, and why others have none, by their keys."""
        rows: list[dict[str, Any]] = []
        failures: dict[bytes, Failure] = {}

        def finish(batch: Sequence[_Image]) -> None:
            rows.extend(self._finish(batch))
            failures.update((i.unit.unit_key, i.failure) for i in batch if i.failure is not None)
            advance(len(batch))

        pending: deque[Future[None]] = deque()
        with ThreadPoolExecutor(max_workers=1) as behind:
            for batch in self._decoded(units):
                self._ground(batch)
                pending.append(behind.submit(finish, batch))
                while len(pending) > 1:  # one batch is segmented while the next is grounded
                    pending.popleft().result()
            for future in pending:
                future.result()
        return pa.Table.from_pylist(rows, schema=GROUNDED), failures

    def ground_one(self, unit: CaptionedImage) -> tuple[pa.Table, dict[bytes, Failure]]:
        """As `ground`, for one image, in this thread.

        Raises:
            Transient: a service did not answer.
        """
        image = self._load(unit)
        self._ground([image])
        rows = self._finish([image])
        failures = {} if image.failure is None else {unit.unit_key: image.failure}
        return pa.Table.from_pylist(rows, schema=GROUNDED), failures

    def _decoded(self, units: Sequence[CaptionedImage]) -> Iterator[list[_Image]]:
        """Batches of decoded images, with captions for about one model batch each."""
        batches: list[list[CaptionedImage]] = []
        room = 0
        for unit in units:
            if room <= 0:
                batches.append([])
                room = self._batch_size
            batches[-1].append(unit)
            room -= len(unit.captions)
        with ThreadPoolExecutor(max_workers=self._workers) as pool:
            ahead: deque[list[Future[_Image]]] = deque()
            for batch in batches:
                ahead.append([pool.submit(self._load, unit) for unit in batch])
                if len(ahead) > _BATCHES_AHEAD:
                    yield [future.result() for future in ahead.popleft()]
            while ahead:
                yield [future.result() for future in ahead.popleft()]

    def _load(self, unit: CaptionedImage) -> _Image:
        image = _Image(unit)
        try:
            file = EncodedImage(load_bytes(unit.place, unit.key), (unit.height, unit.width))
            if self._decodes or not unit.height:  # 0: its header could not be read
                height, width = file.pixels.shape[1:]
                file.size = height, width
            image.file = file
        except ImageError as error:
            image.fail(error)
        return image

    def _ground(self, batch: Sequence[_Image]) -> None:
        """Give the intact images their answers; those that the grounder refuses fail."""
        queries = [
            (image, caption)
            for image in batch
            if image.file is not None
            for caption in image.unit.captions
        ]
        calls = self._made(0, len(queries), lambda i, j: self._answers(queries[i:j]))
        for (image, _), answer in zip(queries, chain.from_iterable(calls), strict=True):
            image.answers.append(answer)

    def _made(
        self, index: int, items: int, call: Callable[[int, int], Sequence[Any]]
    ) -> Sequence[Sequence[Any]]:
        """The results of the calls of the grounder (0) or the segmenter (1); a service has one."""
        calls = self._calls[index]
        return calls.run(items, call) if calls in self.calls else [call(0, items)]

    def _answers(self, queries: Sequence[tuple[_Image, Caption]]) -> list[Answer]:
        """Of one call, in order; empty for images that fail.

        A call of which an image is refused is made again, once, for each of its images alone.
        """
        inputs = [
            (_input_of(self._grounder, image.file), caption)
            for image, caption in queries
            if image.file is not None
        ]
        answers: Sequence[Answer] = []
        try:
            if inputs:
                images, captions = zip(*inputs, strict=True)
                replies = self._ask(images, captions)
                answers = checked_answers(self._grounder, replies, captions)
        except GroundingError as error:
            keys = {image.unit.unit_key: image.unit.key for image, _ in queries}
            if error.image_key not in keys.values():
                raise  # not about an image of this call: none would fail
            if len(keys) > 1:
                alone = groupby(queries, lambda query: query[0].unit.unit_key)
                return [answer for _, group in alone for answer in self._answers(list(group))]
            queries[0][0].fail(error)
            return [([], [])] * len(queries)
        every = iter(answers)
        return [([], []) if image.file is None else next(every) for image, _ in queries]

    def _finish(self, batch: Sequence[_Image]) -> list[dict[str, Any]]:
        """Apply the rules and segment: rows of the intact images, in order."""
        intact = [image for image in batch if image.file is not None]
        for image in intact:
            for i, (phrases_found, dropped) in enumerate(image.answers):
                phrases, rejected = select(phrases_found, self._rules, *image.size)
                image.answers[i] = phrases, [*dropped, *rejected]
        masks = self._segmented([image for image in intact if image.phrases])
        rows = []
        for image in intact:
            try:
                rows.append(self._row(image, masks.get(image.unit.key)))
            except GroundingError as error:
                image.fail(error)
        return rows

    def _segmented(self, images: Sequence[_Image]) -> dict[bytes, Tensor]:
        """Image key → masks of its distinct boxes, bool [d, h, w]; empty without a segmenter."""
        segmenter, ask = self._segmenter, self._segment
        if segmenter is None or ask is None or not images:
            return {}

        def segment(files: Sequence[Any], boxes: Sequence[Tensor]) -> Sequence[Tensor]:
            masks = expect(ask(files, boxes), Sequence, segmenter, "segment")
            expect_count(masks, len(files), segmenter, "segment", "images")
            # another size costs that image alone
            for result, prompts in zip(masks, boxes, strict=True):
                mask = expect(result, Tensor, segmenter, "segment")
                if mask.device.type != "cpu":
                    raise wrong(segmenter, "segment", mask.device, "masks on the CPU")
                expect_array(mask, "bool", (len(prompts), *mask.shape[-2:]), segmenter, "segment")
            return masks

        files = [_input_of(segmenter, image.file) for image in images if image.file is not None]
        boxes = [image.distinct_boxes()[0] for image in images]
        masks = self._made(1, len(images), lambda i, j: segment(files[i:j], boxes[i:j]))
        keys = [image.unit.key for image in images]
        return dict(zip(keys, chain.from_iterable(masks), strict=True))

    def _row(self, image: _Image, masks: Tensor | None) -> dict[str, Any]:
        """The row of an image, see `sightline.cache.tables.GROUNDED`.

        Args:
            masks: of its distinct boxes; None: use those that came with the phrases.

        Raises:
            GroundingError: there are no masks, or they have the wrong number or size.
        """
        if masks is None:
            of_phrases = iter([_drawn_masks(image, phrase) for phrase in image.phrases])
        else:
            boxes, rows = image.distinct_boxes()
            counts = [len(phrase.boxes) for phrase in image.phrases]
            of_phrases = iter(_checked(image, masks, len(boxes))[rows].split(counts))
        phrases: list[dict[str, Any]] = []
        drops: list[dict[str, Any]] = []
        for caption, (grounded, dropped) in zip(image.unit.captions, image.answers, strict=True):
            caption_key = key_of_text(caption.text)
            drops += [{"caption_key": caption_key, **asdict(drop)} for drop in dropped]
            for phrase in grounded:
                mask = next(of_phrases).any(dim=0)
                drop = self._refused(phrase, int(mask.sum()))
                if drop is None:
                    record = _record(image.unit.key, phrase, mask)
                    phrases.append({"caption_key": caption_key, **record})
                else:
                    drops.append({"caption_key": caption_key, **asdict(drop)})
        lists = {"phrases": phrases, "drops": drops}
        return {"image_key": image.unit.key, "captions": len(image.unit.captions), **lists}

    def _refused(self, phrase: Grounded, area: int) -> Dropped | None:
        """Why a phrase whose mask covers ``area`` pixels does not become a record."""
        if not area:
            return Dropped(phrase.phrase, "empty_mask")
        if area < self._rules.min_area:
            detail = f"mask of {area} pixels < {self._rules.min_area:g}"
            return Dropped(phrase.phrase, "too_small", detail)
        return None


def concurrency_of(part: object) -> int | None:
    """The calls at a time of a grounder or segmenter behind an API; None: it computes here.

    Raises:
        SightlineError: they are not a number of at least 1.
    """
    concurrency = getattr(part, "concurrency", None)
    expect_valid(concurrency, PositiveInt | None, part, "`concurrency`")
    return concurrency


def _takes_files(part: object) -> bool:
    return getattr(part, "takes_files", False)


def _input_of(part: object, file: EncodedImage) -> EncodedImage | Tensor:
    """What a grounder or segmenter takes of an image."""
    return file if _takes_files(part) else file.pixels


def _drawn_masks(image: _Image, phrase: Grounded) -> Tensor:
    if phrase.masks is None:
        reason = f"{phrase.phrase!r} has boxes but no mask; choose a segmenter that makes masks"
        raise GroundingError(image.unit.key, "no_mask", reason)
    return _checked(image, phrase.masks, len(phrase.boxes))


def _checked(image: _Image, masks: Tensor, count: int) -> Tensor:
    """``masks``, if there are ``count`` with the image's size; GroundingError otherwise."""
    expected = [count, *image.size]
    if list(masks.shape) != expected or masks.dtype != torch.bool:
        shape = f"{masks.dtype} {list(masks.shape)}".removeprefix("torch.")
        reason = f"masks: found {shape}, expected bool {expected}"
        raise GroundingError(image.unit.key, WRONG_SIZE, reason)
    return masks


def _record(image_key: bytes, phrase: Grounded, mask: Tensor) -> dict[str, Any]:
    code = encode_mask(mask.numpy())
    return {
        "phrase": phrase.phrase,
        "char_start": phrase.char_start,
        "char_end": phrase.char_end,
        "box": hull(phrase.boxes),
        "score": max(phrase.scores.tolist()),
        "mask": code,
        "cutout_key": cutout_key(image_key, code["size"], code["counts"], CROP_RULE),
    }
