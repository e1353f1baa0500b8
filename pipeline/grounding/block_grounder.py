"""Ground blocks of images: decoding runs ahead of the grounder, segmentation behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from pipeline.extract.decode import ImageError, load_image
from pipeline.extract.halving import HalvingCalls
from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import Unit
from pipeline.grounding.matching import select
from pipeline.grounding.protocols import Answer, Caption, Grounder, GroundingError, Segmenter
from pipeline.grounding.settings import Rules
from pipeline.grounding.table_rows import GroundedRows, Selected, check_masks, drawn_masks

_BATCHES_AHEAD = 2


@dataclass
class _Image:
    """An image being processed in a batch: its pixels, or the code and reason of its error."""

    unit: Unit
    pixels: Tensor | None
    error: tuple[str, str] | None = None
    selected: list[Selected] = field(default_factory=list)

    def fail(self, error: GroundingError) -> None:
        """Release the pixels and keep the error in their place."""
        self.pixels, self.error = None, (error.code, error.reason)

    @property
    def boxes(self) -> Tensor:
        """float32 [k, 4]: the boxes of every phrase of every caption, in order."""
        boxes = [phrase.boxes for some in self.selected for phrase in some.phrases]
        return torch.cat([torch.zeros(0, 4), *boxes])

    @property
    def distinct_boxes(self) -> Tensor:
        """float32 [d, 4]: captions of one image mostly name the same objects."""
        return torch.unique(self.boxes, dim=0)

    @property
    def box_rows(self) -> Tensor:
        """int64 [k]: row of each of `boxes` in `distinct_boxes`."""
        return torch.unique(self.boxes, dim=0, return_inverse=True)[1]


class BlockGrounder:
    """Grounds blocks, halving model calls if memory runs out.

    Decoding runs ahead in threads; rules, masks and rows follow in a separate thread, one batch
    behind the grounder. The result of a block depends on none of this.

    Args:
        segmenter: None: use the masks that come with the grounder's boxes.

    Attributes:
        calls: calls of the grounder and the segmenter.
    """

    def __init__(
        self,
        grounder: Grounder,
        segmenter: Segmenter | None,
        rules: Rules,
        settings: RunSettings,
    ) -> None:
        self._grounder = grounder
        self._segmenter = segmenter
        self._rules = rules
        self._settings = settings
        name = segmenter.name if segmenter else "annotations"
        most = settings.batch_size
        grounder_title, segmenter_title = f"grounder {grounder.name}", f"segmenter {name}"
        self._grounder_calls = HalvingCalls(grounder_title, "captions", "grounder", most)
        self._segmenter_calls = HalvingCalls(segmenter_title, "images", "segmenter", most)
        self.calls = [self._grounder_calls, self._segmenter_calls]

    def ground(self, units: Sequence[Unit], advance: Callable[[int], None]) -> GroundedRows:
        """The rows of a block's images, in order."""
        rows = GroundedRows()
        pending: deque[Future[None]] = deque()
        with ThreadPoolExecutor(max_workers=1) as behind:
            for batch in self._decoded(units):
                answers = self._ground(batch)
                pending.append(behind.submit(self._finish, batch, answers, rows, advance))
                while len(pending) > 1:  # one batch is segmented while the next is grounded
                    pending.popleft().result()
            for future in pending:
                future.result()
        return rows

    def _decoded(self, units: Sequence[Unit]) -> Iterator[list[_Image]]:
        """Batches of decoded images, with captions for about one model batch each."""
        batches: list[list[Unit]] = []
        room = 0
        for unit in units:
            if room <= 0:
                batches.append([])
                room = self._settings.batch_size
            batches[-1].append(unit)
            room -= len(unit.captions)
        with ThreadPoolExecutor(max_workers=max(self._settings.workers, 1)) as pool:
            ahead: deque[list[Future[_Image]]] = deque()
            for batch in batches:
                ahead.append([pool.submit(self._load, unit) for unit in batch])
                if len(ahead) > _BATCHES_AHEAD:
                    yield [future.result() for future in ahead.popleft()]
            while ahead:
                yield [future.result() for future in ahead.popleft()]

    def _load(self, unit: Unit) -> _Image:
        try:
            return _Image(unit, load_image(unit.place, unit.key, self._settings.max_pixels))
        except ImageError as error:
            return _Image(unit, None, (error.code, error.reason))

    def _ground(self, batch: Sequence[_Image]) -> dict[bytes, list[Answer]]:
        """Answers to every caption of the intact images; errors are recorded in the batch."""
        while True:
            pairs = [
                (image.pixels, caption)
                for image in batch
                if image.pixels is not None
                for caption in image.unit.captions
            ]
            try:
                answers = self._answers(pairs)
            except GroundingError as error:
                blamed = [image for image in batch if image.unit.key == error.image_key]
                if not any(image.pixels is not None for image in blamed):
                    raise  # not about an image of this batch: retrying would never end
                for image in blamed:
                    image.fail(error)
                continue
            found: dict[bytes, list[Answer]] = {}
            for (_, caption), answer in zip(pairs, answers, strict=True):
                found.setdefault(caption.image_key, []).append(answer)
            return found

    def _answers(self, pairs: Sequence[tuple[Tensor, Caption]]) -> list[Answer]:
        def call(start: int, stop: int) -> Sequence[Answer]:
            some = pairs[start:stop]
            return self._grounder.ground([image for image, _ in some], [c for _, c in some])

        return list(chain.from_iterable(self._grounder_calls.run(len(pairs), call)))

    def _finish(
        self,
        batch: Sequence[_Image],
        answers: dict[bytes, list[Answer]],
        rows: GroundedRows,
        advance: Callable[[int], None],
    ) -> None:
        """Apply the rules, segment, and add the rows, in the order of the batch."""
        for image in batch:
            if image.pixels is not None:
                height, width = image.pixels.shape[1:]
                for caption, (found, dropped) in zip(
                    image.unit.captions, answers[image.unit.key], strict=True
                ):
                    kept, more = select(found, self._rules, height, width)
                    image.selected.append(Selected(caption, kept, [*dropped, *more]))
        masks = self._masks([image for image in batch if image.pixels is not None])
        for image in batch:
            try:
                if image.pixels is not None:
                    mask = check_masks(
                        image.unit, masks[image.unit.key], len(image.boxes), image.pixels
                    )
                    rows.add(image.unit, image.selected, mask, self._rules)
            except GroundingError as error:
                image.fail(error)
            if image.error is not None:
                rows.fail(image.unit, *image.error)
        advance(len(batch))

    def _masks(self, images: Sequence[_Image]) -> dict[bytes, Tensor]:
        """Masks bool [k, h, w] of the boxes of each image, by the image's key."""
        masks: dict[bytes, Tensor] = {}
        asked: list[_Image] = []
        for image in images:
            assert image.pixels is not None
            if self._segmenter is None:
                try:
                    masks[image.unit.key] = drawn_masks(image.unit, image.selected, image.pixels)
                except GroundingError as error:
                    image.fail(error)
            elif len(image.boxes):
                asked.append(image)
            else:
                masks[image.unit.key] = torch.zeros(0, *image.pixels.shape[1:], dtype=torch.bool)
        if self._segmenter is not None and asked:
            segment = self._segmenter.segment
            work = [(i.pixels, i.distinct_boxes) for i in asked if i.pixels is not None]
            found = self._segmenter_calls.run(
                len(work),
                lambda i, j: segment([p for p, _ in work[i:j]], [b for _, b in work[i:j]]),
            )
            for image, some in zip(asked, chain.from_iterable(found), strict=True):
                masks[image.unit.key] = some[image.box_rows] if len(some) else some
        return masks
