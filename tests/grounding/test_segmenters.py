"""Segmenters: rectangles, and SAM 2 by two back ends that must agree; then real photographs."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from ground_data import BoxSegmenter, DataSet, WordGrounder
from pydantic import ValidationError
from safetensors.torch import save_file
from tiny_grounders import pictures, save_dino, save_florence
from tiny_sam2 import SIZE, YAML, as_transformers, configuration, hf_config
from torch import Tensor

from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.prepare import prepare
from pipeline.extract.decode import load_image
from pipeline.extract.runner import run
from pipeline.grounding.box_tables import BoxTable
from pipeline.grounding.captioned_images import units_of
from pipeline.grounding.ground import grounding_job
from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.segmenters.prompted import BOXES
from pipeline.grounding.settings import GrounderSettings, SegmenterSettings
from sightline.cache import key_of_text
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.cache.prepared import PreparedDataset
from sightline.cache.rle import encode_mask
from sightline.errors import SightlineError

CPU = torch.device("cpu")
HIERA = "sam2.modeling.backbones.hieradet.Hiera"
HUB = "repo_or_dir: .\nmodel: model\nsource: local"


class Unpickled:
    """Writes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("hacked"),)


def build(**settings: object) -> Any:
    return SegmenterSettings.model_validate(settings).build(CPU, "fp32")


def boxes_of(image: Tensor, count: int, seed: int) -> Tensor:
    height, width = image.shape[1:]
    draw = torch.Generator().manual_seed(seed)
    corner, extent = torch.rand(2, count, 2, generator=draw)
    first = corner * 0.6
    both = torch.cat([first, first + 0.1 + extent * 0.3], dim=1)
    return both * torch.tensor([width, height, width, height])


@pytest.fixture(scope="module")
def batch():
    """Four images of three sizes; the third has no box."""
    images = pictures((90, 130), (200, 60), (64, 48), (90, 130))
    counts = enumerate((3, 1, 0, 5))
    return images, [boxes_of(images[i], count, i) for i, count in counts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny SAM 2 with one set of random weights, for both back ends."""
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    from transformers import Sam2Model

    from pipeline.grounding.segmenters.sam2 import _instantiate

    folder = tmp_path_factory.mktemp("sam2")
    model = _instantiate(configuration(folder))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():  # as they are drawn, many weights are 0, which would hide a wrong name
        for name, tensor in sorted(model.state_dict().items()):
            scale = 0.1 if tensor.ndim < 2 else tensor[0].numel() ** -0.5
            level = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            tensor.copy_(level + torch.randn(tensor.shape, generator=draw) * scale)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "tiny.safetensors")
    torch.save({"model": state}, folder / "tiny.pt")  # as Meta's checkpoints are
    twin = Sam2Model(hf_config())
    twin.load_state_dict(as_transformers(state))  # every name, and no other
    twin.save_pretrained(folder / "hf")
    return folder


@pytest.fixture(scope="module")
def sam2(folder):
    return build(family="sam2", model=str(folder / "tiny.yaml"), weights=f"file:{folder}/tiny.pt")


@pytest.fixture(scope="module")
def sam2_hf(folder):
    return build(family="sam2-hf", model=str(folder / "hf"))


def test_a_configuration_of_transformers_is_described(folder, sam2_hf, tmp_path):
    other = shutil.copytree(folder / "hf", tmp_path / "hf")
    config = json.loads((other / "config.json").read_text())
    config["mask_decoder_config"]["num_attention_heads"] = 4
    (other / "config.json").write_text(json.dumps(config))
    changed, before = build(family="sam2-hf", model=str(other)).describe(), sam2_hf.describe()
    assert {name for name in changed if changed[name] != before[name]} == {"config_sha256"}


def test_a_box_covers_the_pixels_whose_centres_it_holds():
    image = torch.zeros(3, 4, 6, dtype=torch.uint8)
    boxes = torch.tensor([[1.0, 1, 3, 4], [0.4, 0, 1.6, 1], [-9, -9, 99, 99], [2.6, 1, 3.4, 2]])
    masks = BoxSegmenter().segment([image, image], [boxes, boxes[:0]])
    assert masks[0].sum(dim=(1, 2)).tolist() == [6, 2, 24, 0]
    assert masks[0][0].nonzero().tolist() == [[1, 1], [1, 2], [2, 1], [2, 2], [3, 1], [3, 2]]
    assert masks[1].shape == (0, 4, 6)
    assert masks[0].dtype == torch.bool
    with pytest.raises(ValidationError, match="model"):
        build(family="box", model="x")


@pytest.mark.parametrize("name", ["hf:", "a::b", "configs"])
def test_a_folder_is_itself_whatever_its_name_means_to_hydra(
    folder, sam2, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for file in ("tiny.yaml", "tiny.pt"):
        (tmp_path / name).mkdir(exist_ok=True)
        shutil.copyfile(folder / file, tmp_path / name / file)
    same = build(family="sam2", model=f"{name}/tiny.yaml", weights=f"file:{name}/tiny.pt")
    assert same.describe() == sam2.describe()


def test_both_back_ends_give_the_same_masks_from_the_same_weights(sam2, sam2_hf, batch):
    for ours, theirs in zip(sam2.logits(*batch), sam2_hf.logits(*batch), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    for a, b in zip(sam2.segment(*batch), sam2_hf.segment(*batch), strict=True):
        assert (a == b).float().mean() > 0.9999 if a.numel() else a.shape == b.shape


def test_masks_of_a_batch_are_those_of_metas_own_predictor_one_by_one(sam2, batch):
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    predictor = SAM2ImagePredictor(sam2.model)
    predictor._bb_feat_sizes = [(SIZE // n, SIZE // n) for n in (4, 8, 16)]  # fixed for 1,024 there
    (images, boxes), shares = batch, []
    for image, some, masks in zip(images, boxes, sam2.segment(images, boxes), strict=True):
        if len(some):
            predictor.set_image(image.permute(1, 2, 0).numpy())
            theirs, _, _ = predictor.predict(box=some.numpy(), multimask_output=False)
            expected = torch.from_numpy(theirs).reshape(masks.shape) > 0
            assert (masks == expected).float().mean() > 0.9999
            shares.append(masks.float().mean(dim=(1, 2)))
        else:
            assert masks.shape == (0, *image.shape[1:])
    found = torch.cat(shares)
    assert ((found > 0.01) & (found < 0.99)).any(), "masks of one value would prove nothing"


def test_boxes_of_a_table_become_masks(sam2, tmp_path):
    data = DataSet(tmp_path / "data")
    data.add("7.png", "a red dog", size=(90, 130))
    units = data.units()
    path = tmp_path / "boxes.csv"
    path.write_text('image,caption,phrase,box\n7.png,a red dog,red dog,"[20, 10, 90, 70]"\n')
    table = BoxTable(path, None)
    assert table.match(units, masks=False) == []
    more: dict[str, Any] = {"batch_size": 1, "block_images": 1, "workers": 1}
    run(grounding_job(units, table, sam2, Rules(), tmp_path / "out", **more), 0.0)
    (phrase,) = read_phrases(tmp_path / "out").to_pylist()
    image = load_image(units[0].place, units[0].key)
    (masks,) = sam2.segment([image], [torch.tensor([[20.0, 10.0, 90.0, 70.0]])])
    assert phrase["mask"] == encode_mask(masks[0].numpy())


def test_more_boxes_than_a_pass_takes_no_box_and_one_pixel(sam2_hf):
    image, dot = pictures((30, 40), (1, 1))
    boxes = boxes_of(image, BOXES + 3, 6)
    masks = sam2_hf.segment([image], [boxes])[0]
    assert masks.shape == (BOXES + 3, 30, 40)
    last = sam2_hf.segment([image], [boxes[-1:]])[0]
    assert (masks[-1:] == last).float().mean() > 0.999
    assert sam2_hf.segment([dot], [torch.zeros(0, 4)])[0].shape == (0, 1, 1)
    assert sam2_hf.segment([dot], [torch.tensor([[0.0, 0, 1, 1]])])[0].shape == (1, 1, 1)
    assert sam2_hf.segment([], []) == []


def test_every_format_of_weights_is_the_same_model(folder, sam2, sam2_hf):
    tiny = str(folder / "tiny.yaml")
    other = build(family="sam2", model=tiny, weights=f"file:{folder}/tiny.safetensors")
    described, from_other = sam2.describe(), other.describe()
    assert described["weights_sha256"] == from_other["weights_sha256"]
    assert described["source"] == "file:tiny.pt"
    assert described["untrained"] is False
    assert str(folder) not in json.dumps([described, sam2_hf.describe()])
    drawn = [build(family="sam2", model=tiny, weights=f"random:{i}") for i in (0, 0, 1)]
    digests = [each.describe()["weights_sha256"] for each in drawn]
    assert digests[0] == digests[1] != digests[2]
    assert drawn[0].describe()["untrained"] is True


def test_sam2_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sam2", None)
    with pytest.raises(SightlineError) as caught:
        build(family="sam2", weights="random:0")
    install = "SAM2_BUILD_CUDA=0 pip install --no-build-isolation 'sightline-encoders[grounding]'"
    said = f"sam2 is not installed, but the segmenter sam2 needs it; run: {install}"
    assert said in str(caught.value)


def test_a_checkpoint_of_another_model(folder, tmp_path):
    from transformers import BertConfig

    other = tmp_path / "other.safetensors"
    save_file({"encoder.weight": torch.zeros(3)}, other)
    for family, model in (("sam2", "tiny.yaml"), ("sam2-hf", "hf")):
        with pytest.raises(SightlineError, match=r"other\.safetensors does not fit .*1 unexpected"):
            build(family=family, model=str(folder / model), weights=f"file:{other}")
    BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(SightlineError, match="this is a checkpoint of 'bert', expected a SAM 2"):
        build(family="sam2-hf", model=str(tmp_path / "bert"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other: 1", "not a sam2 configuration"),
        ("model: [", "not a sam2 configuration"),
        ("- 1", "not a sam2 configuration"),
        ("model: {_target_: sam2.modeling.sam2_base.Nobody}", "names sam2.modeling.sam2_base.No"),
        ("model: {_target_: sam2.modeling.memory_encoder.Fuser, layer: 1}", "not a sam2 config"),
        ("model: {image_size: 64}", "not a sam2 configuration .'dict' object has no"),
        (YAML.replace("image_encoder.ImageEncoder", "hieradet.Hiera"), "not a sam2 configuration"),
        (YAML.replace(f"image_size: {SIZE}", "image_size: 100"), "not a sam2 configuration"),
        (YAML.replace("scalp: 1", "scalp: 3"), "not a sam2 configuration"),
        ("model: &a {_target_: sam2.modeling.sam2_base.SAM2Base, x: *a}", "not a sam2 config"),
        ("model: {_target_: ???}", "not a sam2 configuration"),
    ],
)
def test_invalid_configurations(tmp_path, text, message):
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SightlineError, match=message):
        build(family="sam2", model=str(tmp_path / "mine.yaml"), weights="random:0")


def test_a_configuration_names_no_other_file(folder, tmp_path):
    whole = folder / "tiny.yaml"
    weights = {"family": "sam2", "weights": f"file:{folder}/tiny.safetensors"}
    for old, new, message in (
        ("model:", "defaults: [other]\nmodel:", "`defaults` name other files.* write the whole"),
        (HIERA, f"{HIERA}\n      weights_path: a.pt", "remove it, and write weights: file:PATH"),
    ):
        (tmp_path / "mine.yaml").write_text(whole.read_text().replace(old, new, 1))
        with pytest.raises(SightlineError, match=message):
            build(model=str(tmp_path / "mine.yaml"), **weights)
    assert build(model=str(whole), **weights).describe()["untrained"] is False


def test_a_configuration_may_name_what_metas_own_name():
    package = pytest.importorskip("sam2", reason="the sam2 package is not installed")
    from pipeline.grounding.segmenters.sam2 import _CLASSES, MODELS, _configuration

    texts = [_configuration(model, package).read_text() for model in MODELS]
    named = {name for text in texts for name in re.findall(r"_target_: (\S+)", text)}
    assert named == set(_CLASSES)


HOSTILE = [
    *(
        f"_target_: {target}\n{arguments}"
        for target, arguments in [
            ("sam2.modeling.backbones.hieradet.logging.os.system", "command: touch hacked"),
            ("sam2.modeling.backbones.hieradet.logging.os.system", "_args_: [touch hacked]"),
            ("sam2.modeling.sam2_base.torch.hub.load", HUB),
            ("sam2.modeling.sam2_base.torch.hub.load", f"{HUB}\n_partial_: true"),
            ("sam2.modeling.sam2_base.torch.load", "f: evil.pt\nweights_only: false"),
            ("sam2.modeling.sam2_utils.copy.sys.modules.__getitem__", "_args_: [os]"),
            ("sam2.build_sam.instantiate", "config: {_target_: os.mkdir, path: hacked}"),
            ("hydra.utils.instantiate", "config: {_target_: os.mkdir, path: hacked}"),
            ("hydra._internal.utils._locate", "path: evil"),
            ("builtins.eval", "_args_: [\"open('hacked', 'w')\"]"),
            ("builtins.__import__", "name: evil"),
            ("functools.partial", "_args_: [os.mkdir, hacked]"),
            ("evil.Model", ""),
            ("[os.mkdir]", "path: hacked"),
            ("{_target_: os.mkdir, path: hacked}", "x: 1"),
            (" sam2.modeling.sam2_base.SAM2Base.__init__.__globals__", "x: 1"),
            ("${oc.env:TARGET}", "path: hacked"),
            ("${oc.decode:'os.mkdir'}", "path: hacked"),
            ("!!python/name:os.mkdir ''", "path: hacked"),
        ]
    ),
    "!!python/object/apply:os.mkdir [hacked]",
    f"_target_: {HIERA}\nweights_path: evil.pt",
    f"_target_: {HIERA}\nembed_dim: ${{oc.env:WIDTH}}",
    f"_target_: {HIERA}\nembed_dim: ${{....num_maskmem}}",
    f"_target_: {HIERA}\n_args_: [16]",
    f"_target_: {HIERA}\n_partial_: true",
    f"_target_: {HIERA}\n_recursive_: false",
    f"_target_: {HIERA}\n_convert_: all",
    f"_target_: {HIERA}\nstages: [{{_target_: os.mkdir, path: hacked}}]",
]
"""Trunks of a SAM 2; `evil` is a package, a checkpoint and a repository that write a file."""


@pytest.mark.parametrize("trunk", HOSTILE)
def test_a_configuration_runs_no_code_but_that_of_its_classes(tmp_path, monkeypatch, trunk):
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    file, folder = tmp_path / "mine.yaml", tmp_path / "work"
    folder.mkdir()
    for name in ("evil.py", "hubconf.py"):
        (folder / name).write_text("open('hacked', 'w').close()\ndef model(): ...\n")
    (folder / "evil.pt").write_bytes(pickle.dumps(Unpickled()))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("TARGET", "os.mkdir")
    monkeypatch.setenv("WIDTH", "16")
    text = configuration(tmp_path).read_text()
    plain = re.search(r"    trunk:\n((?:      .*\n)+)", text)
    assert plain
    for hostile in (
        text.replace(plain[1], textwrap.indent(trunk, " " * 6) + "\n"),
        "model:\n" + textwrap.indent(trunk, " " * 2) + "\n",
    ):
        file.write_text(hostile)
        with pytest.raises(SightlineError, match=re.escape(str(file))):
            build(family="sam2", model=str(file), weights="random:0")
    assert {path.name for path in folder.iterdir()} == {"evil.py", "evil.pt", "hubconf.py"}
    assert "evil" not in sys.modules


def test_names_without_a_model_or_weights(folder, monkeypatch, tmp_path):
    with pytest.raises(SightlineError, match=r"no such sam2 model; use sam2-hiera-tiny"):
        build(family="sam2", model="sam2.1-hiera-huge", weights="random:0")
    with pytest.raises(SightlineError, match="has no published weights"):
        build(family="sam2", model=str(folder / "tiny.yaml"))
    monkeypatch.setattr("pipeline.grounding.segmenters.sam2._instantiate", lambda path: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SightlineError, match=r"sam2\.1-hiera-large: its weights cannot be fetched"):
        build(family="sam2")


# -- real photographs and their captions ---------------------------------------------------------


@pytest.fixture(scope="module")
def photographs(shared_data, tmp_path_factory):
    source, folder = shared_data / "flickr8k", tmp_path_factory.mktemp("photographs") / "flickr8k"
    images = source / "images_full"
    prepare(PairsSource(images=images, captions=source / "Flickr8k.token.txt"), folder)
    return PreparedDataset(folder, images)


def parts(family: str, folder: Path) -> tuple[Any, Any]:
    """A grounder and a segmenter; the one of the family has random weights."""
    if family == "florence2":
        model = {"model": str(save_florence(folder)), "beams": 1, "max_length": 16}
    elif family == "grounding-dino":
        model = {"model": str(save_dino(folder)), "box_threshold": 0, "text_threshold": 0}
    elif family == "sam2":
        pytest.importorskip("sam2", reason="the sam2 package is not installed")
        model = {"model": str(configuration(folder)), "weights": "random:0"}
    else:
        hf_config().save_pretrained(folder)
        model = {"model": str(folder), "weights": "random:0"}
    if family.startswith("sam2"):
        return WordGrounder(), build(family=family, **model)
    settings = GrounderSettings.model_validate({"family": family, **model})
    return settings.build(CPU, "fp32"), BoxSegmenter()


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["florence2", "grounding-dino", "sam2", "sam2-hf"])
def test_photographs_without_a_failure(photographs, family, tmp_path, count):
    units = units_of(photographs, "longest")[:count]
    models, rules, out = parts(family, tmp_path), Rules(duplicate_iou=None), tmp_path / "out"
    run(grounding_job(units, *models, rules, out, batch_size=16, block_images=256, workers=2), 0)
    counts = grounding_counts(tmp_path / "out")
    assert (counts["images"], counts["captions"], counts["failed"]) == (count, count, 0)
    if family == "florence2":  # which writes no phrase with random weights
        assert sum(counts["dropped"].values()) >= count
    else:
        assert counts["pairs"] > count
    if family.startswith("sam2"):
        assert counts["dropped"].keys() <= {"empty_mask", "duplicate"}
    texts = {key_of_text(text): text for text in photographs.captions["text"].to_pylist()}
    rows = photographs.images.to_pylist()
    sizes = {row["key"]: [row["height"], row["width"]] for row in rows}
    for row in read_phrases(tmp_path / "out").to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        assert row["mask"]["size"] == sizes[row["image_key"]]
