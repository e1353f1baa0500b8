"""Names and configurations of encoders, and their weights: one error for each invalid one."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from tiny_models import clip_config
from torch import nn

from pipeline.encoders.config import EncoderConfig, WeightsSpec, parse_weights
from pipeline.encoders.names import named_encoder
from pipeline.encoders.weights import (
    identity_of,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.devices import computing
from sightline.errors import SightlineError
from sightline.models.pretrained import Pretrained

STATE = {
    "b.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a.scale": torch.tensor(1.5),
    "a.half": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
}


def test_names_find_their_family(tmp_path):
    for name, kind, family in (
        ("resnet50", "image", "torchvision"),
        ("ViT-B-32", "image", "open_clip"),
        ("ViT-L/14", "text", "open_clip"),
        (clip_config(tmp_path), "image", "open_clip"),
    ):
        assert named_encoder(name, "random:0", kind).family == family
    teacher = named_encoder("org/bert", "pretrained", "teacher", pooling="mean", max_length=64)
    assert (teacher.family, teacher.pooling, teacher.max_length) == ("transformers", "mean", 64)
    for named in ("open_clip:resnet50", "torchvision:resnet18", "transformers:a/b"):
        config = named_encoder(named, "random:0")
        assert f"{config.family}:{config.model}" == named


@pytest.mark.parametrize(
    ("name", "kind", "guess"),
    [
        ("resnet51", "image", " (did you mean resnet50?)"),
        ("vit-b-32", "image", " (did you mean ViT-B-32?)"),
        ("ViT-B32", "text", " (did you mean ViT-B-32?)"),
        ("resnet50", "text", ""),
    ],
)
def test_an_unknown_name_lists_the_available_ones(name, kind, guess):
    with pytest.raises(SightlineError) as caught:
        named_encoder(name, "random:0", kind)
    message = str(caught.value)
    assert f"unknown {kind} encoder {name!r}{guess}" in message
    assert "more; open_clip.list_models() in Python lists all" in message
    assert ("resnet152" in message) == (kind == "image")


def test_a_resnet_encodes_no_texts_and_knows_three_precisions():
    config = named_encoder("resnet18", "random:0")
    with pytest.raises(SightlineError, match="does not encode texts; families that do: open_clip"):
        config.build_text(torch.device("cpu"), "fp32")
    with pytest.raises(SightlineError, match="fp32, bf16, fp16"):
        config.build_image(torch.device("cpu"), "int8")


def test_forms_of_weights():
    assert parse_weights("pretrained:openai").value == "openai"
    assert parse_weights("file:a:b.pt").value == "a:b.pt"
    assert parse_weights("random:17").seed == 17
    for wrong in ("", "openai", "file:", "random", "random:x", "random:-1", "Pretrained:x"):
        with pytest.raises(ValueError, match="are not valid weights; write pretrained:TAG"):
            parse_weights(wrong)
    with pytest.raises(SightlineError, match="resnet18: weights: 'openai' are not valid weights"):
        named_encoder("resnet18", "openai")


def test_options_that_do_not_apply_are_refused():
    with pytest.raises(SightlineError, match=r"unknown key 'pooling'.*available: compile, crop"):
        named_encoder("resnet18", "random:0", pooling="mean")
    for fields, message in (
        ({"family": "open_clip", "model": "ViT-B-32", "crop": 64}, "unknown key 'crop'"),
        ({"family": "transformers", "model": "x", "resize": 64}, "unknown key 'resize'"),
        ({"family": "torchvision", "model": "resnet18", "channels_last": True}, "channels_last"),
        ({"family": "torchvision", "model": "resnet18", "croop": 64}, "did you mean 'crop'"),
        ({"family": "torchvsion", "model": "x"}, "encoder family 'torchvsion'; did you mean 'torc"),
        ({"model": "x"}, "is missing; there are torchvision, open_clip, transformers"),
    ):
        with pytest.raises(ValidationError, match=re.escape(message)):
            EncoderConfig.model_validate({"weights": "random:0", **fields})
    with pytest.raises(ValidationError, match="found str, expected a mapping with a `family`"):
        EncoderConfig.model_validate("ViT-B-32")


def test_fp32_on_cuda_means_no_tf32_and_flags_are_put_back():
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    try:
        with computing(torch.device("cuda"), "fp32"):
            assert not cudnn.allow_tf32
            assert cudnn.deterministic
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[2])
    after = (cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision())
    assert after == before


def test_the_digest_does_not_depend_on_the_format(tmp_path):
    torch.save(STATE, tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in STATE.items()}}, tmp_path / "b.pt")
    save_file(STATE, tmp_path / "c.safetensors")
    files = [tmp_path / name for name in ("a.pt", "b.pt", "c.safetensors")]
    digests = {state_dict_sha256(read_state_dict(file)) for file in files}
    assert digests == {state_dict_sha256(dict(reversed(STATE.items())))}


def test_the_digest_sees_names_shapes_types_and_values():
    weight = STATE["b.weight"]
    others = [
        {**STATE, "b.weight": weight.view(3, 2)},
        {**STATE, "b.weight": weight.view(torch.int32)},
        {**STATE, "b.weight": weight + torch.eye(2, 3) * 1e-7},
        {**{k: v for k, v in STATE.items() if k != "b.weight"}, "b.weights": weight},
    ]
    assert len({state_dict_sha256(state) for state in [STATE, *others]}) == 5


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with seeded(7):
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(7):
        assert torch.equal(torch.rand(4), first)
    with seeded(8):
        assert not torch.equal(torch.rand(4), first)


def test_a_file_that_does_not_fit_is_one_error():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = dict(module.state_dict())
    del state["1.num_batches_tracked"]  # early checkpoints have none
    load_exactly(module, state, "w.pt", "tiny")
    state["0.weight"] = torch.zeros(2, 4)
    del state["0.bias"]
    state["head"] = torch.zeros(1)
    with pytest.raises(SightlineError) as caught:
        load_exactly(module, state, "w.pt", "tiny")
    message = str(caught.value)
    assert "w.pt does not fit tiny" in message
    assert "1 missing (0.bias)" in message
    assert "1 unexpected (head)" in message
    assert "0.weight is [2, 4], expected [2, 3]" in message


def test_weights_are_read_by_their_content_whatever_their_name(tmp_path):
    save_file(STATE, tmp_path / "safetensors.bin")
    torch.save(STATE, tmp_path / "zip.safetensors")
    legacy = tmp_path / "legacy.safetensors"
    torch.save(STATE, legacy, _use_new_zipfile_serialization=False)
    for path in tmp_path.iterdir():
        assert state_dict_sha256(read_state_dict(path)) == state_dict_sha256(STATE), path


def test_names_of_wrapped_modules_are_those_of_the_modules(tmp_path):
    part = {f"layer.{name}": tensor for name, tensor in STATE.items()}
    for number, (prefix, inner) in enumerate(
        [
            ("_orig_mod.", ""),
            ("module._orig_mod.", ""),
            ("_orig_mod.module.", ""),
            ("", "_orig_mod."),
        ]
    ):
        path = tmp_path / f"{number}.pt"
        torch.save(
            {prefix + k.replace("layer.", f"layer.{inner}"): v for k, v in part.items()}, path
        )
        assert read_state_dict(path).keys() == part.keys()
    both = {"a": STATE["b.weight"], "_orig_mod.a": STATE["b.weight"]}  # none of them is lost
    torch.save(both, tmp_path / "both.pt")
    assert read_state_dict(tmp_path / "both.pt").keys() == both.keys()


@pytest.mark.parametrize("make", ["scripted", "exported"])
def test_a_program_with_its_weights_shows_how_to_save_them_alone(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    layer = nn.Linear(2, 3)
    path = tmp_path / "a program.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if make == "scripted":
            torch.jit.save(torch.jit.script(layer), path)
        else:
            torch.export.save(torch.export.export(layer, (torch.ones(1, 2),)), path)
    with pytest.raises(SightlineError) as caught:
        read_state_dict(path)
    assert "weights_only" not in str(caught.value)
    (command,) = re.findall("`(.*)`", str(caught.value))
    python, option, code, *words = shlex.split(command)
    assert (python, option) == ("python", "-c")
    monkeypatch.setattr(sys, "argv", ["-c", *words])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        exec(code, {})
    saved = read_state_dict(tmp_path / "weights.pt")
    assert state_dict_sha256(saved) == state_dict_sha256(layer.state_dict())


def test_of_a_whole_model_the_state_dict_is_read(tmp_path):
    model, file = nn.Linear(2, 3), tmp_path / "model.pt"
    torch.save(model, file)
    with pytest.raises(SightlineError, match=r"`torch.save\(model.state_dict\(\), FILE\)`"):
        read_state_dict(file)
    torch.save(model.state_dict(), file)
    assert read_state_dict(file).keys() == {"weight", "bias"}


class Evil:
    """A pickle of it would run code."""

    def __reduce__(self):
        return exec, ("assert False, 'code in a weights file was run'",)


def test_unreadable_files(tmp_path):
    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "empty.pt").touch()
    torch.save(STATE, tmp_path / "half.pt")
    (tmp_path / "half.pt").write_bytes((tmp_path / "half.pt").read_bytes()[:900])
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"a": [1]}))
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 46830571\n"
    (tmp_path / "pointer.safetensors").write_text(pointer)
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        archive.writestr("weights.pt", "x")
    for name, words in {
        "evil.pt": "never unpickles",
        "list.pt": "expected a state dict",
        "cut.safetensors": "damaged, or neither of them",
        "text.pt": "damaged, or neither of them",
        "empty.pt": "damaged, or neither of them",
        "half.pt": "damaged, or neither of them",
        "pickle.pt": "never unpickles",
        "pointer.safetensors": "a Git LFS pointer, .*`git lfs pull`",
        "files.zip": "a zip archive; .*unzip",
        "gone.pt": "no such weights file",
    }.items():
        with pytest.raises(SightlineError, match=words) as caught:
            read_state_dict(tmp_path / name)
        assert name in str(caught.value)
        assert "weights_only" not in str(caught.value)


def test_the_source_never_reveals_a_path(tmp_path):
    def source(*spec: str, folder: Path | None = None) -> str:
        model = nn.Linear(1, 1)
        place = None if folder is None else Pretrained(str(folder))
        return identity_of(model, "tiny", WeightsSpec(*spec), source=place).source

    save_file(nn.Linear(1, 1).state_dict(), tmp_path / "model.safetensors")

    file = str(tmp_path / "clip.safetensors")
    assert source("file", file) == "file:clip.safetensors"
    (tmp_path / "provenance.json").write_text(json.dumps({"source": "trained on scenes"}))
    assert source("file", file) == "file:clip.safetensors (trained on scenes)"
    (tmp_path / "clip.provenance.json").write_text(json.dumps({"source": "a CLIP of scenes"}))
    assert source("file", file) == "file:clip.safetensors (a CLIP of scenes)"
    assert source("file", str(tmp_path / "other.pt")) == "file:other.pt (trained on scenes)"
    assert source("pretrained", "", folder=tmp_path) == "pretrained (trained on scenes)"
    assert source("random", "0", folder=tmp_path) == "random:0"
    assert source("pretrained", "V2") == "pretrained:V2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_cfg": 3}, "model_cfg: found 3, expected an object"),
        ({"embed_dim": "wide"}, "model_cfg.embed_dim"),
        ({"vision_cfg": []}, "model_cfg.vision_cfg"),
        ({"vision_cfg": {"layers": "three", "width": [], "image_size": None}}, "cannot build"),
        ({"preprocess_cfg": 3}, "preprocess_cfg"),
        ({"preprocess_cfg": {"mean": "grey"}}, "preprocess_cfg.mean: Input should be a number, or"),
        ({"preprocess_cfg": {"mean": [0.5, "b", 0.5]}}, "mean: Input should be a number, or three"),
        ({"preprocess_cfg": {"std": [0, 0, 0]}}, "std: Input should be a number above 0, or three"),
        (
            {"preprocess_cfg": {"size": "big"}},
            "size: Input should be a number of pixels",
        ),
        ({"preprocess_cfg": {"fill_color": "red"}}, "preprocess_cfg.fill_color"),
    ],
)
def test_a_wrong_value_of_a_model_config_is_an_error_of_the_file(tmp_path, changes, message):
    config = clip_config(tmp_path, **changes)
    with pytest.raises(SightlineError) as caught:
        named_encoder(config, "random:0").build_image(torch.device("cpu"), "fp32")
    assert str(caught.value).startswith(config)
    assert message in str(caught.value)


@pytest.mark.parametrize("std", [[0, 0, 0], [1, 1, -1], [1, 1, float("nan")]])
def test_a_deviation_is_above_zero(std):
    with pytest.raises(SightlineError, match=r"resnet18: std\.\d: input should be"):
        named_encoder("resnet18", "random:0", std=std)


@pytest.mark.parametrize("name", ["family", "model"])
def test_what_the_name_says_is_not_said_again(name):
    with pytest.raises(SightlineError, match=f"its name says {name} already; leave it out"):
        named_encoder("resnet18", "random:0", **{name: "resnet50"})
