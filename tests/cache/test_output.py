"""The rule for outputs: only our own files, listed by name in a record."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.errors import BusyError, SightlineError, message_of
from sightline.files.atomic_files import check_apart, write_bytes
from sightline.files.output import (
    RECORDS,
    Output,
    json_record,
    next_names,
    run_folder_of,
    write_file,
)

RECORD, SCHEMA = "dataset.json", "sightline.dataset/1"


def opened(folder, *inputs):
    return Output(folder, RECORD, json_record(SCHEMA), inputs)


def publish(folder, *inputs, **files):
    """Publish these files in ``folder``; ``__`` in a name means a subfolder."""
    with opened(folder, *inputs) as output, output.scratch() as made:
        for name, text in files.items():
            write(made / name.replace("__", "/"), text)
        output.publish(made, {"schema": SCHEMA})


def write(path, text="mine"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def content(folder):
    """Name → text of every file, target of every link."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            found[name] = path.read_text()
    return found


@pytest.fixture
def out(tmp_path):
    """An output that is there already."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_files_replace_those_that_the_record_lists(out):
    publish(out, a="1", b="1", sub__c="1")
    write(out / "sub/mine")
    publish(out, a="2", d="2")
    assert [*content(out.parent)] == ["out/a", "out/d", f"out/{RECORD}", "out/sub/mine"]
    assert (out / "a").read_text() == "2"
    assert json.loads((out / RECORD).read_text())["files"] == ["a", "d"]
    (out / "sub/mine").unlink()
    publish(out, a="3", deep__deeper__e="1")
    publish(out, a="4")
    folders = {path.name for path in out.iterdir()}
    assert folders == {"a", "sub", RECORD}  # one that our files leave empty goes


ELSE = '{"schema": "sightline.else/1", "files": []}'
FOREIGN = f"{RECORD}: .* expected {SCHEMA}; this folder belongs"
ELSEWHERE = f'{{"schema": "{SCHEMA}", "files": ["%s"]}}'
NEXT = '{"schema": "sightline.next/1", "files": ["../precious"]}'


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("out/a", "mine", f"out/a: already exists, and {RECORD} does"),
        ("out/a", "1", f"out/a: already exists, and {RECORD} does"),  # the very bytes of ours
        ("out/sub/c", "mine", f"out/sub/c: already exists, and {RECORD} does"),
        ("out/sub", "mine", "out/sub: is a file"),
        *((f"out/{RECORD}", text, FOREIGN) for text in ("{}", "[]", "no json", '{"files": ["a"]}')),
        (f"out/{RECORD}", '{"schema": "mine", "files": []}', FOREIGN),
        (f"out/{RECORD}", ELSEWHERE % "../precious", "lists files outside its folder"),
        (f"out/{RECORD}", ELSEWHERE % "/precious", "lists files outside its folder"),
        (f"out/{RECORD}", ELSEWHERE % "", "lists files outside its folder"),
        (f"out/{RECORD}.next", "years of work", f"{RECORD}.next: .* move it away"),
        (f"out/{RECORD}.next", NEXT, f"{RECORD}.next: .* move it away"),
        *(
            (f"out/{record}", ELSE, f"contains {RECORDS[record]} .* another folder")
            for record in sorted(RECORDS.keys() - {RECORD})
        ),
        ("out.run/lock", "mine", r"out\.run.*belongs to something else"),
        ("out.run/plan.json", "mine", r"out\.run.*belong to something else"),
        ("out.run/failures.jsonl", "mine", r"out\.run.*belong to something else"),
    ],
)
def test_a_file_that_is_not_ours_is_never_replaced(out, name, text, fault):
    write(out.parent / name, text)
    write(out.parent / "precious")
    before = content(out.parent)
    with pytest.raises(SightlineError, match=fault):
        publish(out, a="1", sub__c="1")
    assert content(out.parent) == before


@pytest.mark.parametrize("name", ["a", "sub/c", "sub", f"{RECORD}.next"])
def test_nothing_is_written_through_a_link(out, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).symlink_to(tmp_path / ("elsewhere" if name == "sub" else "gone"))
    before = content(tmp_path)
    with pytest.raises(SightlineError, match=f"out/{name}: (is a link|already|another)"):
        publish(out, a="1", sub__c="1")
    assert content(tmp_path) == before


def test_a_folder_is_no_next_record(out):
    publish(out, a="1")
    (out / f"{RECORD}.next").mkdir()
    with pytest.raises(SightlineError, match=rf"{RECORD}.next: .* move it away"):
        publish(out, a="2")
    assert (out / "a").read_text() == "1"


def test_a_file_with_the_name_of_another_record_may_be_somebody_s(out):
    write(out / "set.json", "{}")
    publish(out, a="1")


def test_a_folder_of_ours_that_became_a_link_is_not_written_through(out, tmp_path):
    publish(out, sub__c="1")
    (out / "sub").rename(tmp_path / "elsewhere")
    (out / "sub").symlink_to(tmp_path / "elsewhere")
    for text in "21":
        with pytest.raises(SightlineError, match="out/sub: is a link"):
            publish(out, sub__c=text)
    publish(out, a="3")
    assert (tmp_path / "elsewhere/c").read_text() == "1"


def killed():
    """A block that ends as if the process had been killed in it."""
    return pytest.raises(KeyboardInterrupt)


def test_the_next_record_makes_a_killed_run_s_files_ours(out):
    publish(out, a="1")
    for name in "bc":
        with killed(), opened(out) as output, output.scratch() as made:
            (made / name).write_text("2")
            output.move_in(made)
            raise KeyboardInterrupt
    with killed(), opened(out) as output:
        assert output.owned == {"a", "b", "c", RECORD}
        output.claim(["d"])
        raise KeyboardInterrupt
    assert next_names(out, RECORD) == {"b", "c", "d"}
    with opened(out):
        pass
    assert next_names(out, RECORD) == {"b", "c"}  # "d" may be somebody's from now on
    publish(out, a="3")
    assert [*content(out.parent)] == ["out/a", f"out/{RECORD}"]


def test_one_writer_at_a_time(tmp_path):
    with opened(tmp_path / "out"), pytest.raises(BusyError):
        publish(tmp_path / "out", a="1")


@pytest.mark.parametrize("given", ["img", "mine", "mine/img/a.jpg/.."])
def test_inputs_are_kept_apart(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    Path("mine/img/a.jpg").mkdir(parents=True)
    Path("img").symlink_to("mine/img")
    with pytest.raises(SightlineError, match=r"is also an input|contains the input"):
        check_apart(Path(given), [Path("mine/img")])


def test_no_folder_called_tilde_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SightlineError, match="~/out: ~ is not expanded here"):
        publish(Path("~/out"), a="1")
    assert not list(tmp_path.iterdir())


def test_an_output_inside_an_input_is_a_new_folder_or_ours(tmp_path):
    write(tmp_path / "img/theirs/a.jpg")
    inside = pytest.raises(SightlineError, match=r"is inside the input .* contains other files")
    with inside, opened(tmp_path / "img/theirs", tmp_path / "img"):
        pass
    for _ in range(2):
        publish(tmp_path / "img/new", tmp_path / "img", a="1")


def test_private_files_go_out_as_others_may_read_them(tmp_path):
    with opened(tmp_path / "out") as output, output.scratch() as made:
        write(made / "a")
        (made / "a").chmod(0o600)  # as safetensors leaves its files
        output.publish(made, {"schema": SCHEMA})
    write(tmp_path / "plain")
    assert (tmp_path / "out/a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_working_folder_and_a_link_to_a_folder(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    publish(tmp_path / "link", a="1")
    monkeypatch.chdir(tmp_path / "real")
    publish(Path(), a="2")
    assert [*content(tmp_path)] == ["link", "real/a", f"real/{RECORD}"]


def test_run_folders_lie_beside_their_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder_of(Path()) == Path(f"{tmp_path}.run")
    assert run_folder_of(Path("a/b")) == tmp_path / "a/b.run"


MOUNTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_output import content, publish, run_folder_of
out = Path(sys.argv[1])
assert run_folder_of(out) == out / ".run", run_folder_of(out)
(out / "notes").write_text("mine")
for text in "12":
    publish(out, a=text)
assert [*content(out)] == ["a", "dataset.json", "notes"], content(out)
"""


@pytest.mark.parametrize("mount", ["-t tmpfs none", "--bind there"])
def test_a_mount_point(out, tmp_path, mount):
    if not shutil.which("unshare"):
        pytest.skip("this system has no unshare")
    (tmp_path / "there").mkdir()
    inside = ["unshare", "-rm", "sh", "-c", f'mount {mount} out && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system")
    command = [*inside, sys.executable, "-c", MOUNTED, str(out), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_is_replaced_only_if_it_bears_our_mark(tmp_path):
    path, mark = tmp_path / "page.html", b"Sightline page"
    write_file(path, b"<!-- Sightline page --> 1", mark)
    write_file(path, b"<!-- Sightline page --> 2", mark)
    path.write_text("my notes on the Sightline project")
    with pytest.raises(SightlineError, match=r"page\.html: already exists and was not written by"):
        write_file(path, b"<!-- Sightline page --> 3", mark)
    assert path.read_text() == "my notes on the Sightline project"


def test_scratch_folders_can_be_nested(tmp_path):
    with opened(tmp_path / "out") as output, output.scratch() as outer:
        (outer / "kept").touch()
        with output.scratch() as inner:
            assert inner != outer
        assert (outer / "kept").exists()
    assert not list(tmp_path.rglob("scratch*"))


@pytest.mark.parametrize("name", ["set.run", ".run", "link"])
def test_a_folder_for_the_files_of_runs_is_no_output(tmp_path, name):
    (tmp_path / "set.run").mkdir()
    (tmp_path / "link").symlink_to("set.run")
    with pytest.raises(SightlineError, match=f"{name}: a folder NAME.run is for the files of runs"):
        Output(tmp_path / name, RECORD, json_record(SCHEMA))


def test_a_run_folder_on_another_file_system_is_refused_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out.run").symlink_to("scratch")
    publish(tmp_path / "out", a="1")  # on one file system it works

    def device(path):
        return 1 + (path.name == "out.run")

    monkeypatch.setattr("sightline.files.output._device", device)
    with pytest.raises(SightlineError, match=r"out.run \(a link to scratch\) and .*out lie on two"):
        publish(tmp_path / "out", a="2")
    assert (tmp_path / "out/a").read_text() == "1"


@pytest.mark.parametrize("hidden", [False, True])
def test_a_full_disk_is_told_by_the_file_and_the_system(tmp_path, monkeypatch, hidden):
    """By the system, or by a library in Rust, such as safetensors and tokenizers."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_bytes(tmp_path / "set.json", b"{}")
    error = caught.value
    if hidden:
        error = Exception("Error while serializing: No space left on device (os error 28)")
    where = "" if hidden else f"{tmp_path / 'set.json'}: "
    expected = f"{where}No space left on device; what was published before is intact"
    assert message_of(error) == expected
    assert message_of(Exception("error 28")) is None
