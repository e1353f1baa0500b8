"""`sightline ground` and the stage `ground`, with explicit paths and in the graph's folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import set_words, sightline, unboxed
from demo_params import demo_params
from flat_tables import rows_with_keys
from ground_data import DataSet, run_ground
from typer.testing import CliRunner

from pipeline import graph, stages
from pipeline.cli.commands import app
from pipeline.extract.settings import Invocation
from pipeline.grounding.settings import GroundingSettings
from pipeline.grounding.stats import statistics
from pipeline.params import Params, ParamsError, load_params
from sightline.cache import PHRASES, verify, write_manifest
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.cache.record import FILE_NAME
from sightline.cache.sets import open_tables
from sightline.errors import SightlineError


@pytest.fixture
def data(tmp_path) -> DataSet:
    """Images, captions, and phrases from grounding them."""
    data = DataSet(tmp_path / "data/datasets/mine")
    for i in range(3):
        data.add(f"{i}.png")
    run_ground(data, tmp_path / "drawn")
    write_manifest(data.folder / "phrases.parquet", read_phrases(tmp_path / "drawn"), PHRASES)
    return data


def settings_of(data: DataSet, **changes) -> dict:
    return {
        "captions": "all",
        "grounder": {"family": "annotations", "path": str(data.folder / "phrases.parquet")},
        "segmenter": {"family": "annotations"},
        "rules": {"duplicate_iou": None},
    } | changes


def command(data: DataSet, tmp_path: Path, settings: dict) -> list[str]:
    data.write()
    options = {"data": data.folder, "out": tmp_path / "out", "cutouts": tmp_path / "cut"}
    paths = [f"--{name}={value}" for name, value in options.items()]
    return ["ground", *paths, *set_words(settings)]


def test_the_command_writes_records_and_cutouts(data, tmp_path):
    arguments = command(data, tmp_path, settings_of(data))
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["counts"]["pairs"] == 3 * 7
    assert read_phrases(tmp_path / "out").num_rows == 3 * 7
    assert rows_with_keys(tmp_path / "cut", "cutouts").num_rows > 0
    again = CliRunner().invoke(app, arguments)
    assert "nothing to compute" in again.stdout


def test_a_dry_run_of_a_grounding_and_then_of_its_cutouts(data, tmp_path):
    words = command(data, tmp_path, settings_of(data))

    def to_do() -> str:
        done = CliRunner().invoke(app, [*words, "--dry-run"])
        assert done.exit_code == 0, done.output
        return done.stdout.removeprefix(f"{tmp_path}/")

    assert to_do() == "out: 0 images there · 3 to compute\n"
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cut").exists()
    assert CliRunner().invoke(app, words).exit_code == 0
    done = f"out: 3 images there · 0 to compute · {tmp_path}/cut: "
    assert to_do().startswith(done)
    assert to_do().endswith(" objects there · 0 to compute\n")
    for path in (tmp_path / "cut").iterdir():
        path.unlink()
    assert to_do().startswith(f"{done}0 objects there · ")
    assert not list((tmp_path / "cut").iterdir())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"grounder": {"family": "florence"}},
            "grounder: unknown grounder 'florence'; did you mean 'florence2'",
        ),
        (
            {"grounder": {"path": "x"}},
            "grounder: family is missing; there are florence2, grounding-dino, annotations",
        ),
        (
            {"grounder": {"family": "florence2", "model": "x", "beam": 2}},
            "grounder: unknown key 'beam'; did you mean 'beams'",
        ),
        (
            {"grounder": {"family": "florence2", "model": "x", "beams": 0}},
            "grounder.beams: input should be greater than or equal to 1; found 0",
        ),
        ({"grounder": "florence2"}, "grounder: found str, expected a mapping with a `family`"),
        (
            {"segmenter": {"family": "annotations", "x": 1}},
            "segmenter: unknown key 'x' (available: family)",
        ),
        ({"segmenter": {"family": "sam3"}}, "segmenter: unknown segmenter 'sam3'; did you"),
        ({"rules": {"min_score": 2}}, "min_score"),
        ({"captions": "some"}, "captions"),
    ],
)
def test_invalid_settings_are_named_with_their_key(data, tmp_path, capsys, changes, says):
    assert sightline(*command(data, tmp_path, settings_of(data, **changes))) == 2
    assert says in unboxed(capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_default_segmenter_is_sam_2_of_the_package(data):
    segmenter = GroundingSettings.model_validate(
        {"grounder": settings_of(data)["grounder"]}
    ).segmenter
    assert (segmenter.family, segmenter.model) == ("sam2", "sam2.1-hiera-large")
    assert segmenter.weights == "pretrained"


def test_failed_images_are_reground_on_request(data, tmp_path):
    good = data.folder / "images/1.png"
    arguments = [*command(data, tmp_path, settings_of(data)), "--max-failed=0.5"]
    good.rename(tmp_path / "away")
    assert "1 failed" in CliRunner().invoke(app, arguments).stdout
    (tmp_path / "away").rename(good)
    assert "1 failed" in CliRunner().invoke(app, arguments).stdout
    again = CliRunner().invoke(app, [*arguments, "--retry-failed", "--json"])
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout)
    assert (found["computed"], found["counts"]["failed"], found["halved_to"]) == (1, 0, {})
    assert found["counts"]["pairs"] == 3 * 7


def params_of(data: DataSet, grounding: dict | None, name: str = "mine") -> Params:
    given = demo_params()
    source = {"source": str(data.folder), "images": "images", "captions": "captions.txt"}
    given["datasets"]["mine"] = {"kind": "pairs", **source}
    given["graph"] |= {"grounded": [name], "object_encoders": []}
    given["grounding"] = grounding
    path = data.folder / "params.yaml"
    path.write_text(yaml.safe_dump(given))
    return load_params(path)


def test_the_stage_grounds_a_data_set_in_the_layout_of_the_graph(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    summary = stages.ground(params_of(data, settings_of(data)), "mine")
    assert grounding_counts(summary.folder)["pairs"] == 3 * 7
    assert read_phrases(graph.grounding_folder("mine")).num_rows == 3 * 7
    assert (graph.cutouts_folder("mine") / FILE_NAME).is_file()


def test_the_stage_stores_cutouts_if_they_are_wanted(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wanted in (False, True, False):
        stages.ground(params_of(data, settings_of(data, cutouts=wanted)), "mine")
        cutouts = open_tables(graph.cutouts_folder("mine"), "cutouts")[1]
        objects = set(read_phrases(graph.grounding_folder("mine"))["cutout_key"].to_pylist())
        assert len(cutouts) == wanted * len(objects)


def test_objects_of_the_graph_need_photographs_only_without_stored_cutouts(
    data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    params = params_of(data, settings_of(data))
    stages.ground(params, "mine")
    (data.folder / "images").rename(tmp_path / "away")
    inputs = graph.feature_inputs(params, "mine", "object")
    pictures = [entry.png for entry in inputs.stored.filled(inputs.entries)]
    assert len(pictures) > 0
    assert None not in pictures
    shutil.rmtree(graph.cutouts_folder("mine"))
    with pytest.raises(
        SightlineError, match=r"its images are not here: there is no folder .*images"
    ):
        graph.feature_inputs(params, "mine", "object")


def test_the_stage_regrounds_failed_images(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = params_of(data, settings_of(data))
    good = data.folder / "images/1.png"
    good.rename(tmp_path / "away")
    with pytest.raises(SightlineError, match="1 of 3 images failed"):
        stages.ground(params, "mine")
    (tmp_path / "away").rename(good)
    assert stages.ground(params, "mine", how=Invocation(retry_failed=True)).failed == 0


@pytest.mark.parametrize("folder", [graph.grounding_folder, graph.cutouts_folder])
def test_the_stage_computes_damaged_rows_again_and_says_so(
    data, tmp_path, monkeypatch, capsys, folder
):
    monkeypatch.chdir(tmp_path)
    params = params_of(data, settings_of(data))
    stages.ground(params, "mine")
    before = {path.name: path.read_bytes() for path in folder("mine").iterdir()}
    shard = flip_a_byte(folder("mine"))
    capsys.readouterr()
    stages.ground(params, "mine")
    said = capsys.readouterr().err
    assert f"{shard}: BLAKE3" in said
    assert "will be recomputed" in said
    after = {path.name: path.read_bytes() for path in folder("mine").iterdir()}
    assert {name: after[name] for name in before} == before
    assert verify(folder("mine"), rows=True) == []


@pytest.mark.parametrize("read", [statistics, read_phrases])
def test_a_damaged_grounding_is_not_read(data, tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    stages.ground(params_of(data, settings_of(data)), "mine")
    shard = flip_a_byte(graph.grounding_folder("mine"))
    with pytest.raises(SightlineError, match=f"{shard}: BLAKE3 .* run `sightline cache repair"):
        read(graph.grounding_folder("mine"))


def flip_a_byte(folder: Path) -> Path:
    """Damage a shard of a set; its path."""
    shard = next(folder.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    return shard


def test_parameters_of_grounding_are_checked(data):
    with pytest.raises(ParamsError, match="needs a section `grounding`"):
        params_of(data, None)
    with pytest.raises(ParamsError, match=r"graph\.grounded: unknown name 'mime'"):
        params_of(data, settings_of(data), "mime")
    with pytest.raises(ParamsError, match=r"grounding\.rules: unknown key 'min_scores'"):
        params_of(data, settings_of(data, rules={"min_scores": 0.1}))


def test_two_devices_ground_like_one(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = params_of(data, settings_of(data, block_images=1))
    stages.ground(params, "mine", how=Invocation(threads=1))
    sets = [graph.grounding_folder("mine"), graph.cutouts_folder("mine")]
    alone = [{path.name: path.read_bytes() for path in each.iterdir()} for each in sets]
    for each in sets:
        shutil.rmtree(each)
    written = yaml.safe_load((data.folder / "params.yaml").read_text())
    written["machine"] = {"devices": "cpu,cpu"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / ".dvc").mkdir()
    assert sightline("stage", "ground", "mine", "--threads", "1") == 0
    together = [{path.name: path.read_bytes() for path in each.iterdir()} for each in sets]
    assert together == alone
