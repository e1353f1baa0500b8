"""ResNet features: the published forward pass up to global average pooling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from pipeline.encoders.config import EncoderConfig
from sightline.errors import SightlineError

CPU = torch.device("cpu")


def build(weights: str, **fields: object):
    config = EncoderConfig.model_validate(
        {"family": "torchvision", "model": "resnet18", "weights": weights, **fields}
    )
    return config.build_image(CPU, "fp32")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A ResNet-18 with a different number of classes and non-trivial BatchNorm statistics."""
    torch.manual_seed(1)
    model = torchvision.models.resnet18(weights=None, num_classes=7)
    model(torch.randn(8, 3, 32, 32))
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(model.state_dict(), path)
    torch.save(model.state_dict(), path.with_suffix(".pt"))
    return path


def test_features_are_the_global_average_pooling(checkpoint: Path, images: torch.Tensor) -> None:
    encoder = build(f"file:{checkpoint}")
    reference = torchvision.models.resnet18(weights=None, num_classes=7).eval()
    reference.load_state_dict(torch.load(checkpoint.with_suffix(".pt"), weights_only=True))
    with torch.inference_mode():
        x = reference.maxpool(reference.relu(reference.bn1(reference.conv1(images))))
        x = reference.layer4(reference.layer3(reference.layer2(reference.layer1(x))))
        expected = x.mean(dim=(2, 3))
    features = encoder.encode(images)
    assert encoder.dim == features.shape[1] == 512
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_identity_names_what_was_loaded(checkpoint: Path) -> None:
    one, other = build(f"file:{checkpoint}"), build(f"file:{checkpoint.with_suffix('.pt')}")
    assert one.identity.name == "torchvision/resnet18"
    assert one.identity.source == "file:resnet.safetensors"
    assert not one.identity.untrained
    assert one.identity.weights_sha256 == other.identity.weights_sha256
    drawn = build("random:0").identity
    assert drawn.untrained
    assert drawn.source == "random:0"
    assert drawn.weights_sha256 == build("random:0").identity.weights_sha256
    assert drawn.weights_sha256 != build("random:1").identity.weights_sha256


def test_preprocessing_defaults_to_the_papers() -> None:
    usual = build("random:0").preprocessing
    assert (usual.resize, usual.crop, usual.interpolation) == ((256, 256), (224, 224), "bilinear")
    small = build("random:0", crop=64, interpolation="bicubic").preprocessing
    assert (small.resize, small.crop, small.interpolation) == ((64, 64), (64, 64), "bicubic")
    large = build("random:0", resize=288).preprocessing
    assert (large.resize, large.crop) == ((288, 288), (288, 288))
    with pytest.raises(SightlineError, match="crop 65 is larger than resize 64"):
        build("random:0", resize=64, crop=65)


def test_weights_of_another_resnet_do_not_fit(tmp_path: Path) -> None:
    state = torchvision.models.resnet50(weights=None).state_dict()
    save_file(state, tmp_path / "r50.safetensors")
    with pytest.raises(SightlineError, match=r"r50\.safetensors does not fit resnet18.*unexpected"):
        build(f"file:{tmp_path / 'r50.safetensors'}")


def test_unavailable_published_weights(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(SightlineError) as caught:
        build("pretrained:IMAGENET1K_V1")
    message = str(caught.value)
    assert "resnet18: its weights 'IMAGENET1K_V1' cannot be fetched: not cached here" in message
    assert "No substitute was loaded" in message
    assert capsys.readouterr().out == ""  # which belongs to results
    with pytest.raises(
        SightlineError, match="has no weights 'V9'; use pretrained: with one of IMA"
    ):
        build("pretrained:V9")


def test_published_weights_from_the_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    tag = torchvision.models.ResNet18_Weights.DEFAULT
    cached = tmp_path / "hub" / "checkpoints" / Path(tag.url).name
    cached.parent.mkdir(parents=True)
    torch.manual_seed(2)
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), cached)
    identity = build("pretrained:DEFAULT").identity
    assert identity.source == f"pretrained:{tag.name}"
    assert identity.revision == cached.stem
    assert not identity.untrained
