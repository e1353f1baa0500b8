"""A set as one tar; and the differences between two sets."""

from __future__ import annotations

import io
import subprocess
import tarfile

import numpy as np
import pytest
from every_kind import (
    KINDS,
    TEXTS,
    every_kind,
    make_grounding,
    make_tokens,
    photographs,
)
from stub_set import KEYS, SPEC, files, fill, rows_of

from sightline.cache import CacheError, SetWriter, verify
from sightline.cache.archive import SUMS, export_set, import_set
from sightline.cache.diff import compare
from sightline.cache.record import FILE_NAME


@pytest.fixture
def archive(tmp_path):
    fill(tmp_path / "set")
    export_set(tmp_path / "set", tmp_path / "set.tar")
    return tmp_path / "set.tar"


def members(archive) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(archive) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]  # pyright: ignore


def pack(archive, content, kind=tarfile.USTAR_FORMAT) -> None:
    with tarfile.open(archive, "w", format=kind) as tar:
        for info, data in content:
            tar.addfile(info, io.BytesIO(data))


@every_kind
def test_export_and_import_round_trip(world, kind):
    archive = world / "set.tar"
    export_set(world / kind, archive)
    import_set(archive, world / "other" / "set")
    assert files(world / "other" / "set") == files(world / kind)
    assert verify(world / "other" / "set") == []
    first = archive.read_bytes()
    export_set(world / "other" / "set", archive)
    assert archive.read_bytes() == first


def test_other_tools_can_unpack_and_check_it(archive, tmp_path):
    subprocess.run(["tar", "xf", archive], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=True)


def named(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info, b"x" * size


@pytest.mark.parametrize(
    "extra",
    [
        named("../outside", size=3),
        named("sub/set.json", size=3),
        named(f"shard-{'0' * 32}.h5", tarfile.SYMTYPE, "/etc/passwd"),
    ],
)
def test_files_that_the_record_does_not_list_are_not_taken(archive, tmp_path, extra):
    content = members(archive)
    pack(archive, [content[0], extra, *content[1:]])
    before = {*tmp_path.rglob("*")}
    import_set(archive, tmp_path / "new" / "set")
    assert files(tmp_path / "new" / "set") == files(tmp_path / "set")
    assert {*tmp_path.iterdir()} - before == {tmp_path / "new"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.CHRTYPE])
def test_a_shard_that_is_a_link_is_refused(archive, tmp_path, kind):
    content = members(archive)
    pack(archive, [*content[:2], named(content[2][0].name, kind, "/etc/passwd"), *content[3:]])
    with pytest.raises(CacheError, match="nothing was imported"):
        import_set(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [1, 2])  # the index and a shard
def test_bytes_that_differ_from_the_record_are_refused(archive, tmp_path, number):
    content = members(archive)
    data = bytearray(content[number][1])
    data[len(data) // 2] ^= 1
    content[number] = (content[number][0], bytes(data))
    pack(archive, content)
    with pytest.raises(CacheError, match="damaged"):
        import_set(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_every_truncation_is_detected(archive, tmp_path):
    data = archive.read_bytes()
    with tarfile.open(archive) as tar:
        end = tar.getmember(SUMS).offset  # what import needs is before it
    for length in [*range(0, end, 700), *range(0, end, tarfile.RECORDSIZE), 511, 513]:
        archive.write_bytes(data[:length])
        with pytest.raises(CacheError):
            import_set(archive, tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_an_existing_set_is_left_alone(archive, tmp_path):
    before = files(tmp_path / "set")
    with pytest.raises(CacheError, match="already holds a set"):
        import_set(archive, tmp_path / "set")
    assert files(tmp_path / "set") == before


def test_an_archive_begins_with_its_record(archive, tmp_path):
    content = members(archive)
    assert content[0][0].name == FILE_NAME
    pack(archive, content[1:])
    with pytest.raises(CacheError, match=r"set\.json"):
        import_set(archive, tmp_path / "new")


def test_added_removed_and_changed_rows_are_counted(tmp_path):
    fill(tmp_path / "a", KEYS[:80], failing=frozenset([KEYS[0].tobytes()]))
    with SetWriter(tmp_path / "b", SPEC) as writer:
        for batch in writer.plan(KEYS[10:], batch_size=100):
            rows = rows_of(batch.keys)
            turned = (batch.keys == KEYS[20]).all(axis=1)
            rows[turned] = -rows[turned]
            nudged = (batch.keys == KEYS[30]).all(axis=1)
            rows[nudged, 0] += 1
            writer.add(batch.keys, rows)
        writer.publish()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.added, found.gone, found.changed, found.same) == (20, 9, 2, 68)
    assert found.largest_change == pytest.approx(2)
    assert found.changed_most == KEYS[20].tobytes().hex()
    assert (found.added_failures, found.gone_failures, found.why) == (0, 1, ())


@every_kind
def test_a_set_does_not_differ_from_itself(world, kind):
    found = compare(world / kind, world / kind)
    assert (found.added, found.gone, found.changed, found.largest_change) == (0, 0, 0, 0)
    assert found.same > 0


def test_a_different_dtype_is_reported(tmp_path):
    fill(tmp_path / "a")
    fill(tmp_path / "b", spec=SPEC.model_copy(update={"dtype": "float32"}))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.why == ("dtype: float16 → float32",)
    assert found.largest_change < 1e-6
    assert found.same + found.changed == len(KEYS)


def test_rows_of_different_lengths_are_not_compared(tmp_path):
    fill(tmp_path / "a")
    spec = SPEC.model_copy(update={"dim": 4})
    with SetWriter(tmp_path / "b", spec) as writer:
        for batch in writer.plan(KEYS, batch_size=100):
            writer.add(batch.keys, np.ones((len(batch.keys), 4), np.float32))
        writer.publish()
    with pytest.raises(CacheError, match="cannot be compared"):
        compare(tmp_path / "a", tmp_path / "b")


def test_images_of_groundings_are_counted(world):
    data = photographs(world)
    del data.captions["0.png"], data.captions["1.png"]
    data.captions["2.png"] = ["a yellow tree"]  # other captions, another key
    data.add("new.png")
    make_grounding(data, world / "other", block_images=3)
    found = compare(world / "grounding", world / "other")
    assert (found.added, found.gone, found.changed, found.same) == (2, 3, 0, 4)
    assert found.why == ()


def test_texts_of_token_sets_are_counted(world):
    make_tokens(world / "other", [*TEXTS[10:], "text 41"], token=6)
    found = compare(world / "tokens", world / "other")
    assert (found.added, found.gone, found.changed, found.same) == (1, 10, 30, 0)
    assert bytes.fromhex(found.changed_most)
    make_tokens(world / "same", [*TEXTS[10:], "text 41"])
    found = compare(world / "tokens", world / "same")
    assert (found.added, found.gone, found.changed, found.same) == (1, 10, 0, 30)


@every_kind
def test_sets_of_two_kinds_are_not_compared(world, kind):
    for other in {*KINDS} - {kind}:
        with pytest.raises(CacheError, match=r": holds .*, expected ") as refused:
            compare(world / kind, world / other)
        assert "\n" not in str(refused.value)
