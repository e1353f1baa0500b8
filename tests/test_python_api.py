"""docs/python.md runs as shown, and the public names are what `__all__` says."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from shown_commands import ROOT

import sightline as sl

PAGE = ROOT / "docs/python.md"


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
    features = sl.FeatureSet.open(place / "features/resnet")
    expected = features.take(names["data"].image_keys)
    assert names["rows"].tobytes() == expected.tobytes()
    assert torch.equal(names["tensor"], torch.from_numpy(expected).float())
    first = names["data"].images["path"][0].as_py()
    assert first == "000000.png"
    assert names["one"].tobytes() == expected[:1].tobytes()
    table = sl.to_dataset(features, names["data"]).with_format("numpy", dtype=np.float16)
    assert len(table) == len(features)
    paths = [str(each) for each in table[:]["image_path"]]
    row = paths.index(first)
    assert table[row]["features"].tobytes() == expected[0].tobytes()


def test_the_page_grounds_trains_and_evaluates(page):
    place, names = page
    assert len(sl.read_phrases(place / "objects")) == len(names["phrases"]) > 0
    assert len(names["objects"]) > 0
    assert names["summary"].steps == 4
    assert len(names["summary"].dev_history) == 2
    assert names["summary"].features["image-resnet"].fingerprint == names["images"].fingerprint
    assert set(names["result"].scores) == set(names["result"].evaluated_on)
    assert (place / "runs/mcse/model/README.md").is_file()


def test_the_page_names_every_public_name():
    text = PAGE.read_text()
    for name in sl.__all__:
        assert f"`{name}`" in text, name


def test_public_names_exist_with_docstrings():
    for name in sl.__all__:
        assert inspect.getdoc(getattr(sl, name)), name
        assert name in dir(sl)
    with pytest.raises(AttributeError, match="'sightline' has no attribute 'nonsense'"):
        getattr(sl, "nonsense")  # noqa: B009


def test_types_and_values_come_from_the_same_modules():
    """What pyright reads (TYPE_CHECKING) is what a caller gets."""
    source = Path(sl.__file__).read_text()
    guarded = source.split("if TYPE_CHECKING:")[1].split("__all__")[0]
    typed = {
        name.strip(): module
        for module, names in re.findall(r"from (\S+) import (.+)", guarded)
        for name in names.split(",")
    }
    assert set(typed) == set(sl.__all__)
    for name, module in typed.items():
        assert getattr(importlib.import_module(module), name) is getattr(sl, name)


def test_the_import_is_cheap():
    heavy = ("typing", "re", "pathlib", "torch", "numpy", "pydantic", "pipeline", "train")
    code = f"import sys, sightline, sightline; print([m for m in {heavy} if m in sys.modules])"
    started = [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
    done = subprocess.run(started, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("script", "name", "package", "runs"),
    [
        ("train.py", "train_model", "train", "itself"),
        ("train.py", "Evaluation", "train", "beside it"),
        ("pipeline.py", "prepare_dataset", "pipeline", "itself"),
        ("pipeline.py", "prepare_dataset", "pipeline", "beside it"),
    ],
)
def test_a_script_that_hides_a_package_is_told(tmp_path, script, name, package, runs):
    text = f"print('started')\nimport sightline as sl\nsl.FeatureSet\nsl.{name}\n"
    (tmp_path / script).write_text(text)
    (tmp_path / "other.py").write_text(text)
    started = [sys.executable, script if runs == "itself" else "other.py"]
    done = subprocess.run(started, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "started\n"), "imported, and so run twice"
    said = done.stderr.strip().splitlines()[-1].partition("Error: ")[2]
    assert said.startswith(
        f"{tmp_path / script}: hides Sightline's own package `{package}`, because"
    )
    assert said.endswith(f"; rename it, for example to my_{package}.py")


def test_a_script_may_have_the_name_of_a_package_it_does_not_need(tmp_path):
    (tmp_path / "pipeline.py").write_text("import sightline as sl\nprint(sl.make_objective)\n")
    (tmp_path / "train").mkdir()  # a folder of data hides nothing
    done = subprocess.run(
        [sys.executable, "pipeline.py"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.startswith("<function make_objective")) == (0, True)


def test_mistakes_are_one_clear_error(page, tmp_path):
    _, names = page
    data, run = names["data"], sl.train_model
    with pytest.raises(sl.SightlineError, match="did you mean 'captions'"):
        sl.prepare_dataset("pairs", tmp_path / "x", images=tmp_path, captoins="captions.csv")
    with pytest.raises(sl.SightlineError, match="no prepared data set here"):
        sl.PreparedDataset.open(tmp_path)
    with pytest.raises(sl.SightlineError, match="no such image folder"):
        sl.PreparedDataset.open(data.folder, tmp_path / "none")
    nowhere = sl.PreparedDataset(data.folder)
    encoder = sl.named_encoder("resnet18", "random:0")
    with pytest.raises(sl.SightlineError, match="its images are not here"):
        sl.extract_features(nowhere, encoder, tmp_path / "x")
    with pytest.raises(sl.SightlineError, match="need `phrases`"):
        sl.extract_features(data, encoder, tmp_path / "x", "object")
    with pytest.raises(sl.SightlineError, match=r"grounding: .*grounders"):
        sl.ground_captions(data, {"grounders": {}}, tmp_path / "x")
    with pytest.raises(sl.SightlineError, match="did you mean 'batch_size'"):
        run(names["objective"], "s", tmp_path / "x", tokens="tokens", pairs="p", batchsize=3)
    with pytest.raises(sl.SightlineError, match="found neither"):
        run(names["objective"], "s", tmp_path / "x", tokens="tokens")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("package", ["train", "pipeline"])
def test_a_package_of_the_user_that_hides_ours_is_one_error_of_the_command(tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    words = [sys.executable, "-c", "import sightline; sightline.console()", "evaluate", "list"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: {tmp_path / package}: hides Sightline's own package `{package}`, because"
    )
    assert done.stderr.endswith(f"; rename it, for example to my_{package}\n")
