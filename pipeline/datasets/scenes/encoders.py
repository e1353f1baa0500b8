"""Trains and writes the demo's models: two image encoders, a teacher and the untrained student."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.scenes import ScenesSource
from pipeline.datasets.scenes.captions import HIGHEST, GradedPair
from pipeline.datasets.scenes.scene import Scene, draw
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES, words
from pipeline.datasets.source import Progress
from pipeline.side_by_side import Send, side_by_side
from sightline.devices import compute_with
from sightline.models.pretrained import quiet
from sightline.optional_imports import require

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import AdamW
    from torchvision.models import ResNet
    from transformers import BertModel, BertTokenizer

THREADS = 1  # of each model that is trained; a fixed number keeps the weights' bytes
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHAPE_WEIGHT = 4.0
CONTEXT = 48  # CLIP's byte-pair tokens: three things of up to ten, and the frame
TEACHER_LAYERS, TEACHER_HIDDEN = 2, 128
HEADS = 4
MAX_POSITIONS = 64
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_FORWARDED = 32  # sentences at once


def write_models(
    folder: Path,
    source: ScenesSource,
    pixels: NDArray[np.uint8],
    scenes: Sequence[Scene],
    captions: Sequence[Sequence[str]],
    pairs: Sequence[GradedPair],
    progress: Progress | None = None,
) -> None:
    """Train the frozen encoders on the training split, and write them and the student.

    Writes ``encoders/{resnet,clip}.{json,safetensors,provenance.json}``, ``encoders/teacher/``
    and ``student/`` below ``folder``. The encoders are trained side by side.
    """
    for library in ("open_clip", "torchvision"):
        # imported once, for all processes
        require(library, "the data set scenes, which trains its own encoders,")
    (folder / "encoders").mkdir()
    calls = {
        "training the ResNet": partial(_resnet, folder, source, pixels, scenes),
        "training the CLIP": partial(_clip, folder, source, pixels, captions),
        "training the teacher": partial(_berts, folder, source, pairs),
    }
    total = source.resnet_steps + source.clip_steps + source.teacher_steps
    done: dict[str, int] = {}
    for name, step in side_by_side(calls):
        done[name] = step
        if progress is not None:
            progress("training the encoders", sum(done.values()), total, "steps")


def single_things(scenes: Sequence[Scene]) -> list[Scene]:
    """Each thing of the training scenes alone in its place, as in a cut-out.

    Omits things that on their own would be a scene of another split.
    """
    alone = [Scene((placed,), scene.ground) for scene in scenes for placed in scene.things]
    return [scene for scene in alone if scene.split == "train"]


def _resnet(
    folder: Path,
    source: ScenesSource,
    pixels: NDArray[np.uint8],
    scenes: Sequence[Scene],
    done: Send,
) -> None:
    """A torchvision ``resnet18`` with 1000 outputs, trained to recognise what a scene contains.

    It sees the scenes and every thing of them alone. The residual branch of the second block of
    every stage is disabled (its last scale is 0): training skips it at no cost, and the full
    ResNet-18 computes the same result with it.

    Args:
        pixels: uint8 [n, edge, edge, 3].
        scenes: [n], the content of the images.
    """
    import torch
    import torchvision
    from torch import nn

    compute_with(THREADS)
    edge = pixels.shape[1]
    singles = single_things(scenes)
    pixels = np.concatenate([pixels, np.stack([draw(scene, edge)[0] for scene in singles])])
    table, weights = map(torch.from_numpy, _labels([*scenes, *singles]))
    with seeded(source.seed):
        model = torchvision.models.resnet18(weights=None)
        head = nn.Linear(512, len(weights))
    images = _normalised(pixels, IMAGENET_MEAN, IMAGENET_STD)
    images = images.contiguous(memory_format=torch.channels_last)
    train = _awake(model).to(memory_format=torch.channels_last)
    parameters = [*train.parameters(), *head.parameters()]

    def losses() -> Iterator[Tensor]:
        for rows in _batches(len(images), 32, source.resnet_steps, source.seed):
            logits = head(train(images[rows]))
            yield nn.functional.binary_cross_entropy_with_logits(logits, table[rows], weights)

    train.train()
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    _fit(optimizer, losses(), source.resnet_steps, done, warm=0.15, clip=False)
    _save(folder / "encoders/resnet.safetensors", model, {"resize": edge, "crop": edge})
    _note(folder / "encoders/resnet.provenance.json", "labels of", source.seed, source.resnet_steps)


def _awake(model: ResNet) -> nn.Module:
    """The trained part of ``model``, sharing its weights: images [n, 3, h, w] → [n, 512]."""
    from torch import nn

    stem = (model.conv1, model.bn1, model.relu, model.maxpool)
    stages = (model.layer1, model.layer2, model.layer3, model.layer4)
    for stage in stages:
        nn.init.zeros_(stage.get_parameter("1.bn2.weight"))
    first_blocks = (stage[0] for stage in stages)
    return nn.Sequential(*stem, *first_blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _labels(scenes: Sequence[Scene]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """1 for every attribute value in a scene, float32 [n, values], and each value's weight.

    Colours are learned in a few steps and then dominate, so shapes get a higher weight.
    """
    names = [(attribute, v.name) for attribute, values in ATTRIBUTES.items() for v in values]
    columns = {name: column for column, name in enumerate(names)}
    table = np.zeros((len(scenes), len(columns)), dtype=np.float32)
    for row, scene in enumerate(scenes):
        for placed in scene.things:
            for item in placed.thing._asdict().items():
                table[row, columns[item]] = 1
    weights = [SHAPE_WEIGHT if attribute == "shape" else 1.0 for attribute, _ in names]
    return table, np.array(weights, np.float32)


def clip_config(edge: int) -> dict[str, Any]:
    """The demo's CLIP as an open_clip configuration, for images of ``edge`` pixels.

    The tokenizer is open_clip's own, which needs no file and no hub.
    """
    vision = {"image_size": edge, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32}
    text = {"context_length": CONTEXT, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    return {"embed_dim": 128, "vision_cfg": vision, "text_cfg": text}


def _clip(
    folder: Path,
    source: ScenesSource,
    pixels: NDArray[np.uint8],
    captions: Sequence[Sequence[str]],
    done: Send,
) -> None:
    """open_clip's ``CLIP`` with `clip_config`, trained contrastively (Radford 2021).

    Args:
        pixels: uint8 [n, edge, edge, 3].
        captions: [n], several captions per image; each epoch uses the next one.
    """
    import open_clip
    import torch
    from torch.nn import functional

    compute_with(THREADS)
    config = clip_config(pixels.shape[1])
    with seeded(source.seed):
        model = open_clip.CLIP(**config)
    tokenizer = open_clip.SimpleTokenizer(context_length=CONTEXT)
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD

    def losses() -> Iterator[Tensor]:
        used = [0] * len(captions)
        for rows in _batches(len(captions), 64, source.clip_steps, source.seed):
            texts = []
            for row in rows.tolist():
                texts.append(captions[row][used[row] % len(captions[row])])
                used[row] += 1
            image = model.encode_image(_normalised(pixels[rows.numpy()], mean, std), True)
            text = model.encode_text(tokenizer(texts), True)
            logits = model.logit_scale.exp() * image @ text.T  # [N, N]
            targets = torch.arange(len(rows))
            image_loss = functional.cross_entropy(logits, targets)
            yield image_loss + functional.cross_entropy(logits.T, targets)
            with torch.no_grad():  # after the step
                model.logit_scale.clamp_(max=float(np.log(100)))

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
    _fit(optimizer, losses(), source.clip_steps, done, warm=0.15)
    _save(folder / "encoders/clip.safetensors", model, config)
    _note(folder / "encoders/clip.provenance.json", "captions of", source.seed, source.clip_steps)


def _berts(folder: Path, source: ScenesSource, pairs: Sequence[GradedPair], done: Send) -> None:
    """The untrained student, and a teacher whose raw [CLS] vectors have the pairs' similarity.

    Cosine regression with squared error (Reimers and Gurevych 2019, section 3), score / 5.
    """
    import torch
    from torch.nn import functional

    compute_with(THREADS)
    seed, steps = source.seed, source.teacher_steps
    model = new_bert(layers=TEACHER_LAYERS, hidden=TEACHER_HIDDEN, seed=seed)
    tokenizer = new_tokenizer()
    texts = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
    sides = [tokenizer(side)["input_ids"] for side in texts]
    scores = torch.tensor([pair.score / HIGHEST for pair in pairs])

    def losses() -> Iterator[Tensor]:
        for rows in _batches(len(pairs), 64, steps, seed):
            ids = [side[row] for side in sides for row in rows.tolist()]
            by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
            parts = [by_length[i : i + _FORWARDED] for i in range(0, len(ids), _FORWARDED)]
            vectors = []
            for part in parts:  # similar lengths: little padding
                padded = tokenizer.pad({"input_ids": [ids[i] for i in part]}, return_tensors="pt")
                vectors.append(model(**padded).last_hidden_state[:, 0])
            back = torch.tensor(by_length).argsort()
            left, right = torch.cat(vectors)[back].chunk(2)  # [N, hidden] each
            yield functional.mse_loss(functional.cosine_similarity(left, right), scores[rows])

    model.eval()  # no dropout: the targets are exact
    _fit(torch.optim.AdamW(model.parameters(), lr=1e-3), losses(), steps, done)
    save(folder / "encoders/teacher", model)
    _note(folder / "encoders/teacher/provenance.json", "similarity pairs of", seed, steps)
    student = new_bert(layers=source.student_layers, hidden=source.student_hidden, seed=seed)
    save(folder / "student", student)
    _note(folder / "student/provenance.json", "", seed, 0)


def _fit(
    optimizer: AdamW,
    losses: Iterator[Tensor],
    steps: int,
    done: Send,
    *,
    warm: float = 0.3,
    clip: bool = True,
) -> None:
    """A step for each loss, with one cycle of the learning rate.

    Args:
        losses: computes the next one after the step for the last.
        warm: fraction of the steps in which the learning rate rises.
        clip: whether gradients are clipped to length 1.
    """
    import torch

    rate = optimizer.defaults["lr"]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, max(2, steps), pct_start=warm)
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    for step, loss in enumerate(losses, start=1):
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        done(step)


def _normalised(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """float32 [n, 3, h, w] of uint8 [n, h, w, 3]: scaled to 0–1, then normalised."""
    import torch

    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
    return images.sub_(torch.tensor(mean)[:, None, None]).div_(torch.tensor(std)[:, None, None])


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """``steps`` batches of distinct rows, int64 [≤ size], reshuffled on every pass."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    done = 0
    while done < steps:
        for batch in torch.randperm(count, generator=generator).split(size):
            if done == steps:
                return
            if len(batch) > 1 or count == 1:  # one row has no negatives and no variance
                yield batch
                done += 1


def _save(path: Path, model: nn.Module, config: dict[str, Any]) -> None:
    """Write a model's weights, and what they need to be used beside them."""
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    _write_json(path.with_suffix(".json"), config)


def _note(path: Path, subject: str, seed: int, steps: int) -> None:
    """What weights were trained on."""
    trained = f"trained on the {subject} scenes, seed {seed}, {steps} steps"
    source = trained if steps else f"random weights, seed {seed}"
    _write_json(path, {"source": source, "data": "scenes", "seed": seed, "steps": steps})


def _write_json(path: Path, body: object) -> None:
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")


def wordpieces() -> dict[str, int]:
    """WordPiece vocabulary: piece → id. Special tokens, every letter (also inside a word), words.

    Known words are one piece; any other word in lower-case Latin letters is split into letters.
    """
    letters = [*string.ascii_lowercase, *string.digits, *".,;:!?'-"]
    spelling = [f"##{letter}" for letter in letters]
    pieces = [*_SPECIAL, *letters, *spelling, *(word for word in words() if len(word) > 1)]
    return {piece: number for number, piece in enumerate(pieces)}


def new_tokenizer() -> BertTokenizer:
    """A lower-casing BERT tokenizer over `wordpieces`."""
    from transformers import BertTokenizer

    return BertTokenizer(vocab=wordpieces(), do_lower_case=True, model_max_length=MAX_POSITIONS)


def new_bert(*, layers: int, hidden: int, seed: int) -> BertModel:
    """A BERT with random weights drawn from ``seed``.

    Their standard deviation is 1 / √``hidden``. With BERT's 0.02, which suits a width of 768, any
    two sentences start with a cosine of 0.9999, and training waits until dropout breaks the tie.
    """
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(wordpieces()),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * hidden,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=0,
        initializer_range=hidden**-0.5,
    )
    with seeded(seed):
        return BertModel(config)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights are drawn from ``seed``; the generator of torch is as before afterwards."""
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    yield
    torch.set_rng_state(state)


def save(folder: Path, model: BertModel) -> None:
    """Write ``model`` and its tokenizer as a Hugging Face folder (safetensors)."""
    with quiet():
        model.save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)
