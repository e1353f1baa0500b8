"""A set as one tar; and the differences between two sets."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest
from stub_set import HEADER, KEYS, KINDS, SPEC, SPECS, every_kind, files, fill, rows_of

from sightline.cache import CacheError, SetWriter, verify, write_tokens
from sightline.cache.archive import SUMS, export_set, import_set
from sightline.cache.diff import compare
from sightline.cache.record import FILE_NAME


@every_kind
def test_export_and_import_round_trip(world, kind):
    archive = world / "set.tar"
    export_set(world / kind, archive)
    before = files(world / kind)
    with pytest.raises(CacheError, match="already holds a set"):
        import_set(archive, world / kind)
    import_set(archive, world / "other" / "set")
    assert files(world / "other" / "set") == files(world / kind) == before
    assert verify(world / "other" / "set") == []
    first = archive.read_bytes()
    export_set(world / "other" / "set", archive)
    assert archive.read_bytes() == first


@pytest.fixture
def archive(world):
    """The tar of the features beside it."""
    export_set(world / "image", world / "set.tar")
    return world / "set.tar"


def members(archive):
    with tarfile.open(archive) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar]


def pack(archive, content):
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in content:
            tar.addfile(info, io.BytesIO(data))


def test_other_tools_can_unpack_and_check_it(archive, tmp_path):
    subprocess.run(["tar", "xf", archive], cwd=tmp_path, check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=True)


def test_a_tar_of_the_folder_is_read_too(world, tmp_path):
    subprocess.run(["tar", "-C", world / "image", "-cf", tmp_path / "set.tar", "."], check=True)
    import_set(tmp_path / "set.tar", tmp_path / "new")
    assert files(tmp_path / "new") == files(world / "image")


def other(name, kind):
    """An empty file, or a link to a file of somebody else."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info, b""


@pytest.mark.parametrize("name", ["../outside", "sub/set.json", f"shard-{'0' * 32}.h5"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_files_that_the_record_does_not_list_are_not_taken(archive, tmp_path, name, kind):
    content = members(archive)
    pack(archive, [content[0], other(name, kind), *content[1:]])
    before = {*tmp_path.rglob("*")}
    import_set(archive, tmp_path / "new" / "set")
    assert files(tmp_path / "new" / "set") == files(archive.parent / "image")
    assert {*tmp_path.iterdir()} - before == {tmp_path / "new"}


def linked(content, kind):
    return [*content[:2], other(content[2][0].name, kind), *content[3:]]


def flipped(content, number):
    info, data = content[number]
    at = len(data) // 2
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return [*content[:number], (info, changed), *content[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        (linked, tarfile.SYMTYPE, "nothing was imported"),
        (linked, tarfile.CHRTYPE, "nothing was imported"),
        (flipped, 1, "damaged"),  # the index
        (flipped, 2, "damaged"),  # a shard
        (lambda content, _: content[1:], None, r"set\.json"),
    ],
)
def test_an_archive_that_does_not_hold_its_set_is_refused(archive, tmp_path, change, how, message):
    content = members(archive)
    assert content[0][0].name == FILE_NAME
    pack(archive, change(content, how))
    with pytest.raises(CacheError, match=message):
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


def test_added_removed_and_changed_rows_are_counted(tmp_path):
    fill(tmp_path / "a", KEYS[:80], failing=frozenset([KEYS[0].tobytes()]))
    with SetWriter(tmp_path / "b", SPEC) as writer:
        for batch in writer.plan(KEYS[10:], batch_size=100):
            rows = rows_of(batch.keys)
            turned = (batch.keys == KEYS[20]).all(axis=1)
            rows[turned] = -rows[turned]
            rows[(batch.keys == KEYS[30]).all(axis=1), 0] += 1
            writer.add(batch, rows)
        writer.publish()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.added, found.gone, found.changed, found.same) == (20, 9, 2, 68)
    assert found.largest_change == pytest.approx(2)
    assert found.largest_difference == pytest.approx(2)
    assert found.changed_most == KEYS[20].tobytes().hex()
    assert (found.added_failures, found.gone_failures, found.why) == (0, 1, ())


def test_rows_of_another_length_differ_though_their_cosine_is_1(tmp_path):
    fill(tmp_path / "a")
    with SetWriter(tmp_path / "b", SPEC) as writer:
        for batch in writer.plan(KEYS, batch_size=100):
            rows = rows_of(batch.keys)
            rows[(batch.keys == KEYS[20]).all(axis=1)] *= 2
            writer.add(batch, rows)
        writer.publish()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.changed, found.largest_change < 1e-6) == (1, True)
    assert found.largest_difference == pytest.approx(0.5)
    assert "cosine change 0, largest relative difference 0.5, key" in found.lines()[-1]


def test_a_different_dtype_is_reported_and_another_length_refused(world):
    fill(world / "float32", spec=SPEC.model_copy(update={"dtype": "float32"}))
    found = compare(world / "image", world / "float32")
    assert found.why == ("dtype: float16 → float32",)
    assert (found.same, found.changed) == (0, len(KEYS) - 1)
    assert found.largest_change < 1e-6
    shorter = SPEC.model_copy(update={"kind": "text", "dim": 4})
    with SetWriter(world / "short", shorter) as writer:
        for batch in writer.plan(KEYS, batch_size=100):
            writer.add(batch, rows_of(batch.keys)[:, :4])
        writer.publish()
    with pytest.raises(CacheError, match="cannot be compared"):
        compare(world / "image", world / "short")


def test_rows_of_tables_are_compared_too(world):
    write_tokens(world / "other", HEADER, KEYS[10:41], [[1, 6]] * 31)
    found = compare(world / "tokens", world / "other")
    assert (found.added, found.gone, found.changed, found.same) == (1, 10, 30, 0)
    assert bytes.fromhex(found.changed_most)
    fill(world / "same", KEYS[10:41], spec=SPECS["tokens"])
    found = compare(world / "tokens", world / "same")
    assert (found.added, found.gone, found.changed, found.same) == (1, 10, 0, 30)


@every_kind
def test_a_set_is_compared_with_its_own_kind_alone(world, kind):
    found = compare(world / kind, world / kind)
    assert (found.added, found.gone, found.changed, found.largest_change) == (0, 0, 0, 0)
    assert found.same > 0
    for other_kind in {*KINDS} - {kind}:
        with pytest.raises(CacheError, match=r": holds .*, expected ") as refused:
            compare(world / kind, world / other_kind)
        assert "\n" not in str(refused.value)
