"""The commands of docs/start.md, and the exchange of features in docs/cache.md, run as shown."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline, unboxed
from datasets import Dataset
from PIL import Image
from shown_commands import ROOT, commands_in
from small_senteval import write_senteval, write_transfer
from tiny_encoder import make_encoder

from sightline.cache import FeatureSet
from train.evaluate.sts import STS_TASKS

STAND_INS = {"pretrained:IMAGENET1K_V1": "random:0", "bert-base-uncased": "student"}
"""Resources that are unavailable offline, and their stand-ins."""
SMALL = {"extract image": ["--batch-size", "4", "--workers", "0"]}
"""Options of a command for four images; they change no row."""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with the files that the pages assume."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "photos").mkdir()
    rows = ["image,caption"]
    for i, colour in enumerate(("red", "blue", "green", "white")):
        Image.new("RGB", (40, 30), colour).save(folder / f"photos/{i}.png")
        rows += [f"{i}.png,a {colour} dog sits", f"{i}.png,the big {colour} tree"]
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    photos = [path.read_bytes() for path in sorted((folder / "photos").iterdir())]
    pack(folder / "shards/00000.tar", photos)
    columns = {"image": photos, "captions": [["one", "two"]] * len(photos)}
    Dataset.from_dict(columns).save_to_disk(folder / "saved")
    for part in make_encoder():
        part.save_pretrained(folder / "student")
    write_transfer(write_senteval(folder / "senteval/downstream"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    shutil.copy(ROOT / "dvc.yaml", folder)
    (folder / ".dvc").mkdir()
    (folder / "broken.parquet").write_bytes(b"no parquet")
    return folder


@pytest.fixture
def place(files, tmp_path, monkeypatch) -> Path:
    """A copy of that folder to work in."""
    folder = shutil.copytree(files, tmp_path / "place")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    return folder


def pack(path: Path, photos: list[bytes]) -> None:
    """Write photographs with captions as img2dataset does."""
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for number, photo in enumerate(photos):
            for suffix, data in (("jpg", photo), ("txt", f"caption {number}".encode())):
                member = tarfile.TarInfo(f"{number:09}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


GRAPH = ("sightline repro", "sightline accept")
"""Commands that need a hub and a folder of their own."""


def of_sightline(name: str, *headings: str) -> list[str]:
    """The commands of single stages on a page, or in the sections of it with these headings."""
    text = (ROOT / name).read_text()
    sections = [text.partition(f"## {each}\n")[2].partition("\n## ")[0] for each in headings]
    return [
        command
        for command in commands_in("\n".join(sections) or text)
        if command.startswith("sightline ") and not command.startswith(GRAPH)
    ]


def run(command: str) -> int:
    """Run a shown command in this process, with stand-ins, and return its exit code."""
    words = [STAND_INS.get(word, word) for word in command.split()]
    return sightline(*words[1:], *SMALL.get(" ".join(words[1:3]), []))


def test_shown_commands_run_in_order(place, capsys):
    for command in of_sightline("docs/start.md"):
        assert run(command) == 0, f"{command}\n{capsys.readouterr().err}"
    _, header, _, row = capsys.readouterr().out.strip().splitlines()[-4:]
    assert header.split() == ["run", "seeds", *STS_TASKS, "Avg"]
    assert "(untrained features)" in row  # the stand-in of the encoder has random weights
    assert all(-100 <= float(score) <= 100 for score in row.split()[-len(STS_TASKS) - 1 :])

    shutil.rmtree("features")
    for command in of_sightline("README.md", "Your photographs"):
        assert run(command) == 0, f"{command}\n{capsys.readouterr().err}"
    assert len(FeatureSet.open("features/resnet50")) == 4


def test_the_exchange_of_features_runs_as_shown(place, capsys, monkeypatch):
    small = {"ViT-B-32": "resnet18", "pretrained:openai": "random:0", "20": "4"}
    for command in (
        "prepare pairs --images photos --captions captions.csv --out data/mine",
        "extract image --data photos --encoder resnet18 --weights random:0 --workers 0 "
        "--out features/clip",
        "cache export features/clip --format npy --normalise --data data/mine --out theirs",
    ):
        assert sightline(*command.split()) == 0, capsys.readouterr().err
    Path("theirs/export.json").unlink()  # as another tool would have written it
    table = Path("theirs/metadata/metadata_0000.parquet")
    pq.write_table(pq.read_table(table).drop_columns(["key"]), table)
    shutil.rmtree("data/mine.run", ignore_errors=True)
    rows = np.load("theirs/img_emb/img_emb_0000.npy")
    names = pq.read_table("theirs/metadata/metadata_0000.parquet")["image_path"].to_pylist()
    Path("datacomp/metadata").mkdir(parents=True)
    np.savez("datacomp/metadata/00ab.npz", l14_img=rows, l14_txt=rows)
    uids = pa.table({"uid": [Path(name).stem for name in names], "text": names})
    pq.write_table(uids, "datacomp/metadata/00ab.parquet")
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    pq.write_table(pa.table({"path": names, "embedding": column}), "table.parquet")
    capsys.readouterr()
    for command in of_sightline(
        "docs/cache.md", "Features for other tools", "Features that others made"
    ):
        if "--format mcse" in command:
            continue  # tests/interchange/test_paper_files.py
        words = [small.get(word, word) for word in shlex.split(command)]
        assert sightline(*words[1:]) == 0, f"{command}\n{capsys.readouterr().err}"
    said = capsys.readouterr().out
    assert "kind image, normalised, from clip-retrieval; imported, not checked" in said
    assert "set.json now says: imported, 4 rows recomputed and equal" in said

    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", place / "cache")
    page = (ROOT / "docs/cache.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "clip-of-mine" in b]
    found: dict = {}
    exec(block, found)
    assert found["rows"][:]["features"].tobytes() == features_of("features/clip").tobytes()


def features_of(folder: str) -> np.ndarray:
    found = FeatureSet.open(folder)
    return found.gather(np.arange(len(found)))


MISTAKES = [
    (
        "prepare pairs --images nowhere --captions captions.csv --out x",
        "no such image folder",
    ),
    ("prepare pairs --images photos --captions nothing.csv --out x", "no such file"),
    (
        "prepare pairs --images photos --captions captions.csv --splits train --out x",
        "NAME=VALUE",
    ),
    ("prepare flickr30k --images photos --out x", "--captions is missing"),
    ("prepare coco --images photos --captions tain=c.json --out x", "unknown split 'tain'"),
    ("prepare sentences --path captions --out x", "no such file"),
    (
        "extract text --data broken.parquet --encoder ViT-B-32 --weights random:0 --out x",
        "not a readable Parquet",
    ),
    ("extract text --data captions.csv --encoder ViT-B-32 --out x", "--weights is missing"),
    ("tokens --data dvc.yaml --student ./nobody --out x", "./nobody: there is no such"),
    ("tokens --data nowhere --student student --out x", "nowhere: no such file"),
    ("train mcse --tokens x --student student --set image=clip --out x", "found neither"),
    (
        "train mcse --text x --set image=1 --set image=2 --tokens x --student y --out x",
        "image appears twice",
    ),
    ("train mcs --text x --tokens x --student student --out x", "mean 'mcse'?"),
    ("train simcse --text x --tokens x --student y --out x", "no such manifest; `sightline prep"),
    ("train dalr --text x --set teachers=[ --tokens x --student y --out x", "is not YAML"),
    ("train simcse --batch-size 1 --text x --tokens x --student y --out x", "--batch-size: input"),
    ("evaluate sts --model student --data photos", "STS.input.MSRpar.txt: no such file"),
    ("evaluate sts --model ./nobody --data senteval/downstream", "./nobody: there is no such"),
    ("evaluate similarity --model student --data captions.csv", "expected score (or"),
    ("evaluate st --model student --data captions.csv", "unknown evaluation task 'st'"),
    ("evaluate sts --model student", "sts needs --data: SentEval's"),
    ("evaluate sts --data photos", "give at least one"),
    ("evaluate sts --modle student --data photos", "No such option: --modle"),
    ("evaluate sts --model student --dta photos", "No such option: --dta"),
    ("evaluate sts --model student --set data", "found 'data', expected NAME=VALUE"),
    (
        "evaluate retrieval --model student --data photos --features features --folds 0",
        "--folds: input should be greater than or equal to 1; found",
    ),
    ("evaluate sts --model student --data senteval/downstream", "does not say how to pool"),
    ("stage prepar scenes", "unknown stage 'prepar'; did you mean 'prepare'?"),
    ("stage image-features scenes", "expected: sightline stage image-features DATASET ENCODER"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[c for c, _ in MISTAKES])
def test_a_mistake_is_one_clear_error(files, monkeypatch, capsys, command, message):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "120")
    assert run(f"sightline {command}") in (1, 2)
    said = capsys.readouterr()
    assert message in unboxed(said.err)
    assert "Traceback" not in said.err + said.out
    assert not Path("x").exists()
