"""`sightline train`: what follows from the feature sets and the data that are given."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import unboxed
from cures import EXTRACT, PREPARE, TEXTS, write_inputs
from cures import run as ran

from sightline.cache import TokenSet

END = " --student ./student --max-steps 1 --batch-size 4 --device cpu"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set d with image features in clip, image-other, and text features in text."""
    folder = tmp_path_factory.mktemp("made")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (PREPARE, EXTRACT + "clip", EXTRACT + "image-other", TEXTS):
            assert ran(command) == 0, command
    return folder


@pytest.fixture
def train(made, monkeypatch, said):
    """Runs a training with these words; returns the parameters of run.json, or the error."""
    monkeypatch.chdir(made)

    def call(words: str, out: str = "run"):
        code, _, err = said(*shlex.split(f"train {words}{END} --out {out}"))
        if code:
            return unboxed(err)
        return json.loads(Path(out, "run.json").read_text())

    return call


def test_a_set_says_its_kind_and_its_folder_the_encoders_name(train):
    record = train("mcse --data d --features clip --weight 0.5", "named")
    assert (record["parameters"]["image"], record["parameters"]["weight"]) == ("clip", 0.5)
    assert [*record["features"]] == ["image-clip"]
    assert [*train("mcse --data d --features image-other", "other")["features"]] == ["image-other"]
    named = train("mcse --data d --features image-x=clip", "by-name")
    assert named["features"]["image-x"] == record["features"]["image-clip"]
    both = train("kdmcse --data d --features clip --features text", "both")
    assert {*both["features"]} == {"image-clip", "text-text"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("mcse --data d", "image is not given; .*--features FOLDER, a set of image features"),
        ("simcse --data d --features clip", "clip holds image features; simcse needs no features"),
        ("mcse --data d --features text", "image is not given"),
        ("mcse --data d --features clip --phrases text", "objective mcse reads no phrases; omit"),
        (
            "mcse --data d --features clip --features text",
            "text holds text features; mcse needs image-clip",
        ),
        (
            "mcse --data d --features clip --features image-other",
            "image-other holds image features, of which another set is given",
        ),
        (
            "dalr --data d --features clip --features text --set 'teachers=[{encoder: a, weight: 1,"
            " features: text}, {encoder: b, weight: 1, features: text}]'",
            "text holds text features, which text-a and text-b need; write text-a=text",
        ),
        ("mcse --data d --features c=clip", "found 'c'; a NAME is a kind and an encoder"),
        ("mcse --data d --features nowhere", "nowhere: not a feature set"),
        ("mcse --data d --features clip --set weight=1", "weight is an option: give --weight"),
        ("mcse --data d --features clip --weight=-1", "--weight: input should be greater"),
        ("msce --data d", "unknown objective 'msce'; did you mean 'mcse'"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(train, words, fault):
    found = train(words, "not-made")
    assert re.search(fault, found), found
    assert not Path("not-made").exists()


def test_tokens_are_made_once_beside_the_data_set(train):
    train("simcse --data d", "first")
    (folder,) = Path("tokens").glob("d-student-32-????????")
    assert re.fullmatch(r"d-student-32-[0-9a-f]{8}", folder.name)
    digest = TokenSet.open(folder).record.content_digest
    before = (folder / "set.json").stat().st_mtime_ns
    train("simcse --data d --learning-rate 1e-4", "second")
    assert (folder / "set.json").stat().st_mtime_ns == before
    assert ran("tokens --data d --student ./student --out by-hand") == 0
    assert TokenSet.open("by-hand").record.content_digest == digest
    train("simcse --data d --max-length 16", "third")
    (folder,) = Path("tokens").glob("d-student-16-????????")
    assert TokenSet.open(folder).header.max_length == 16
    train("simcse --data d --prompt 'in: '", "fourth")
    (folder,) = Path("tokens").glob("d-student-32-????????-????????")
    assert TokenSet.open(folder).header.prompt == "in: "


@pytest.mark.slow
def test_of_several_processes_one_makes_the_tokens(made, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    (tmp_path / "d").symlink_to(made / "d")
    words = ["train", "simcse", "--data", "d", "--student", str(made / "student")]
    words += ["--max-steps", "1", "--batch-size", "4", "--device", "cpu", "--out", "run"]
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *words],
            cwd=tmp_path,
            env={**os.environ, **told, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert ["tokens for" in text for text in said].count(True) <= 1
    assert json.loads((tmp_path / "run/run.json").read_text())["steps"] == 1


HOLDS = """
import sys, time
from pathlib import Path
from sightline.files.lock import WriterLock
with WriterLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(1)
"""


def test_a_run_waits_for_the_tokens_that_another_one_makes(made, monkeypatch, said):
    monkeypatch.chdir(made)
    words = f"train simcse --data d --max-length 24{END} --out waits".split()
    tokens = said(*words, "--dry-run")[1].strip().rpartition("in ")[2]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, f"{tokens}.run"], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        code, _, err = said(*words)
    assert code == 0, err
    assert err.count("waits: waits for its tokens: ") == 1


def test_a_dry_run_without_tokens_makes_none(made, monkeypatch, said):
    monkeypatch.chdir(made)
    code, out, _ = said(*f"train simcse --data d --max-length 20{END} --out no --dry-run".split())
    assert (code, out.startswith("no: unknown until the tokens are made, in ")) == (0, True)
    assert not Path("no").exists()
    assert not [*Path("tokens").glob("d-student-20*")]
