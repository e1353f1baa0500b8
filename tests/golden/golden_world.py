"""A small world that is the same on every machine, and what the pipeline makes of it.

Every number comes from the legacy uniform stream of NumPy, which is frozen and needs no function
of a mathematical library. PyTorch's own draws differ between processors. What is made is pinned in
the JSON files here; `SIGHTLINE_PIN=1 pytest tests/golden` rewrites them.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_sets import feature_spec, stored_png
from make_sets import fill as fill_set
from numpy.typing import NDArray
from safetensors.torch import save_file
from tiny_grounders import save_dino, save_florence
from tiny_models import CLIP, clip_config
from tiny_sam2 import as_transformers, configuration, hf_config
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    Florence2ForConditionalGeneration,
    GroundingDinoForObjectDetection,
)

from pipeline.extract.settings import CutoutRules, ExtractSettings
from pipeline.tokenize_phrases import tokenize_phrases
from sightline import (
    EncoderConfig,
    FeatureSet,
    PreparedDataset,
    extract_features,
    ground_captions,
    keys_of_texts,
    prepare_dataset,
    read_phrases,
    tokenize,
)

HERE = Path(__file__).parent
PINNING = os.environ.get("SIGHTLINE_PIN") == "1"
"""Only then is anything written; a change of a pinned value belongs in the changelog."""
PHRASES_FILE = HERE / "phrases.parquet"
"""The annotated phrases as a manifest: kept here, because Parquet's bytes name their writer."""

COLOURS = {"red": (200, 30, 40), "blue": (20, 60, 220), "green": (30, 170, 50), "white": (240,) * 3}
SHAPES = ("circle", "square", "star")
THINGS = list(itertools.product(COLOURS, SHAPES))
MAX_LENGTH = 16
ANNOTATED = "drawn, box"
"""The grounding whose objects are extracted and trained on."""


def uniform(seed: int, *shape: int) -> NDArray[np.float64]:
    """Numbers from −1 to 1."""
    return 2 * np.random.RandomState(seed).random_sample(shape) - 1


def fill(state: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The same tensors with other numbers, which keep the variance of their input about the same.

    Integers stay. Vectors that scale are around 1, so that no row is saturated or constant.
    """
    filled = {name: tensor.contiguous().clone() for name, tensor in state.items()}
    for number, name in enumerate(sorted(filled)):
        tensor = filled[name]
        if tensor.is_floating_point():
            values = uniform(seed + number, *tensor.shape)
            if tensor.ndim > 1:
                values *= (3 / tensor[0].numel()) ** 0.5
            else:
                values = 0.3 * values + (not name.endswith(("bias", "mean")))
            filled[name] = torch.from_numpy(np.asarray(values)).to(tensor.dtype)
    return filled


def refill(folder: Path, architecture: Any, seed: int) -> None:
    """Fill a model of transformers in place, by the names in its class: those in files vary."""
    model = architecture.from_pretrained(folder)
    model.load_state_dict(fill(model.state_dict(), seed))
    model.save_pretrained(folder)


class World:
    """Twelve images of two objects each, two captions each, sentences, and tiny models.

    `boxes` is a table of their objects.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.boxes, self.models = root / "boxes.jsonl", root / "models"
        for folder in ("images", "models"):
            (root / folder).mkdir(parents=True)
        captions = [line for i in range(len(THINGS)) for line in self._add_image(i)]
        (root / "captions.txt").write_text("".join(captions))
        pairs = itertools.product(itertools.permutations(SHAPES, 2), ("above", "below", "inside"))
        lines = [f"the {one} is {place} the {other}\n" for (one, other), place in pairs]
        (root / "sentences.txt").write_text("".join(lines))
        self.data: PreparedDataset = prepare_dataset(
            "pairs", root / "data", images=root / "images", captions=root / "captions.txt"
        )
        self.sentences: PreparedDataset = prepare_dataset(
            "sentences", root / "sentences", path=root / "sentences.txt"
        )

    def _add_image(self, i: int) -> list[str]:
        """Draw image ``i``, add its objects to the boxes, and return its lines of captions.txt."""
        height, width = ((64, 80), (72, 64))[i % 2]
        (colour, shape), (second, other) = THINGS[i], THINGS[(5 * i + 3) % len(THINGS)]
        coarse = uniform(i, height // 4, width // 4, 3)
        pixels = 128 + 90 * uniform(50 + i, 3) + 60 * np.kron(coarse, np.ones((4, 4, 1)))
        boxes = [(2 + i, 3, 18 + i, 17 + i), (25, 20 + i, 60, 50)]
        for name, (x0, y0, x1, y1) in zip((colour, second), boxes, strict=True):
            pixels[y0:y1, x0:x1] = COLOURS[name] + 60 * uniform(90 + i, y1 - y0, x1 - x0, 3)
        png = stored_png(pixels.clip(0, 255).astype(np.uint8))
        (self.root / f"images/{i:02d}.png").write_bytes(png)
        captions = {
            f"a {colour} {shape} beside a {second} {other}.": f"a {second} {other}",
            f"It is a {colour} {shape} in a field near the {other}.": f"the {other}",
        }
        rows = [
            {"image": f"{i:02d}.png", "caption": text, "phrase": phrase, "box": box}
            for text, last in captions.items()
            for phrase, box in zip((f"a {colour} {shape}", last), boxes, strict=True)
        ]
        with self.boxes.open("a") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return [f"{i:02d}.png#{number}\t{text}\n" for number, text in enumerate(captions)]

    def bert(self, name: str, hidden: int, seed: int, dropout: float = 0.1) -> Path:
        """A two-layer BERT; its files are written here, as those of a library name its version."""
        folder = self.models / name
        folder.mkdir()
        texts = [*self.data.texts, *self.sentences.texts]
        words = sorted({word for text in texts for word in text.lower().strip(".").split()})
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
        (folder / "vocab.txt").write_text("\n".join([*special, *words]))
        sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 40, "max_position_embeddings": 40}
        sizes |= {"vocab_size": len(special) + len(words)}
        kind = {"model_type": "bert", "architectures": ["BertModel"]}
        kind |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        (folder / "config.json").write_text(json.dumps({**kind, **sizes}))
        about = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
        state = fill(BertModel(BertConfig(**sizes)).state_dict(), seed)
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        return folder

    def add_models(self) -> None:
        """Write the encoders, grounders and segmenters."""
        import open_clip
        import torchvision
        from hydra.utils import instantiate
        from omegaconf import OmegaConf

        folder = self.models
        resnet = fill(torchvision.models.resnet18(weights=None).state_dict(), 1000)
        save_file(resnet, folder / "resnet.safetensors")
        clip_config(folder)
        towers = {name: part for name, part in CLIP.items() if name != "preprocess_cfg"}
        clip = fill(open_clip.CLIP(**towers).state_dict(), 2000)  # pyright: ignore
        save_file(clip, folder / "clip.safetensors")
        self.bert("teacher", 32, 3000)
        refill(save_florence(folder / "florence"), Florence2ForConditionalGeneration, 4000)
        refill(save_dino(folder / "dino"), GroundingDinoForObjectDetection, 5000)
        sam2 = instantiate(OmegaConf.load(configuration(folder)).model, _recursive_=True)
        state = fill(sam2.state_dict(), 6000)
        save_file(state, folder / "sam2.safetensors")
        hf_config().save_pretrained(folder / "sam2-hf")
        renamed = {key: tensor.clone() for key, tensor in as_transformers(state).items()}
        save_file(renamed, folder / "sam2-hf/model.safetensors", {"format": "pt"})

    def ground(self, name: str, settings: dict, cutouts: Path | None = None) -> Path:
        """Ground all captions; the folder of the records."""
        out = self.root / "grounding" / name
        given = {"captions": "all", **settings}
        return ground_captions(self.data, given, out, cutouts=cutouts, device="cpu")

    def extract(
        self,
        name: str,
        kind: Any,
        encoder: dict,
        *,
        rules: dict | None = None,
        device: str = "cpu",
        **settings: Any,
    ) -> FeatureSet:
        """Features of every image, caption or annotated object."""
        return extract_features(
            self.data,
            EncoderConfig.model_validate(encoder),
            self.root / "features" / name,
            kind,
            phrases=self.root / "grounding" / ANNOTATED if kind == "object" else None,
            device=device,
            workers=0,
            settings=ExtractSettings(
                cutouts=CutoutRules(**rules or {}), **{"batch_size": 4, **settings}
            ),
        )

    def keys(self, kind: str) -> Any:
        """Keys of all images, captions or annotated objects, in the order of the data set."""
        if kind == "image":
            return self.data.image_keys
        if kind != "object":
            return keys_of_texts(self.data.captions["text"].to_pylist())
        found = read_phrases(self.root / "grounding" / ANNOTATED)["cutout_key"].to_pylist()
        return list(dict.fromkeys(found))

    def write_features(self, name: str, kind: Any, rows: NDArray[np.float64]) -> Path:
        """A feature set of given rows, in the order of `keys`."""
        folder, keys = self.root / "written" / name, map(bytes, self.keys(kind))
        spec = feature_spec(kind, dim=rows.shape[1])
        fill_set(folder, spec, dict(zip(keys, rows, strict=True)))
        return folder

    def add_student(self) -> None:
        """Write the student, its token ids of all texts, and its tokens of annotated phrases."""
        self.student = self.bert("student", 16, 7000)
        self.bert("student without dropout", 16, 7000, 0.0)
        self.tokens, self.phrase_tokens = self.root / "tokens", self.root / "phrase-tokens"
        texts = [*self.data.texts, *self.sentences.texts]
        tokenize(texts, self.student, MAX_LENGTH, self.tokens)
        tokenize_phrases(
            self.root / "grounding" / ANNOTATED,
            self.data.captions_manifest,
            str(self.student),
            MAX_LENGTH,
            self.phrase_tokens,
        )


def encoder_cases(models: Path) -> dict[str, tuple[str, dict, dict]]:
    """Name → kind, encoder, and the options of `World.extract`."""
    resnet = {"family": "torchvision", "model": "resnet18"}
    resnet["weights"] = f"file:{models / 'resnet.safetensors'}"
    small = {"resize": 40, "crop": 32, "interpolation": "bicubic", "mean": [0.4, 0.5, 0.6]}
    clip = {"family": "open_clip", "model": str(models / "clip.json")}
    clip["weights"] = f"file:{models / 'clip.safetensors'}"
    bert = {"family": "transformers", "model": str(models / "teacher"), "weights": "pretrained"}
    white, keep = {"margin": 0.3, "background": "white"}, {"background": "keep"}
    return {
        "resnet, image": ("image", resnet, {}),
        "resnet, small image": ("image", {**resnet, **small}, {}),
        "resnet, object": ("object", resnet, {}),
        "clip, image": ("image", clip, {}),
        "clip, image in bf16": ("image", clip, {"precision": "bf16"}),
        "clip, image as float32": ("image", {**clip, "std": [0.2, 0.3, 0.4]}, {"dtype": "float32"}),
        "clip, object": ("object", clip, {}),
        "clip, object on white": ("object", clip, {"rules": white}),
        "clip, object in its image": ("object", clip, {"rules": keep}),
        "clip, text": ("text", clip, {}),
        "teacher": ("teacher", bert, {}),
        "teacher, mean": ("teacher", {**bert, "pooling": "mean", "max_length": 8}, {}),
        "teacher, first and last": ("teacher", {**bert, "pooling": "first_last_mean"}, {}),
        "teacher, pooler": ("teacher", {**bert, "pooling": "pooler"}, {}),
    }


def grounding_cases(models: Path, boxes: Path) -> dict[str, dict]:
    """Name → settings of a grounding."""
    box = {"family": "box"}
    drawn = {"family": "annotations", "path": str(boxes)}
    sam2 = {"model": str(models / "tiny.yaml"), "weights": f"file:{models / 'sam2.safetensors'}"}
    florence = {"family": "florence2", "model": str(models / "florence"), "max_length": 24}
    dino = {"family": "grounding-dino", "model": str(models / "dino"), "text_threshold": 0.0}
    rules = {"boxes": "union", "min_score": 0.001, "duplicate_iou": None, "max_pairs": 2}
    return {
        ANNOTATED: {"grounder": drawn, "segmenter": box, "rules": {"duplicate_iou": None}},
        "phrases, annotations": {
            "grounder": {"family": "annotations", "path": str(PHRASES_FILE)},
            "segmenter": {"family": "annotations"},
        },
        "drawn, sam2": {"grounder": drawn, "segmenter": {"family": "sam2", **sam2}},
        "drawn, sam2-hf": {
            "grounder": drawn,
            "segmenter": {"family": "sam2-hf", "model": str(models / "sam2-hf")},
        },
        "florence2, box": {"grounder": florence, "segmenter": box},
        "grounding-dino, box": {
            "grounder": {**dino, "box_threshold": 0.0},
            "segmenter": box,
            "rules": rules,
        },
    }


def pinned(file: str, name: str, current: Any) -> Any:
    """The pinned value of ``name`` in ``file``; while pinning, that is ``current``."""
    path = HERE / file
    values = json.loads(path.read_text()) if path.exists() else {}
    if PINNING:
        values[name] = current
        entries = (f"{json.dumps(key)}: {json.dumps(values[key])}" for key in sorted(values))
        path.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    return values[name]


def same_transformers(file: str) -> bool:
    """Whether the values of ``file`` are from the installed version of transformers.

    Its word for an image processor, its tokenizer's form and the tensors that a model names differ
    between versions, and with them the fingerprints of Florence-2 and Grounding DINO.
    """
    version = transformers.__version__
    return pinned(file, "transformers", version) == version
