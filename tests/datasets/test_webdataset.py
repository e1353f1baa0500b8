"""WebDataset shards: images are found where they are; whatever does not fit costs its own row."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from command_line import sightline
from pydantic import ValidationError
from shards import picture, sample, write_tar
from small_inputs import write_clip

from pipeline.datasets.kinds import prepare as prepare_source
from pipeline.datasets.source import DatasetError
from pipeline.datasets.webdataset import WebDatasetSource
from pipeline.extract.decode import ImageError, load_image
from sightline.cache import CAPTIONS, IMAGES, places_of, read_manifest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shards"


def prepare(root, **given):
    return prepare_source("webdataset", WebDatasetSource(images=root, **given), out_of(root))


def out_of(root):
    return root.with_name("out")


def rows(root, name="images", schema=IMAGES):
    return read_manifest(out_of(root) / f"{name}.parquet", schema).to_pylist()


def texts(root):
    return {row["caption_id"]: row["text"] for row in rows(root, "captions", CAPTIONS)}


def load_all(root):
    manifest = out_of(root) / "images.parquet"
    table = read_manifest(manifest, IMAGES)
    places = [place.below(root) for place in places_of(manifest, table)]
    return [load_image(*each) for each in zip(places, table["key"].to_pylist(), strict=True)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_image_is_a_range_of_its_shard(root, form):
    long = "deep/" * 30 + "x" * 90  # needs an extended header, except in ustar
    members = [*sample("000", 0), *(sample(long, 1) if form != tarfile.USTAR_FORMAT else [])]
    write_tar(root / "sub/00000.tar", [("sub/", ""), *members], form)
    prepare(root, shards="**/*.tar")
    found = rows(root)
    assert found[0]["image_id"] == "sub/00000.tar/000.png"
    for number, row in enumerate(found):
        data = (root / row["path"]).read_bytes()[row["offset"] :][: row["length"]]
        assert data == picture(number)
        assert row["key"] == hashlib.sha256(data).digest()
        assert (row["width"], row["height"]) == (3, 2)
    assert texts(root)["sub/00000.tar/000.png#0"] == "caption 0"
    assert len(load_all(root)) == len(found)


def test_each_shard_is_counted_in_the_record_and_on_the_terminal(root, capsys):
    for shard in range(2):
        samples = [sample(f"{n:03}", 10 * shard + n) for n in range(shard + 1)]
        write_tar(root / f"{shard:05}.tar", [each for some in samples for each in some])
    words = ["--set", f"images={root}", "--out", str(out_of(root))]
    assert sightline("prepare", "webdataset", *words) == 0
    said = capsys.readouterr().out
    assert "2 shards, 3 images, 3 captions" in said
    assert "00001.tar: 2 images, 2 captions" in said
    record = json.loads((out_of(root) / "dataset.json").read_text())
    assert record["shards"] == {
        "00000.tar": {"images": 1, "captions": 1},
        "00001.tar": {"images": 2, "captions": 2},
    }
    assert [row["image_id"][:5] for row in rows(root)] == ["00000", "00001", "00001"]


def test_many_shards_are_one_line(root):
    for shard in range(8):
        write_tar(root / f"{shard}.tar", sample("a", shard))
    said = prepare(root).summary()
    assert "8 files, 0.tar to 7.tar: 1 to 1 images each, median 1" in said


def test_captions_from_a_field_of_the_json(root):
    members = [
        ("a.png", picture(0)),
        ("a.json", json.dumps({"caption": "one", "all": ["two", "three"], "n": 10**30})),
        ("a.txt", "four"),
        ("b.png", picture(1)),
        ("b.json", json.dumps({"caption": "five", "all": []})),
    ]
    write_tar(root / "0.tar", members)
    prepare(root, caption_field="all")
    assert texts(root) == {"0.tar/a.png#0": "two", "0.tar/a.png#1": "three"}
    prepare(root, caption_field="caption")
    assert texts(root) == {"0.tar/a.png#0": "one", "0.tar/b.png#0": "five"}


BAD_JSON = {
    "missing": {"text": "x"},
    "number": {"caption": 5},
    "list": ["caption"],
    "inner": {"caption": ["x", 5]},
}


@pytest.mark.parametrize(
    "content",
    [
        *(json.dumps(each) for each in BAD_JSON.values()),
        '{"caption": "x"',
        '{"caption": "\\ud800"}',
        "[" * 100_000,
        '{"caption": "x", "n": ' + "9" * 5000 + "}x",
        b'{"caption": "\xff"}',
        b"",
    ],
    ids=[*BAD_JSON, "cut", "surrogate", "deep", "digits", "latin1", "empty"],
)
def test_an_unusable_json_costs_its_caption(root, content):
    good = [("a.png", picture(0)), ("a.json", '{"caption": "fine"}')]
    write_tar(root / "0.tar", [*good, ("b.png", picture(1)), ("b.json", content)])
    report = prepare(root, caption_field="caption")
    assert list(texts(root)) == ["0.tar/a.png#0"]
    assert report.problem_counts == {"unusable_captions": 1, "images_without_caption": 1}
    assert report.problems["unusable_captions"][0].startswith("0.tar/b.json: ")


def test_a_dataset_without_one_usable_caption_says_why(root):
    write_tar(root / "0.tar", [("a.png", picture(0)), ("a.json", '{"text": "x"}')])
    with pytest.raises(DatasetError) as error:
        prepare(root, caption_field="caption")
    assert "found 1 images and no usable caption" in str(error.value)
    assert "0.tar/a.json: caption: Field required" in str(error.value)
    assert not out_of(root).exists()


def test_captions_keep_their_text_and_lose_control_characters(root):
    said = [
        "\u2800\u3164",
        "two\nlines ",
        "bell\x07 and \x1b[31mred",
        "\u200b\u2060 ",
        " \t\n",
        "naïve 日本\x92s 👩‍👩‍👧",
    ]
    write_tar(root / "0.tar", [m for n, text in enumerate(said) for m in sample(str(n), n, text)])
    report = prepare(root)
    assert list(texts(root).values()) == [
        "two\nlines",
        "bell and [31mred",
        "naïve 日本\x92s 👩‍👩‍👧",
    ]
    assert report.problems["captions_without_their_control_characters"] == ["0.tar/2.png#0"]
    empty = ["0.tar/0.png#0", "0.tar/3.png#0", "0.tar/4.png#0"]
    assert report.problems["empty_captions"] == empty
    assert report.counts["captions_trimmed"] == 1


def test_a_caption_that_is_not_utf8_costs_its_row(root):
    write_tar(root / "0.tar", [*sample("a", 0), ("b.png", picture(1)), ("b.txt", b"caf\xe9")])
    assert prepare(root).problems["unusable_captions"] == ["0.tar/b.txt: byte 3 is not UTF-8"]


@pytest.mark.parametrize(
    "name", ["../a.png", "/etc/a.png", "x/../../a.png", "a\x1b[2J.png", "a\nb.png"]
)
def test_a_name_that_leads_out_of_the_shard_is_left_out(root, name):
    write_tar(root / "0.tar", [*sample("ok", 0), (name, picture(1)), (f"{name[:-4]}.txt", "x")])
    report = prepare(root)
    assert [row["image_id"] for row in rows(root)] == ["0.tar/ok.png"]
    assert report.problem_counts["members_with_unusable_names"] == 2
    assert all(each.isprintable() for each in report.problems["members_with_unusable_names"])
    assert {path.name for path in root.parent.iterdir()} == {"shards", "out"}


def test_a_name_that_is_not_utf8_is_left_out(root):
    path = write_tar(root / "0.tar", [*sample("ok", 0), *sample("caf_", 1)], tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    for name in (b"caf_.png", b"caf_.txt"):
        at = data.index(name)
        data[at : at + 4] = b"caf\xe9"
        header = data[at : at + 512]
        header[148:156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(data)
    report = prepare(root)
    assert report.problem_counts["members_with_unusable_names"] == 2
    assert len(rows(root)) == 1


def test_links_devices_and_folders_are_left_out(root):
    path = write_tar(root / "0.tar", sample("a", 0))
    with tarfile.open(path, "a") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo(f"{kind.decode()}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    report = prepare(root)
    assert len(rows(root)) == 1
    assert report.problems["shards_with_links_or_devices"] == ["0.tar: 3 left out"]


def test_of_two_images_of_a_key_the_first_counts(root):
    write_tar(root / "0.tar", [("a.jpg", picture(0, "JPEG")), *sample("a", 1)])
    report = prepare(root)
    assert [row["image_id"] for row in rows(root)] == ["0.tar/a.jpg"]
    assert report.problems == {"images_whose_key_has_another": ["0.tar/a.png"]}


def test_of_a_name_that_occurs_twice_the_first_counts(root):
    write_tar(root / "0.tar", [*sample("a", 0), *sample("./a", 1, "second")])
    report = prepare(root)
    assert rows(root)[0]["key"] == hashlib.sha256(picture(0)).digest()
    assert list(texts(root).values()) == ["caption 0"]
    assert report.problems["members_with_a_name_used_before"] == ["0.tar/a.png", "0.tar/a.txt"]


def test_the_same_key_in_two_shards_is_two_samples(root):
    for shard in range(2):
        write_tar(root / f"{shard}.tar", sample("a", shard))
    prepare(root)
    assert list(texts(root)) == ["0.tar/a.png#0", "1.tar/a.png#0"]


def test_a_key_ends_at_the_first_dot_of_the_file_name(root):
    members = [("x.y/a.png", picture(0)), ("x.y/a.txt", "one"), ("x.y/a.seg.png", picture(1))]
    write_tar(root / "0.tar", members)
    assert not prepare(root).problems
    assert texts(root) == {"0.tar/x.y/a.png#0": "one"}


def test_mismatches_are_counted_and_strict_makes_them_errors(root):
    write_tar(root / "0.tar", [*sample("a", 0), ("b.txt", "no image"), ("c.png", picture(1))])
    write_tar(root / "1.tar", [("x.cls", "5")])
    write_tar(root / "2.tar", [])
    report = prepare(root)
    assert report.problems == {
        "captions_without_image": ["0.tar/b.txt"],
        "images_without_caption": ["0.tar/c.png"],
        "shards_without_images": ["1.tar", "2.tar"],
    }
    with pytest.raises(DatasetError, match=r"captions without image: 1 \(0.tar/b.txt\)"):
        prepare(root, strict=True)


def test_a_damaged_image_is_reported_and_kept(root):
    write_tar(root / "0.tar", [*sample("a", 0), ("b.jpg", b"no image"), ("b.txt", "x")])
    assert prepare(root).problems == {"unreadable_images": ["0.tar/b.jpg"]}
    assert rows(root)[1]["width"] == 0


def cut_at(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def ends_of(path: Path) -> list[int]:
    with tarfile.open(path) as tar:
        return [member.offset_data + member.size for member in tar]


@pytest.mark.parametrize("missing", [1, 100])
def test_a_truncated_shard_costs_its_last_member(root, missing):
    members = [each for n in range(3) for each in sample(str(n), n)]
    members += [("3.txt", "before its image"), ("3.png", picture(3))]
    path = write_tar(root / "0.tar", members, tarfile.USTAR_FORMAT)
    cut_at(path, ends_of(path)[-1] - min(missing, len(picture(3))))
    report = prepare(root)
    assert len(rows(root)) == len(load_all(root)) == 3
    assert report.problems["incomplete_shards"] == ["0.tar: ends in the middle of 3.png"]
    assert "warning: 0.tar: ends in the middle of 3.png" in report.summary()


@pytest.mark.parametrize("left", [0, 1, 511, 512, 513, 1000])
def test_a_shard_that_is_cut_between_members_is_reported(root, left):
    path = write_tar(root / "0.tar", [*sample("0", 0), *sample("1", 1)], tarfile.USTAR_FORMAT)
    end = -(-ends_of(path)[1] // 512) * 512
    cut_at(path, end + left)
    report = prepare(root)
    assert len(rows(root)) == (1 if left < 512 + len(picture(1)) else 2)
    assert report.problem_counts["incomplete_shards"] == 1


def test_every_cut_is_noticed_and_never_gives_other_bytes(root):
    path = write_tar(root / "0.tar", [*sample("0", 0), *sample("1", 1)])
    whole = path.read_bytes()
    keys = {hashlib.sha256(picture(n)).digest() for n in range(2)}
    noticed = refused = 0
    for size in range(0, len(whole), 317):
        path.write_bytes(whole[:size])
        try:
            report = prepare(root)
        except DatasetError:
            refused += 1
            continue
        assert {row["key"] for row in rows(root)} <= keys
        noticed += "incomplete_shards" in report.problems
        assert "incomplete_shards" in report.problems or len(rows(root)) == 2
    assert noticed > 10
    assert refused * 317 <= 4096  # no image with its caption


def test_a_damaged_header_ends_the_shard_with_a_warning(root):
    path = write_tar(root / "0.tar", [*sample("0", 0), *sample("1", 1)], tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    data[data.index(b"1.png")] ^= 0xFF
    path.write_bytes(data)
    report = prepare(root)
    assert len(rows(root)) == 1
    assert report.problems["incomplete_shards"] == [
        "0.tar: cannot be read after 0.txt (damaged header)"
    ]


def test_a_second_tar_behind_the_first_is_reported(root):
    path = write_tar(root / "0.tar", sample("0", 0))
    path.write_bytes(path.read_bytes() * 2)
    (said,) = prepare(root).problems["incomplete_shards"]
    assert "more bytes behind its end after 0.txt" in said


def test_an_absurd_size_in_a_header_is_no_memory_error(root):
    path = write_tar(root / "0.tar", [*sample("0", 0), *sample("1", 1)], tarfile.USTAR_FORMAT)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size)
    member = tarfile.TarInfo("2.png")
    member.size = 8 << 40
    long = tarfile.TarInfo("long")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    for odd in (member, long):
        end = -(-ends_of(path)[-1] // 512) * 512
        head = path.read_bytes()[:end]
        (root / "1.tar").write_bytes(head + odd.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
        report = prepare(root, shards="1.tar")
        assert len(rows(root)) == 2
        assert report.problem_counts["incomplete_shards"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("0.tar.gz", gzip.compress(b"x" * 2000, mtime=0), "decompress .tar.gz first"),
        ("0.tar", b"PK\x03\x04" + b"x" * 2000, "not an uncompressed tar file"),
        ("0.tar", b"x", "not an uncompressed tar file"),
    ],
)
def test_compressed_and_foreign_files_are_refused_with_the_reason(root, name, content, message):
    write_tar(root / "1.tar", sample("a", 0))
    (root / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        prepare(root, shards="*.tar*")
    assert not out_of(root).exists()


def test_empty_files_are_reported(root):
    write_tar(root / "1.tar", sample("a", 0))
    (root / "0.tar").write_bytes(b"")
    assert prepare(root).problems["incomplete_shards"] == ["0.tar: has 0 bytes"]


def test_ranges_name_every_shard(root):
    for shard in (0, 1, 3):
        write_tar(root / f"{shard:03}.tar", sample("a", shard))
    assert prepare(root, shards="{000..001}.tar").counts["shards"] == 2
    with pytest.raises(DatasetError, match=r"no shard matches '002.tar' \(of {000..003}.tar\)"):
        prepare(root, shards="{000..003}.tar")
    with pytest.raises(DatasetError, match="expected a range that counts up"):
        prepare(root, shards="{3..1}.tar")


def test_a_pattern_without_files_says_what_is_there(root):
    root.mkdir()
    (root / "0.tar.gz").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"which contains '0\.tar\.gz'"):
        prepare(root)
    with pytest.raises(DatasetError, match="no such folder of shards"):
        prepare(root / "nowhere")


@pytest.mark.parametrize("pattern", ["/data/*.tar", "../*.tar", "x/../../y.tar", "."])
def test_patterns_stay_below_the_folder(root, pattern):
    for given in ({"shards": pattern}, {"splits": {"train": pattern}}):
        with pytest.raises(ValidationError, match="below the folder"):
            WebDatasetSource(images=root, **given)


def test_splits_are_shards(root):
    for name in ("train-0", "train-1", "val-0"):
        write_tar(root / f"{name}.tar", sample("a", len(name) + int(name[-1])))
    report = prepare(root, splits={"train": "train-*.tar", "val": "val-*.tar"})
    assert (report.counts["images_train"], report.counts["images_dev"]) == (2, 1)
    assert {row["split"] for row in rows(root, "captions", CAPTIONS)} == {"train", "dev"}
    with pytest.raises(ValidationError, match="give `shards` or `splits`, but not both"):
        prepare(root, splits={"train": "train-*.tar"}, shards="val-0.tar")
    with pytest.raises(DatasetError, match="in several of `splits`"):
        prepare(root, splits={"train": "*.tar", "dev": "val-*.tar"})


def test_a_limit_reads_the_first_images(root):
    for shard in range(3):
        samples = [sample(str(n), 10 * shard + n) for n in range(4)]
        write_tar(root / f"{shard}.tar", [each for some in samples for each in some])
    report = prepare(root, limit=6)
    assert [len(rows(root)), len(texts(root))] == [6, 6]
    assert report.shards["1.tar"] == {"images": 2, "captions": 2}
    assert "2.tar" not in report.shards
    assert "limit is 50, but there are fewer images" in prepare(root, limit=50).summary()


def test_a_shard_that_changed_gives_no_other_bytes(root):
    path = write_tar(root / "0.tar", [*sample("a", 0), *sample("b", 1)])
    prepare(root)
    write_tar(path, [*sample("c", 2), *sample("d", 3)])
    with pytest.raises(ImageError) as error:
        load_all(root)
    assert error.value.code == "changed"
    cut_at(path, 600)
    with pytest.raises(ImageError) as error:
        load_all(root)
    assert error.value.code == "outside"


def test_features_equal_those_of_the_unpacked_images(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loose").mkdir()
    for shard in range(2):
        write_tar(
            root / f"{shard}.tar", [*sample(f"{shard}a", shard), *sample(f"{shard}b", 9 - shard)]
        )
        with tarfile.open(root / f"{shard}.tar") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                Path("loose", member.name).write_bytes(file.read())
    lines = [f"{path.stem}.png\t{path.read_text()}" for path in sorted(Path("loose").glob("*.txt"))]
    Path("c.tsv").write_text("\n".join(["image\tcaption", *lines]) + "\n")
    write_clip(Path())
    commands = (
        "prepare webdataset --set images=shards --out packed",
        "prepare pairs --set images=loose --set captions=c.tsv --out pairs",
        *(
            f"extract image --data {name} --encoder clip.json --weights random:0 "
            f"--out {name}.features --batch-size 2 --workers 1"
            for name in ("packed", "pairs")
        ),
    )
    for command in commands:
        assert sightline(*command.split()) == 0
    one, other = (
        {path.name: path.read_bytes() for path in Path(f"{name}.features").glob("*.h5")}
        for name in ("packed", "pairs")
    )
    assert one == other != {}


def test_the_same_shards_give_the_same_manifests(root, tmp_path):
    for shard in range(12):
        write_tar(root / f"{shard}.tar", [*sample("a", 2 * shard), *sample("b", 2 * shard + 1)])
    prepare(root)
    names = ("images.parquet", "captions.parquet", "sentences.parquet", "dataset.json")
    first = [(out_of(root) / name).read_bytes() for name in names]
    prepare(root)
    assert [(out_of(root) / name).read_bytes() for name in names] == first
    assert str(tmp_path) not in (out_of(root) / "dataset.json").read_text()


def test_sparse_members_are_left_out(root):
    path = write_tar(root / "0.tar", sample("a", 0))
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("s.png")
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "100"}
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    assert prepare(root).problems["shards_with_links_or_devices"] == ["0.tar: 1 left out"]
