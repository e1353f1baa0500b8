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
from xxhash import xxh3_128

from sightline.cache import (
    CacheError,
    MissingKeys,
    PhraseTokens,
    TokenSet,
    keys_of_texts,
    verify,
    write_tokens,
)
from sightline.cache.archive import export_set, import_set
from sightline.cache.compact import collect, garbage
from sightline.cache.diff import compare
from sightline.cache.groundings import read_phrases
from sightline.cache.record import (
    FILE_NAME,
    TABLE_KINDS,
    TableKind,
    read_record,
    refuse_other_kinds,
)
from sightline.cache.shards import format_of
from sightline.cache.tables import GROUNDED, ROWS_OF
from sightline.cache.verify import bytes_to_verify, repair, rows_to_compute

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
    flip(Forger(world / kind).shard(), 40)
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


def expect_noticed(folder: Path, kind: TableKind, sound: pa.Table, named: str) -> None:
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
        '{"schema": "sightline.set/3", "rows": NaN}',
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


def first_shard(body: dict[str, Any]) -> dict[str, Any]:
    return body["shards"][0]


SHA = "0" * 32
LIES = {
    "a name outside": lambda b: first_shard(b).update(name=f"../tokens-{SHA}.parquet"),
    "an absolute name": lambda b: first_shard(b).update(name="/etc/passwd"),
    "a negative number of rows": lambda b: first_shard(b).update(rows=-1),
    "rows beyond counting": lambda b: first_shard(b).update(rows=10**30),
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
def test_more_rows_than_a_shard_has_are_detected(world: Path, kind: TableKind) -> None:
    Forger(world / kind).say(lambda body: first_shard(body).update(rows=(1 << 31) - 1))
    assert "rows, expected 2,147,483,647" in verify(world / kind, rows=True)[0]
    with pytest.raises(CacheError, match="rows, expected"):
        read(world / kind, kind)


@every_kind
def test_null_values_are_refused(world: Path, kind: TableKind) -> None:
    schema = ROWS_OF[kind]
    table = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
    Forger(world / kind).replace(table)
    assert any("row 0: " in f and "found null" in f for f in verify(world / kind, rows=True))
    with pytest.raises(CacheError, match=r"row 0: .*: found null"):
        read(world / kind, kind)


def test_incomplete_boxes_and_masks_are_refused(world: Path) -> None:
    rows = read(world / "grounding", "grounding").to_pylist()
    row = next(row for row in rows if row["phrases"])
    for field, change in (
        ("box[1]", {"box": [1.0, None, 2.0, 3.0]}),
        ("mask.counts", {"mask": {"size": [1, 1], "counts": None}}),
    ):
        phrases = [{**row["phrases"][0], **change}]
        table = pa.Table.from_pylist([{**row, "phrases": phrases}], schema=GROUNDED)
        Forger(world / "grounding").replace(table)
        (fault,) = verify(world / "grounding", rows=True)[:1]
        assert f"row 0: phrases[0].{field}: found null" in fault


def test_texts_with_invalid_unicode_are_refused(world: Path) -> None:
    row = read(world / "grounding", "grounding").slice(0, 1)
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    fields = list(GROUNDED.field("drops").type.value_type)
    key = pa.array([bytes(32)], pa.binary(32))
    drops = pa.StructArray.from_arrays([key, text, text, text], fields=fields)
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), drops)
    Forger(world / "grounding").replace(row.set_column(3, GROUNDED.field("drops"), lists))
    assert "UTF8" in verify(world / "grounding", rows=True)[0]
    with pytest.raises(CacheError, match="UTF8"):
        read(world / "grounding", "grounding")


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


def test_repair_removes_the_damaged_shard_and_the_next_run_computes_only_it(world) -> None:
    folder = world / "grounding"
    before, record = files(folder), read_record(folder)
    damaged = record.shards[1]
    lost = set(pq.read_table(folder / damaged.name)["image_key"].to_pylist())
    flip(folder / damaged.name, damaged.bytes // 2)
    report = repair(folder)
    assert [(each.name, each.rows) for each in report.dropped] == [(damaged.name, damaged.rows)]
    assert verify(folder) == []
    assert rows_to_compute(folder) == damaged.rows
    assert len(read(folder, "grounding")) == 7 - damaged.rows
    grounder = WordGrounder()
    again = photographs(world / "again")
    make_grounding(again, folder, grounder=grounder)
    assert sum(grounder.calls) == sum(len(u.captions) for u in again.units() if u.key in lost)
    after = files(folder)
    assert {name: after[name] for name in before} == before
    assert read_record(folder) == record
    assert verify(folder) == []


@every_kind
def test_repair_of_a_damaged_shard_leaves_an_intact_set(world: Path, kind: TableKind) -> None:
    damaged = Forger(world / kind).shard()
    before = read_record(world / kind)
    flip(damaged, damaged.stat().st_size - 9)
    (dropped,) = repair(world / kind).dropped
    assert damaged.name in dropped.reason
    assert verify(world / kind) == []
    after = read_record(world / kind)
    assert len(after.shards) == len(before.shards) - 1
    assert after.rows + after.failed == before.rows
    assert sightline("cache", "verify", world / kind) == 0


def test_verify_says_how_many_rows_repair_took_out(world: Path, capsys) -> None:
    shard = read_record(world / "grounding").shards[0]
    flip(world / "grounding" / shard.name, 60)
    assert sightline("cache", "repair", world / "grounding") == 0
    assert sightline("cache", "verify", world / "grounding") == 0
    assert f"sound, {shard.rows} rows to compute" in capsys.readouterr().out


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
    damaged = Forger(folder).shard(1)
    lost = set(pq.read_table(damaged)["key"].to_pylist())
    flip(damaged, 60)
    assert [each.name for each in repair(folder).dropped] == [damaged.name]
    phrases = read_phrases(world / "grounding").to_pylist()
    missing = {row["image_key"] for row in phrases if row["cutout_key"] in lost}
    from pipeline.grounding import cutouts

    cut: set[bytes] = set()

    class Watched(cutouts.Cutter):
        def __call__(self, entry):
            cut.add(entry.image_key)
            return super().__call__(entry)

    monkeypatch.setattr(cutouts, "Cutter", Watched)
    make_cutouts(data, world / "grounding", folder)
    assert cut == missing
    assert {name: files(folder)[name] for name in before} == before


def test_a_token_set_without_a_shard_names_the_command_that_makes_it(world: Path) -> None:
    model, tokenizer = make_encoder()
    for part in (model, tokenizer):
        part.save_pretrained(world / "bert")
    (world / "texts.txt").write_text("a red dog\na big house\n")
    words = ["tokens", "--texts", world / "texts.txt", "--student", world / "bert"]
    words += ["--out", world / "words"]
    assert sightline(*words) == 0
    before = files(world / "words")
    flip(Forger(world / "words").shard(), 100)
    assert sightline("cache", "repair", world / "words") == 0
    assert verify(world / "words") == []
    with pytest.raises(MissingKeys, match="run `sightline tokens`"):
        TokenSet.open(world / "words").rows(keys_of_texts(["a red dog"]))
    assert sightline(*words) == 0
    assert {name: files(world / "words")[name] for name in before} == before


def test_phrase_tokens_without_their_shard_are_made_again(world: Path) -> None:
    before = files(world / "phrase-tokens")
    Forger(world / "phrase-tokens").shard().unlink()
    with pytest.raises(CacheError, match="sightline cache repair"):
        PhraseTokens.open(world / "phrase-tokens")
    make_phrase_tokens(world / "phrase-tokens")
    assert {name: files(world / "phrase-tokens")[name] for name in before} == before


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
        planned = garbage(folder).files.keys()
        assert planned
        assert planned <= collect(folder).files.keys()  # and shards with rows in no use
        named = {file.name for file in read_record(folder).files}
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
    assert counted(world / "grounding", world / "other") == (
        2,
        3,
        0,
        4,
    )  # other captions, another key
    assert compare(world / "grounding", world / "other").why == ()


def test_texts_of_token_sets_are_counted(world: Path) -> None:
    make_tokens(world / "other", [*TEXTS[10:], "text 41"], token=6)
    found = compare(world / "tokens", world / "other")
    assert (found.added, found.gone, found.changed + found.same) == (1, 10, 30)
    make_tokens(world / "same", [*TEXTS[10:], "text 41"])
    assert counted(world / "tokens", world / "same") == (1, 10, 0, 30)


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


@every_kind
def test_a_digest_does_not_depend_on_how_arrow_holds_the_values(world, kind) -> None:
    """Chunks and offsets into larger buffers change nothing."""
    rows = read(world / kind, kind)
    form = format_of(read_record(world / kind).spec)
    twice = pa.concat_tables([rows, rows]).combine_chunks()
    parts = [twice.slice(len(rows) + i, 1) for i in range(len(rows))]
    otherwise = pa.concat_tables([rows.slice(0, 0), *parts])
    np.testing.assert_array_equal(form.digests(otherwise), form.digests(rows))


@every_kind
def test_a_row_is_digested_as_its_canonical_json(world: Path, kind: TableKind) -> None:
    rows = read(world / kind, kind)
    form = format_of(read_record(world / kind).spec)
    (digest,) = form.digests(rows.slice(0, 1))
    row = json.dumps(
        rows.slice(0, 1).to_pylist()[0],
        separators=(",", ":"),
        default=lambda value: xxh3_128(value).hexdigest(),
    )
    assert digest.tobytes() == xxh3_128(row.encode()).digest()


@every_kind
def test_rows_that_another_version_of_a_library_wrote_are_kept(world, kind, monkeypatch) -> None:
    """A shard is named by its rows: other bytes of the same rows are recorded as they are."""
    folder = world / kind
    record = read_record(folder)
    shard = record.shards[0]
    table = pq.read_table(folder / shard.name)
    pq.write_table(table, folder / shard.name, compression="none")
    other = (folder / shard.name).read_bytes()
    (folder / FILE_NAME).unlink()
    data = photographs(world / "again")
    make = {
        "grounding": lambda: make_grounding(data, folder),
        "cutouts": lambda: make_cutouts(data, world / "grounding", folder),
        "tokens": lambda: make_tokens(folder),
        "phrase-tokens": lambda: make_phrase_tokens(folder),
    }
    make[kind]()
    again = read_record(folder)
    assert again.content_digest == record.content_digest
    assert (folder / shard.name).read_bytes() == other
    assert verify(folder, rows=True) == []


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
