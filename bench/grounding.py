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
real format, with a box for each noun phrase, in as many steps as a trained model would take.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Report, add_device, device_of, options_of, photographs, take_turns, timed
from omegaconf import OmegaConf
from PIL import Image
from sam2.sam2_image_predictor import SAM2ImagePredictor
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    LogitsProcessor,
    PreTrainedTokenizerFast,
)

from pipeline.extract.runner import run
from pipeline.grounding.captioned_images import CaptionedImage
from pipeline.grounding.florence2 import TASK, Florence2Grounder, Florence2Settings
from pipeline.grounding.ground import grounding_job
from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.noun_phrases import noun_phrases
from pipeline.grounding.protocols import Caption
from pipeline.grounding.segmenters.prompted import PromptedSegmenter
from pipeline.grounding.segmenters.sam2 import Sam2Settings
from pipeline.machine import Machine
from sightline.cache import Place, key_of_file
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.devices import computing

TARGET = 8.0
"""Times the loop, on a GPU, which one image at a time leaves mostly idle."""
BEAMS, MAX_LENGTH, WARM_UP = 3, 1024, 8
WHO = ("tall man", "little girl", "young woman with glasses", "boy", "bearded musician")
WHAT = ("a red umbrella", "the leash of a brown dog", "two yellow balloons", "a wooden guitar")
WHERE = ("a parked bicycle", "an old stone wall", "several people")

SMALL_SIZE = 256
"""Edge of the small models' inputs, in pixels; Florence-2's is 768, SAM 2's 1024."""


class Steered(LogitsProcessor):
    """Force every row of a batch to generate its own answer."""

    def __init__(self, answers: list[list[int]], end: int) -> None:
        self.answers, self.end = answers, end

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step, beams = input_ids.shape[1] - 1, len(input_ids) // len(self.answers)
        tokens = [ids[step] if step < len(ids) else self.end for ids in self.answers]
        rows = torch.tensor(tokens, device=scores.device).repeat_interleave(beams)
        scores[torch.arange(len(rows)), rows] += 1000.0
        return scores


class SteeredFlorence(Florence2ForConditionalGeneration):
    """Florence-2 with random weights, whose answers have a trained model's format."""

    answers: dict[str, list[int]]
    read_prompt: Any

    def generate(self, *args: Any, **inputs: Any) -> Any:
        prompts = self.read_prompt(inputs["input_ids"], skip_special_tokens=True)
        answers = [self.answers[prompt.split(": ", 1)[1].strip()] for prompt in prompts]
        text: Any = self.config.text_config
        end = text.eos_token_id
        steered = [Steered(answers, end)]
        return super().generate(*args, **inputs, logits_processor=steered)  # pyright: ignore


def florence(texts: list[str], full: bool) -> tuple[SteeredFlorence, Florence2Processor]:
    """Florence-2-large with its published configuration, or a very small one."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=8000, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={"image_token": "<image>"},
    )
    tokenizer.add_tokens([f"<loc_{i}>" for i in range(1000)])
    size = 768 if full else SMALL_SIZE
    images = CLIPImageProcessor(
        size={"height": size, "width": size},
        do_center_crop=False,
        image_seq_length=(size // 32) ** 2 + 1,
    )
    parsing = {"phrase_grounding": {"banned_grounding_tokens": []}, "pure_text": {}}
    processor = Florence2Processor(images, tokenizer, post_processor_config=parsing)
    wide = {"embed_dim": [256, 512, 1024, 2048], "num_heads": [8, 16, 32, 64]}
    narrow = {"embed_dim": [16, 32, 64, 128], "num_heads": [1, 2, 4, 8], "depths": [1, 1, 1, 1]}
    vision = wide if full else narrow
    layers, width = (12, 1024) if full else (2, 64)
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = Florence2Config(
        vision_config={**vision, "num_groups": vision["num_heads"], "projection_dim": width},
        text_config={
            "model_type": "bart",
            "vocab_size": 51_289 if full else len(tokenizer),
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": width // 64,
            "decoder_attention_heads": width // 64,
            "encoder_ffn_dim": 4 * width,
            "decoder_ffn_dim": 4 * width,
            "max_position_embeddings": 4096 if full else 1024,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
            **tokens,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        **tokens,
    )
    torch.manual_seed(0)
    model = SteeredFlorence(config).eval()
    model.answers = {text: answer(text, tokenizer) for text in texts}
    model.read_prompt = processor.batch_decode
    return model, processor


def answer(caption: str, tokenizer: Any) -> list[int]:
    """Token ids of an answer: each noun phrase and a box derived from its position."""
    written = "<s>"
    for place, span in enumerate(noun_phrases(caption)):
        left, top = 40 + 97 * place % 500, 30 + 61 * place % 500
        box = "".join(f"<loc_{edge}>" for edge in (left, top, left + 400, top + 350))
        written += caption[slice(*span)] + box
    return tokenizer(written + "</s>", add_special_tokens=False)["input_ids"]


def segmenter(full: bool, folder: Path, device: torch.device, precision: str) -> PromptedSegmenter:
    """SAM 2.1 with random weights: hiera-large, or hiera-tiny made even smaller."""
    model = "sam2.1-hiera-large"
    if not full:
        published = files("sam2") / "configs/sam2.1/sam2.1_hiera_t.yaml"
        settings: Any = OmegaConf.load(str(published))
        settings.model.image_size = SMALL_SIZE
        trunk = settings.model.image_encoder.trunk
        trunk.embed_dim, trunk.stages, trunk.global_att_blocks = 16, [1, 2, 2, 1], [4]
        settings.model.image_encoder.neck.backbone_channel_list = [128, 64, 32, 16]
        model = str(folder / "small.yaml")
        OmegaConf.save(settings, model)
    return Sam2Settings(model=model, weights="random:0").build(device, precision)


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
