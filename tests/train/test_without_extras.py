"""What does without libraries that are not installed or a hub that is silent, and what says so."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from huggingface_hub import constants
from made_results import made_result
from PIL import Image

from sightline.cache import FeatureSet
from sightline.errors import SightlineError
from sightline.models import pretrained
from sightline.models.pretrained import from_hub
from sightline.models.sentence_transformers_folder import load_model, read_recipe
from train.evaluate.results import save_result

ABSENT = ("dvc", "dvclive", "sentence_transformers", "matplotlib", "tensorboard")
OF_THE_PIPELINE = ("open_clip", "sam2", "torchvision", "ray")

PROGRAM = """
import json, sys

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

absent = []
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from pipeline.cli import main
for absent, words in json.loads(sys.argv[1]):
    code = 0
    sys.argv = ["sightline", *words]
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    imported = {name.split(".")[0] for name in sys.modules}
    assert not imported & set(absent), imported & set(absent)
    for stream in (sys.stdout, sys.stderr):
        print("ended", file=stream, flush=True)
    print(code, file=open("codes", "a"))
"""

CLIP = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A photograph, an encoder and the results of two runs."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "photos").mkdir()
    (folder / ".dvc").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photos/one.png")
    (folder / "clip.json").write_text(json.dumps(CLIP))
    for score, run in ((60.0, "simcse"), (70.0, "mcse")):
        result = made_result(
            run,
            0,
            scores={"STS12": score, "Avg": score},
            subsets={"STS12": {"MSRpar": score - 1, "MSRvid": score + 1}},
        )
        save_result(result, folder / f"results/{run}/seed-0.json")
    return folder


@pytest.fixture(scope="module")
def ended(world, root):
    """Command → its exit code, output and errors, all in one process."""
    train = ["train", "mcse", "--set=image=tiny-cnn", f"--dev={world.root / 'dev.tsv'}"]
    train += [f"--features=image-tiny-cnn={world.root / 'features'}", f"--student={world.student}"]
    train += [f"--data={world.root}", f"--text={world.root}", f"--tokens={world.root / 'tokens'}"]
    train += ["--max-length=16", "--batch-size=8", "--max-steps=2", "--device=cpu", "--out=run"]
    compare = ["compare", "results/simcse", "results/mcse"]
    extract = ["extract", "image", "--data=photos", "--encoder=clip.json", "--weights=random:0"]
    commands = {
        # libraries that cannot be imported, and words; what one imports, later ones have
        "PIL": (["PIL"], [*extract, "--out=none"]),
        "doctor": (ABSENT, ["doctor"]),
        "compare": (ABSENT, compare),
        "train": (ABSENT + OF_THE_PIPELINE, train),
        "matplotlib": (["matplotlib"], [*compare, "--plot=chart.png"]),
        "open_clip": (["open_clip"], [*extract, "--out=none"]),
        "extract": (ABSENT, [*extract, "--out=features"]),
    }
    words = [sys.executable, "-c", PROGRAM, json.dumps(list(commands.values()))]
    process = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    outs, errs = (text.split("ended\n") for text in (process.stdout, process.stderr))
    codes = map(int, (root / "codes").read_text().split())
    *ends, _ = zip(outs, errs, strict=True)
    return {name: (code, *end) for name, code, end in zip(commands, codes, ends, strict=True)}


@pytest.mark.parametrize("command", ["doctor", "compare", "train", "extract"])
def test_a_command_needs_no_extra_of_another(ended, root, command):
    code, out, err = ended[command]
    assert code == 0, err
    if command == "doctor":
        assert "pip install 'sightline-encoders[dvc]'" in out
    if command == "compare":
        assert "simcse" in out
    if command == "train":
        assert json.loads((root / "run/run.json").read_text())["steps"] == 2
        modules = json.loads((root / "run/model/modules.json").read_text())
        assert [module["path"] for module in modules] == ["", "1_Pooling"]
    if command == "extract":
        found = FeatureSet.open(root / "features")
        assert (len(found.keys), found.dim) == (1, 8)


@pytest.mark.parametrize(
    ("library", "extra"), [("matplotlib", "report"), ("open_clip", "extract"), ("PIL", "extract")]
)
def test_a_command_that_needs_one_names_the_extra(ended, root, library, extra):
    code, _, err = ended[library]
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith(f"error: {library} is not installed, but ")
    assert line.endswith(f"needs it; run: pip install 'sightline-encoders[{extra}]'")
    assert not (root / "chart.png").exists()
    assert not (root / "none/set.json").exists()


# ---- the hub ------------------------------------------------------------------------------------

NOBODY = "http://127.0.0.1:9"  # the port that discards


@pytest.fixture
def online(monkeypatch):
    """As if HF_HUB_OFFLINE were not set; changes by a test are undone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    pretrained._is_silent.cache_clear()
    yield
    pretrained._is_silent.cache_clear()


def test_a_silent_hub_is_tried_once_a_minute(online, capsys):
    with pytest.raises(
        SightlineError, match=r"someone/something \(no such folder.* cannot be fetched"
    ):
        load_model("someone/something", read_recipe("someone/something"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{NOBODY} does not answer (")
    assert "only models in this machine's cache can be loaded" in line


def test_a_hub_that_answers_again_is_used_again(online, monkeypatch):
    with from_hub("someone/something", "weights"):
        assert constants.is_offline_mode()
    assert not constants.is_offline_mode()
    monkeypatch.setattr(pretrained, "why_silent", lambda address: "")
    pretrained._is_silent.cache_clear()  # a minute passes
    with from_hub("someone/something", "weights"):
        assert not constants.is_offline_mode()


def test_a_folder_does_not_contact_the_hub(online, tmp_path, capsys):
    assert read_recipe(tmp_path).pooling is None
    assert capsys.readouterr().err == ""
    assert not constants.is_offline_mode()


def test_any_response_counts(online, monkeypatch, capsys):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, format, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with from_hub("someone/something", "weights"):
            assert not constants.is_offline_mode()
        server.shutdown()
    assert capsys.readouterr().err == ""
    assert not constants.is_offline_mode()
