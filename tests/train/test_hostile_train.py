"""Hostile manifests, dev sets and parameters for `train`: one error before anything is written."""

from __future__ import annotations

import pytest
from hostile_files import MANY, Change, hostile_tables, run, write_hostile
from hypothesis import given
from hypothesis import strategies as st

from sightline.cache import CAPTIONS, IMAGES, SENTENCES, read_manifest

pytestmark = pytest.mark.slow
SCHEMAS = {"captions": CAPTIONS, "images": IMAGES, "sentences": SENTENCES}
ROWS = {
    "captions": {"caption_id": "", "image_id": "", "text": "", "split": ""},
    "images": {
        **{"image_id": "", "path": "", "offset": 0, "length": 0, "key": b"k" * 32},
        **{"width": 1, "height": 1, "split": ""},
    },
    "sentences": {"text": ""},
}


def train_words(world, out, **changed):
    options = {
        **{"student": world.student, "tokens": world.root / "tokens"},
        **{"data": world.root, "text": world.root},
        **{"set": "image=tiny-cnn", "features": f"image-tiny-cnn={world.root / 'features'}"},
        **{"max-steps": 1, "batch-size": 4, "device": "cpu", "dev": world.root / "dev.tsv"},
        **{"out": out, "max-length": 16, **changed},
    }
    return ["train", "mcse", *(f"--{name}={value}" for name, value in options.items())]


def test_sound_files_are_trained_on(world, tmp_path, capsys):
    assert run(capsys, *train_words(world, tmp_path / "out")).code == 0


@pytest.mark.parametrize("name", SCHEMAS)
@MANY
@given(data=st.data())
def test_manifests(name, data, world, tmp_path_factory, capsys):
    change: Change = data.draw(hostile_tables(SCHEMAS[name], [ROWS[name]] * 2))
    folder = tmp_path_factory.mktemp("case")
    rows = read_manifest(world.root / f"{name}.parquet", SCHEMAS[name]).to_pylist()
    others = {f"{other}.parquet" for other in SCHEMAS.keys() - {name}}
    for other in ("dataset.json", *others):
        (folder / other).symlink_to(world.root / other)
    file = folder / f"{name}.parquet"
    fault = write_hostile(file, SCHEMAS[name], rows, change)
    outcome = run(capsys, *train_words(world, folder / "out", data=folder, text=folder))
    if fault is not None:
        outcome.refused(file, fault)


DEV = ["score\tsentence1\tsentence2", "1.0\ta red dot\ta dot", "3\tone\ttwo", "2\tx\ty"]


def with_line(number, line):
    lines = [*DEV[:number], line, *DEV[number + 1 :]]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@MANY
@given(
    text=st.one_of(
        st.binary(max_size=60),
        st.builds(with_line, st.integers(0, 3), st.text(max_size=20)),
        st.sampled_from(["NaN", "inf", "1e400", "\u0663", "9" * 5000, "", "0x1"]).map(
            lambda score: with_line(4, f"{score}\ta\tb")
        ),
    )
)
def test_dev_sets(text, world, tmp_path_factory, capsys):
    folder = tmp_path_factory.mktemp("case")
    (folder / "dev.tsv").write_bytes(text)
    run(capsys, *train_words(world, folder / "out", dev=folder / "dev.tsv"))


ODD = [
    *("image=" + "9" * 5000, "image=2020-13-45", "image=[[[", "image=&a [*a]", "image={a: 1}"),
    *("temperature=.nan", "temperature=-.inf", "temperature=1e400", "temperature=!!binary x"),
    *("image=", "=x", "nan", "inf", "-1", "1e100", "1e400"),
    *("/dev/zero", "/dev/null", ".", "..", "/"),
]


@pytest.mark.parametrize(
    "option", ["set", "features", "tokens", "student", "seed", "learning-rate"]
)
@MANY
@given(value=st.text(max_size=10).filter(lambda t: "\0" not in t) | st.sampled_from(ODD))
def test_options(option, value, world, tmp_path_factory, capsys):
    out = tmp_path_factory.mktemp("case") / "out"
    run(capsys, *train_words(world, out, **{option: value}))
