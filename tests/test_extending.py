"""The package of docs/extending.md, examples/lamplight: installed, discovered and run."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from command_line import sightline
from demo_params import demo_params
from installed_package import forget, install
from mistakes_of_packages import ENCODING, MISTAKES, SPOILING
from PIL import Image
from shown_commands import ROOT, shown_commands
from tiny_encoder import make_encoder

from pipeline import layout
from pipeline.datasets.source import Source
from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.encoder import TextEncoder, checked_encoder
from pipeline.extract.decode import load_image
from pipeline.extract.inputs import inputs_of
from pipeline.grounding.settings import GrounderSettings, SegmenterSettings
from pipeline.params import load_params
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    EncoderRecord,
    FeatureSet,
    key_of_bytes,
    key_of_file,
    verify,
)
from sightline.cache.feature_kind import KINDS
from sightline.cache.groundings import read_phrases
from sightline.cache.manifest import read_manifest
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError
from train.evaluate.task import TASKS
from train.objectives import OBJECTIVES
from train.tracking import TRACKERS

PAGE = ROOT / "docs/extending.md"
PACKAGE = ROOT / "examples/lamplight"
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.M | re.S)
COMMANDS = [command for command in shown_commands(PAGE) if command.startswith("sightline")]
OF_THE_LAKE = "sightline prepare lake"
"""Begins the command that needs libraries of others."""
REGISTRIES = {
    registry.group: registry
    for registry in (
        Source.families,
        EncoderConfig.families,
        GrounderSettings.families,
        SegmenterSettings.families,
        OBJECTIVES,
        TRACKERS,
        TASKS,
        KINDS,
    )
}
COLOURS = ("red", "blue", "green", "round")


def blocks(name: str) -> list[str]:
    """The page's examples that belong to the file ``name``."""
    return [text for file, text in BLOCK.findall(PAGE.read_text()) if file == name]


def merged(base: Any, more: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(more, Mapping)):
        return more
    return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder of installed packages, empty at first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    forget(REGISTRIES.values())
    yield folder
    forget(REGISTRIES.values(), "lamplight")


@pytest.fixture
def lamplight(site) -> Path:
    """The page's package, installed as a copy."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    install(site, project["name"], project["entry-points"])
    assert project["entry-points"].keys() == REGISTRIES.keys()
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "lamplight", site / "lamplight", ignore=ignored)
    return site


@pytest.fixture
def clone(tmp_path, lamplight, monkeypatch) -> Path:
    """The root of a repository with four pictures, their captions and the page's settings."""
    root = tmp_path / "clone"
    pictures = root / "data/raw/album/pictures"
    pictures.mkdir(parents=True)
    (root / ".dvc").mkdir()
    rng = np.random.default_rng(0)
    for i, colour in enumerate(COLOURS):
        Image.fromarray(rng.integers(0, 256, (20 + i, 30, 3), np.uint8)).save(pictures / f"{i}.png")
        captions = f"a {colour} dog sits near the tree\n\nthe big {colour} house\n"
        (pictures / f"{i}.txt").write_text(captions)
    for part in make_encoder():
        part.save_pretrained(root / "bert-base-uncased")
    (root / "dev.tsv").write_text(
        "score\tsentence1\tsentence2\n5\ta dog\tthe dog\n1\ta dog\ta tree\n3\tred\tblue\n"
    )
    params = demo_params()
    del params["grounding"]
    for text in blocks("params.yaml"):
        params = merged(params, yaml.safe_load(text))
    params["graph"] |= {"pairs": "album", "text": "album", "image_encoders": ["thumbnail"]}
    params["graph"] |= {"grounded": ["album"], "object_encoders": ["thumbnail"]}
    params["student"] |= {"name": "tiny", "model": "bert-base-uncased"}
    params["train"] |= {"batch_size": 4, "max_steps": 2, "eval_steps": 1}
    params["train"]["logging_steps"] = 1
    params["evaluation"]["dev"] = "dev.tsv"
    params["machine"]["track"] = ["diary"]
    (root / "odd.tsv").write_text(
        "a dog\tthe dog\ta tree\nthe tree\ta tree\ta dog\nthe house\ta house\ta dog\n"
    )
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(root)
    return root


def ran(capsys, *words: object) -> str:
    """Run a command that succeeds and return its output."""
    code = sightline(*words)
    said = capsys.readouterr()
    assert code == 0, f"{' '.join(map(str, words))}\n{said.err}"
    return said.out


def refused(capsys, *words: object) -> str:
    """Run a command that ends in one error and return it."""
    assert sightline(*words) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


def test_excerpts_are_lines_of_the_package():
    shown = [(file, text) for file, text in BLOCK.findall(PAGE.read_text())]
    files = {file: text for file, text in shown if (PACKAGE / file).is_file()}
    points = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    places = {place.partition(":")[0] for group in points.values() for place in group.values()}
    assert files.keys() == {"pyproject.toml", *(f"{p.replace('.', '/')}.py" for p in places)}
    for file, text in files.items():
        lines = [line.strip() for line in (PACKAGE / file).read_text().splitlines()]
        source = "\n".join(lines)
        for excerpt in re.split(r"^ *# …$", text, flags=re.M):
            assert "\n".join(map(str.strip, excerpt.strip().splitlines())) in source, file


@pytest.mark.slow
def test_pip_installs_the_package(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "lamplight")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(copy)], check=True, capture_output=True)
    code = "from importlib.metadata import entry_points as e; print(len(e(name='sidecar')))"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert found.stdout.strip() == b"1"
    assert (target / "lamplight/sidecar.py").is_file()


def test_the_commands_of_the_page_run_in_order(clone, capsys):
    done = []
    for command in COMMANDS:
        if command.startswith(OF_THE_LAKE):
            continue
        words = shlex.split(command)[1:]
        ran(capsys, *words, *(["--workers", "1"] if words[0] == "extract" else []))
        done.append(" ".join(words[:2]))
    assert done == [
        "prepare sidecar",
        "stage prepare",
        "extract image",
        "stage image-features",
        "ground --data",
        "tokens --data",
        "train hardest",
        "train slow",
        "train triplet",
        "train slow",
        "evaluate odd-one-out",
        "extract brightness",
    ]

    album = json.loads((clone / "data/datasets/album/dataset.json").read_text())
    assert (album["kind"], album["counts"]["images"], album["counts"]["captions"]) == (
        "sidecar",
        4,
        8,
    )
    for manifest in ("images.parquet", "captions.parquet"):
        written = [clone / place / manifest for place in ("mine", "data/datasets/album")]
        assert len({path.read_bytes() for path in written}) == 1
    on_paths = FeatureSet.open(clone / "features/thumbnail")
    in_graph = FeatureSet.open(clone / "data/features/album/image/thumbnail")
    assert (len(on_paths), on_paths.dim, in_graph.dim) == (4, 16, 16)
    assert on_paths.record.spec.encoder.name == "thumbnail/small"
    assert on_paths.record.spec.preprocessing["resize"] == [8, 8]
    assert in_graph.record.spec.preprocessing["resize"] == [4, 4]
    assert verify(clone / "features/thumbnail") == []
    config = EncoderConfig.model_validate(
        {"family": "thumbnail", "model": "small", "weights": "random:0"}
    )
    encoder = config.build_image(torch.device("cpu"), "fp32")
    assert on_paths.record.spec.encoder.weights_sha256 == encoder.identity.weights_sha256
    picture = clone / "data/raw/album/pictures/2.png"
    pixels = torch.from_numpy(np.array(Image.open(picture))).permute(2, 0, 1)
    expected = encoder.encode(encoder.preprocessing(pixels)[None])[0].numpy()
    np.testing.assert_allclose(on_paths.take([key_of_file(picture)])[0], expected, atol=2e-3)
    (extraction,) = [command for command in COMMANDS if "extract image" in command]
    assert "3 rows" in ran(capsys, *shlex.split(extraction)[1:], "--check", 3)
    graph_set = "data/features/album/image/thumbnail"
    assert "the album's owner has all" in ran(capsys, "cache", "info", graph_set)

    phrases = read_phrases(clone / "objects/album").to_pylist()
    assert sorted(row["phrase"] for row in phrases) == ["dog"] * 4 + ["tree"] * 4
    heights = {key_of_file(path): Image.open(path).height for path in clone.rglob("*.png")}
    for row in phrases:
        height = heights[row["image_key"]]
        assert list(row["box"]) == [0, 0, 30, height]
        # half the axes are a quarter of the area
        assert decode_mask(**row["mask"]).sum() == pytest.approx(
            math.pi * 30 * height / 16, rel=0.1
        )

    summary = json.loads((clone / "runs/hardest/run.json").read_text())
    assert summary["objective"] == "hardest"
    assert summary["parameters"]["margin"] == 0.2
    assert "VSE++" in (clone / "runs/hardest/model/README.md").read_text()

    logged = json.loads((clone / "runs/triplet/run.json").read_text())["log"]
    assert {"loss_text", "loss_triplet"} <= logged[0].keys()
    levels = FeatureSet.open(clone / "features/brightness")
    grey = np.asarray(Image.open(picture).convert("L"))
    expected = np.histogram(grey, 8, (0, 256))[0] / grey.size
    np.testing.assert_allclose(levels.take([key_of_file(picture)])[0], expected, atol=1e-3)

    (score,) = json.loads((clone / "runs/watched/run.json").read_text())["log"][1:]
    assert (clone / "runs/watched.run/diary/diary.txt").read_text().splitlines() == [
        "watched-seed-0 learns slow at 3e-05",
        f"step 2: {score['dev']:.2f}",
        "until here",
    ]

    assert load_params().evaluation.tasks["odd-one-out"].data == Path("odd.tsv")
    assert "odd-one-out: here, 3 examples" in ran(capsys, "evaluate", "list")
    data = clone / "data/evaluation/odd-one-out.json"
    ran(capsys, "stage", "evaluation-data", "odd-one-out")
    before = data.read_text()
    assert json.loads(before)["metrics"]["odd one out"]["examples"] == 3
    (clone / "odd.tsv").write_text("a dog\tthe dog\ta tree\n")
    ran(capsys, "stage", "evaluation-data", "odd-one-out")
    assert data.read_text() != before
    (clone / "odd.tsv").write_text("a dog\tthe dog\n")
    said = refused(capsys, "stage", "evaluation-data", "odd-one-out")
    assert "odd.tsv, line 1: 2 tab-separated columns" in said
    (clone / "odd.tsv").write_text("a dog\tthe dog\ta tree\n")

    # the same objective as a system of the graph, with the features of the stage
    ran(capsys, "stage", "tokens")
    ran(capsys, "stage", "train", "hardest-margin", 0)
    run = clone / "runs/hardest-margin/seed-0"
    summary = json.loads((run / "run.json").read_text())
    assert {"loss_text", "loss_hinge"} <= {name for entry in summary["log"] for name in entry}
    assert summary["parameters"]["margin"] == 0.5
    assert "until here" in Path(f"{run}.run/diary/diary.txt").read_text()


@pytest.mark.parametrize("form", ["lance", "delta"])
def test_a_lake_of_others_is_a_source_at_any_version(
    lamplight, tmp_path, monkeypatch, capsys, form
):
    library = pytest.importorskip("lance" if form == "lance" else "deltalake")

    def write(table: pa.Table, **mode: str) -> None:
        if form == "lance":
            library.write_dataset(table, "album.lance", **mode)
        else:
            library.write_deltalake("album.delta", table, **mode)

    monkeypatch.chdir(tmp_path)
    (shown,) = [command for command in COMMANDS if command.startswith(OF_THE_LAKE)]
    prepare = shlex.split(shown.replace("lance", form))[1:]
    assert "no such table" in refused(capsys, *prepare)

    numbers = range(6)
    pictures = []
    for number in numbers:
        data = io.BytesIO()
        Image.new("RGB", (4, 3), (number, 0, 0)).save(data, "PNG")
        pictures.append(data.getvalue())
    said = [[f"a red dog, number {number}", "a dog"] for number in numbers]
    table = pa.table({"picture": pictures, "caption": said, "vector": [[0.5]] * len(numbers)})
    write(table.slice(0, 4))
    first = library.dataset("album.lance").version if form == "lance" else 0
    write(table.slice(4), mode="append")

    ran(capsys, *prepare)
    images = read_manifest(tmp_path / "lake/images.parquet", IMAGES)
    keys = {key_of_bytes(data): number for number, data in enumerate(pictures)}
    assert {*images["key"].to_pylist()} == keys.keys()  # Delta has no order
    captions = read_manifest(tmp_path / "lake/captions.parquet", CAPTIONS)
    assert sorted(captions["text"].to_pylist()) == sorted(text for texts in said for text in texts)
    for place, key in inputs_of("image", tmp_path / "lake").entries:
        assert load_image(place, key)[:, 0, 0].tolist() == [keys[key], 0, 0]
    ran(capsys, *prepare, "--version", str(first))
    assert len(read_manifest(tmp_path / "lake/images.parquet", IMAGES)) == 4


def test_its_loss_follows_its_equation(lamplight):
    from lamplight.hardest import hardest_negative_hinge  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    texts, images = rng.normal(size=(2, 5, 3))
    cosine = [[float(t @ v / np.linalg.norm(t) / np.linalg.norm(v)) for v in images] for t in texts]
    expected = 0.0
    for i in range(5):
        wrong = [j for j in range(5) if j != i]
        expected += max(0.0, 0.2 + max(cosine[i][j] for j in wrong) - cosine[i][i])
        expected += max(0.0, 0.2 + max(cosine[j][i] for j in wrong) - cosine[i][i])
    found = hardest_negative_hinge(torch.from_numpy(texts), torch.from_numpy(images), 0.2)
    assert float(found) == pytest.approx(expected / 5)
    one = hardest_negative_hinge(torch.ones(1, 3), torch.ones(1, 3))
    assert float(one) == 0


def test_doctor_lists_what_the_package_adds(lamplight, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (added,) = json.loads(ran(capsys, "doctor", "--json"))["packages"]
    names = "brightness, diary, ellipse, embeddings, glossary, hardest, lake, levels, odd-one-out, "
    assert added == f"lamplight 0.1: {names}remote, sidecar, slow, thumbnail, triplet"


def test_the_stage_on_the_page_matches_the_inputs_of_the_run(clone):
    (text,) = blocks("dvc.yaml")
    stage = yaml.safe_load(text)["stages"]["train-hardest"]
    ours = (ROOT / "dvc.yaml").read_text().replace("mcse-clip", "hardest")
    assert stage == yaml.safe_load(ours)["stages"]["train-hardest"]
    params = load_params()
    assert {run for run, made in params.runs.items() if made.system == "hardest"} == {
        "hardest",
        "hardest-margin",
    }
    spec = layout.run_spec(params, "hardest-margin", 0)
    assert spec.features == {"image-thumbnail": Path("data/features/album/image/thumbnail")}
    assert spec.parameters == {"image": "thumbnail", "margin": 0.5}


def test_parameters_of_the_package_are_checked_like_ours(clone, capsys):
    params = (clone / "params.yaml").read_text()
    for wrong, message in [
        (
            ("side: 4", "sied: 4"),
            "encoders.image.thumbnail: unknown key 'sied'; did you mean 'side",
        ),
        (("side: 4", "side: 99"), "encoders.image.thumbnail.side: input should be less than or eq"),
        (("family: thumbnail", "family: thumbnial"), "'thumbnial'; did you mean 'thumbnail'?"),
        (
            ("kind: sidecar", "kind: sidecars"),
            "album: unknown kind of data set 'sidecars'; d",
        ),
        (("scale: 0.5", "scale: 2"), "grounding.segmenter.scale: input should be less than or eq"),
        (("odd-one-out:", "odd-one-in:"), "tasks.odd-one-in: unknown evaluation task 'odd-one-in'"),
        (("words:", "wrods:"), "grounding.grounder: unknown key 'wrods'; did you mean 'words'?"),
        (("family: glossary", "family: glosary"), "grounding.grounder: unknown grounder"),
    ]:
        (clone / "params.yaml").write_text(params.replace(*wrong))
        assert wrong[0] in params
        assert message in refused(capsys, "stage", "prepare", "album")
    (clone / "params.yaml").write_text(params)
    image = ["extract", "image", "--data", "data/raw/album/pictures", "--out", "out"]
    for encoder, weights, message in [
        ("thumbnail:huge", "random:0", "unknown thumbnail model 'huge'; there are small, large"),
        ("thumbnail:small", "pretrained:x", "thumbnail: has no published weights"),
        ("thumbnial:small", "random:0", "or FAMILY:MODEL with a family of torchvision, open_clip,"),
    ]:
        said = refused(capsys, *image, "--encoder", encoder, "--weights", weights)
        assert message in said
    said = refused(
        capsys, "extract", "text", "--data", "params.yaml", "--out", "out",
        "--encoder", "thumbnail:small", "--weights", "random:0",
    )  # fmt: skip
    assert "'thumbnail' (small) does not encode texts; families that do: open_clip, tr" in said


@pytest.mark.parametrize("group", REGISTRIES)
def test_two_packages_with_one_name_are_one_error(site, group):
    registry = REGISTRIES[group]
    install(site, "first", {group: {"mine": "first.a:A"}})
    assert registry.places["mine"] == "first.a:A"
    forget(REGISTRIES.values())
    install(site, "second", {group: {"mine": "second.b:B"}})
    with pytest.raises(SightlineError, match="has the same name as") as caught:
        list(registry)
    for part in ("first", "second", f"{group}:mine", "first.a:A", "second.b:B", "rename it"):
        assert part in str(caught.value)


@pytest.mark.parametrize("group", REGISTRIES)
def test_a_builtin_name_cannot_be_reused(site, group):
    ours = next(iter(REGISTRIES[group].places))
    forget(REGISTRIES.values())
    install(site, "thief", {group: {ours: "thief:Thing"}})
    with pytest.raises(SightlineError, match=f"thief: its entry point {group}:{ours}.*Sightline"):
        list(REGISTRIES[group])


BROKEN = {
    "gone": ("gone_package:X", "gone_package cannot be imported: ModuleNotFoundError"),
    "raises": ("broken:X", "broken cannot be imported: RuntimeError: out of order"),
    "lacks": ("plain:X", "its module plain has no 'X'; add it"),
    "other": ("plain:Y", "expected a subclass of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_entry_point_that_cannot_be_used_is_one_error(site, clone, capsys, name):
    place, message = BROKEN[name]
    (site / "broken.py").write_text("raise RuntimeError('out of order')\n")
    (site / "plain.py").write_text("Y = 3\n")
    install(site, "other", {group: {name: place} for group in REGISTRIES})
    forget(REGISTRIES.values())
    params = (clone / "params.yaml").read_text()
    for wrong in (
        ("kind: sidecar", f"kind: {name}"),
        ("family: thumbnail", f"family: {name}"),
        ("family: glossary", f"family: {name}"),
        ("family: ellipse", f"family: {name}"),
    ):
        assert wrong[0] in params
        (clone / "params.yaml").write_text(params.replace(*wrong))
        said = refused(capsys, "stage", "prepare", "album")
        assert message in said
        assert place in said
    (clone / "params.yaml").write_text(params)
    said = refused(
        capsys, "train", name, "--out", "runs/x",
        "--student", "bert-base-uncased", "--tokens", "tokens", "--text", "nothing",
    )  # fmt: skip
    assert message in said
    # an entry point that is not used is not imported and does no harm
    assert "4 images" in ran(capsys, "stage", "prepare", "album")


UNFINISHED = """
from pipeline.datasets.source import Source

class Unfinished(Source):
    pass
"""


def test_a_class_without_its_method_is_one_error(site, clone, capsys):
    (site / "unfinished.py").write_text(UNFINISHED)
    install(site, "other", {"sightline.datasets": {"unfinished": "unfinished:Unfinished"}})
    forget(REGISTRIES.values())
    said = refused(capsys, "prepare", "unfinished", "--out", "out")
    assert (
        "'unfinished' (unfinished:Unfinished, entry point of sightline.datasets): lacks pre" in said
    )


@pytest.mark.parametrize(("module", "old", "new", "command", "message"), MISTAKES)
def test_a_packages_mistake_is_the_packages(
    clone, lamplight, capsys, module, old, new, command, message
):
    if command[0] in ("ground", "train"):
        ran(capsys, "prepare", "sidecar", "--images", "data/raw/album/pictures", "--out", "mine")
    if command[0] == "train":
        ran(capsys, *ENCODING[:-3], "features", "--workers", "0")
        ran(
            capsys, "tokens", "--data", "mine", "--student", "bert-base-uncased", "--out", "tokens"
        )  # fmt: skip
        capsys.readouterr()
    mended = (PACKAGE / f"lamplight/{module}.py").read_text()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lamplight"]:
        del sys.modules[name]
    if "torch.ones(2)" in new:
        mended = mended.replace(
            "from torch import Tensor", "import torch\nfrom torch import Tensor"
        )
    assert old in mended
    if "_spoil" in new:
        new += "\n" + SPOILING
    path = lamplight / "lamplight" / f"{module}.py"
    path.write_text(mended.replace(old, new))
    said = refused(capsys, *command)
    assert message in said
    assert "lamplight" in said
    assert "bug in Sightline" not in said


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (lambda texts: 3, "lengths of what it makes: found 3 (int), expected Input should be"),
        (lambda texts: [2.5] * len(texts), "lengths of what it makes.0: found 2.5 (float)"),
        (lambda texts: [2], "found 1 (int), expected one for each of 3 texts; fix the package"),
    ],
)
def test_lengths_that_are_none_are_the_packages_mistake(lengths, message):
    def build_text(config, device, precision):
        identity = EncoderRecord(name="a/b", source="random:0", weights_sha256="0" * 64)
        return TextEncoder(identity, 3, {}, lengths, lambda texts, length: None)

    encoder = checked_encoder(build_text(None, None, None), build_text, "build_text")
    with pytest.raises(SightlineError, match=re.escape(message)):
        encoder.lengths(["a", "b", "c"])
