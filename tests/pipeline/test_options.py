"""Options come from the models, and every parameter can be given on a command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command_line import unboxed
from shown_commands import leaves

from pipeline.cli.commands import COMMANDS, load
from pipeline.cli.options import from_words, set_values
from pipeline.datasets.pairs import CocoSource, PairsSource
from pipeline.datasets.source import Source
from pipeline.datasets.webdataset import WebDatasetSource
from pipeline.encoders.config import EncoderConfig, TorchvisionConfig, named_encoder
from pipeline.extract.settings import CutoutRules, ExtractSettings, Machine
from pipeline.grounding.settings import GroundingSettings
from pipeline.params import Params
from sightline.settings import field_help
from train.evaluate.task import TASKS, task_class
from train.objectives import OBJECTIVES, objective_class
from train.run_spec import StudentConfig, TrainConfig

EVERY = {words: each for name in COMMANDS for words, each in leaves(load(name), (name,)).items()}


def options_of(*words: str) -> list[str]:
    """The options of a command, without their dashes."""
    names = [name for each in EVERY[words].params for name in each.opts]
    return [name.removeprefix("--") for name in names if name.startswith("--") and name != "--help"]


def test_the_table_says_what_the_commands_say():
    for name, entry in COMMANDS.items():
        assert load(name).help.partition("\n")[0] == entry.line
    assert [name for name, entry in COMMANDS.items() if entry.hidden] == ["stage"]


ROOT_HELP = """
import sys
from pipeline.cli import main
sys.argv = ["sightline", "--help"]
try:
    main()
except SystemExit:
    heavy = {"numpy", "pandas", "pyarrow", "pydantic", "torch", "transformers", "h5py"}
    own = {name for name in sys.modules if name.startswith("pipeline.cli.")}
    print(own | heavy & set(sys.modules))
"""


def test_help_of_the_root_loads_no_command():
    words = [sys.executable, "-c", ROOT_HELP]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{'pipeline.cli.commands'}"
    for name, entry in COMMANDS.items():
        assert (f" {name} " in done.stdout) is not entry.hidden


def test_there_are_few_of_them():
    shown = {words: options_of(*words) for words in EVERY if words != ("stage",)}
    assert len(shown) <= 30
    assert sum(map(len, shown.values())) <= 200
    assert len({name for names in shown.values() for name in names}) <= 95


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_an_example_and_every_option_says_what_it_does(words):
    assert f"Example: sightline {' '.join(words)}" in (EVERY[words].help or "")
    for each in EVERY[words].params:
        assert each.help, each.name


def test_every_parameter_can_be_given_on_a_command_line():
    def flags(model, *without):
        return {name.replace("_", "-") for name in model.model_fields.keys() - set(without)}

    def every_family(base):
        return [set_takes(base.families.subclass(name, base)) for name in base.families]

    extract, train = set(options_of("extract")), set(options_of("train"))
    without_dvc = Params.model_fields.keys() - {"graph", "systems", "report", "joined"}
    where = {
        "datasets": lambda: every_family(Source),
        "encoders": lambda: every_family(EncoderConfig),
        "extract": lambda: [flags(ExtractSettings, "cutouts") | flags(CutoutRules) <= extract],
        "machine": lambda: [flags(Machine) <= extract & set(options_of("ground"))],
        "grounding": lambda: [set_takes(GroundingSettings)],
        "student": lambda: [flags(StudentConfig, "name", "model") | {"student"} <= train],
        "train": lambda: [flags(TrainConfig) <= train],
        "evaluation": lambda: [set_takes(task_class(t).Settings) for t in TASKS] + ["dev" in train],
    }
    assert where.keys() == without_dvc
    for name, check in where.items():
        assert all(check()), name
    assert all(set_takes(objective_class(name)) for name in OBJECTIVES)


def set_takes(model: type) -> bool:
    """Whether ``--set`` reads a text for every field of ``model``, and help says what each is."""
    for name in model.model_fields:
        assert name in set_values(model, [f"{name}=1"])
        assert name == getattr(model, "chosen_by", None) or field_help(model)[name], (model, name)
    return True


@pytest.mark.parametrize(
    ("model", "given", "values"),
    [
        (objective_class("dalr"), "teachers=[{encoder: clip}]", [{"encoder": "clip"}]),
        (task_class("sts").Settings, "data=2024", "2024"),
        (PairsSource, "splits.train=1.txt", {"train": "1.txt"}),
        (PairsSource, "captions=null", None),
        (CocoSource, "folders=[2014, x]", [2014, "x"]),
        (WebDatasetSource, "shards={00..11}.tar", "{00..11}.tar"),
        (WebDatasetSource, "limit=5", 5),
        (GroundingSettings, "rules.min_score=0.5", {"min_score": 0.5}),
        (objective_class("mcse"), "weight=1e-1", "1e-1"),
        (objective_class("mcse"), "image=007", "007"),
    ],
)
def test_a_value_is_yaml_unless_the_model_has_text(model, given, values):
    name = given.partition("=")[0].partition(".")[0]
    assert set_values(model, [given])[name] == values


def test_the_family_says_what_its_fields_are():
    given = ["grounder.model=2024", "grounder.family=florence2", "grounder.beams=2"]
    grounder = set_values(GroundingSettings, given)["grounder"]
    assert grounder == {"family": "florence2", "model": "2024", "beams": 2}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["strict"], "found 'strict', expected NAME=VALUE"),
        (["strict=1", "strict=0"], "strict appears twice"),
        (["strict=[", "images=x"], r"strict: '\[' is not YAML"),
        (["splits=a", "splits.train=b"], "splits has a value"),
        (["splits.train=b", "splits=a"], "splits appears twice"),
    ],
)
def test_what_is_no_setting_is_refused(given, fault):
    with pytest.raises(typer.BadParameter, match=fault):
        set_values(PairsSource, given)


def test_options_are_checked_by_their_model():
    machine = from_words(Machine, {"devices": "0,1", "workers": "8"})
    assert (machine.devices, machine.workers) == (("cuda:0", "cuda:1"), 8)
    assert machine.model_fields_set == {"devices", "workers"}
    with pytest.raises(typer.BadParameter, match=r"--batch-size: .* found '0'"):
        from_words(ExtractSettings, {"batch_size": "0"})
    with pytest.raises(typer.BadParameter, match=r"--student: "):
        from_words(StudentConfig, {"model": ""}, {"model": "student"})


EXTRACT = "extract image --data . --encoder resnet18 --weights random:0 --out y "
TEXT = "extract text --data texts.txt --encoder ViT-B-32 --out y --weights "


@pytest.mark.parametrize(
    ("words", "code", "fault"),
    [
        ("no-such-command", 2, "No such command"),
        ("cache info", 2, "Missing argument"),
        ("extract image --data x --encoder resnet18 --out y", 2, "--weights"),
        (EXTRACT + "--set crp=1", 1, "did you mean 'crop'"),
        (EXTRACT + "--copy-from absent", 2, "--copy-from: absent: no such folder"),
        (EXTRACT + "--batch-size 0", 2, "--batch-size: input should be greater than or equal"),
        (EXTRACT + "--precision fp8", 2, "--precision: input should be 'fp32', 'bf16' or 'fp16'"),
        (EXTRACT + "--background grey", 2, "input should be 'mean', 'white', 'black' or 'keep'"),
        (EXTRACT + "--threads many", 2, "--threads: input should be a valid integer"),
        (EXTRACT + "--engine ray --devices 0,1", 2, "devices: are those of one machine"),
        (EXTRACT + "--worker 5/4", 2, "worker '5/4': expected i/n with i from 0 to n - 1"),
        (
            EXTRACT + "--encoder resnet5",
            1,
            "(did you mean resnet50?). Available: torchvision: resn",
        ),
        (EXTRACT + "--encoder resnet5", 1, "more; open_clip.list_models() in Python lists all"),
        (EXTRACT, 1, "no images in this folder"),
        (EXTRACT + "--data x", 1, "x: no such folder of images, nor a prepared data set"),
        (TEXT + "lucky:7", 1, "random:SEED"),
        (TEXT + "random:0 --devices 99", 1, "'cuda:99' was requested"),
        (TEXT + "random:0 --out dvc.yaml", 1, "dvc.yaml: is a file, not a folder"),
        ("prepare pairs --set images=x --set captoins=y --out z", 2, "did you mean 'captions'"),
        ("prepare pair --out z", 2, "did you mean 'pairs'"),
        ("stage image-feature x", 2, "did you mean 'image-features'"),
        ("stage image-features x", 2, "sightline stage image-features DATASET ENCODER"),
        ("stage tokens --dry-run", 2, "the stage tokens does not take it"),
        ("stage ground scenes --check 3", 2, "the stage ground does not take it"),
        ("stage train simcse 0 --check 3", 2, "the stage train does not take it"),
        ("train simcse --tokens t --student s --out y --seed 4294967296", 2, "--seed"),
    ],
)
def test_a_mistake_is_one_clear_error(words, code, fault, tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    for name in ("texts.txt", "dvc.yaml"):
        Path(name).write_text("a text\n")
    found, _, err = said(*words.split())
    assert found == code
    assert fault in unboxed(err)
    assert {path.name for path in tmp_path.iterdir()} == {"dvc.yaml", "texts.txt"}


def test_an_encoder_of_the_command_is_that_of_params_yaml():
    given = set_values(TorchvisionConfig, ["resize=64", "crop=32"])
    named = named_encoder("resnet18", "random:0", "image", **given)
    written = {"family": "torchvision", "model": "resnet18", "weights": "random:0"}
    assert named == EncoderConfig.model_validate({**written, "resize": 64, "crop": 32})


def test_devices_of_a_job_without_gpus_stay_as_they_are():
    machine = Machine(devices="1,3")
    assert machine.among([]) == machine  # which is an error where it computes
    assert Machine(devices="cpu").among(["b"]).devices == ("cpu",)
