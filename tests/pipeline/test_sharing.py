"""Sharing through DVC without a GPU: a second clone trains, other repositories take feature sets.

The remote is a folder, and for what differs S3 or WebDAV: DVC treats all alike. The graph is the
real dvc.yaml, and a stub (`stub_sightline.py`) stands in for the stages' work.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from clones import CLIP, RESNET, ROOT, Clone, path_with, repository
from demo_params import demo_params
from remote_servers import PASSWORD, read_only, s3, webdav
from tiny_scenes import TINY

from sightline.cache import FeatureSet, verify

NO_GPU = "You have no GPU, and a team-mate has a cache"
WEIGHTS = "resnet.safetensors"
"""They lie beside the owner's project, and are neither in Git nor in the remote."""
RUN = Path("runs/mcse-clip/seed-0/model.json")
REAL = (sys.executable, "-c", "from pipeline.cli import main; main()")


def shown(heading: str) -> list[list[str]]:
    """The commands in a section of the page on sharing, in an activated environment."""
    page = (ROOT / "docs/cache.md").read_text()
    section = page.partition(f"### {heading}\n")[2].partition("\n##")[0]
    lines = re.findall(r"^ {4}\.venv/bin/((?:dvc|sightline) .+)$", section, re.M)
    return [line.split() for line in lines]


@pytest.fixture(scope="module")
def owner(tmp_path_factory) -> Clone:
    """A repository whose features, made by a stub, are computed, committed and pushed."""
    place = tmp_path_factory.mktemp("sharing")
    stub = Path(__file__).with_name("stub_sightline.py")
    path = path_with(place / "bin", sys.executable, stub)
    encoders = demo_params()["encoders"]
    encoders["image"]["resnet"]["weights"] = f"file:{WEIGHTS}"
    changes = {"encoders": encoders}
    return repository(place / "owner", path, place / "remote", changes, own=(WEIGHTS,))


@pytest.mark.slow
def test_a_team_mate_trains_with_one_feature_set_and_another_gets_the_run(owner):
    mate = owner.clone("mate")
    pull, train = shown(NO_GPU)
    mate.run(*pull)
    mate.run(*train)
    mate.run(*train[:-1], "train-mcse-clip@mcse-shuffled-0")  # it finds what the first has left
    assert mate.calls() == ["inputs", "train mcse-clip 0", "inputs", "train mcse-shuffled 0"]
    assert (mate.folder / RUN).read_text() == '{"rows": 2000}'
    assert verify(mate.folder / CLIP) == []
    assert not (mate.folder / RESNET).exists()

    mate.run("git", "commit", "-qam", "A run")
    mate.run("dvc", "push", "-q", "train-mcse-clip")
    other = mate.clone("without-a-run")
    other.run(*train)
    assert (other.folder / RUN).read_text() == '{"rows": 2000}'
    assert other.calls() == ["inputs"]
    assert not (other.folder / CLIP).exists()


@pytest.mark.slow
def test_a_clone_without_the_weights_runs_nothing_but_the_stage_that_always_runs(owner):
    mate = owner.clone("without-weights")
    fetch = ["sightline", "repro", "--pull", "--allow-missing", "image-features", "tokens"]
    told = mate.run(*fetch)
    assert f"encoders/image/resnet: {WEIGHTS} is not here, and keeps its identity" in told
    mate.run("dvc", "pull", "-q", "image-features", "tokens", "prepare")
    assert "1 stage done in" in mate.run("sightline", "repro", "image-features", "tokens")
    assert mate.calls() == ["inputs", "inputs"]
    assert verify(mate.folder / RESNET) == []
    assert mate.run("git", "status", "--short") == ""

    dry = ["sightline", "repro", "--dry", "image-features", "tokens"]
    assert "image-features" not in mate.run(*dry)
    (mate.folder / WEIGHTS).write_text("other weights")
    due = mate.run(*dry)
    assert "image-features@scenes-resnet" in due
    assert "image-features@scenes-clip" not in due
    assert mate.run("git", "status", "--short") == ""
    mate.run(*dry[:2], *dry[3:])
    assert mate.calls() == ["inputs", "inputs", "inputs", "image-features scenes resnet"]
    assert mate.run("git", "status", "--short").split()[1::2] == [
        *("data/inputs/encoders/image/resnet.json", "data/inputs/tasks/neighbours.json"),
        *("data/inputs/tasks/retrieval.json", "dvc.lock"),
    ]


def objects_in(remote: Path) -> dict[str, int]:
    """MD5 sum → size of every object: DVC names objects by them, as ab/cdef…"""
    files = (path for path in remote.rglob("*") if path.is_file())
    return {path.parent.name + path.name: path.stat().st_size for path in files}


@pytest.mark.slow
def test_one_per_cent_of_new_images_costs_a_push_and_an_update_only_what_is_new(owner):
    """New is: a shard, the index, the set's two lists, and DVC's list of its files."""
    keeper, remote = owner.second("grown"), owner.folder.with_name("remote")
    before = objects_in(remote)
    keeper.grow()
    keeper.run("dvc", "push", "-q", CLIP)
    sent = {name: size for name, size in objects_in(remote).items() if name not in before}
    assert sum(sent.values()) < sum(before.values()) / 20  # which has the rows of ResNet as well
    kinds = {}
    for file in (keeper.folder / CLIP).iterdir():
        if (name := hashlib.md5(file.read_bytes()).hexdigest()) in sent:
            kinds[name] = file.name.partition("-")[0]
    assert sorted(kinds.values()) == ["index", "set.json", "set.json.next", "shard"]
    (files_of_dvc,) = sent.keys() - kinds.keys()
    assert files_of_dvc.endswith(".dir")

    mate = owner.clone("grown-mate")
    mate.run("dvc", "pull", "-q", CLIP)
    assert len(FeatureSet.open(mate.folder / CLIP)) == 2000
    old = {file.name for file in (mate.folder / CLIP).iterdir()}
    mate.run("git", "pull", "-q", keeper.folder, "main")
    mate.run("dvc", "pull", "-q", CLIP)
    assert len(FeatureSet.open(mate.folder / CLIP)) == 2020
    assert verify(mate.folder / CLIP) == []
    kept = old & {file.name for file in (mate.folder / CLIP).iterdir()}
    assert {name.partition("-")[0] for name in kept} >= {"shard", "set.json"}
    assert not (mate.folder / RESNET).exists()


@pytest.mark.slow
@pytest.mark.parametrize("server", [s3, webdav])
def test_a_feature_set_travels_and_the_password_stays_with_its_owner(server, owner, tmp_path):
    def modify(clone: Clone, *words: str) -> None:
        clone.run("dvc", "remote", "modify", "-q", *words)

    keeper = owner.second(f"keeper-{server.__name__}")
    with server(tmp_path / "remote") as remote:
        keeper.run("dvc", "remote", "add", "-q", "-f", "-d", "team", remote.url)
        for option, value in remote.options.items():
            modify(keeper, "team", option, value)
        for option, value in remote.secrets.items():
            modify(keeper, "--local", "team", option, value)
        keeper.run("dvc", "push", "-q", CLIP)
        keeper.run("git", "add", ".")
        keeper.run("git", "commit", "-qm", "A server")
        committed = keeper.run("git", "grep", "-h", "", "HEAD")
        assert remote.url in committed
        assert PASSWORD not in committed
        assert PASSWORD in (keeper.folder / ".dvc/config.local").read_text()

        mate = keeper.clone(f"mate-{server.__name__}")
        for option, value in remote.secrets.items():
            modify(mate, "--local", "team", option, value)
        mate.run("dvc", "pull", "-q", CLIP)
        assert verify(mate.folder / CLIP) == []


@pytest.mark.slow
def test_a_remote_that_can_only_be_read_serves_pull_and_repro(owner):
    mate = owner.clone("reader")
    pull, train = shown(NO_GPU)
    with read_only(owner.folder.with_name("remote")) as address:
        mate.run("dvc", "remote", "add", "-q", "-d", "-f", "team", address)
        mate.run(*pull)
        assert verify(mate.folder / CLIP) == []
        code, out, err = mate.attempt(*train)
        assert (code, err) == (0, "")
        assert "run-cache is not supported for http" in out  # somebody else's run is computed again
        assert "push" not in out
        assert "2 stages done" in out
        assert mate.calls() == ["inputs", "train mcse-clip 0"]
        assert (mate.folder / RUN).read_text() == '{"rows": 2000}'
        assert "1 stage done in" in mate.run(*train)


@pytest.mark.slow
def test_the_real_trainer_needs_one_feature_set_and_its_data_set(tmp_path):
    changes = {
        "datasets": {"scenes": demo_params()["datasets"]["scenes"] | TINY},
        "train": {"batch_size": 4, "max_steps": 2, "eval_steps": 1},
    }
    real = path_with(tmp_path / "bin", *REAL)
    owner = repository(tmp_path / "owner", real, tmp_path / "remote", changes)
    allowed = '[ "$1" = repro ] || [ "$2" = train ] || [ "$2" = inputs ] || exit 1'
    only_training = f'{allowed}; exec {shlex.join(REAL)} "$@"'
    path = path_with(tmp_path / "no-gpu", "sh", "-c", only_training, "sightline")
    mate = owner.clone("mate", path)
    for command in shown(NO_GPU):
        mate.run(*command)
    assert (mate.folder / "runs/mcse-clip/seed-0/model/model.safetensors").exists()
    assert not (mate.folder / RESNET).exists()
    before, after = (
        yaml.safe_load((clone.folder / "dvc.lock").read_text())["stages"] for clone in (owner, mate)
    )
    assert after.pop("train-mcse-clip@mcse-clip-0")
    assert after.pop("inputs") == before.pop("inputs")
    assert after == before


@pytest.mark.slow
def test_a_feature_set_is_imported_from_another_repository_and_updated(owner):
    source = owner.second("source")
    other = Clone(owner.folder.with_name("other"), owner.path)
    other.folder.mkdir()
    other.run("dvc", "get", "-q", source.folder, CLIP, "-o", "got")
    assert verify(other.folder / "got") == []
    other.run("git", "init", "-q")
    other.run("dvc", "init", "-q")
    other.run("dvc", "import", "-q", source.folder, CLIP)
    assert len(FeatureSet.open(other.folder / "clip")) == 2000
    source.grow()
    source.run("dvc", "push", "-q", CLIP)
    other.run("dvc", "update", "-q", "clip.dvc")
    assert len(FeatureSet.open(other.folder / "clip")) == 2020
    assert verify(other.folder / "clip") == []


@pytest.mark.slow
def test_superseded_files_are_sent_once_and_pulled_until_gc(owner):
    def pushed() -> set[str]:
        """The suffixes of the files that a push adds to the remote."""
        before = set(remote.rglob("*"))
        keeper.run("dvc", "push", "-q", CLIP)
        return {path.suffix for path in set(remote.rglob("*")) - before if path.is_file()}

    def pulled(name: str) -> set[str]:
        mate = keeper.clone(name)
        mate.run("dvc", "pull", "-q", CLIP)
        return {path.name for path in (mate.folder / CLIP).iterdir()}

    remote, keeper = owner.folder.with_name("remote"), owner.second("keeper")
    old = {path.name for path in (keeper.folder / CLIP).glob("index-*")}
    keeper.grow()
    pushed()
    assert old < pulled("before")
    keeper.run("sightline", "cache", "gc", "data/features")
    assert pushed() == set()  # dvc.lock still names what was there
    keeper.run("dvc", "commit", "-q", "-f", "image-features@scenes-clip")
    keeper.run("git", "commit", "-qam", "gc")
    assert pushed() == {".dir"}  # the list of the files, which is shorter now
    assert not old & pulled("after")
