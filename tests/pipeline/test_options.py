"""Options come from the models, and every parameter can be given on a command line."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from command_line import unboxed
from pydantic import Field
from shown_commands import leaves

from pipeline.cli.commands import COMMANDS, load
from pipeline.cli.model_options import (
    PANELS,
    as_typed,
    from_words,
    options_in,
    set_values,
    takes,
)
from pipeline.cli.train import options_of as options_of_objective
from pipeline.datasets.pairs import CocoSource, PairsSource
from pipeline.datasets.source import Source
from pipeline.datasets.webdataset import WebDatasetSource
from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.names import named_encoder
from pipeline.encoders.torchvision_resnet import TorchvisionConfig
from pipeline.extract.settings import CutoutRules, ExtractSettings
from pipeline.grounding.grounding_settings import GroundingSettings
from pipeline.machine import OF_TRAINING, Machine
from pipeline.params import Params
from sightline.errors import SightlineError
from sightline.settings import field_help
from train.evaluate.task import TASKS, SubsetSettings, task_class
from train.objectives import OBJECTIVES, make_objective, objective_class
from train.objectives.simcse import SimCSE
from train.run_spec import StudentConfig, TrainConfig
from train.train_run import train_model

CHOSEN = ("prepare", "train")
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
    """Beside those that are fields of a kind of data set or of an objective."""
    shown = {words: options_of(*words) for words in EVERY if words[0] not in ("stage", *CHOSEN)}
    shown |= {("prepare", "sentences"): [], ("train", "simcse"): options_of("train", "simcse")}
    assert len(shown) <= 30
    assert sum(map(len, shown.values())) <= 200
    assert len({name for names in shown.values() for name in names}) <= 110


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_has_an_example_and_every_option_says_what_it_does(words):
    assert f"Example: sightline {' '.join(words)}" in (EVERY[words].help or "")
    for each in EVERY[words].params:
        assert each.help, each.name


def every_model():
    """Section of params.yaml, or kind of parameters → its models and their commands."""
    yield "machine", Machine, ("extract",)
    yield "machine", Machine, ("ground",)
    yield "extract", ExtractSettings, ("extract",)
    yield "extract", CutoutRules, ("extract",)
    for kind in Source.families:
        yield "datasets", Source.families.subclass(kind, Source), ("prepare", kind)
    for name in OBJECTIVES:
        yield "student", StudentConfig, ("train", name)
        assert set(options_of("train", name)) >= OF_TRAINING
        yield "train", TrainConfig, ("train", name)
        yield "systems", objective_class(name), ("train", name)


BY_VALUE = {
    "encoders": [EncoderConfig.families.subclass(n, EncoderConfig) for n in EncoderConfig.families],
    "grounding": [GroundingSettings],
    "evaluation": [task_class(name).Settings for name in TASKS],
}
"""Section → its models that a value chooses; ``--set`` gives their fields."""

WITHOUT = {
    "kind": "the command's second word is it",
    "name": "the last part of the student's folder; folders of the graph are called so",
    "cutouts": "the fields of CutoutRules are options",
    "model": "--student",
    "track": "of a training alone",
}
"""Field → why no option is called so."""


def test_every_field_has_its_option_and_its_key():
    """Or ``--set`` takes it, or a reason says why nothing does."""
    for section, model, words in every_model():
        options, about = options_of(*words), field_help(model)
        for name in model.model_fields:
            if name.replace("_", "-") in options:
                assert about[name], (model, name)
            elif section == "systems":
                assert name not in options_of_objective(model)
                assert name in set_values(model, [f"{name}=1"])
            else:
                assert name in WITHOUT, (model, name)
    for section, models in BY_VALUE.items():
        assert section in Params.model_fields
        assert all(map(set_takes, models))
    sections = {section for section, _, _ in every_model()} | BY_VALUE.keys()
    assert Params.model_fields.keys() - sections == {"graph", "report", "joined"}  # of DVC alone


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("last", [False, True])
def test_settings_of_the_only_task_are_options(said, name, last):
    words = ["--json", name, "--help"] if last else [name, "--json", "--help"]
    code, out, _ = said("evaluate", *words)
    assert code == 0
    flags = {f"--{field.replace('_', '-')}" for field in task_class(name).Settings.model_fields}
    assert flags <= set(re.findall(r"--[a-z0-9-]+", out))
    without = set(re.findall(r"--[a-z0-9-]+", said("evaluate", "--help")[1]))
    assert (flags & without) == {"--data"}


@pytest.mark.parametrize("words", ["sts stss", "stss sts", "sts stss --subsets STS-B", "sts list"])
def test_a_word_beside_the_only_task_is_not_passed_over(said, words):
    code, _, err = said("evaluate", *words.split(), "--model", "x", "--data", "y")
    assert code != 0
    wrong = "list" if "list" in words else "stss"
    assert f"unknown evaluation task '{wrong}'" in unboxed(err)


def test_a_setting_whose_option_the_command_has_already_stays_with_set(said, monkeypatch):
    class Seeded(task_class("sts")):
        class Settings(SubsetSettings):
            out: str = Field(default="", description="another meaning")

    monkeypatch.setattr("train.evaluate.task.task_class", lambda name: Seeded)
    code, out, _ = said("evaluate", "sts", "--help")
    assert (code, out.count("--out ")) == (0, 1)
    assert "another meaning" not in out


def test_a_message_names_the_option_as_it_is_typed():
    flags = options_in(PairsSource)
    text = "leave out `captions` and give `beside: txt`, or the kind `coco`; see `image_column`"
    typed = "leave out --captions and give --beside txt, or the kind `coco`; see --image-column"
    assert as_typed(text, flags) == typed


def test_no_option_has_two_meanings():
    """Click keeps the last of two options with one name, and says nothing."""
    for words, command in EVERY.items():
        flags = [flag for each in command.params for flag in (*each.opts, *each.secondary_opts)]
        assert len(flags) == len(set(flags)), (words, flags)


def test_help_names_options_as_they_are_typed():
    for words, command in EVERY.items():
        flags = {flag for each in command.params for flag in each.opts if "-" in flag[2:]}
        fields = {flag[2:].replace("-", "_") for flag in flags}
        for each in command.params:
            said = set(re.findall(r"\w+", getattr(each, "help", None) or ""))
            assert not fields & said, (words, each.opts)


def test_a_field_of_a_package_with_another_meaning_is_an_error():
    class Seeded(SimCSE):
        seed: int = 0

    def command(words: dict, seed: Annotated[int, typer.Option("--seed")] = 0) -> None: ...

    with pytest.raises(
        SightlineError, match=r"Seeded: its field `seed` would be the option --seed"
    ):
        takes("words", Seeded, panel="Objective", as_words=True)(command)


def test_every_field_is_an_argument_in_python():
    assert {*StudentConfig.model_fields} & {*TrainConfig.model_fields} == set()
    reads = inspect.signature(train_model).parameters
    assert {*StudentConfig.model_fields, *TrainConfig.model_fields}.isdisjoint(reads)
    simcse = make_objective("simcse", {})
    with pytest.raises(SightlineError, match=r"train: .*learning_rat"):
        train_model(simcse, "s", "r", tokens="t", sentences="x", learning_rat=1)
    with pytest.raises(SightlineError, match=r"train: student\.layers: "):
        train_model(simcse, "s", "r", tokens="t", sentences="x", layers=0)


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
        ("look featurs", 2, "No such command 'featurs'. Did you mean 'features'?"),
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
        (
            "prepare pairs --images x --captoins y --out z",
            2,
            "(Possible options: --caption-column, --captions)",
        ),
        ("prepare pair --out z", 2, "did you mean 'pairs'"),
        ("ground --data x --grounder florence:y --out z", 2, "did you mean 'florence2'?"),
        ("ground --data x --segmenter box:y --out z", 2, "--segmenter: box takes no model"),
        ("ground --data x --grounder florence2 --segmenter box --out z", 2, "model: is missing"),
        ("evaluate sts --model x --data y --out dvc.yaml", 2, "'dvc.yaml' is a file"),
        ("stage image-feature x", 2, "did you mean 'image-features'"),
        ("stage image-features x", 2, "sightline stage image-features DATASET ENCODER"),
        ("stage tokens --dry-run", 2, "the stage tokens does not take it"),
        ("stage ground scenes --check 3", 2, "the stage ground does not take it"),
        ("stage evaluate --track wandb", 2, "the stage evaluate does not take it"),
        ("stage teachers a b --track wandb", 2, "the stage teachers does not take it"),
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


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_shows_values_as_they_are_written_and_none_beside_flags(words, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = said(*words, "--help")
    assert code == 0
    for odd in ("<bool>", "default: (", "Default: .", "default: None", "None:"):
        assert odd not in out, odd
    if options_of(*words) and words[0] in ("prepare", "extract", "ground", "tokens", "train"):
        panels = re.findall(r"─ (\w+) ─", out)
        assert panels == [name for name in ("Arguments", "Options", *PANELS) if name in panels]
        assert "Output" in panels


def test_a_mapping_in_a_message_is_typed_as_its_option():
    said = as_typed("use `captions: {train: a.json}` or `beside: txt`", {"captions": "--captions"})
    assert said == "use --captions train=a.json or `beside: txt`"
