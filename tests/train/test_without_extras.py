"""The base install trains and, with `extract`, extracts; a command that needs more says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import World
from made_results import made_result
from PIL import Image

from sightline.cache import FeatureSet
from train.evaluate.results import save_result

ABSENT = ("dvc", "dvclive", "sentence_transformers", "matplotlib")
OF_THE_PIPELINE = ("open_clip", "sam2", "torchvision", "ray")

_COMMAND = """
import sys

class Without:
    # A finder that does not find some libraries, as where they are not installed.

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

absent = sys.argv.pop(1).split(",")
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from pipeline.cli import main
try:
    main()
finally:
    imported = {name.split(".")[0] for name in sys.modules}
    assert not imported & set(absent), imported & set(absent)
"""

CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def sightline(
    folder: Path, *words: object, absent: tuple[str, ...] = ABSENT
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import the libraries in ``absent``."""
    return subprocess.run(
        [sys.executable, "-c", _COMMAND, ",".join(absent), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def write_photo(folder: Path) -> Path:
    (folder / "photos").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photos" / "one.png")
    (folder / "clip.json").write_text(json.dumps(CLIP))
    return folder / "photos"


def extract_words(folder: Path) -> list[object]:
    words: list[object] = ["extract", "image", "--data", write_photo(folder), "--encoder"]
    return [*words, folder / "clip.json", "--weights", "random:0", "--out", folder / "features"]


def write_runs(folder: Path) -> list[str]:
    """The results of two runs; the words for their names."""
    for score, run in ((60.0, "simcse"), (70.0, "mcse")):
        result = made_result(
            run,
            0,
            scores={"STS12": score, "Avg": score},
            subsets={"STS12": {"MSRpar": score - 1, "MSRvid": score + 1}},
        )
        save_result(result, folder / f"results/{run}/seed-0.json")
    return ["results/simcse", "results/mcse"]


def test_training_through_the_command_line(world: World, tmp_path: Path) -> None:
    words: list[object] = ["train", "mcse", "--set", "image=tiny-cnn"]
    words += [
        "--features",
        f"image-tiny-cnn={world.root / 'features'}",
        "--dev",
        world.root / "dev.tsv",
    ]
    words += ["--data", world.root, "--text", world.root]
    words += ["--tokens", world.root / "tokens", "--student", world.student, "--max-length", 16]
    words += ["--batch-size", 8, "--max-steps", 2, "--device", "cpu", "--out", tmp_path / "run"]
    ended = sightline(tmp_path, *words, absent=ABSENT + OF_THE_PIPELINE)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 2
    modules = json.loads((tmp_path / "run" / "model" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]


def test_extraction_through_the_command_line(tmp_path: Path) -> None:
    ended = sightline(tmp_path, *extract_words(tmp_path))
    assert ended.returncode == 0, ended.stderr
    found = FeatureSet.open(tmp_path / "features")
    assert (len(found.keys), found.dim) == (1, 8)


def test_the_doctor_needs_none_of_them(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    ended = sightline(tmp_path, "doctor")
    assert ended.returncode == 0, ended.stderr
    assert "pip install 'sightline[dvc]'" in ended.stdout


def test_a_comparison_without_a_chart_needs_none_of_them(tmp_path: Path) -> None:
    ended = sightline(tmp_path, "compare", *write_runs(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "simcse" in ended.stdout


@pytest.mark.parametrize(
    ("library", "extra"), [("matplotlib", "report"), ("open_clip", "extract"), ("PIL", "extract")]
)
def test_a_command_that_needs_one_names_the_extra(tmp_path: Path, library: str, extra: str) -> None:
    if library == "matplotlib":
        words = ["compare", *write_runs(tmp_path), "--plot", tmp_path / "chart.png"]
    else:
        words = extract_words(tmp_path)
    ended = sightline(tmp_path, *words, absent=(library,))
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: {library} is not installed, but ")
    assert line.endswith(f"needs it; run: pip install 'sightline[{extra}]'")
    assert not (tmp_path / "chart.png").exists()
    assert not (tmp_path / "features" / "set.json").exists()
