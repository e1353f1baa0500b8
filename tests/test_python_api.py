"""docs/python.md runs as shown, and the public names are what `__all__` says."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from shown_commands import ROOT

import pipeline
import train
from pipeline import FeatureSet, SightlineError, named_encoder, prepare_dataset
from sightline.cache.groundings import read_phrases

PAGE = ROOT / "docs/python.md"
PACKAGES = [pipeline, train]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, dict]:
    """The page's code, run from top to bottom in an empty folder: the folder and the names."""
    pytest.importorskip("datasets").disable_progress_bars()
    names: dict = {}
    place = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
            exec(compile(block, str(PAGE), "exec"), names)
        yield place, names


def test_the_page_gives_the_rows_of_the_cache(page):
    place, names = page
    features = FeatureSet.open(place / "features/resnet")
    expected = features.take(names["data"].image_keys)
    assert names["rows"].tobytes() == expected.tobytes()
    assert torch.equal(names["tensor"], torch.from_numpy(expected).float())
    first = names["data"].images["path"][0].as_py()
    assert first == "000000.png"
    assert names["one"].tobytes() == expected[:1].tobytes()
    table = names["to_dataset"](features, names["data"]).with_format("numpy", dtype=np.float16)
    assert len(table) == len(features)
    paths = [str(each) for each in table[:]["image_path"]]
    row = paths.index(first)
    assert table[row]["features"].tobytes() == expected[0].tobytes()


def test_the_page_grounds_trains_and_evaluates(page):
    place, names = page
    assert len(read_phrases(place / "objects")) == len(names["phrases"]) > 0
    assert len(names["objects"]) > 0
    assert names["summary"].steps == 4
    assert len(names["summary"].dev_history) == 2
    assert names["summary"].features["image-resnet"].fingerprint == names["images"].fingerprint
    assert set(names["result"].scores) == set(names["result"].evaluated_on)
    assert (place / "runs/mcse/model/README.md").is_file()


def test_the_page_names_every_public_name():
    text = PAGE.read_text()
    for name in (name for package in PACKAGES for name in package.__all__):
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.__name__)
def test_public_names_exist_with_docstrings(package):
    for name in package.__all__:
        found = getattr(package, name)
        assert inspect.getdoc(found), name
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        getattr(package, "nonsense")  # noqa: B009


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.__name__)
def test_types_and_values_come_from_the_same_modules(package):
    """What pyright reads (TYPE_CHECKING) is what a caller gets."""
    source = Path(package.__file__).read_text()
    guarded = source.split("if TYPE_CHECKING:")[1].split("__all__")[0]
    typed = {
        name.strip(): module
        for module, names in re.findall(r"from (\S+) import (.+)", guarded)
        for name in names.split(",")
    }
    assert set(typed) == set(package.__all__)
    for name, module in typed.items():
        assert getattr(importlib.import_module(module), name) is getattr(package, name)


def test_importing_the_packages_is_cheap():
    heavy = ("torch", "transformers", "pyarrow", "numpy", "pydantic", "datasets")
    code = f"import sys, pipeline, train; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_mistakes_are_one_clear_error(page, tmp_path):
    _, names = page
    data, run = names["data"], names["train_model"]
    with pytest.raises(SightlineError, match="did you mean 'captions'"):
        prepare_dataset("pairs", tmp_path / "x", images=tmp_path, caption="captions.csv")
    with pytest.raises(SightlineError, match="no prepared data set here"):
        pipeline.PreparedDataset.open(tmp_path)
    with pytest.raises(SightlineError, match="no such image folder"):
        pipeline.PreparedDataset.open(data.folder, tmp_path / "none")
    nowhere = pipeline.PreparedDataset(data.folder)
    encoder = named_encoder("resnet18", "random:0")
    with pytest.raises(SightlineError, match="its images are not here"):
        pipeline.extract_features(nowhere, encoder, tmp_path / "x")
    with pytest.raises(SightlineError, match="need `phrases`"):
        pipeline.extract_features(data, encoder, tmp_path / "x", "object")
    with pytest.raises(SightlineError, match=r"grounding: .*grounders"):
        pipeline.ground_captions(data, {"grounders": {}}, tmp_path / "x")
    with pytest.raises(SightlineError, match="did you mean 'batch_size'"):
        run(names["objective"], "s", tmp_path / "x", tokens="tokens", pairs="p", batchsize=3)
    with pytest.raises(SightlineError, match="found neither"):
        run(names["objective"], "s", tmp_path / "x", tokens="tokens")
    assert not (tmp_path / "x").exists()
