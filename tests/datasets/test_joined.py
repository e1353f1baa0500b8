"""Joining two data sets of pairs: ids, image paths, and rejected inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from made import column, load_all, texts
from PIL import Image

from pipeline import graph, stages
from pipeline.datasets.joined import JoinedSource, common_root
from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.sentences import SentencesSource
from pipeline.datasets.source import DatasetError
from pipeline.params import load_params
from sightline.cache.prepared import LICENCE_UNKNOWN, dataset_facts
from sightline.errors import SightlineError

PARAMS = Path(__file__).parents[2] / "params.yaml"


def part(folder: Path, name: str, colours: list[int]) -> Path:
    """A data set of pairs with one image and caption per colour."""
    photos = folder / f"{name}-photos"
    photos.mkdir()
    for i, colour in enumerate(colours):
        Image.new("RGB", (4, 4), (colour, 0, 0)).save(photos / f"{i}.png")
    lines = [f"{i}.png#0\tthe {name} picture {i}" for i in range(len(colours))]
    captions = folder / f"{name}.txt"
    captions.write_text("\n".join(lines) + "\n")
    prepare("pairs", PairsSource(images=photos, captions=captions), folder / name)
    return folder / name


def joined(folder: Path, *names: str) -> JoinedSource:
    return JoinedSource(
        parts={name: folder / name for name in names},
        images={name: folder / f"{name}-photos" for name in names},
    )


def test_both_parts_are_included_with_distinct_names_and_their_licences(tmp_path: Path) -> None:
    part(tmp_path, "one", [1, 2])
    part(tmp_path, "two", [3])
    for name, licence in (("one", "CC BY 4.0"), ("two", "Flickr")):
        path = tmp_path / name / "dataset.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": licence}))
    out = tmp_path / "both"
    source = joined(tmp_path, "one", "two")
    report = prepare("joined", source, out)
    assert report.counts["images_of_one"] == 2
    assert json.loads((out / "dataset.json").read_text())["licence"] == "CC BY 4.0; Flickr"
    ids = ["one/0.png", "one/1.png", "two/0.png"]
    assert column(out, "image_id") == column(out, "image_id", "captions") == ids
    assert common_root(source.images.values()) == tmp_path
    assert len(load_all(out)) == 3
    assert list(texts(out)) == [f"{name}#0" for name in ids]
    assert column(out, "text", "sentences") == list(texts(out).values())


def test_the_licence_of_all_parts_is_named_once(tmp_path: Path) -> None:
    for colour, name in enumerate(("one", "two")):
        part(tmp_path, name, [colour])
    prepare("joined", joined(tmp_path, "one", "two"), tmp_path / "both")
    assert dataset_facts(tmp_path / "both").licence == LICENCE_UNKNOWN


def test_an_image_in_both_is_refused_with_both_names(tmp_path: Path) -> None:
    part(tmp_path, "one", [1, 2])
    part(tmp_path, "two", [3, 2])
    with pytest.raises(DatasetError, match=r"1 image\(s\) are in two .* one/1\.png and two/1\.png"):
        prepare("joined", joined(tmp_path, "one", "two"), tmp_path / "both")
    assert not (tmp_path / "both/images.parquet").exists()


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    part(tmp_path, "one", [1])
    (tmp_path / "lines.txt").write_text("a sentence\n")
    prepare("sentences", SentencesSource(path=tmp_path / "lines.txt"), tmp_path / "text")
    (tmp_path / "text-photos").mkdir()
    with pytest.raises(DatasetError, match="text: contains no captions"):
        prepare("joined", joined(tmp_path, "one", "text"), tmp_path / "both")
    with pytest.raises(SightlineError, match=r"absent.*images\.parquet: no such manifest"):
        prepare("joined", joined(tmp_path, "one", "absent"), tmp_path / "both")
    with pytest.raises(ValueError, match=r"found 1 data set\(s\), expected at least two"):
        joined(tmp_path, "one")
    odd = JoinedSource(parts={"one": tmp_path, "two": tmp_path}, images={"one": tmp_path})
    with pytest.raises(DatasetError, match="part 'two': give both"):
        prepare("joined", odd, tmp_path / "both")


def test_the_root_of_relative_folders_is_relative() -> None:
    assert common_root([Path("data/raw/a/images"), Path("data/raw/b")]) == Path("data/raw")
    assert common_root([Path("a"), Path("b")]) == Path()
    assert common_root([Path("/x/a"), Path("/x/b/c")]) == Path("/x")
    assert common_root([Path("/"), Path("b")]) == Path("/")


def test_the_graph_finds_the_images_of_a_joined_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = yaml.safe_load(PARAMS.read_text())
    for name, colours in (("one", [1, 2]), ("two", [3])):
        part(tmp_path, name, colours)
        given["datasets"][name] = {
            "kind": "pairs",
            "source": str(tmp_path),
            "images": f"{name}-photos",
            "captions": f"{name}.txt",
        }
    given["joined"] = {"both": {"first": "one", "second": "two"}}
    given["graph"] |= {"pairs": "both", "grounded": [], "object_encoders": []}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(given))
    params = load_params(tmp_path / "params.yaml")
    for name in ("one", "two", "both"):
        stages.prepare(params, name)
    inputs = graph.feature_inputs(params, "both", "image")
    assert [Path(str(entry.place)).is_file() for entry in inputs.entries] == [True] * 3
