"""Every example runs as it says, offline, on a few drawn pictures."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shown_commands import ROOT
from tiny_encoder import make_encoder

from sightline import OBJECTIVES, FeatureSet, RunSummary

EXAMPLES = ROOT / "examples"
SCRIPTS = {"own_photographs.py", "new_loss.py", "classifier.py", "mcse_from_cache.py"}
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path, monkeypatch) -> Run:
    """Runs an example in an empty folder, as `python examples/NAME WORDS` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)

    def script(name: str, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return script


def draw(folder: Path, colours: tuple[str, ...], each: int) -> None:
    for colour in colours:
        (folder / colour).mkdir(parents=True)
        for size in range(each):
            image = Image.new("RGB", (32, 32), "black")
            image.paste(colour, (4, 4, 14 + size, 14 + size))
            image.save(folder / colour / f"{size}.png")


def test_there_is_a_test_for_every_example():
    found = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert found == SCRIPTS | {"tour.ipynb"}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_an_example_says_how_to_run_it(name):
    (command,) = re.findall(r"^    (python .+)$", (EXAMPLES / name).read_text(), re.M)
    assert shlex.split(command)[1] == f"examples/{name}"


def test_own_photographs_take_ten_lines_and_train(run, tmp_path, capsys):
    source = (EXAMPLES / "own_photographs.py").read_text()
    code = source.split('"""')[2].strip().splitlines()
    assert len([line for line in code if line and "import" not in line]) <= 10
    draw(tmp_path / "photos", ("red", "blue", "green"), 4)
    lines = ["image,caption"]
    for path in sorted((tmp_path / "photos").rglob("*.png")):
        lines.append(f"{path.relative_to(tmp_path / 'photos')},a {path.parent.name} square dog")
        lines.append(f"{path.relative_to(tmp_path / 'photos')},the big {path.stem} tree")
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    for part in make_encoder():
        part.save_pretrained(tmp_path / "student")
    run("own_photographs.py", "photos", "captions.csv", "student", "resnet18", "random:0")
    assert "features from untrained weights" in capsys.readouterr().out
    summary = RunSummary.read(tmp_path / "mine/run")
    assert summary.objective == "mcse"
    assert summary.features["image-resnet18"].rows == 12
    assert (tmp_path / "mine/run/model/README.md").is_file()


def test_a_new_loss_trains_and_is_the_equation(run, tmp_path, monkeypatch):
    monkeypatch.setitem(vars(OBJECTIVES), "places", dict(OBJECTIVES.places))
    run("new_loss.py")
    summary = RunSummary.read(tmp_path / "loss/run")
    assert summary.objective == "sigmoid"
    assert "new_loss" in summary.code
    assert any("loss_sigmoid" in entry for entry in summary.log)
    assert "SigLIP" in (tmp_path / "loss/run/model/README.md").read_text()

    from new_loss import sigmoid_loss  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(0)
    texts, images = (torch.randn(5, 7, generator=generator) for _ in range(2))
    expected = 0.0
    for i, t in enumerate(texts.double().numpy()):
        for j, v in enumerate(images.double().numpy()):
            cosine = t @ v / np.linalg.norm(t) / np.linalg.norm(v)
            sign = 1 if i == j else -1
            expected += np.log1p(np.exp(-sign * (10 * cosine - 5)))
    assert float(sigmoid_loss(texts, images)) == pytest.approx(expected / 5, rel=1e-5)


def test_a_classifier_reads_the_features_of_a_folder(run, tmp_path, capsys):
    draw(tmp_path / "photos", ("red", "blue", "green"), 6)
    run("classifier.py", "photos", "resnet18", "random:0")
    assert "18 photographs, 3 classes: accuracy 1.00" in capsys.readouterr().out
    assert len(FeatureSet.open(tmp_path / "classifier/features")) == 18


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear the outputs"
        exec(compile("".join(cell["source"]), f"tour.ipynb, cell {number}", "exec"), names)
    assert set(names["runs"]) == set(names["scores"]) == {"simcse", "mcse"}
    assert names["nearest"][0] == 0
    assert names["runs"]["mcse"].features["image-resnet"].rows == len(names["images"])
