"""WebDataset shards: images are found where they are; whatever does not fit costs its own row."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packed import column, load_all, picture, rows, sample, samples, texts, write_tar

from pipeline.datasets.prepare import prepare as prepare_source
from pipeline.datasets.prepare import prepare_dataset
from pipeline.datasets.source import DatasetError, PrepareReport
from pipeline.datasets.webdataset import WebDatasetSource
from pipeline.extract.decode import ImageError
from sightline.errors import SightlineError

USTAR = tarfile.USTAR_FORMAT
KEYS = [hashlib.sha256(picture(n)).digest() for n in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shards"


@pytest.fixture
def prepare(root: Path, out: Path) -> Callable[..., PrepareReport]:
    def run(**given) -> PrepareReport:
        return prepare_source(WebDatasetSource(images=root, **given), out)

    return run


@pytest.mark.parametrize("form", [USTAR, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_image_is_a_range_of_its_shard(root, out, prepare, form):
    long = "deep/" * 30 + "x" * 90  # needs an extended header, except in ustar
    members = [*sample("000", 0), *(sample(long, 1) if form != USTAR else [])]
    write_tar(root / "sub/00000.tar", [("sub/", ""), *members], form)
    prepare(shards="**/*.tar")
    number = len(members) // 2
    assert column(out, "image_id")[0] == "sub/00000.tar/000.png"
    assert column(out, "key") == KEYS[:number]
    assert (column(out, "width"), column(out, "height")) == ([3] * number, [2] * number)
    assert texts(out)["sub/00000.tar/000.png#0"] == "caption 0"
    assert len(load_all(out)) == number


@pytest.mark.parametrize(
    ("parts", "given"),
    [
        ("image.png caption.txt", {"image_part": "image.png", "caption_part": "caption.txt"}),
        ("input.png output.TXT", {"image_part": ".input.png", "caption_part": "output.txt"}),
        ("png text", {"caption_part": "text"}),
        ("png meta.json", {"caption_part": "meta.json", "caption_field": "said"}),
    ],
)
def test_parts_are_named_as_webdataset_names_them(root, out, prepare, parts, given):
    image, text = parts.split()
    said = json.dumps({"said": "a dog"}) if "json" in text else "a dog"
    members = [(f"0.{image}", picture(0)), (f"0.{text}", said), ("0.depth.png", picture(1))]
    write_tar(root / "0.tar", members)
    prepare(**given)
    assert texts(out) == {f"0.tar/0.{image}#0": "a dog"}


@pytest.mark.parametrize("part", ["captions.json", "json"])
def test_a_part_that_is_json_holds_a_text_or_a_list_of_them(root, out, prepare, part):
    said = ['["a dog", "a hound"]', '"a cat"', '{"caption": "a bird"}']
    members = [(f"{n}.png", picture(n)) for n in range(3)]
    write_tar(root / "0.tar", [*members, *((f"{n}.{part}", each) for n, each in enumerate(said))])
    report = prepare(caption_part=part)
    assert list(texts(out).values()) == ["a dog", "a hound", "a cat"]
    assert report.problem_counts["unusable_captions"] == 1


def test_the_parts_that_a_shard_has_are_listed(root, prepare):
    write_tar(root / "0.tar", [("0.image.png", picture(0)), ("0.caption.txt", "a dog")])
    with pytest.raises(DatasetError, match=r"have the parts image.png, caption.txt: choose them"):
        prepare()
    write_tar(root / "0.tar", [("0.png", picture(0)), ("0.json", '{"caption": "a", "url": "u"}')])
    with pytest.raises(DatasetError, match=r"the parts png, json: .* one of the fields caption, u"):
        prepare()
    write_tar(root / "0.tar", [("0.png", picture(0)), ("0.json", "[1]"), ("0.text", "a dog")])
    with pytest.raises(DatasetError, match="the parts png, json, text: choose them with `image"):
        prepare(image_part="jpg")


def test_a_shard_in_place_of_its_folder_says_how_to_give_it(root, out):
    write_tar(root / "0.tar", samples(0))
    with pytest.raises(DatasetError, match=r"give its folder as `images` and '0.tar' as `shards`"):
        prepare_source(WebDatasetSource(images=root / "0.tar"), out)
    prepare_source(WebDatasetSource(images=root, shards="0.tar"), out)


def test_each_shard_is_counted_in_the_record_and_on_the_terminal(root, out, prepare, said):
    write_tar(root / "00000.tar", samples(0))
    write_tar(root / "00001.tar", samples(10, 11))
    code, shown, _ = said("prepare", "webdataset", "--images", f"{root}", "--out", out)
    assert code == 0
    assert "2 shards, 3 images, 3 captions" in shown
    assert "00001.tar: 2 images, 2 captions" in shown
    counts = json.loads((out / "dataset.json").read_text())["shards"]
    assert counts["00000.tar"] == {"images": 1, "captions": 1}
    assert column(out, "path") == ["00000.tar", "00001.tar", "00001.tar"]
    for shard in range(2, 12):
        write_tar(root / f"{shard:05}.tar", samples(20 + shard))
    summary = prepare().summary()
    assert "12 files, 00000.tar to 00011.tar: 1 to 2 images each, median 1" in summary


def test_the_same_shards_give_the_same_manifests(root, out, prepare):
    for shard in range(12):
        write_tar(root / f"{shard}.tar", samples(2 * shard, 2 * shard + 1))
    prepare()
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    prepare()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    assert str(root.parent) not in first["dataset.json"].decode()


def test_captions_from_a_field_of_the_json(root, out, prepare):
    members = [
        ("a.png", picture(0)),
        ("a.json", json.dumps({"caption": "one", "all": ["two", "three"], "n": 10**30})),
        ("a.txt", "four"),
        ("b.png", picture(1)),
        ("b.json", json.dumps({"caption": "five", "all": []})),
    ]
    write_tar(root / "0.tar", members)
    prepare(caption_field="all")
    assert texts(out) == {"0.tar/a.png#0": "two", "0.tar/a.png#1": "three"}
    prepare(caption_field="caption")
    assert texts(out) == {"0.tar/a.png#0": "one", "0.tar/b.png#0": "five"}


BAD_JSON = {
    "missing": '{"text": "x"}',
    "number": '{"caption": 5}',
    "list": '["caption"]',
    "inner": '{"caption": ["x", 5]}',
    "cut": '{"caption": "x"',
    "surrogate": '{"caption": "\\ud800"}',
    "deep": "[" * 100_000,
    "digits": '{"caption": "x", "n": ' + "9" * 5000 + "}x",
    "latin1": b'{"caption": "\xff"}',
    "empty": b"",
}


def test_an_unusable_json_costs_its_caption(root, out, prepare):
    bad = [(f"{name}.png", picture(n)) for n, name in enumerate(BAD_JSON)]
    bad += [(f"{name}.json", content) for name, content in BAD_JSON.items()]
    write_tar(root / "0.tar", bad)
    with pytest.raises(DatasetError) as error:
        prepare(caption_field="caption")
    assert "found 10 images and no usable caption" in str(error.value)
    assert "0.tar/missing.json: caption: Field required" in str(error.value)
    assert not out.exists()
    write_tar(root / "0.tar", [*bad, ("a.png", picture(50)), ("a.json", '{"caption": "fine"}')])
    report = prepare(caption_field="caption")
    assert texts(out) == {"0.tar/a.png#0": "fine"}
    assert report.problem_counts == {"unusable_captions": 10, "images_without_caption": 10}
    named = [each.partition(": ")[0] for each in report.problems["unusable_captions"]]
    assert named == [f"0.tar/{name}.json" for name in BAD_JSON]


def test_captions_keep_their_text_and_lose_control_characters(root, out, prepare):
    said = ["\u2800\u3164", "two\nlines ", "bell\x07 and \x1b[31mred", "\u200b\u2060 ", " \t\n"]
    said += ["naïve 日本\x92s 👩‍👩‍👧"]
    members = [member for n, text in enumerate(said) for member in sample(str(n), n, text)]
    write_tar(root / "0.tar", [*members, ("6.png", picture(6)), ("6.txt", b"caf\xe9")])
    report = prepare()
    assert list(texts(out).values()) == ["two", "lines", "bell and [31mred", said[-1]]
    assert report.problems["captions_without_their_control_characters"] == ["0.tar/2.png#0"]
    empty = ["0.tar/0.png#0", "0.tar/3.png#0", "0.tar/4.png#0"]
    assert report.problems["empty_captions"] == empty
    assert report.problems["unusable_captions"] == ["0.tar/6.txt: byte 3 is not UTF-8"]
    assert report.counts["captions_trimmed"] == 1


@pytest.mark.parametrize("text", ["one\n\n two \r\n", "one\u2028more\nthree", " \n", ""])
def test_a_text_in_a_tar_has_the_captions_that_it_has_beside_its_image(tmp_path, text):
    write_tar(tmp_path / "tars/0.tar", [("a.png", picture(0)), ("a.txt", text.encode())])
    write_tar(tmp_path / "tars/1.tar", sample("b", 1, "other"))
    for number in (0, 1):
        with tarfile.open(tmp_path / f"tars/{number}.tar") as tar:
            for name in tar.getnames():
                tar.extract(name, tmp_path / "photos")
    in_tar = prepare_dataset("webdataset", tmp_path / "one", images=tmp_path / "tars")
    alone = prepare_dataset("pairs", tmp_path / "two", images=tmp_path / "photos", beside="txt")
    losses = [json.loads((data.folder / "dataset.json").read_text()) for data in (in_tar, alone)]
    assert losses[0]["problem_counts"] == losses[1]["problem_counts"]
    assert [*texts(in_tar.folder).values()] == [*texts(alone.folder).values()]


NAMES = ["../a.png", "/etc/a.png", "x/../../a.png", "a\x1b[2J.png", "a\nb.png"]


def test_a_name_that_leads_out_of_the_shard_or_is_no_text_is_left_out(root, out, prepare):
    members = [(name, picture(n)) for n, name in enumerate([*NAMES, "caf_.png"], 1)]
    path = write_tar(root / "0.tar", [*sample("ok", 0), *members], USTAR)
    data = bytearray(path.read_bytes())
    at = data.index(b"caf_.png")
    data[at : at + 4] = b"caf\xe9"
    header = data[at : at + 512]
    header[148:156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(data)
    problems = prepare().problems["members_with_unusable_names"]
    assert column(out, "image_id") == ["0.tar/ok.png"]
    assert len(problems) == len(members)
    assert all(each.isprintable() for each in problems)
    assert {path.name for path in root.parent.iterdir()} == {"shards", "out"}


def test_links_devices_folders_and_sparse_members_are_left_out(root, out, prepare):
    path = write_tar(root / "0.tar", sample("a", 0))
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo(f"{kind.decode()}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        member = tarfile.TarInfo("s.png")
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": "100"}
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    report = prepare()
    assert len(rows(out)) == 1
    assert report.problems["shards_with_links_or_devices"] == ["0.tar: 4 left out"]


def test_of_two_images_of_a_key_and_of_two_members_of_a_name_the_first_counts(root, out, prepare):
    write_tar(root / "0.tar", [("a.jpg", picture(0, "JPEG")), *sample("a", 1)])
    write_tar(root / "1.tar", [*sample("a", 2), *sample("./a", 3, "second")])
    # a key ends at the first dot of the file name
    write_tar(root / "2.tar", [*sample("x.y/a", 4), ("x.y/a.seg.png", picture(5))])
    report = prepare()
    assert column(out, "image_id") == ["0.tar/a.jpg", "1.tar/a.png", "2.tar/x.y/a.png"]
    assert column(out, "key")[1] == KEYS[2]
    assert list(texts(out).values()) == ["caption 1", "caption 2", "caption 4"]
    assert report.problems == {
        "images_whose_key_has_another": ["0.tar/a.png"],
        "members_with_a_name_used_before": ["1.tar/a.png", "1.tar/a.txt"],
    }


def test_mismatches_are_counted_and_strict_makes_them_errors(root, out, prepare):
    members = [("b.txt", "no image"), ("c.png", picture(1)), ("d.jpg", b"no image"), ("d.txt", "x")]
    write_tar(root / "0.tar", [*sample("a", 0), *members])
    write_tar(root / "1.tar", [("x.cls", "5")])
    write_tar(root / "2.tar", [])
    (root / "3.tar").write_bytes(b"")
    assert prepare().problems == {
        "captions_without_image": ["0.tar/b.txt"],
        "images_without_caption": ["0.tar/c.png"],
        "incomplete_shards": ["3.tar: has 0 bytes"],
        "shards_without_images": ["1.tar", "2.tar", "3.tar"],
        "unreadable_images": ["0.tar/d.jpg"],
    }
    assert column(out, "width") == [3, 3, 0]  # a damaged image is kept
    with pytest.raises(DatasetError, match=r"captions without image: 1 \(0.tar/b.txt\)"):
        prepare(strict=True)


def ends_of(path: Path) -> list[int]:
    with tarfile.open(path) as tar:
        return [member.offset_data + member.size for member in tar]


@pytest.mark.parametrize("form", [USTAR, tarfile.PAX_FORMAT])
def test_every_cut_is_noticed_and_never_gives_other_bytes(root, out, prepare, form):
    path = write_tar(root / "0.tar", samples(0, 1), form)
    whole, (_, caption, second, end) = path.read_bytes(), ends_of(path)
    between = -(-caption // 512) * 512  # where the second sample begins
    near = [between + more for more in (0, 1, 511, 512, 513, 1000)]
    for size in [*range(0, len(whole), 317), *near]:
        path.write_bytes(whole[:size])
        if size < caption:  # no image with its caption
            with pytest.raises(DatasetError):
                prepare()
            continue
        report = prepare()
        assert column(out, "key") == KEYS[: 1 + (size >= second)]
        assert size >= end or report.problem_counts["incomplete_shards"] == 1
    path.write_bytes(whole[: second - 1])
    report = prepare()
    assert len(load_all(out)) == 1
    assert report.problems["incomplete_shards"] == ["0.tar: ends in the middle of 1.png"]
    assert "warning: 0.tar: ends in the middle of 1.png" in report.summary()


def damaged_header(whole: bytes) -> bytes:
    at = whole.index(b"1.png")
    return whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]


def absurd(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT) + b"x" * 512


@pytest.mark.parametrize(
    ("change", "kept", "fault"),
    [
        (damaged_header, 1, "cannot be read after 0.txt (damaged header)"),
        (lambda whole: whole * 2, 2, "has more bytes behind its end after 1.txt, such as a second"),
        (lambda whole: whole[:4096] + absurd("2.png", 8 << 40), 2, "ends in the middle of 2.png"),
        (lambda whole: whole[:4096] + absurd("long", 4 << 30, tarfile.GNUTYPE_LONGNAME), 2, ""),
    ],
)
def test_a_shard_with_a_fault_keeps_what_is_before_it(root, out, prepare, change, kept, fault):
    path = write_tar(root / "0.tar", samples(0, 1), USTAR)
    assert ends_of(path)[-1] <= 4096 < path.stat().st_size
    path.write_bytes(change(path.read_bytes()))
    (said,) = prepare().problems["incomplete_shards"]
    assert len(rows(out)) == kept
    assert said.startswith(f"0.tar: {fault}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "0.tar.gz",
            gzip.compress(b"x" * 2000, mtime=0),
            "unpack it: `gunzip -k .*name the tar with `shards`",
        ),
        ("0.tar", b"PK\x03\x04" + b"x" * 2000, "a zip archive; expected an uncompressed tar"),
        ("0.tar", b"x", "not an uncompressed tar file"),
    ],
)
def test_compressed_and_foreign_files_are_refused(root, out, prepare, name, content, message):
    write_tar(root / "1.tar", sample("a", 0))
    (root / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        prepare(shards="*.tar*")
    assert not out.exists()


def test_ranges_name_every_shard(root, out, prepare):
    with pytest.raises(DatasetError, match="no such folder of shards"):
        prepare()
    for shard in (0, 1, 3):
        write_tar(root / f"{shard:03}.tar", sample("a", shard))
    assert prepare(shards="{000..001}.tar").counts["shards"] == 2
    assert list(texts(out)) == ["000.tar/a.png#0", "001.tar/a.png#0"]  # one key, two samples
    for pattern, message in {
        "{000..003}.tar": r"no shard matches '002.tar' \(of {000..003}.tar\)",
        "{3..1}.tar": "expected a range that counts up",
        "*.zip": r"no shard matches '\*\.zip'.* which contains '000\.tar'",
    }.items():
        with pytest.raises(SightlineError, match=message):
            prepare(shards=pattern)


def test_splits_are_shards(root, out, prepare):
    for number, name in enumerate(("train-0", "train-1", "val-0")):
        write_tar(root / f"{name}.tar", sample("a", number))
    report = prepare(splits={"train": "train-*.tar", "val": "val-*.tar"})
    assert (report.counts["images_train"], report.counts["images_dev"]) == (2, 1)
    assert set(column(out, "split", "captions")) == {"train", "dev"}
    with pytest.raises(DatasetError, match="in several of `splits`"):
        prepare(splits={"train": "*.tar", "dev": "val-*.tar"})


def test_a_limit_reads_the_first_images(root, out, prepare):
    for shard in range(3):
        write_tar(root / f"{shard}.tar", samples(*range(10 * shard, 10 * shard + 4)))
    report = prepare(limit=6)
    assert [len(rows(out)), len(texts(out))] == [6, 6]
    assert report.shards["1.tar"] == {"images": 2, "captions": 2}
    assert "2.tar" not in report.shards
    assert "limit is 50, but there are fewer images" in prepare(limit=50).summary()


def test_a_shard_that_changed_gives_no_other_bytes(root, out, prepare):
    path = write_tar(root / "0.tar", samples(0, 1))
    prepare()
    write_tar(path, samples(2, 3))
    for size, code in ((None, "changed"), (600, "outside")):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ImageError) as error:
            load_all(out)
        assert error.value.code == code
