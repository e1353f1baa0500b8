"""Hostile manifests and settings for `ground` and `extract`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import set_words
from ground_data import DataSet, annotated, write_phrases
from hostile_files import MANY, hostile_tables, run, write_hostile
from hypothesis import given
from hypothesis import strategies as st
from prepared_data import as_prepared
from small_inputs import write_clip

from sightline.cache import CAPTIONS, IMAGES, read_manifest
from sightline.cache.manifest import PHRASES, SENTENCES


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "set"
    write_phrases(DataSet.of(folder, 2), folder / "phrases.parquet")
    write_clip(folder)
    return folder


def words_of(
    command: str, sound: Path, folder: Path, data: Path | None = None, phrases: Path | None = None
) -> list[object]:
    """A command over the data set ``sound`` or ``data``, with these phrases."""
    data, phrases = data or sound, phrases or sound / "phrases.parquet"
    words = ["--data", data, "--out", folder / "out"]
    if command == "ground":
        return ["ground", *words, "--cutouts", folder / "cut", *set_words(annotated(phrases))]
    words += ["--encoder", sound / "clip.json", "--weights", "random:0", "--batch-size", 4]
    words += ["--phrases", phrases] if command == "object" else []
    return ["extract", command, *words, "--workers", 0]


@pytest.mark.parametrize("command", ["ground", "image", "object", "text"])
def test_sound_files_are_accepted(command, sound, tmp_path, capsys):
    """Else the sweep below would prove nothing."""
    outcome = run(capsys, *words_of(command, sound, tmp_path))
    assert outcome.code == 0, outcome.err
    assert "failed" not in outcome.out


SENTENCE_ROWS = [{"text": "one"}, {"text": "two"}]
READERS = {
    "phrases": (PHRASES, ["ground", "object"]),
    "images": (IMAGES, ["ground", "image", "object"]),
    "captions": (CAPTIONS, ["ground", "text"]),
    "sentences": (SENTENCES, ["text"]),
}
"""Manifest → its schema and the commands that read it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in READERS for command in READERS[name][1]]
)
@MANY
@given(data=st.data())
def test_manifests(name, command, data, sound, tmp_path_factory, capsys):
    folder, schema = tmp_path_factory.mktemp("case"), READERS[name][0]
    rows = SENTENCE_ROWS
    if name != "sentences":
        rows = read_manifest(sound / f"{name}.parquet", schema).to_pylist()
    places = {"offset": 0, "length": 0} if name == "images" else {}
    change = data.draw(hostile_tables(schema, [{**row, **places} for row in rows]))
    file = folder / f"{name}.parquet"
    fault = write_hostile(file, schema, rows, change)
    if command == "text" and not (fault and "text" in fault):
        fault = None  # the only column that is read
    if name in ("images", "captions"):
        (other,) = {"images", "captions"} - {name}
        (folder / f"{other}.parquet").symlink_to(sound / f"{other}.parquet")
        words = words_of(command, sound, folder, as_prepared(folder, sound / "images"))
    elif name == "phrases":
        words = words_of(command, sound, folder, phrases=file)
    else:
        words = words_of(command, sound, folder, file)
    outcome = run(capsys, *words)
    if fault is not None:
        outcome.refused(file, fault)
    if outcome.code and "failed" not in outcome.err:
        assert not (folder / "out/set.json").exists()


def laughs(depth: int) -> str:
    """YAML of 9 to the power of ``depth`` values."""
    words = ["x", *(f"*x{level}" for level in range(depth))]
    lists = [f"&x{level} [{','.join([words[level]] * 9)}]" for level in range(depth)]
    return f"[{', '.join(lists)}]"


@pytest.mark.parametrize(
    "setting",
    [
        "grounder=&a [*a]",
        "grounder=2020-13-45",
        f"grounder={{family: annotations, path: {'9' * 5000}}}",
        "grounder=? [a]: b",
        f"grounder={'[' * 5000}",
        "grounder=!!python/object/apply:os.system [ls]",
        f"grounder={laughs(8)}",
        "grounder={family: [annotations], path: x}",
        'grounder={family: annotations, path: "\\0"}',
        'grounder={family: annotations, path: "\\ud800"}',
        "grounder=null",
        "grounder=",
        "grounder=a: \x07\u202e",
        "rules.min_score=.nan",
        "rules.max_pairs=1e400",
        "rules.min_area=-.inf",
    ],
)
def test_a_hostile_setting_is_refused(setting, sound, tmp_path, capsys):
    words = words_of("ground", sound, tmp_path)
    if setting.startswith("grounder"):
        words = [word for word in words if "grounder." not in str(word)]
    assert run(capsys, *words, f"--set={setting}").code in (1, 2)
