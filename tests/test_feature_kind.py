"""A kind of row from another package: clips of sound, through every command that meets them."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from installed_package import forget, install
from set_oracle import expect_sound
from test_extending import ran, refused
from tiny_encoder import make_encoder

from pipeline.encoders.config import EncoderConfig
from sightline.cache import CacheError, FeatureSet
from sightline.cache.feature_kind import KINDS, feature_kind, known_kind
from sightline.cache.record import set_output
from sightline.settings import Registry
from train.objectives import OBJECTIVES

REGISTRIES: dict[str, Registry] = {
    registry.group: registry for registry in (KINDS, EncoderConfig.families, OBJECTIVES)
}
PACKAGE = '''
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pipeline.encoders.config import EncoderConfig
from pipeline.extract.encode_missing import Encoding
from pipeline.extract.inputs import Entries, FeatureInputs
from pipeline.extract.runner import BatchResult
from sightline.cache import EncoderRecord
from sightline.cache.feature_kind import FeatureKind
from train.objectives import FeatureNeed
from train.objectives.mcse import MCSE

AUDIO = FeatureKind(
    name="audio",
    unit="clips",
    row_of="image",
    read="hearing:read_clips",
    encode="hearing:encode_clips",
    builder="build_audio",
    encoders="image",
    block_rows=2,
)


def read_clips(kind, data):
    """One clip of samples for each image of a data set, beside it."""
    names = data.images["image_id"].to_pylist()
    clips = [data.folder.parent / "clips" / f"{name}.npy" for name in names]
    entries = Entries(data.image_keys, lambda rows: [clips[row] for row in rows])
    return FeatureInputs(kind, entries, paths=(data.folder,))


@dataclass(frozen=True)
class Ear:
    identity: EncoderRecord
    dim: int = 3
    casts_weights: bool = False
    options: tuple = ()


class Loudness(EncoderConfig):
    family: Literal["loudness"]

    def build_audio(self, device, precision):
        return Ear(EncoderRecord(name="loudness/small", source="random:0", weights_sha256="1" * 64))


def encode_clips(task):
    def compute(batches, advance):
        for batch in batches:
            rows, failed = [], {}
            for key, clip in zip(batch.keys, task.entries_of(batch), strict=True):
                samples = np.load(clip)
                if not len(samples):
                    why = {"code": "silent", "path": str(clip), "reason": "no samples"}
                    failed[key.tobytes()] = why
                    continue
                rows.append([samples.mean(), samples.std(), np.abs(samples).max()])
            yield BatchResult(batch, np.array(rows, np.float32).reshape(-1, 3), failed)
            advance(len(batch.keys))

    return Encoding({"window": "all of it"}, compute)


class Hears(MCSE):
    """MCSE with clips in place of images."""

    name: ClassVar[str] = "hears"

    @property
    def features(self):
        return [FeatureNeed("audio", self.image, ("image",), head="image")]

    def terms(self, heads, batch, embeddings):
        heard = {f"image-{self.image}": rows for rows in batch.features.values()}
        return super().terms(heads, type(batch)(**{**vars(batch), "features": heard}), embeddings)
'''
POINTS = {
    "sightline.feature_kinds": {"audio": "hearing:AUDIO"},
    "sightline.encoders": {"loudness": "hearing:Loudness"},
    "sightline.objectives": {"hears": "hearing:Hears"},
}
CAPTIONS = ["a red dog", "the big house", "a tree near a dog", "the sky"]


@pytest.fixture
def hearing(tmp_path, monkeypatch):
    """The package, installed; leaving it out is `uninstall`."""
    site = tmp_path / "site"
    install(site, "hearing", POINTS)
    (site / "hearing.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(site)
    forget(REGISTRIES.values())
    yield site
    forget(REGISTRIES.values(), "hearing")


@pytest.fixture
def album(tmp_path, hearing, monkeypatch, capsys):
    """A folder with four pictures and captions, prepared and tokenised, and a clip for each."""
    from small_inputs import write_photos

    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "photos", 4)
    lines = [f"{i}.png#0\t{caption}\n" for i, caption in enumerate(CAPTIONS)]
    (tmp_path / "captions.txt").write_text("".join(lines))
    ran(capsys, "prepare", "pairs", "--images", "photos", "--captions", "captions.txt",
        "--out", "album")  # fmt: skip
    (tmp_path / "clips").mkdir()
    for number, name in enumerate(pq.read_table("album/images.parquet")["image_id"].to_pylist()):
        np.save(tmp_path / "clips" / f"{name}.npy", np.arange(number + 2, dtype=np.float32))
    for part in make_encoder():
        part.save_pretrained(tmp_path / "student")
    return tmp_path


AUDIO = ["extract", "audio", "--data", "album", "--encoder", "loudness:small"]
AUDIO += ["--weights", "random:0", "--out", "features/audio", "--set"]


def test_a_kind_of_another_package_goes_through_every_command(album, capsys):
    words = [*AUDIO[:-1], "--threads", "1"]
    ran(capsys, *words)
    heard = FeatureSet.open(album / "features/audio")
    assert (len(heard), heard.dim, heard.record.spec.kind) == (4, 3, "audio")
    assert "nothing to compute" in ran(capsys, *words)
    assert "4 with identical bytes" in ran(capsys, *words, "--check", "4")
    clip = min((album / "clips").iterdir())
    np.save(clip, np.empty(0, np.float32))
    shutil.rmtree("features")
    assert "1 failed" in ran(capsys, *words, "--max-failed", "0.5")
    np.save(clip, np.ones(3, np.float32))
    assert "1 computed" in ran(capsys, *words, "--retry-failed")
    ran(capsys, "cache", "verify", "features/audio")
    ran(capsys, "tokens", "--data", "album", "--student", "student", "--out", "tokens")
    given = ["--set", "image=loudness", "--data", "album", "--tokens", "tokens"]
    given += ["--student", "student", "--epochs", "1", "--batch-size", "4"]
    features = "loudness=features/audio"
    ran(capsys, "train", "hears", *given, "--features", f"audio-{features}", "--out", "runs/hears")
    words = [*given, "--features", f"image-{features}", "--out", "runs/no"]
    said = refused(capsys, "train", "mcse", *words)
    assert "holds audio features" in said
    ran(capsys, "cache", "export", "features/audio", "--format", "parquet", "--data", "album",
        "--out", "shared")  # fmt: skip
    (file,) = (album / "shared").rglob("*.parquet")
    assert pq.read_table(file).num_rows == 4


def test_a_set_whose_package_is_absent_is_still_kept_in_order(album, hearing, capsys):
    ran(capsys, *AUDIO[:-1])
    shutil.rmtree(hearing)
    forget(REGISTRIES.values())
    sys.modules.pop("hearing")
    importlib.invalidate_caches()
    assert known_kind("audio") is None
    expect_sound(album / "features/audio")
    for words in (
        ["list", "."],
        ["info", "features/audio"],
        ["verify", "features/audio"],
        ["gc", "features/audio"],
        ["export", "features/audio", "--out", "audio.tar"],
        ["export", "features/audio", "--format", "npy", "--out", "npy"],
        ["import", "audio.tar", "--out", "again"],
        ["diff", "features/audio", "again"],
    ):
        assert "audio" in ran(capsys, "cache", *words) or words[0] not in ("list", "info")
    assert len(FeatureSet.open(album / "again")) == 4
    assert sightline(*AUDIO[:-1]) == 2
    assert "unknown kind 'audio'" in capsys.readouterr().err
    with pytest.raises(CacheError, match="holds a feature set of kind audio"):
        set_output(album / "again", kind="image")


def test_a_builtin_kind_imports_neither_torch_nor_the_pipeline(tmp_path):
    import subprocess

    program = (
        "import sys; from sightline.cache.feature_kind import KINDS, feature_kind;"
        "[feature_kind(name) for name in KINDS];"
        "print(sorted({'torch', 'pipeline', 'train'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr
    assert {name: feature_kind(name).row_of for name in ("image", "object", "text", "teacher")} == {
        "image": "image",
        "object": "object",
        "text": "caption",
        "teacher": "caption",
    }


def test_a_kind_whose_function_is_missing_is_one_error(album, hearing, capsys):
    source = (hearing / "hearing.py").read_text()
    (hearing / "hearing.py").write_text(source.replace("hearing:read_clips", "hearing:gone"))
    sys.modules.pop("hearing", None)
    forget(REGISTRIES.values())
    said = refused(capsys, *AUDIO[:-1])
    assert "features of kind 'audio' need hearing:gone, which cannot be imported" in said


def test_an_encoder_that_cannot_hear_is_one_error(album, capsys):
    words = [*AUDIO[:-1], "--encoder", "resnet18"]
    assert "has no method build_audio" in refused(capsys, *words)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("yield BatchResult(batch, ", "yield (batch, ", "a result of `compute`: found (Batch("),
        (".reshape(-1, 3)", ".reshape(-1, 1)", "found float32 [9, 1], expected float"),
        (".reshape(-1, 3)", ".reshape(-1, 3)[1:]", "expected float32 [3, 3]; fix the package"),
        (".reshape(-1, 3), failed", ".tolist(), failed", "rows that did not fail: found [["),
        ("failed[key.tobytes()] = why", "failed[3] = why", "expected float32 [4, 3]"),
        (
            '"all of it"}, compute',
            '"all of it"}, compute, lengths=np.ones(3, int)',
            "`lengths` of what it makes: found 3 (int), expected one for each of 4 keys",
        ),
    ],
)
def test_a_result_that_is_none_is_the_packages_mistake(album, hearing, capsys, old, new, message):
    np.save(next(Path("clips").iterdir()), np.zeros(0, np.float32))
    refuses(capsys, hearing, old, new, message, "hearing.encode_clips")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clips[row] for row in rows", "clips[row] for row in rows[1:]", "entries: found 3 (int)"),
        (
            "Entries(data.image_keys",
            "Entries(data.image_keys[:, :8]",
            "entries, keys: found uint8 [",
        ),
        (
            "in rows])",
            "in rows], data.image_keys[1:])",
            "entries, groups: found uint8 [3, 32], expected uint8 [4",
        ),
    ],
)
def test_entries_that_are_not_one_a_key_are_its_mistake(album, hearing, capsys, old, new, message):
    refuses(capsys, hearing, old, new, message, "hearing.read_clips")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("BatchResult(batch, ", "BatchResult(3, ", "object has no attribute 'keys'"),
        ('"code": "silent", ', "", "KeyError: 'code'"),
        ("    return Encoding(", "    return Encoding({}, lambda *_: 3) or (", "not iterable"),
        ("encode_clips(task)", "encode_clips()", "takes 0 positional arguments but 1 was given"),
        ("compute(batches, advance)", "compute(batches)", "takes 1 positional argument but 2"),
        ("read_clips(kind, data)", "read_clips(kind)", "takes 1 positional argument but 2"),
    ],
)
def test_another_mistake_names_the_package_that_may_be_at_fault(
    album, hearing, capsys, old, new, fault
):
    np.save(next(Path("clips").iterdir()), np.zeros(0, np.float32))
    source = (hearing / "hearing.py").read_text()
    assert old in source
    (hearing / "hearing.py").write_text(source.replace(old, new))
    said = refused(capsys, *AUDIO[:-1])
    assert fault in said
    assert "fault of Sightline, or of what the package 'hearing' gave it" in said
    assert len(said.splitlines()) == 1


def refuses(capsys, hearing: Path, old: str, new: str, message: str, function: str) -> None:
    """Extract with an edited package; the error names its mistake."""
    source = (hearing / "hearing.py").read_text()
    assert old in source
    (hearing / "hearing.py").write_text(source.replace(old, new))
    said = refused(capsys, *AUDIO[:-1])
    assert message in said
    assert function in said
    assert "fix the package 'hearing'" in said
