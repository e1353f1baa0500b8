"""Grounding: our stage and the one-image-at-a-time loop of the public scripts.

    python bench/grounding.py                            # full size in bf16 on a GPU, else small
    python bench/grounding.py --images 48

Both sides run the same Florence-2 and the same SAM 2 (real classes and configurations, random
weights) on the same drawn photographs with a caption of four noun phrases, and find the same boxes.
The loop is that of Grounded-SAM-2's `grounded_sam2_florence2_image_demo.py`: open an image with
Pillow, one caption through processor and `generate` (3 beams), `set_image`, `predict` for its
boxes. It writes nothing. Ours is `pipeline.grounding.ground.ground`: it checks every file's digest,
decodes ahead, batches, matches spans, applies rules, and writes the records durably.

The output of random weights cannot be parsed, so each `generate` is steered to an answer in the
real format (`grounding_models.py`), in as many steps as a trained model would take.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn import photographs
from grounding_models import florence, segmenter
from harness import Report, add_device, device_of, options_of, take_turns, timed
from PIL import Image
from sam2.sam2_image_predictor import SAM2ImagePredictor

from pipeline.extract.runner import run
from pipeline.extract.settings import Machine
from pipeline.grounding.captioned_images import CaptionedImage
from pipeline.grounding.florence2 import TASK, Florence2Grounder, Florence2Settings
from pipeline.grounding.ground import grounding_job
from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.protocols import Caption
from sightline.cache import Place, key_of_file
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.devices import computing

TARGET = 8.0
"""Times the loop, on a GPU, which one image at a time leaves mostly idle."""
BEAMS, MAX_LENGTH, WARM_UP = 3, 1024, 8
WHO = ("tall man", "little girl", "young woman with glasses", "boy", "bearded musician")
WHAT = ("a red umbrella", "the leash of a brown dog", "two yellow balloons", "a wooden guitar")
WHERE = ("a parked bicycle", "an old stone wall", "several people")


def captioned(paths: list[Path]) -> list[CaptionedImage]:
    """Images of 500 × 375, each with a caption of four noun phrases."""
    units = []
    for number, path in enumerate(paths):
        who, what, where = (words[number % len(words)] for words in (WHO, WHAT, WHERE))
        text = f"A {who} in a striped shirt holds {what} while standing next to {where} ."
        key = key_of_file(path)
        units.append(CaptionedImage(Place(path), key, 375, 500, [Caption(path.name, key, text)]))
    return units


def plain_loop(
    units: list[CaptionedImage], model: Any, processor: Any, predictor: Any, device: torch.device
) -> int:
    """Process one image at a time, as the public script does; return the number of masks."""
    count = 0
    for unit in units:
        image = Image.open(unit.place.path).convert("RGB")
        prompt = TASK + unit.captions[0].text
        inputs = processor(text=prompt, images=image, return_tensors="pt").to(device)
        ids = model.generate(
            **inputs,
            max_new_tokens=MAX_LENGTH,
            early_stopping=False,
            do_sample=False,
            num_beams=BEAMS,
        )
        text = processor.batch_decode(ids, skip_special_tokens=False)[0]
        size = (image.width, image.height)
        boxes = processor.post_process_generation(text, task=TASK, image_size=size)[TASK]["bboxes"]
        if boxes:
            predictor.set_image(np.array(image))
            masks, _, _ = predictor.predict(box=np.array(boxes), multimask_output=False)
            count += len(masks) if masks.ndim == 4 else 1
    return count


class Recorded:
    """A grounder or segmenter that keeps its results, and can give them again without computing."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.name, self.describe = inner, inner.name, inner.describe
        self._results: list[Any] = []
        self._again: Iterator[Any] | None = None

    def record(self) -> None:
        """Forget what was kept."""
        self._results.clear()

    def replay(self) -> None:
        """Give what was kept from now on, in order."""
        self._again = iter(self._results)

    def ground(self, *args: Any) -> Any:
        return self._result(self._inner.ground, *args)

    def segment(self, *args: Any) -> Any:
        return self._result(self._inner.segment, *args)

    def _result(self, compute: Any, *args: Any) -> Any:
        if self._again is not None:
            return next(self._again)
        self._results.append(compute(*args))
        return self._results[-1]


def main() -> None:
    """Measure, and print the rates and their ratio."""
    parser = options_of(__doc__, rounds=3)
    add_device(parser)
    parser.add_argument("--images", type=int, default=32, help="images per round")
    parser.add_argument("--batch", type=int, default=16, help="our images per batch")
    parser.add_argument("--workers", type=int, default=2, help="our decoding threads")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    options = parser.parse_args()
    device, precision = device_of(options), options.precision
    full = device.type == "cuda" and not options.quick
    count = 4 if options.quick else options.images
    about = f"{precision}, models {'of full size' if full else 'small'}, {count} images"
    report = Report(options, about, device)
    machine = Machine.model_validate({"devices": str(device)})
    with tempfile.TemporaryDirectory() as folder, computing(device, "fp32"):
        scratch = Path(folder)
        units = captioned(photographs(scratch / "images", count))
        model, processor = florence([unit.captions[0].text for unit in units], full)
        settings = Florence2Settings(family="florence2", model="bench", beams=BEAMS)
        loaded = model, processor, {"model": "bench"}
        grounder = Recorded(Florence2Grounder(settings, *loaded, device, precision))
        masker = segmenter(full, scratch, device, precision)
        predictor = SAM2ImagePredictor(masker.model)
        edge = predictor.model.image_size  # the package assumes 1,024
        predictor._bb_feat_sizes = [(edge // n, edge // n) for n in (4, 8, 16)]
        recorded, outs, masks = Recorded(masker), list[Path](), list[int]()

        def fill(out: Path, some: list[CaptionedImage]) -> None:
            job = grounding_job(
                some,
                grounder,
                recorded,
                Rules(duplicate_iou=None),
                out,
                batch_size=options.batch,
                block_images=256,
                workers=options.workers,
            )
            run(job, 0, machine)

        def plain(some: list[CaptionedImage] = units) -> None:
            with computing(device, precision):
                masks.append(plain_loop(some, model, processor, predictor, device))

        def ours(some: list[CaptionedImage] = units) -> None:
            grounder.record()
            recorded.record()
            outs.append(scratch / f"out-{len(outs)}")
            fill(outs[-1], some)

        for side in (plain, ours):
            side(units[:WARM_UP])
        sides = {"plain": plain, "ours": ours}
        costs = take_turns(sides, options.rounds, warm_up=False, device=device)
        found = read_phrases(outs[-1]).num_rows
        empty = grounding_counts(outs[-1])["dropped"].get("empty_mask", 0)
        assert found + empty == masks[-1], "the two sides must find the same boxes"
        grounder.replay()
        recorded.replay()
        alone = timed(lambda: fill(scratch / "alone", units))
    rates = {side: count / cost.wall for side, cost in costs.items()}
    rates |= {"without_models": count / alone.wall, "boxes": masks[-1]}
    what = f"grounding, {'full size' if full else 'small'}, {precision} / one at a time"
    target = TARGET if device.type == "cuda" else None
    report.ratio(what, costs["plain"].wall / costs["ours"].wall, at_least=target, **rates)


if __name__ == "__main__":
    main()
