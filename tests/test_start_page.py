"""The table of the first page, "what you have": each row's command on a small file of that kind."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from shown_commands import ROOT
from small_inputs import write_photos
from tiny_encoder import make_encoder

TABLE = (ROOT / "docs/start.md").read_text().partition("| what you have |")[2].partition("\n\n")[0]
COMMANDS = re.findall(r"`sightline ([^`]*)`", TABLE)
NAMES = [f"{n}.png" for n in range(4)]


def write_tars(folder: Path) -> None:
    with tarfile.open(folder / "0.tar", "w") as tar:
        for number, name in enumerate(NAMES):
            for part in ("png", "image.jpg"):
                tar.add(f"photos/{name}", f"{number}.{part}")
            for part in ("txt", "caption.txt"):
                tar.add("a.txt", f"{number}.{part}")


def write_all() -> None:
    """Every file that the table names, in the working folder."""
    write_photos(Path("photos"), len(NAMES))
    rows = [f"{name},a red bird" for name in NAMES]
    for table in ("captions.csv", "photos/metadata.csv"):
        Path(table).write_text("\n".join(["image,caption", *rows]))
    sentences = [[{"raw": "a red bird"}, {"raw": "a bird"}]] * 4
    pq.write_table(pa.table({"photo": NAMES, "sentences": sentences}), "t.parquet")
    Path("results.token").write_text("".join(f"{name}#0\ta red bird\n" for name in NAMES))
    Path("a.txt").write_text("a red bird")
    for name in NAMES:
        shutil.copy("a.txt", Path("photos", name).with_suffix(".txt"))
    images = [{"filename": n, "split": "train", "sentences": [{"raw": "a"}]} for n in NAMES]
    Path("dataset_flickr8k.json").write_text(json.dumps({"images": images}))
    coco = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(NAMES)],
        "annotations": [{"id": n, "image_id": n, "caption": "a"} for n in range(4)],
    }
    Path("captions_train2017.json").write_text(json.dumps(coco))
    Path("shards").mkdir()
    write_tars(Path("shards"))
    Path("saved").mkdir()
    photos = [Path("photos", name).read_bytes() for name in NAMES]
    captions = pa.table({"image": photos, "captions": [["a", "b"]] * 4})
    pq.write_table(captions, "saved/train.parquet")
    Path("wiki.txt").write_text("a bird\na boat\n")
    Path("nli.csv").write_text("sent0,sent1\na bird,a boat\n")
    Path("pairs.csv").write_text("score,sentence1,sentence2\n1,a,b\n5,a bird,a boat\n2,a,a\n")
    for part in make_encoder():
        part.save_pretrained("student")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write_all()
    return root


def test_the_table_has_a_row_for_every_kind_of_photographs():
    kinds = {command.split()[1] for command in COMMANDS if command.startswith("prepare")}
    assert kinds == {"pairs", "coco", "webdataset", "huggingface", "sentences"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_reads_what_one_has(folder, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(folder)
    words = command.split()
    out = tmp_path / words.pop()
    assert sightline(*words, out) == 0, capsys.readouterr().err
    if words[0] == "prepare":
        counts = json.loads((out / "dataset.json").read_text())["counts"]
        assert counts.get("captions", counts["sentences"]) >= 1
        assert counts.get("images") in (None, 4)
    else:
        assert list(out.rglob("*.json"))
