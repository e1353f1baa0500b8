"""The rule for outputs: only our own files, listed by name in a record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.errors import BusyError, SightlineError
from sightline.files import check_apart
from sightline.output import RECORDS, Output, json_record, next_names, run_folder_of, write_file

RECORD, SCHEMA = "dataset.json", "sightline.dataset/1"


def opened(folder: Path, *inputs: Path) -> Output:
    return Output(folder, RECORD, json_record(SCHEMA), inputs)


def publish(folder: Path, **files: str) -> None:
    """Publish these files in ``folder``; ``__`` in a name means a subfolder."""
    with opened(folder) as output, output.scratch() as made:
        for name, text in files.items():
            path = made / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        output.publish(made, {"schema": SCHEMA})


def killed():
    """A block that ends as if the process had been killed in it."""
    return pytest.raises(KeyboardInterrupt)


def names_in(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(found)


def test_files_replace_those_that_the_record_lists(tmp_path):
    publish(tmp_path / "out", a="1", b="1", sub__c="1")
    (tmp_path / "out/sub/mine").write_text("mine")
    publish(tmp_path / "out", a="2", d="2")
    assert names_in(tmp_path) == ["out/a", "out/d", f"out/{RECORD}", "out/sub/mine"]
    assert (tmp_path / "out/a").read_text() == "2"
    assert json.loads((tmp_path / "out" / RECORD).read_text())["files"] == ["a", "d"]
    (tmp_path / "out/sub/mine").unlink()
    publish(tmp_path / "out", a="3", deep__deeper__e="1")
    publish(tmp_path / "out", a="4")
    folders = {path.name for path in (tmp_path / "out").iterdir()}
    assert folders == {"a", "sub", RECORD}  # one that our files leave empty goes


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("name", ["a", "sub/c"])
def test_a_file_that_is_not_listed_is_never_replaced(tmp_path, name, kind):
    (tmp_path / "out/sub").mkdir(parents=True)
    theirs = tmp_path / "out" / name
    if kind == "link":
        theirs.symlink_to(tmp_path / "mine")
        theirs = tmp_path / "mine"
    theirs.write_text("mine")
    before = names_in(tmp_path)
    with pytest.raises(SightlineError, match=rf"out/{name}: already exists, and {RECORD} does"):
        publish(tmp_path / "out", a="1", sub__c="1")
    assert names_in(tmp_path) == before
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("record", sorted(RECORDS.keys() - {RECORD}))
def test_a_folder_of_another_kind_is_refused(tmp_path, record):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / record).write_text('{"schema": "sightline.else/1", "files": []}')
    before = names_in(tmp_path)
    with pytest.raises(SightlineError, match=f"contains {RECORDS[record]} .* another folder"):
        publish(tmp_path / "out", a="1")
    assert names_in(tmp_path) == before
    (tmp_path / "out" / record).write_text("{}")  # a file of that name which is not ours
    publish(tmp_path / "out", a="1")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_nothing_is_written_through_a_link_or_over_a_file(tmp_path, kind):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    if kind == "link":
        (tmp_path / "out/sub").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "out/sub").write_text("mine")
    with pytest.raises(SightlineError, match=f"out/sub: is a {kind}"):
        publish(tmp_path / "out", sub__c="1")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_of_ours_that_became_a_link_is_not_written_through(tmp_path):
    publish(tmp_path / "out", sub__c="1")
    (tmp_path / "out/sub").rename(tmp_path / "elsewhere")
    (tmp_path / "out/sub").symlink_to(tmp_path / "elsewhere")
    for files in ({"sub__c": "2"}, {"sub__c": "1"}):
        with pytest.raises(SightlineError, match="out/sub: is a link"):
            publish(tmp_path / "out", **files)
    publish(tmp_path / "out", a="3")
    assert (tmp_path / "elsewhere/c").read_text() == "1"


@pytest.mark.parametrize(
    "text", ["{}", "[]", "no json", '{"schema": "mine", "files": []}', '{"files": ["a"]}']
)
def test_a_foreign_record_is_refused(tmp_path, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RECORD).write_text(text)
    with pytest.raises(
        SightlineError, match=f"{RECORD}: .* expected {SCHEMA}; this folder belongs"
    ):
        publish(tmp_path / "out", a="1")
    assert (tmp_path / "out" / RECORD).read_text() == text
    assert names_in(tmp_path) == [f"out/{RECORD}"]


@pytest.mark.parametrize("name", ["../precious", "/precious", ""])
def test_a_record_cannot_name_files_elsewhere(tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RECORD).write_text(json.dumps({"schema": SCHEMA, "files": [name]}))
    with pytest.raises(SightlineError, match="lists files outside its folder"):
        publish(tmp_path / "out", a="1")
    assert (tmp_path / "precious").exists()


def test_the_next_record_makes_a_killed_run_s_files_ours(tmp_path):
    publish(tmp_path / "out", a="1")
    for name in "bc":
        with killed(), opened(tmp_path / "out") as output, output.scratch() as made:
            (made / name).write_text("2")
            output.move_in(made)
            raise KeyboardInterrupt
    with killed(), opened(tmp_path / "out") as output:
        assert output.owned == {"a", "b", "c", RECORD}
        output.claim(["d"])
        raise KeyboardInterrupt
    assert next_names(tmp_path / "out", RECORD) == {"b", "c", "d"}
    with opened(tmp_path / "out"):
        pass
    assert next_names(tmp_path / "out", RECORD) == {"b", "c"}  # "d" may be somebody's from now on
    publish(tmp_path / "out", a="3")
    assert names_in(tmp_path) == ["out/a", f"out/{RECORD}"]


@pytest.mark.parametrize("kind", ["text", "folder", "link", "outside"])
def test_a_next_record_that_is_not_ours_is_refused(tmp_path, kind):
    publish(tmp_path / "out", a="1")
    path = tmp_path / "out" / f"{RECORD}.next"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "gone")
    else:
        names = {"schema": "sightline.next/1", "files": ["../precious"]}
        path.write_text("years of work" if kind == "text" else json.dumps(names))
    before = path.lstat()
    with pytest.raises(SightlineError, match=rf"{RECORD}.next: .* move it away"):
        publish(tmp_path / "out", a="2")
    assert path.lstat() == before
    assert (tmp_path / "out/a").read_text() == "1"


def test_a_file_with_the_same_bytes_is_adopted(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("1")
    publish(tmp_path / "out", a="1")
    publish(tmp_path / "out", a="2")
    assert (tmp_path / "out/a").read_text() == "2"


@pytest.mark.parametrize("name", ["lock", "plan.json", "failures.jsonl"])
def test_a_foreign_run_folder_is_refused(tmp_path, name):
    (tmp_path / "out.run").mkdir()
    (tmp_path / "out.run" / name).write_text("years of work")
    with pytest.raises(SightlineError, match=r"out\.run.*belongs? to something else"):
        publish(tmp_path / "out", a="1")
    assert names_in(tmp_path) == [f"out.run/{name}"]


def test_one_writer_at_a_time(tmp_path):
    with opened(tmp_path / "out"), pytest.raises(BusyError):
        publish(tmp_path / "out", a="1")


@pytest.mark.parametrize("out", ["img", "mine", "mine/img/a.jpg/.."])
def test_inputs_are_kept_apart(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    Path("mine/img/a.jpg").mkdir(parents=True)
    Path("img").symlink_to("mine/img")
    with pytest.raises(SightlineError, match=r"is also an input|contains the input"):
        check_apart(Path(out), [Path("mine/img")])


def test_an_output_inside_an_input_is_a_new_folder_or_ours(tmp_path):
    (tmp_path / "img/theirs").mkdir(parents=True)
    (tmp_path / "img/theirs/a.jpg").write_text("x")
    with (
        pytest.raises(SightlineError, match=r"is inside the input .* contains other files"),
        opened(tmp_path / "img/theirs", tmp_path / "img"),
    ):
        pass
    for _ in range(2):
        with opened(tmp_path / "img/new", tmp_path / "img") as output, output.scratch() as made:
            (made / "a").write_text("1")
            output.publish(made, {"schema": SCHEMA})


def test_the_working_folder_and_a_link_to_a_folder(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    publish(tmp_path / "link", a="1")
    monkeypatch.chdir(tmp_path / "real")
    publish(Path(), a="2")
    assert names_in(tmp_path) == ["real/a", f"real/{RECORD}"]
    assert (tmp_path / "link").is_symlink()


MOUNTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_output import names_in, publish, run_folder_of
out = Path(sys.argv[1])
assert run_folder_of(out) == out / ".run", run_folder_of(out)
(out / "notes").write_text("mine")
for text in "12":
    publish(out, a=text)
assert names_in(out) == ["a", "dataset.json", "notes"], names_in(out)
"""


@pytest.mark.parametrize("mount", ["-t tmpfs none", "--bind there"])
def test_a_mount_point(tmp_path, mount):
    if not shutil.which("unshare"):
        pytest.skip("this system has no unshare")
    for name in ("there", "out"):
        (tmp_path / name).mkdir()
    inside = ["unshare", "-rm", "sh", "-c", f'mount {mount} out && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system")
    command = [sys.executable, "-c", MOUNTED, str(tmp_path / "out"), str(Path(__file__).parent)]
    path = os.pathsep.join([str(Path.cwd()), *sys.path])
    done = subprocess.run(
        [*inside, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_file_is_replaced_only_if_it_bears_our_mark(tmp_path):
    path, mark = tmp_path / "page.html", b"Sightline page"
    write_file(path, b"<!-- Sightline page --> 1", mark)
    write_file(path, b"<!-- Sightline page --> 2", mark)
    path.write_text("my notes on the Sightline project")
    with pytest.raises(SightlineError, match=r"page\.html: already exists and was not written by"):
        write_file(path, b"<!-- Sightline page --> 3", mark)
    assert path.read_text() == "my notes on the Sightline project"


def test_run_folders_lie_beside_their_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder_of(Path()) == Path(f"{tmp_path}.run")
    assert run_folder_of(Path("a/b")) == tmp_path / "a/b.run"


def test_scratch_folders_can_be_nested(tmp_path):
    with opened(tmp_path / "out") as output, output.scratch() as outer:
        (outer / "kept").touch()
        with output.scratch() as inner:
            assert inner != outer
        assert (outer / "kept").exists()
    assert not list(tmp_path.rglob("scratch*"))
