"""Sets that earlier versions wrote: what `verify` says of them, and every row of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from make_sets import CAPTIONS, GOLDEN, IMAGE, IMAGES, SETS, features_of, fill, make_all
from set_oracle import expect_sound
from shown_reader import plain, read_as_shown

from sightline.cache import CacheError, FeatureSet, PhraseTokens, TokenSet, as_keys
from sightline.cache.feature_kind import KINDS
from sightline.cache.groundings import drops_of, read_grounding, read_phrases
from sightline.cache.record import TABLE_KINDS, read_record
from sightline.cache.table_sets import open_tables

EVERY = pytest.mark.parametrize("name", GOLDEN)


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The committed sets, in a place where run folders may lie beside them."""
    folder = tmp_path_factory.mktemp("golden") / "sets"
    shutil.copytree(SETS, folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The same sets as this version writes them."""
    folder = tmp_path_factory.mktemp("golden") / "made"
    make_all(folder)
    return folder


def test_there_is_a_set_of_every_kind(sets):
    kinds = {golden.kind for golden in GOLDEN.values()}
    assert kinds == {*KINDS, *TABLE_KINDS}
    assert {path.name for path in sets.iterdir()} == GOLDEN.keys()


@EVERY
def test_verify_says_what_it_should(sets, name, capsys):
    golden, folder = GOLDEN[name], sets / name
    code = sightline("cache", "verify", folder)
    first, *faults = capsys.readouterr().out.splitlines()
    assert first == f"{folder}: {golden.verdict}"
    assert (code, len(faults)) == ((0, 0) if golden.damaged is None else (1, 1))
    if golden.damaged is None:
        expect_sound(folder)
    for fault in faults:
        (shard,) = [shard for shard in read_record(folder).shards if shard.rows == 4]
        assert str(folder / shard.name) in fault
        assert "its 4 rows (4 in use) are lost" in fault


@EVERY
def test_our_readers_give_every_row(sets, name):
    golden, folder = GOLDEN[name], sets / name
    keys = sorted(golden.rows)
    if golden.damaged is not None:
        with pytest.raises(CacheError, match=r"shard-.*damaged; run `sightline cache repair"):
            FeatureSet.open(folder)
        return
    if golden.kind in KINDS:
        features = FeatureSet.open(folder)
        assert (features.keys == as_keys(keys)).all()
        assert features.take(keys).tolist() == [golden.rows[key] for key in keys]
        assert features.failed == golden.failed
        return
    _, rows, failed = open_tables(folder, golden.kind)
    assert (rows.keys == as_keys(keys)).all()
    assert failed == golden.failed
    found = rows.gather(np.arange(len(rows))).to_pylist()
    assert found == [golden.rows[key] for key in keys]


def test_the_token_set_gives_the_ids_of_every_text(sets):
    rows, tokens = GOLDEN["tokens"].rows, TokenSet.open(sets / "tokens")
    ids, lengths = tokens.gather(tokens.rows(list(rows)))
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    assert [part.tolist() for part in parts] == [row["input_ids"] for row in rows.values()]


def test_phrase_tokens_give_the_spans_of_every_pair(sets):
    found = PhraseTokens.open(sets / "phrase-tokens").of_pairs(
        as_keys([*IMAGES[:2], IMAGES[0]]), as_keys(CAPTIONS[:3])
    )
    spans = [span for row in GOLDEN["phrase-tokens"].rows.values() for span in row["phrases"]]
    assert found.offsets.tolist() == [0, 2, 3, 3]
    assert found.starts.tolist() == [span["token_start"] for span in spans]
    assert found.ends.tolist() == [span["token_end"] for span in spans]
    assert (found.cutouts == as_keys([span["cutout_key"] for span in spans])).all()


def test_a_grounding_is_flattened_for_readers(sets):
    rows = [GOLDEN["grounding"].rows[key] for key in sorted(GOLDEN["grounding"].rows)]
    for name, table in (
        ("phrases", read_phrases(sets / "grounding")),
        ("drops", drops_of(read_grounding(sets / "grounding")[0])),
    ):
        expected = [{"image_key": row["image_key"], **item} for row in rows for item in row[name]]
        assert table.to_pylist() == expected


def test_the_documented_code_reads_them_too(sets):
    for (name, golden), shown in zip(
        GOLDEN.items(), read_as_shown([sets / name for name in GOLDEN]), strict=True
    ):
        keys = sorted(golden.rows)
        assert shown.keys == keys, name
        assert shown.failed == golden.failed, name
        differing = [
            key for key, row in zip(keys, shown.rows, strict=True) if row != plain(golden.rows[key])
        ]
        assert differing == ([] if golden.damaged is None else [golden.damaged]), name


@EVERY
def test_this_version_writes_the_same_sets(sets, made, name):
    one, other = (read_record(folder / name) for folder in (sets, made))
    assert one.content_digest == other.content_digest
    assert [shard.name for shard in one.shards] == [shard.name for shard in other.shards]
    for path in (made / name).iterdir():
        there = sets / name / path.name
        if path.suffix == ".h5" or (there.is_file() and written_here(there)):
            assert path.read_bytes() == there.read_bytes(), path


def written_here(path: Path) -> bool:
    """Whether these bytes are those of the installed version of pyarrow."""
    if path.suffix != ".parquet":
        return False
    return pq.read_metadata(path).created_by == f"parquet-cpp-arrow version {pa.__version__}"


def test_a_history_leaves_the_rows_or_the_files_of_a_clean_run(sets, tmp_path):
    def shards(folder: Path) -> list[str]:
        return [shard.blake3 for shard in read_record(folder).shards]

    fill(tmp_path / "clean", IMAGE, features_of(IMAGES[1:]))
    assert shards(sets / "resumed") == shards(sets / "image")
    assert shards(sets / "compacted") == shards(tmp_path / "clean") != shards(sets / "grown")
    digests = {
        read_record(folder).content_digest for folder in (tmp_path / "clean", sets / "grown")
    }
    assert digests == {read_record(sets / "compacted").content_digest}
