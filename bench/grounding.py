"""Grounding photographs: our stage and the one-image-at-a-time loop of the public scripts.

    python bench/grounding.py                                   # small models, any machine
    python bench/grounding.py --full --precision bf16           # full size, for a GPU

Both sides run the same Florence-2 and the same SAM 2 (real classes and configurations, random
weights) on the same photographs and captions (without Flickr8k, on drawn ones of the same size) and
find the same boxes. The loop is that of Grounded-SAM-2's `grounded_sam2_florence2_image_demo.py`:
open an image with Pillow, one caption through processor and `generate` (3 beams), `set_image`,
`predict` for its boxes. It writes nothing. Ours is `pipeline.grounding.ground.ground`: it
checks every file's digest, decodes ahead, batches, matches spans, applies rules, and writes the
records durably. The two alternate, one round each.

The output of random weights cannot be parsed, so each `generate` is steered to an answer in the
real format (`models/grounding.py`), in as many steps as a trained model would take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.grounding import florence, segmenter
from PIL import Image

from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import Unit
from pipeline.grounding.florence2 import TASK, Florence2Grounder
from pipeline.grounding.ground import ground
from pipeline.grounding.grounding_model import LoadedModel
from pipeline.grounding.protocols import Caption
from pipeline.grounding.settings import Florence2Settings, Rules
from sightline.cache import Place, key_of_file
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.devices import computing

PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "flickr8k"
TARGET = 8.0
BEAMS, MAX_LENGTH = 3, 1024
WARM_UP = 8
"""Images of the first round, which does not count."""
WHO = ("tall man", "little girl", "young woman with glasses", "boy", "bearded musician")
WHAT = ("a red umbrella", "the leash of a brown dog", "two yellow balloons", "a wooden guitar")
WHERE = ("a parked bicycle", "an old stone wall", "several people")


def photographs(count: int) -> list[Unit]:
    """Images, each with its longest caption; an empty list if they are not available."""
    folder, captions = PHOTOGRAPHS / "images_full", PHOTOGRAPHS / "Flickr8k.token.txt"
    if not captions.is_file():
        return []
    longest: dict[str, str] = {}
    for line in captions.read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition("\t")
        name = name.partition("#")[0]
        longest[name] = max(longest.get(name, ""), text.strip(), key=len)
    units = []
    for path in sorted(folder.glob("*.jpg"))[:count]:
        with Image.open(path) as image:
            width, height = image.size
        key = key_of_file(path)
        caption = Caption(path.name, key, longest[path.name])
        units.append(Unit(Place(path), key, height, width, [caption]))
    return units


def drawings(count: int, folder: Path) -> list[Unit]:
    """Drawn JPEGs of a photograph's size, each with a caption of four noun phrases."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    units = []
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC))
        noisy = np.clip(picture + rng.normal(0, 12, picture.shape), 0, 255).astype(np.uint8)
        path = folder / f"{number:04}.jpg"
        Image.fromarray(noisy).save(path, quality=90)
        who, what, where = (words[number % len(words)] for words in (WHO, WHAT, WHERE))
        text = f"A {who} in a striped shirt holds {what} while standing next to {where} ."
        key = key_of_file(path)
        units.append(Unit(Place(path), key, 375, 500, [Caption(path.name, key, text)]))
    return units


def plain_loop(
    units: list[Unit], model: Any, processor: Any, predictor: Any, device: torch.device
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


class Timed:
    """Wrap a grounder or segmenter, time its calls and keep their results."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name = inner, inner.name
        self.clear()

    def clear(self) -> None:
        self.seconds, self.results = 0.0, []

    def describe(self) -> dict[str, object]:
        return self.inner.describe()

    def ground(self, *args: Any) -> Any:
        return self._count(self.inner.ground, args)

    def segment(self, *args: Any) -> Any:
        return self._count(self.inner.segment, args)

    def _count(self, call: Any, args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        self.seconds += time.perf_counter() - start
        self.results.append(result)
        return result


class Replayed:
    """Replay the results of a `Timed` in order, so that only the stage itself takes time."""

    def __init__(self, timed: Timed) -> None:
        self.name, self.describe = timed.name, timed.describe
        self._results = iter(timed.results)

    def ground(self, *args: Any) -> Any:
        return next(self._results)

    segment = ground


def main() -> None:
    """Measure and print the rates and their ratio."""
    parser = argparse.ArgumentParser(description="Grounding, in images per second.")
    parser.add_argument("--full", action="store_true", help="Florence-2-large, hiera-large")
    parser.add_argument("--images", type=int, default=48, help="images per round")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds per side")
    parser.add_argument("--batch", type=int, default=16, help="our images per batch")
    parser.add_argument("--workers", type=int, default=2, help="our decoding threads")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "drawn"
        units = photographs(options.images) or drawings(options.images, folder)
        measure(units, "drawings" if folder.exists() else "photographs", options)


def measure(units: list[Unit], kind: str, options: argparse.Namespace) -> None:
    """Run both sides in turn."""
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    device = torch.device(options.device)
    texts = [unit.captions[0].text for unit in units]
    model, processor = florence(texts, options.full)
    settings = Florence2Settings(family="florence2", model="bench", beams=BEAMS)
    loaded = LoadedModel(model, processor, {"model": "bench"})
    grounder = Timed(Florence2Grounder(settings, loaded, device, options.precision))
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    with tempfile.TemporaryDirectory() as scratch, computing(device, "fp32"):
        masker = segmenter(options.full, Path(scratch), device, options.precision)
        predictor = SAM2ImagePredictor(masker._backend._model)  # pyright: ignore
        edge = predictor.model.image_size  # the package assumes 1,024
        predictor._bb_feat_sizes = [(edge // n, edge // n) for n in (4, 8, 16)]
        timed = Timed(masker)
        how = RunSettings(
            max_failed=0,
            devices=str(device),
            batch_size=options.batch,
            workers=options.workers,
        )
        rules = Rules(duplicate_iou=None)
        for turn in range(options.rounds + 1):  # the first round warms up
            some = units if turn else units[:WARM_UP]
            start = time.perf_counter()
            with computing(device, options.precision):
                masks = plain_loop(some, model, processor, predictor, device)
            middle = time.perf_counter()
            grounder.clear()
            timed.clear()
            out = Path(scratch) / f"out-{turn}"
            ground(some, grounder, timed, rules, out, how)
            end = time.perf_counter()
            found = read_phrases(out).num_rows
            empty = grounding_counts(out)["dropped"].get("empty_mask", 0)
            assert found + empty == masks, "the two sides must find the same boxes"
            if turn:
                seconds["plain"].append(middle - start)
                seconds["ours"].append(end - middle)
        start = time.perf_counter()
        ground(units, Replayed(grounder), Replayed(timed), rules, Path(scratch) / "replayed", how)
        alone = time.perf_counter() - start
    size = "full size" if options.full else "small"
    print(f"{device}, {torch.get_num_threads()} threads, {options.precision}, models {size}")
    print(f"{len(units)} {kind}, {masks} boxes, median of {options.rounds} rounds")
    rates = {side: len(units) / statistics.median(some) for side, some in seconds.items()}
    for side, rate in rates.items():
        print(f"{side:<8}{rate:>9.2f} images/s")
    ratio = rates["ours"] / rates["plain"]
    print(f"ratio   {ratio:>9.2f}   (target on a GPU: {TARGET:g})")
    share = [each.seconds / seconds["ours"][-1] for each in (grounder, timed)]
    print(f"our wall time: grounder {share[0]:.0%}, segmenter {share[1]:.0%} (they overlap)")
    print(f"without the models {len(units) / alone:.0f} images/s: decoding, rules, masks, writing")
    if options.json:
        found = {"images": len(units), "boxes": masks, "images_per_second": rates, "ratio": ratio}
        found |= {"precision": options.precision, "models": size, "target": TARGET}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
