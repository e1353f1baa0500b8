"""Sets whose files DVC links into its cache, in each way that it has."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from small_inputs import extracting, write_photos

from sightline.cache import FeatureSet, verify
from sightline.files.output import write_file


def dvc(*words: str) -> None:
    """Run DVC in this process."""
    from dvc.cli import main

    assert main(["-q", *words] if words[0] == "-q" else list(words)) == 0


@pytest.fixture(params=["reflink,copy", "hardlink", "symlink", "copy"])
def project(request, world, monkeypatch):
    """A project whose sets DVC has in its cache; the folder of that."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    kind = request.param
    Path(".dvc").mkdir()
    config = f"[core]\nanalytics = false\nno_scm = true\n[cache]\ntype = {kind}\n"
    Path(".dvc/config").write_text(config)
    dvc("add", "-q", "image")
    files = [path for path in Path("image").iterdir() if path.suffix != ".next"]
    assert {path.is_symlink() for path in files} == {kind == "symlink"}
    assert {path.stat().st_nlink > 1 for path in files} == {kind == "hardlink"}
    return world / ".dvc/cache"


def objects(cache: Path) -> dict[str, str]:
    """Path → digest of what is in DVC's cache."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_command_reads_a_linked_set_and_none_writes_through_it(project, says, said, world):
    before = objects(project)
    assert verify(Path("image")) == []
    assert "image: sound" in says("cache", "verify", ".")
    assert "6 of 8 numbers" in says("cache", "info", "image")
    says("cache", "export", "image", "--out", "image.tar")
    says("cache", "import", "image.tar", "--out", "unpacked")
    assert all(path.stat().st_nlink == 1 for path in Path("unpacked").iterdir())
    assert "nothing to repair" in says("cache", "repair", "image")
    assert "6 copied" in says(*extracting("image", "other"), "--copy-from", ".")
    write_photos(Path("more"), 8)
    shutil.copytree("more", "photos", dirs_exist_ok=True)
    assert "2 computed" in says(*extracting("image", "image"))
    says("cache", "gc", "image")
    assert objects(project) == before
    dvc("add", "-q", "image")
    assert len(FeatureSet.open("image").keys) == 8
    after = objects(project)
    assert after | before == after
    shutil.rmtree("image")
    dvc("checkout", "-q", "image.dvc")
    assert "image: sound" in says("cache", "verify", "image")


def test_a_file_that_dvc_links_is_replaced_and_not_written_through(project):
    out, mine = Path("results.json"), b'{"schema": "sightline.x/1"}'
    write_file(out, mine, b"sightline")
    dvc("add", "-q", "results.json")
    before = objects(project)
    write_file(out, mine + b"\n", b"sightline")
    assert (objects(project), out.is_symlink()) == (before, False)
    assert out.read_bytes() == mine + b"\n"


def test_repair_of_a_linked_set_takes_the_link_out_and_leaves_the_cache(project, says):
    shard = next(Path("image").glob("shard-*"))
    data, target = bytearray(shard.read_bytes()), shard.resolve()
    data[-1] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    before = objects(project)
    assert "6 rows will be recomputed" in says("cache", "repair", "image")
    assert "6 computed" in says(*extracting("image", "image"))
    assert objects(project) == before
    assert target.exists()
