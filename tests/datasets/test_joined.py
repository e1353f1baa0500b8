"""Joining two data sets of pairs: ids, image paths, and rejected inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from pipeline import graph
from pipeline.datasets.joined import JoinedSource, common_root
from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.sentences import SentencesSource
from pipeline.datasets.source import DatasetError
from pipeline.params import load_params
from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, read_manifest
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


def test_both_parts_are_included_with_distinct_names(tmp_path: Path) -> None:
    part(tmp_path, "one", [1, 2])
    part(tmp_path, "two", [3])
    source = joined(tmp_path, "one", "two")
    report = prepare("joined", source, tmp_path / "both")
    assert report.counts["images_of_one"] == 2
    images = read_manifest(tmp_path / "both/images.parquet", IMAGES)
    assert images["image_id"].to_pylist() == ["one/0.png", "one/1.png", "two/0.png"]
    root = common_root(source.images.values())
    assert root == tmp_path
    for path, key in zip(images["path"].to_pylist(), images["key"].to_pylist(), strict=True):
        assert (root / path).is_file()
        assert len(key) == 32
    captions = read_manifest(tmp_path / "both/captions.parquet", CAPTIONS)
    assert captions["image_id"].to_pylist() == images["image_id"].to_pylist()
    assert captions["caption_id"].to_pylist() == ["one/0.png#0", "one/1.png#0", "two/0.png#0"]
    texts = read_manifest(tmp_path / "both/sentences.parquet", SENTENCES)["text"].to_pylist()
    assert texts == captions["text"].to_pylist()


def test_the_licences_of_the_parts_are_kept(tmp_path: Path) -> None:
    part(tmp_path, "one", [1])
    part(tmp_path, "two", [2])
    for name, licence in (("one", "CC BY 4.0"), ("two", "Flickr")):
        path = tmp_path / name / "dataset.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"licence": licence}))
    prepare("joined", joined(tmp_path, "one", "two"), tmp_path / "both")
    record = json.loads((tmp_path / "both/dataset.json").read_text())
    assert record["licence"] == "CC BY 4.0; Flickr"


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
    import yaml

    from pipeline import stages

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
