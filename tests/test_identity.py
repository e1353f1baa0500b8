"""What names the things that are made with some settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field, SecretStr

from sightline.errors import SightlineError
from sightline.identity import (
    Elsewhere,
    MayBePath,
    Outside,
    agrees,
    also,
    declared,
    identity,
    paths_in,
)
from sightline.settings import Registry, Settings


class Inner(Settings):
    size: int = 1
    speed: Annotated[int, Outside("how it runs")] = 1


class Outer(Settings):
    chosen_by: ClassVar[str] = "kind"
    families: ClassVar[Registry]

    kind: str = "outer"
    name: Annotated[str, Outside("a label")] = "a"
    weights: Annotated[str, Elsewhere("their digest")] = "b"
    rate: Annotated[float, Field(gt=0)] = 0.5
    hidden: int = Field(default=1, exclude=True)
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = {}
    words: frozenset[str] = frozenset()
    path: Path | None = None
    paths: dict[str, Path] = {}
    secret: SecretStr = SecretStr("x")
    model: Annotated[str, MayBePath()] = "resnet"
    file: Annotated[str, MayBePath("file:")] = "random:0"


def test_every_field_counts_but_the_declared_ones():
    before = identity(Outer())
    others: dict[str, Any] = {
        "rate": 0.6,
        "hidden": 2,
        "inner": Inner(size=2),
        "several": (Inner(),),
        "by_name": {"one": Inner()},
        "words": frozenset("a"),
        "model": "other",
        "file": "random:1",
    }
    for field, value in others.items():
        changed = identity(Outer(**{field: value}))
        assert {key for key in before if before[key] != changed[key]} == {field}
    for field in ("name", "weights"):
        assert identity(Outer(**{field: "other"})) == before
    assert identity(Outer(inner=Inner(speed=9))) == before
    assert identity(Outer(several=(Inner(speed=9),))) == identity(Outer(several=(Inner(),)))
    assert declared(Outer) == {"name": Outside("a label"), "weights": Elsewhere("their digest")}
    assert list(before) == [name for name in Outer.model_fields if name in before]
    assert "kind" not in before


def test_a_field_of_another_class_counts_where_a_base_class_is_annotated():
    class Larger(Inner):
        gamma: float = 1.0

    one, other = (identity(Outer(inner=Larger(gamma=gamma))) for gamma in (1.0, 3.0))
    assert one != other


def test_sets_have_one_order():
    words = [f"word {number}" for number in range(50)]
    assert identity(Outer(words=frozenset(words))) == identity(Outer(words=frozenset(words[::-1])))


def test_a_path_counts_by_what_lies_there(tmp_path):
    one, copy, other = (tmp_path / name for name in ("one", "deeper/copy", "other"))
    for folder, text in ((one, "a"), (copy, "a"), (other, "b")):
        (folder / "in").mkdir(parents=True)
        (folder / "in/words.txt").write_text(text)
    fields: tuple[Any, ...] = (
        lambda folder: {"path": folder / "in/words.txt"},
        lambda folder: {"path": folder},
        lambda folder: {"paths": {"it": folder}},
        lambda folder: {"model": str(folder)},
        lambda folder: {"file": f"file:{folder / 'in/words.txt'}"},
    )
    for field in fields:
        first, second, third = (identity(Outer(**field(folder))) for folder in (one, copy, other))
        assert first == second
        assert first != third
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "in").symlink_to(copy / "in")
    assert identity(Outer(path=linked)) == identity(Outer(path=one))
    (copy / "in/words.txt").rename(copy / "in/other.txt")  # of a folder its names count too
    assert identity(Outer(path=copy)) != identity(Outer(path=one))


def test_paths_are_found_wherever_settings_hold_them():
    class Several(Settings):
        places: tuple[Path, ...] = (Path("a"), Path("b"))
        listed: list[Path | str] = [Path("c"), "no path"]
        chosen: frozenset[Path] = frozenset([Path("d")])
        named: dict[str, list[Path]] = {"x": [Path("e")]}
        outer: Outer = Outer(path=Path("f"), paths={"y": Path("g")}, model="h/i")

    found = paths_in({"settings": [Several()], "alone": Path("j"), "number": 3})
    assert sorted(map(str, found)) == [*"abcdefg", "j"]


def test_a_path_to_nothing_is_one_error(tmp_path, monkeypatch):
    with pytest.raises(SightlineError, match=r"path: .*gone: no such file or folder"):
        identity(Outer(path=tmp_path / "gone"))
    with pytest.raises(SightlineError, match=r"file: .*gone: no such file or folder"):
        identity(Outer(file=f"file:{tmp_path / 'gone'}"))
    monkeypatch.chdir(tmp_path)
    before = identity(Outer())
    (tmp_path / "resnet").mkdir()  # a name without a slash is no path
    assert identity(Outer()) == before


def test_a_version_counts_and_its_absence_does_not():
    class First(Inner):
        version: ClassVar[str] = "1"

    class Second(Inner):
        version: ClassVar[str] = "2"

    class Field_(Inner):
        version: str = "1"

    assert len({str(identity(kind())) for kind in (Inner, First, Second)}) == 3
    assert identity(Field_()) != identity(First())

    class Wrong(Inner):
        version: ClassVar[int] = 1

    with pytest.raises(SightlineError, match=r"version: found 1 \(int\), expected a text"):
        identity(Wrong())


def test_an_identity_agrees_with_its_settings_as_far_as_their_files_are_here(tmp_path):
    class Versioned(Outer):
        version: ClassVar[str] = "1"

    path = tmp_path / "weights"
    path.write_text("1")
    settings, recorded = Outer(path=path), identity(Outer(path=path))
    assert agrees(settings, recorded)
    assert not agrees(Outer(path=path, rate=0.6), recorded)
    without = {name: value for name, value in recorded.items() if name != "rate"}
    assert not agrees(settings, without)  # the field is newer than what was recorded
    assert not agrees(Versioned(path=path), recorded)
    assert not agrees(settings, identity(Versioned(path=path)))
    path.write_text("2")
    assert not agrees(settings, recorded)
    path.unlink()
    assert agrees(settings, recorded)
    assert not agrees(Outer(path=path, rate=0.6), recorded)


def test_what_a_description_has_besides_stands_under_a_name_of_its_own():
    assert also({"encoder": {}, "extract": {}}) == {}
    assert also({"encoder": {"gamma": 1}, "extract": {}}) == {
        "@settings": {"encoder": {"gamma": 1}}
    }
