"""Groundings, cut-outs, tokens and phrase tokens: all damage is named, and only it is repaired."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from stub_set import fill, flip
from table_sets import (
    HEADER,
    TEXTS,
    Forger,
    WordGrounder,
    make_all,
    make_cutouts,
    make_grounding,
    make_phrase_tokens,
    make_tokens,
    photographs,
    read,
)
from tiny_encoder import make_encoder

from sightline.cache import CacheError, PhraseTokens, TokenSet, keys_of_texts, verify, write_tokens
from sightline.cache.archive import export_set, import_set
from sightline.cache.commit import FILE_NAME, read_record, refuse_other_kinds
from sightline.cache.compact import collect, garbage
from sightline.cache.diff import compare
from sightline.cache.record import TABLE_KINDS, TABLES_OF, TableKind
from sightline.cache.repair import repair
from sightline.cache.tables import TABLES, read_tables, table_content
from sightline.cache.verify import bytes_to_verify

every_kind = pytest.mark.parametrize("kind", TABLE_KINDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` to modify freely."""
    return Path(shutil.copytree(made, tmp_path / "world"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- intact sets


@every_kind
def test_an_intact_set_has_no_faults_after_export_and_import(world: Path, kind: TableKind) -> None:
    export_set(world / kind, world / "set.tar")
    import_set(world / "set.tar", world / "other")
    assert files(world / "other") == files(world / kind)
    assert verify(world / kind) == verify(world / "other") == []
    first = (world / "set.tar").read_bytes()
    export_set(world / "other", world / "set.tar")
    assert (world / "set.tar").read_bytes() == first


@every_kind
def test_progress_of_verify_adds_up(world: Path, kind: TableKind) -> None:
    told: list[int] = []
    assert verify(world / kind, told.append) == []
    assert sum(told) == bytes_to_verify(read_record(world / kind))


@every_kind
def test_a_damaged_set_is_not_exported(world: Path, kind: TableKind) -> None:
    (name, *_) = TABLES_OF[kind]
    flip(Forger(world / kind).table(name), 40)
    with pytest.raises(CacheError, match="damaged"):
        export_set(world / kind, world / "set.tar")
    assert not (world / "set.tar").exists()


def test_the_command_checks_the_sets_of_every_kind(world: Path, capsys) -> None:
    fill(world / "features")
    kinds = ["features", *TABLE_KINDS]
    assert sightline("cache", "verify", world) == 0
    said = capsys.readouterr().out
    assert all(f"{world / kind}: sound" in said for kind in kinds)
    rng = random.Random(0)
    for path in [path for kind in kinds for path in sorted((world / kind).iterdir())]:
        before = path.read_bytes()
        flip(path, rng.randrange(len(before)), rng.randrange(8))
        assert sightline("cache", "verify", world) == 1
        said = capsys.readouterr().out
        assert path.name in said
        assert said.count(": sound") == len(kinds) - 1
        path.write_bytes(before)


# --- damage


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def expect_noticed(folder: Path, kind: TableKind, sound: list[pa.Table], named: str) -> None:
    """Verify names the file; a reader rejects it, or reads the original content."""
    faults = verify(folder)
    assert faults
    assert any(named in fault for fault in faults)
    with suppress(CacheError):
        assert read(folder, kind) == sound


def damages(folder: Path, kind: TableKind, count: int, seed: int) -> None:
    """Flip bits and truncate, equally often for every file."""
    rng = random.Random(f"{kind} {seed}")
    sound = read(folder, kind)
    paths = sorted(folder.iterdir())
    for path in rng.choices(paths, k=count):
        data = path.read_bytes()
        at = rng.randrange(len(data))
        changed = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        with replaced(path, data[:at] if rng.random() < 0.1 else changed):
            expect_noticed(folder, kind, sound, path.name)
    assert verify(folder) == []


@every_kind
def test_a_flipped_bit_or_a_cut_is_named_and_not_served(world: Path, kind: TableKind) -> None:
    damages(world / kind, kind, 80, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@every_kind
def test_ten_thousand_damages_more(world: Path, kind: TableKind, seed: int) -> None:
    damages(world / kind, kind, 1300, seed)


@pytest.mark.slow
@every_kind
def test_every_byte_of_the_commit_file(world: Path, kind: TableKind) -> None:
    path = world / kind / FILE_NAME
    sound, data = read(world / kind, kind), path.read_bytes()
    for at in range(len(data)):
        with replaced(path, data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            expect_noticed(world / kind, kind, sound, path.name)


@every_kind
def test_extra_bytes_a_missing_file_and_a_link_are_named(world: Path, kind: TableKind) -> None:
    folder = world / kind
    sound = read(folder, kind)
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for changed in (data[:-1], data + b"\0", b" " + data, b"", bytes(len(data))):
            with replaced(path, changed):
                expect_noticed(folder, kind, sound, path.name)
        path.rename(world / "elsewhere")
        expect_noticed(folder, kind, sound, path.name)
        path.symlink_to(world / "elsewhere")  # with identical bytes
        expect_noticed(folder, kind, sound, path.name)
        with pytest.raises(CacheError):
            read(folder, kind)
        path.unlink()
        path.mkdir()
        expect_noticed(folder, kind, sound, path.name)
        path.rmdir()
        (world / "elsewhere").rename(path)
    assert verify(folder) == []


def test_two_tables_that_were_swapped_are_both_named(world: Path) -> None:
    for kind in ("grounding", "cutouts"):
        one, two = sorted((world / kind).glob("*.parquet"))[:2]
        sound, first = read(world / kind, kind), one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(first)
        expect_noticed(world / kind, kind, sound, one.name)
        assert any(two.name in fault for fault in verify(world / kind))


@every_kind
def test_another_table_under_the_same_name_is_detected(world: Path, kind: TableKind) -> None:
    sound = read(world / kind, kind)
    others = [next((world / other).glob("*.parquet")) for other in TABLE_KINDS if other != kind]
    for path in (world / kind).glob("*.parquet"):
        for other in others:
            with replaced(path, other.read_bytes()):
                expect_noticed(world / kind, kind, sound, path.name)


# --- commit files


def leaves(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The path of every field in a commit file, including nested ones."""
    if at:
        yield at
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from leaves(part, (*at, key))


def put(value: Any, at: tuple, new: Any) -> None:
    for key in at[:-1]:
        value = value[key]
    value[at[-1]] = new


@every_kind
def test_a_field_changed_without_the_digest_is_detected(world: Path, kind: TableKind) -> None:
    folder = world / kind
    path = folder / FILE_NAME
    whole = json.loads(path.read_text())
    for at in leaves(whole):
        changed = json.loads(json.dumps(whole))
        put(changed, at, "1" * 64)
        path.write_text(json.dumps(changed, indent=1))
        with pytest.raises(CacheError):
            read(folder, kind)
        assert path.name in verify(folder)[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "[" * 1_000_000,
        '{"schema": "sightline.set/2", "rows": NaN}',
    ],
    ids=lambda text: text[:12],
)
@every_kind
def test_a_commit_file_that_is_invalid_is_refused(world: Path, kind: TableKind, text: str) -> None:
    (world / kind / FILE_NAME).write_text(text)
    (fault,) = verify(world / kind)
    assert FILE_NAME in fault
    with pytest.raises(CacheError):
        read(world / kind, kind)


def first_table(body: dict[str, Any]) -> dict[str, Any]:
    return next(iter(body["shards"][0]["tables"].values()))


SHA = "0" * 32
LIES = {
    "a name outside": lambda b: first_table(b).update(name=f"../tokens-{SHA}.parquet"),
    "an absolute name": lambda b: first_table(b).update(name="/etc/passwd"),
    "a negative number of rows": lambda b: first_table(b).update(rows=-1),
    "rows beyond counting": lambda b: first_table(b).update(rows=10**30),
    "a field too many": lambda b: b.update(run="rm -rf /"),
    "features": lambda b: b["spec"].update(kind="image"),
}


@pytest.mark.parametrize("lie", LIES)
@every_kind
def test_a_record_that_lies_is_refused_unread(world: Path, kind: TableKind, lie: str) -> None:
    Forger(world / kind).say(LIES[lie])
    for act in (read_record, repair, collect):
        with pytest.raises(CacheError, match=FILE_NAME):
            act(world / kind)
    with pytest.raises(CacheError, match=FILE_NAME):
        read(world / kind, kind)


@every_kind
def test_more_rows_than_a_table_has_are_detected(world: Path, kind: TableKind) -> None:
    Forger(world / kind).say(lambda body: first_table(body).update(rows=(1 << 48) - 1))
    assert "rows, expected 281,474,976,710,655" in verify(world / kind)[0]
    with pytest.raises(CacheError, match="rows, expected"):
        read(world / kind, kind)


@every_kind
def test_null_values_are_refused(world: Path, kind: TableKind) -> None:
    for name in TABLES_OF[kind]:
        row = {field.name: None for field in TABLES[name]}
        table = pa.Table.from_pylist([row], schema=TABLES[name])
        Forger(world / kind).replace(name, lambda path, t=table: pq.write_table(t, path), rows=1)
        assert any("row 0: " in f and "found null" in f for f in verify(world / kind))
        with pytest.raises(CacheError, match=r"row 0: .*: found null"):
            read_tables(world / kind, name)


def test_incomplete_boxes_and_masks_are_refused(world: Path) -> None:
    rows = read_tables(world / "grounding", "phrases").to_pylist()[:1]
    for field, change in (
        ("box[1]", {"box": [1.0, None, 2.0, 3.0]}),
        ("mask.counts", {"mask": {"size": [1, 1], "counts": None}}),
    ):
        table = pa.Table.from_pylist([{**rows[0], **change}], schema=TABLES["phrases"])
        forger = Forger(world / "grounding")
        forger.replace("phrases", lambda path, t=table: pq.write_table(t, path), rows=1)
        assert f"row 0: {field}: found null" in verify(world / "grounding")[0]


def test_texts_with_invalid_unicode_are_refused(world: Path) -> None:
    table = read_tables(world / "grounding", "drops").slice(0, 1)
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    table = table.set_column(table.column_names.index("detail"), "detail", bad)
    Forger(world / "grounding").replace("drops", lambda path: pq.write_table(table, path), rows=1)
    assert "UTF8" in verify(world / "grounding")[0]
    with pytest.raises(CacheError, match="UTF8"):
        compare(world / "grounding", world / "grounding")


@pytest.mark.parametrize("kind", ["tokens", "phrase-tokens"])
def test_a_header_of_other_types_is_refused(world: Path, kind: TableKind) -> None:
    opened = TokenSet.open if kind == "tokens" else PhraseTokens.open
    forger = Forger(world / kind)
    good = forger.body()["spec"]["description"]
    for field in good:
        for bad in (["x"], None, 0.5):
            forger.say(lambda b, f=field, x=bad: b["spec"].update(description={**good, f: x}))
            with pytest.raises(CacheError, match="described by a different version; rerun"):
                opened(world / kind)


# --- repair and gc


def test_repair_removes_the_damaged_block_and_the_next_run_computes_only_it(world) -> None:
    folder = world / "grounding"
    before, record = files(folder), read_record(folder)
    forger = Forger(folder)
    images = forger.body()["shards"][1]["tables"]["images"]
    flip(folder / images["name"], images["bytes"] // 2)
    report = repair(folder)
    assert [(each.name, each.rows) for each in report.dropped] == [(images["name"], images["rows"])]
    assert verify(folder) == []
    assert len(read_tables(folder, "images")) == 7 - images["rows"]
    grounder = WordGrounder()
    again = photographs(world / "again")
    make_grounding(again, folder, grounder=grounder)
    keys = set(pq.read_table(folder / images["name"])["image_key"].to_pylist())
    assert sum(grounder.calls) == sum(len(u.captions) for u in again.units() if u.key in keys)
    after = files(folder)
    assert {name: after[name] for name in before if name != FILE_NAME} == {
        name: data for name, data in before.items() if name != FILE_NAME
    }
    assert read_record(folder).content_digest == record.content_digest
    assert verify(folder) == []


def test_repair_keeps_a_table_shared_by_intact_blocks(world: Path) -> None:
    folder = world / "plain"
    data = photographs(world / "more", 6)
    data.captions = {name: ["A red dog and a blue ball"] for name in data.captions}
    make_grounding(data, folder)
    forger = Forger(folder)
    assert forger.table("drops", 0) == forger.table("drops", 1)
    export_set(folder, world / "set.tar")
    import_set(world / "set.tar", world / "other")
    assert files(world / "other") == files(folder)
    digest = read_record(folder).content_digest
    flip(forger.table("images", 0), 50)
    assert len(repair(folder).dropped) == 1
    assert verify(folder) == []
    assert collect(folder).files == {}
    make_grounding(data, folder)
    assert read_record(folder).content_digest == digest


@every_kind
def test_repair_of_any_damaged_table_leaves_an_intact_set(world: Path, kind: TableKind) -> None:
    for name in TABLES_OF[kind]:
        folder = Path(shutil.copytree(world / kind, world / f"{kind}-{name}"))
        damaged = Forger(folder).table(name)
        flip(damaged, damaged.stat().st_size - 9)
        (dropped,) = repair(folder).dropped
        assert damaged.name in dropped.reason
        assert verify(folder) == []
        assert len(read_record(folder).shards) == len(read_record(world / kind).shards) - 1  # type: ignore


@every_kind
def test_nothing_to_repair_changes_nothing(world: Path, kind: TableKind) -> None:
    before = {path: path.stat().st_mtime_ns for path in (world / kind).iterdir()}
    assert repair(world / kind).lines() == []
    assert {path: path.stat().st_mtime_ns for path in (world / kind).iterdir()} == before


@every_kind
def test_repair_fixes_a_record_with_a_wrong_content_digest(world: Path, kind: TableKind) -> None:
    before = files(world / kind)
    Forger(world / kind).say(lambda body: body.update(content_digest="0" * 64))
    assert "content digest" in verify(world / kind)[0]
    assert repair(world / kind).dropped == ()
    assert files(world / kind) == before


def test_missing_cutouts_are_recreated_after_repair(world: Path, monkeypatch) -> None:
    folder, data = world / "cutouts", photographs(world / "again")
    before = files(folder)
    damaged = Forger(folder).table("cutouts", 1)
    lost = set(pq.read_table(damaged)["key"].to_pylist())
    flip(damaged, 60)
    assert [each.name for each in repair(folder).dropped] == [damaged.name]
    phrases = read_tables(world / "grounding", "phrases").to_pylist()
    missing = {row["image_key"] for row in phrases if row["cutout_key"] in lost}
    from pipeline.grounding import cutouts

    cut: list[bytes] = []
    whole = cutouts._cut_image
    monkeypatch.setattr(cutouts, "_cut_image", lambda *words: cut.append(words[2]) or whole(*words))
    make_cutouts(data, world / "grounding", folder)
    assert set(cut) == missing
    assert files(folder) == before


def test_a_token_set_without_its_table_names_the_command_that_makes_it(world: Path) -> None:
    model, tokenizer = make_encoder()
    for part in (model, tokenizer):
        part.save_pretrained(world / "bert")
    (world / "texts.txt").write_text("a red dog\na big house\n")
    words = ["tokens", "--texts", world / "texts.txt", "--student", world / "bert"]
    words += ["--out", world / "words"]
    assert sightline(*words) == 0
    before = files(world / "words")
    flip(Forger(world / "words").table("tokens"), 100)
    assert sightline("cache", "repair", world / "words") == 0
    assert verify(world / "words") == []
    with pytest.raises(CacheError, match="no longer holds a table; rerun `sightline tokens`"):
        TokenSet.open(world / "words")
    assert sightline(*words) == 0
    assert files(world / "words") == before


def test_phrase_tokens_without_their_table_name_the_command(world: Path) -> None:
    before = files(world / "phrase-tokens")
    Forger(world / "phrase-tokens").table("phrase_tokens").unlink()
    repair(world / "phrase-tokens")
    with pytest.raises(CacheError, match="holds a table; rerun `sightline phrase-tokens`"):
        PhraseTokens.open(world / "phrase-tokens")
    make_phrase_tokens(world / "phrase-tokens")
    assert files(world / "phrase-tokens") == before


def test_gc_removes_superseded_tables_and_nothing_else(world: Path) -> None:
    data = photographs(world / "again", 4)
    for kind in ("grounding", "cutouts", "tokens"):
        (world / kind / "notes.txt").write_text("mine")
        (world / kind / f"tokens-{SHA}.parquet").write_text("also mine")
    make_grounding(data, world / "grounding")
    make_cutouts(data, world / "grounding", world / "cutouts")
    make_tokens(world / "tokens", TEXTS[:9])
    for kind in ("grounding", "cutouts", "tokens"):
        folder = world / kind
        named = {file.name for file in read_record(folder).files}
        superseded = {path.name for path in folder.glob("*.parquet")} - named
        superseded -= {f"tokens-{SHA}.parquet"}
        assert superseded
        assert garbage(folder).files.keys() == collect(folder).files.keys() == superseded
        stay = {*named, FILE_NAME, "notes.txt", f"tokens-{SHA}.parquet"}
        assert files(folder).keys() == stay
        assert verify(folder) == []
        assert collect(folder).files == {}


# --- differences and digests


def counted(a: Path, b: Path) -> tuple[int, int, int, int]:
    found = compare(a, b)
    return found.added, found.gone, found.changed, found.same


@every_kind
def test_a_set_does_not_differ_from_itself(world: Path, kind: TableKind) -> None:
    added, gone, changed, same = counted(world / kind, world / kind)
    assert (added, gone, changed) == (0, 0, 0)
    assert same


def test_images_of_groundings_are_counted(world: Path) -> None:
    data = photographs(world / "again")
    del data.captions["0.png"], data.captions["1.png"]
    data.captions["2.png"] = ["a yellow tree"]
    data.add("new.png")
    make_grounding(data, world / "other", block_images=3)
    assert counted(world / "grounding", world / "other") == (1, 2, 1, 4)
    assert compare(world / "grounding", world / "other").why == ()


def test_texts_of_token_sets_are_counted(world: Path) -> None:
    make_tokens(world / "other", [*TEXTS[10:], "text 41"], token=6)
    found = compare(world / "tokens", world / "other")
    assert (found.added, found.gone, found.changed + found.same) == (1, 10, 30)
    make_tokens(world / "other", [*TEXTS[10:], "text 41"])
    assert counted(world / "tokens", world / "other") == (1, 10, 0, 30)


@every_kind
def test_sets_of_two_kinds_are_not_compared(world: Path, kind: TableKind) -> None:
    fill(world / "features")
    for other in {"features", *TABLE_KINDS} - {kind}:
        for pair in ((world / kind, world / other), (world / other, world / kind)):
            with pytest.raises(CacheError, match=r": holds .*, expected ") as refused:
                compare(*pair)
            assert "\n" not in str(refused.value)


def test_a_grounding_has_one_digest_regardless_of_history(world: Path) -> None:
    data = photographs(world / "again")
    expected = read_record(world / "grounding").content_digest
    for block_images in (1, 3, 100):
        make_grounding(data, world / f"by-{block_images}", block_images)
        assert read_record(world / f"by-{block_images}").content_digest == expected
    captions = dict(data.captions)
    for names in (["6.png", "1.png"], ["1.png", "3.png", "0.png"], list(captions)[::-1]):
        data.captions = {name: captions[name] for name in names}
        make_grounding(data, world / "grown")
    assert read_record(world / "grown").content_digest == expected
    assert counted(world / "grounding", world / "grown") == (0, 0, 0, 7)
    data.captions["4.png"] = ["another phrase", *captions["4.png"][1:]]
    make_grounding(data, world / "grown")
    assert read_record(world / "grown").content_digest != expected


def test_the_digest_of_tokens_does_not_depend_on_the_order_of_texts(world: Path) -> None:
    expected = read_record(world / "tokens").content_digest
    make_tokens(world / "other", [*TEXTS[::-1], *TEXTS[:3]])
    assert read_record(world / "other").content_digest == expected
    make_tokens(world / "other", TEXTS[1:])
    assert read_record(world / "other").content_digest != expected
    write_tokens(world / "third", HEADER, keys_of_texts(TEXTS), [[1]] * len(TEXTS))
    assert read_record(world / "third").content_digest != expected


def test_a_digest_does_not_depend_on_how_arrow_holds_the_values(world: Path, monkeypatch) -> None:
    """Chunks, offsets into larger buffers and validity bitmaps change nothing."""
    record = read_record(world / "grounding")
    shards, spec = record.shards, record.spec  # type: ignore
    from sightline.cache import tables

    whole = tables.read_table

    def otherwise(folder: Path, name: str, file: Any, **options: Any) -> pa.Table:
        table = whole(folder, name, file, **options)
        twice = pa.concat_tables([table, table]).combine_chunks()
        parts = [twice.slice(len(table) + i, 1) for i in range(len(table))]
        return pa.concat_tables([table.slice(0, 0), *parts])

    monkeypatch.setattr(tables, "read_table", otherwise)
    assert table_content(world / "grounding", spec, shards) == record.content_digest


@pytest.mark.parametrize("values", [["", "a", "é", "", "b" * 99], [], [""]])
def test_texts_are_digested_by_their_bytes_and_lengths(values: list[str]) -> None:
    from sightline.cache.tables import _canonical

    data = [value.encode() for value in values]
    expected = np.array([len(value) for value in data], "<i8").tobytes() + b"".join(data)
    long = pa.array(["x", *values, "y"], pa.string())
    for array in (pa.array(values, pa.string()), long.slice(1, len(values))):
        assert b"".join(_canonical(array)) == expected


# --- other sets in the same place


@every_kind
def test_a_set_is_replaced_only_by_its_own_kind(world: Path, kind: TableKind) -> None:
    fill(world / "image")
    refuse_other_kinds(world / kind, kind)
    refuse_other_kinds(world / "nothing", kind)
    for other in {"image", *TABLE_KINDS} - {kind}:
        before = files(world / other)
        with pytest.raises(CacheError, match=f"of kind {other}, but this is .* of kind {kind}"):
            refuse_other_kinds(world / other, kind)
        with pytest.raises(CacheError, match="choose another folder"):
            write(world, kind, world / other)
        assert files(world / other) == before


def write(world: Path, kind: TableKind, folder: Path) -> None:
    """Make a set of this kind in ``folder``."""
    data = photographs(world / f"for-{folder.name}", 1)
    if kind == "grounding":
        make_grounding(data, folder)
    elif kind == "cutouts":
        grounding = world / "one"
        make_grounding(data, grounding)
        make_cutouts(data, grounding, folder)
    elif kind == "tokens":
        make_tokens(folder)
    else:
        make_phrase_tokens(folder)
