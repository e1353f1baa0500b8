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
from ground_data import DataSet, annotated, files_of, write_phrases

from pipeline import layout, stages
from pipeline.grounding.grounding_settings import GroundingSettings
from pipeline.params import Params, load_params
from sightline.cache.groundings import read_phrases
from sightline.cache.table_sets import open_tables
from sightline.errors import SightlineError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Images, captions, and phrases from grounding them, below the working folder."""
    monkeypatch.chdir(tmp_path)
    data = DataSet.of(tmp_path / "data/datasets/mine", 3)
    write_phrases(data, data.folder / "phrases.parquet")
    return data


def settings_of(data: DataSet, **changes) -> dict:
    return annotated(data.folder / "phrases.parquet") | changes


def command(data: DataSet, *words: str, cutouts: str = "cut", **changes) -> list[object]:
    """`sightline ground` into the folders ``out`` and ``cut``."""
    paths = ["--data", data.folder, "--out", "out", "--cutouts", cutouts]
    return ["ground", *paths, *set_words(settings_of(data, **changes)), *words]


def test_the_command_writes_records_and_cutouts_and_tries_again_on_request(data, said):
    good = data.folder / "images/1.png"
    good.rename("away")
    for _ in range(2):
        assert "1 failed" in said(*command(data, "--max-failed=0.5"))[1]
        if not good.exists():
            Path("away").rename(good)
    found = json.loads(said(*command(data, "--retry-failed", "--json"))[1])
    assert (found["computed"], found["counts"]["failed"], found["halved_to"]) == (1, 0, {})
    assert found["counts"]["pairs"] == 3 * 7
    assert read_phrases("out") == read_phrases(data.folder / "phrases.parquet")
    assert rows_with_keys(Path("cut"), "cutouts").num_rows > 0
    assert "nothing to compute" in said(*command(data))[1]


def test_a_grounding_and_its_cutouts_are_two_folders(data, said):
    code, _, error = said(*command(data, cutouts="out"))
    assert (code, "give two folders" in error) == (1, True)
    assert not Path("out").exists()


def test_a_dry_run_of_a_grounding_and_then_of_its_cutouts(data, said):
    def to_do() -> str:
        return said(*command(data, "--dry-run"))[1]

    assert to_do() == "out: 0 images there · 3 to compute\n"
    assert not Path("out").exists()
    assert not Path("cut").exists()
    assert said(*command(data))[0] == 0
    done = "out: 3 images there · 0 to compute · cut: "
    assert to_do().startswith(done)
    assert to_do().endswith(" objects there · 0 to compute\n")
    for path in Path("cut").iterdir():
        path.unlink()
    assert to_do().startswith(f"{done}0 objects there · ")
    assert not list(Path("cut").iterdir())


FLORENCE = {"family": "florence2", "model": "x"}
FAMILIES = "florence2, grounding-dino, mm-grounding-dino, sam3, annotations"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grounder": {"family": "florence"}}, "unknown grounder 'florence'; did you mean 'fl"),
        ({"grounder": {"path": "x"}}, f"grounder: family is missing; there are {FAMILIES}"),
        ({"grounder": {**FLORENCE, "beam": 2}}, "grounder: unknown key 'beam'; did you mean"),
        ({"grounder": {**FLORENCE, "beams": 0}}, "beams: input should be greater than or equal"),
        ({"grounder": {**FLORENCE, "weights": "file:x"}}, "write pretrained, pretrained:REVISION"),
        ({"grounder": "florence2"}, "grounder: found str, expected a mapping with a `family`"),
        ({"segmenter": {"family": "annotations", "x": 1}}, "unknown key 'x' (available: family)"),
        ({"segmenter": {"family": "sam3"}}, "segmenter: unknown segmenter 'sam3'; did you"),
        ({"segmenter": {"family": "sam2", "weights": "mine.pt"}}, "not valid weights"),
        ({"rules": {"min_score": 2}}, "min_score"),
        ({"captions": "some"}, "captions"),
    ],
)
def test_invalid_settings_are_named_with_their_key(data, said, changes, says):
    code, _, error = said(*command(data, **changes))
    assert code == 2
    assert says in unboxed(error)
    assert not Path("out").exists()


def test_the_default_segmenter_is_sam_2_of_the_package():
    grounder = {"family": "annotations", "path": "phrases.parquet"}
    segmenter = GroundingSettings.model_validate({"grounder": grounder}).segmenter
    assert (segmenter.family, segmenter.model) == ("sam2", "sam2.1-hiera-large")
    assert segmenter.weights == "pretrained"


def params_of(data: DataSet, grounding: dict, **more: object) -> Params:
    given = demo_params() | more
    source = {"source": str(data.folder), "images": "images", "captions": "captions.txt"}
    given["datasets"]["mine"] = {"kind": "pairs", **source}
    given["graph"] |= {"grounded": ["mine"], "object_encoders": []}
    given["grounding"] = grounding
    Path("params.yaml").write_text(yaml.safe_dump(given))
    return load_params(Path("params.yaml"))


def test_the_stage_stores_cutouts_if_they_are_wanted(data):
    grounding, folder = layout.grounding_folder("mine"), layout.cutouts_folder("mine")
    for wanted in (False, True, False):
        stages.ground(params_of(data, settings_of(data, cutouts=wanted)), "mine")
        phrases = read_phrases(grounding)
        assert phrases.num_rows == 3 * 7
        cutouts = open_tables(folder, "cutouts")[1]
        assert len(cutouts) == wanted * len(set(phrases["cutout_key"].to_pylist()))


def test_objects_of_the_graph_need_photographs_only_without_stored_cutouts(data):
    params = params_of(data, settings_of(data))
    stages.ground(params, "mine")
    (data.folder / "images").rename("away")
    inputs = layout.feature_inputs("mine", "object")
    pictures = [entry.png for entry in inputs.entries]
    assert len(pictures) > 0
    assert None not in pictures
    shutil.rmtree(layout.cutouts_folder("mine"))
    with pytest.raises(SightlineError, match="images are not here: there is no folder"):
        layout.feature_inputs("mine", "object")


@pytest.mark.slow
def test_two_devices_ground_like_one(data):
    settings = settings_of(data, block_images=1)
    stages.ground(params_of(data, settings, machine={"threads": 1}), "mine")
    sets = [layout.grounding_folder("mine"), layout.cutouts_folder("mine")]
    alone = [files_of(each) for each in sets]
    for each in sets:
        shutil.rmtree(each)
    params_of(data, settings, machine={"devices": "cpu,cpu"})
    Path(".dvc").mkdir()
    assert sightline("stage", "ground", "mine", "--threads", "1") == 0
    assert [files_of(each) for each in sets] == alone
