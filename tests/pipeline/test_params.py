"""params.yaml: the committed file is valid, and errors give a remedy."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from demo_params import demo_params

from pipeline import stages
from pipeline.layout import run_spec
from pipeline.machine import Machine
from pipeline.params import Params, ParamsError, load_params, validate_params
from sightline.errors import SightlineError
from sightline.user_files import parse_yaml
from train.run_spec import RunSpec

ROOT = Path(__file__).parents[2]


DEMO = demo_params()


def changed(change: str) -> dict:
    """The demo's parameters with one entry changed: ``train.epochs: 3``; without value: removed."""
    place = params = deepcopy(DEMO)
    keys, _, value = change.partition(":")
    *above, last = keys.split(".")
    for key in above:
        place = place[key]
    if value:
        place[last] = yaml.safe_load(value)
    else:
        del place[last]
    return params


def valid(params: dict) -> Params:
    return validate_params(params, "params.yaml")


MISTAKES = """
trian: {} => unknown key 'trian'; did you mean 'train'
train.batchsize: 3 => train: unknown key 'batchsize'; did you mean 'batch_size'
extract.percision: fp32 => did you mean 'precision'
encoders.image.clip.modle: x => encoders.image.clip: unknown key 'modle'; did you mean 'model'
encoders.image.resnet.resize: 0 => image.resnet.resize: input should be greater than or equal to 1
encoders.text.clip.family: openclip => text.clip: unknown encoder family 'openclip'; did you
datasets.scenes.kind: scense => datasets.scenes: unknown kind of data set 'scense'; did you mean
datasets.scenes.kind: => datasets.scenes: kind is missing; there are scenes, pairs
datasets.scenes.source: => datasets.scenes.source: found nothing, expected the folder
datasets.scenes: 3 => datasets.scenes: found int, expected a mapping
datasets.scenes.scnes: 3 => datasets.scenes: unknown key 'scnes'; did you mean 'scenes'
joined.both: {first: scenes, second: scnes} => joined.both: unknown data set 'scnes'; did you
joined.scenes: {first: scenes, second: scenes} => is also a name under `datasets`
joined: {a: {first: b, second: scenes}, b: {first: scenes, second: a}} => a → joined.b → joined.a: a
joined.a: {first: a, second: scenes} => joined.a → joined.a: a data set cannot
joined.a: {first: scenes, second: scenes} => joined.a.second: both are 'scenes'
graph.seeds: [3, 0, 3] => graph.seeds: found 3 twice, as entries 1 and 3; remove one
graph.seeds: [true] => graph.seeds.0: input should be a valid integer; found True
graph.seeds: [1.0] => graph.seeds.0: input should be a valid integer; found 1.0
graph.teachers: [similarity, similarity] => graph.teachers: found 'similarity' twice, as
systems.kdmcse.runs.kdmcse.label: MCSE (CLIP) => reports would call both 'MCSE (CLIP)'
systems.kdmcse.runs.KDMCSE: {} => systems.kdmcse.runs.KDMCSE: reports would call both
grounding.captoins: all => grounding: unknown key 'captoins'; did you mean 'captions'
grounding.grounder.pth: x => grounding.grounder: unknown key 'pth'; did you mean 'path'
graph.image_encoders: [clp] => unknown name 'clp'; did you mean 'clip'
graph.object_encoders: [clp] => graph.object_encoders: unknown name 'clp'
extract.cutouts.margn: 0.2 => extract.cutouts: unknown key 'margn'; did you mean 'margin'
extract.cutouts.margin: -1 => extract.cutouts.margin
extract.cutouts.background: grey => found 'grey'
graph.pairs: flickr => graph.pairs: unknown name 'flickr'
graph.grounded: [] => add scenes to graph.grounded
grounding: => graph.grounded: needs a section `grounding`
report.baseline: simsce => did you mean 'simcse'
report.gain: mcse-clp => report.gain: unknown name 'mcse-clp'
report.control: mcse-clp => report.control: unknown name 'mcse-clp'
systems.simcse.train: {lerning_rate: 1} => systems.simcse.train: unknown key
systems.simcse.objective: => systems.simcse.objective: is missing
systems.simcse.runs.simcse.train: {lerning_rate: 1} => runs.simcse.train: unknown key 'lerning_r
systems.kdmcse.runs: {margin-0.1: {}} => found the name 'margin-0.1', expected letters
systems.simcse.runs.simcse.parms: {} => did you mean 'parameters'
systems.simcse.runs.simcse.train: {batch_size: 1} => runs.simcse.train.batch_size: input should
systems.kdmcse.runs.simcse: {} => systems.kdmcse.runs.simcse: simcse has a run of this name
train.learning_rate: fast => found 'fast'
train.batch_size: 1 => train.batch_size: input should be greater than or equal to 2
train.epochs: 3 => both of epochs and max_steps given
student: => student: is missing
student.name: .. => student: found the name '..', expected letters, digits, ., _ and -
student.name: my bert => student: found the name 'my bert'
student.model: ~/bert => student.model: found '~/bert'; ~ is not expanded here; write the whole path
datasets.scenes.source: ~me/x => datasets.scenes.source: found '~me/x'; ~ is not expanded here
encoders.image.resnet.weights: file:~/x => encoders.image.resnet.weights: found 'file:~/x'; ~ is
evaluation.dev: ~/dev.tsv => evaluation.dev: found '~/dev.tsv'; ~ is not expanded here
evaluation.tasks.retrieval.features: ~/x => evaluation.tasks.retrieval.features: found '~/x'; ~ is
extract.dtype: float64 => found 'float64'
"""
"""One entry of the demo's parameters that is changed => a part of the error."""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_is_named(mistake):
    change, _, message = mistake.partition(" => ")
    with pytest.raises(ParamsError) as caught:
        valid(changed(change))
    assert message in str(caught.value)


NAMED = (
    "datasets joined encoders.image encoders.text encoders.teacher evaluation.tasks systems "
    "systems.mcseo.runs"
)
WRONG = ["mine.v2", "my photos", "r&d", "r18@336", "-x", "a/b", "..", "", "a$b", "a\n", "1e3"]
WRONG += ["0x1F", "017", 2014, True, None]  # pyright: ignore


@pytest.mark.parametrize("section", NAMED.split())
def test_a_name_that_dvc_a_shell_or_a_folder_reads_in_its_own_way_is_refused(section):
    for name in WRONG:
        params = deepcopy(DEMO)
        place = params
        for key in section.split("."):
            place = place[key]
        place[name] = next(iter(place.values()), {})
        with pytest.raises(ParamsError) as caught:
            valid(params)
        expected = f"params.yaml: {section}: found the name {name!r}, expected letters, digits, _ "
        assert expected in str(caught.value)


def test_a_data_set_is_joined_once_into_one_of_several():
    params = deepcopy(DEMO)
    scenes = params["datasets"]["scenes"]
    params["datasets"] |= {"x": scenes, "y": scenes}
    params["joined"] = {
        "three": {"first": "two", "second": "scenes"},
        "two": {"first": "x", "second": "y"},
    }
    assert list(valid(params).joined) == ["three", "two"]
    params["joined"]["three"]["second"] = "y"
    with pytest.raises(ParamsError, match=r"joined\.three\.second: both are 'y' or contain it"):
        valid(params)


def test_every_mistake_is_reported_at_once():
    params = changed("trian: {}")
    params["train"]["batch_sise"] = params["train"].pop("batch_size")
    with pytest.raises(ParamsError, match=r"(?s)trian.*batch_sise|batch_sise.*trian"):
        valid(params)


def test_no_file_no_yaml_no_mapping(tmp_path):
    file = tmp_path / "params.yaml"
    for text, fault in ((None, "no such file"), ("a: [", "not YAML"), ("- a", "found list")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(SightlineError, match=rf"params.yaml: {fault}"):
            load_params(file)


def test_every_system_has_a_train_stage_where_the_graph_trains_any(tmp_path):
    file, graph = tmp_path / "params.yaml", tmp_path / "dvc.yaml"
    file.write_text(yaml.safe_dump(changed("systems.mcse-clp: {}")))
    for trains_nothing in ("stages: {prepare: {}}", "stages:"):
        graph.write_text(trains_nothing)
        assert "mcse-clp" in load_params(file).systems
    graph.write_text((ROOT / "dvc.yaml").read_text())
    with pytest.raises(ParamsError, match=r"systems: unknown system 'mcse-clp'; did .* needs a st"):
        load_params(file)


def test_a_run_overrides_its_system_which_overrides_the_rest():
    params = changed("systems.mcse-clip.train: {epochs: 2, batch_size: 8}")
    own = {"parameters": {"weight": 0.5}, "train": {"max_steps": 9}}
    params["systems"]["mcse-clip"]["runs"]["lighter"] = own
    of_system, run = (valid(params).run(name) for name in ("mcse-clip", "lighter"))
    train = of_system.train
    assert (train.epochs, train.max_steps, train.batch_size) == (2, None, 8)
    assert (run.system, run.label, run.objective) == ("mcse-clip", "lighter", "mcse")
    assert run.parameters == {"image": "clip", "weight": 0.5, "caption": "all"}
    assert (run.train.max_steps, run.train.epochs, run.train.batch_size) == (9, None, 8)
    assert valid(params).run("simcse").train.batch_size == 64


def test_without_its_text_stream_or_a_text_term_a_run_reads_only_pairs(tmp_path):
    params = valid(changed("systems.mcse-clip.parameters.text_weight: 0"))
    assert run_spec(params, "mcse-clip", 0).sentences is None
    params = valid(changed("systems.mcse-clip.train: {text_stream: false}"))
    alone = run_spec(params, "mcse-clip", 0)
    assert alone.sentences is None
    assert alone.pairs is not None
    assert run_spec(params, "simcse", 0).sentences is not None
    with pytest.raises(ValueError, match=r"train\.text_stream is off, but a stream"):
        RunSpec.model_validate({**alone.model_dump(), "sentences": tmp_path})


def test_the_machine_is_a_section_that_no_stage_depends_on():
    assert valid(changed("machine: {devices: [0, 1]}")).machine.devices == ("cuda:0", "cuda:1")
    assert valid(DEMO).machine.devices == ()
    for names in ("'tensorboard, wandb'", "[tensorboard, wandb]"):
        machine = valid(changed(f"machine: {{track: {names}}}")).machine
        assert machine.track == ("tensorboard", "wandb")
    assert "machine" not in (ROOT / "dvc.yaml").read_text()
    with pytest.raises(ParamsError, match=r"machine\.devices: cuda:0 appears twice"):
        valid(changed("machine: {devices: [0, 0]}"))


def test_devices_or_an_engine_of_the_command_replace_those_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    ours = changed("machine: {engine: ray@head:1, threads: 1, workers: 3}")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(ours))
    here = stages.load_here(Machine(devices="cpu,cpu")).machine
    assert here == Machine(devices=("cpu", "cpu"), threads=1, workers=3)
    assert stages.load_here(Machine(engine="ray,2")).machine.ray == ("", 2)
    assert stages.load_here(Machine(workers=0)).machine.ray == ("head:1", None)


@pytest.mark.parametrize("text", ["[" * 250_000, "[" * 11_000 + "]" * 11_000, "- " * 11_000])
def test_yaml_that_is_nested_too_deeply_ends_no_process(text):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: {c: 1, d: 2,\n c: 3}", "line 3: found the key 'c' twice; remove one"),
        ("a: &a {b: 1}\nc: [*a, 1]\na: 2", "line 3: found the key 'a' twice; remove one"),
        ("seeds: [1, 010]", "line 1: found 010, not one number to all readers"),
        ("seeds:\n- 1:30", "line 2: found 1:30, not one number to all readers"),
    ],
)
def test_what_dvc_reads_otherwise_is_refused(text, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        parse_yaml(text)


def test_keys_that_a_merge_replaces_are_no_second_ones():
    text = "a: {b: &b {<<: &c {d: 1}, d: 2, e: 0x10}}\nf: {<<: *b, d: 3}\ng: [*c, *c, '010']"
    b, c = {"d": 2, "e": 16}, {"d": 1}
    assert parse_yaml(text) == {"a": {"b": b}, "f": {"d": 3, "e": 16}, "g": [c, c, "010"]}
    assert parse_yaml("") is None
    itself = parse_yaml("&a [*a]")
    assert itself[0] is itself
