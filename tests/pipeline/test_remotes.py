"""One cache, three kinds of remote: transfers, access, and what a second clone can do.

The graph is the real dvc.yaml; only the stages' work is a stub.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from clones import CLIP, DATASET, RESNET, Clone, repository, stub_path
from remote_servers import PASSWORD, REMOTES, Remote

from sightline.cache import FeatureSet

COMPUTED, GREW = "computed", "grew"  # tags: 2,000 pictures, then one per cent more


@dataclass
class Team:
    """A repository and its remote after two pushes."""

    owner: Clone
    remote: Remote
    pushed: dict[str, dict[str, int]]  # tag → bytes of every pushed object

    def sent(self, tag: str) -> set[str]:
        """MD5 sums of the pushed objects: DVC names objects by them, as ab/cdef…"""
        return {"".join(name.split("/")[-2:]) for name in self.pushed[tag]}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return stub_path(tmp_path_factory.mktemp("stub") / "bin")


@pytest.fixture(scope="module")
def history(tmp_path_factory, path) -> Clone:
    """A repository whose features were computed, and updated after new images arrived."""
    owner = repository(tmp_path_factory.mktemp("history") / "owner", path)
    owner.run("dvc", "repro", "-q", "image-features", "tokens")
    owner.run("git", "add", ".")
    owner.run("git", "commit", "-qm", "Features")
    owner.run("git", "tag", COMPUTED)
    owner.grow(CLIP, RESNET)
    owner.run("git", "tag", GREW)
    return owner


def set_up(clone: Clone, remote: Remote) -> None:
    """The committed setting: where the cache is."""
    clone.run("dvc", "remote", "add", "-q", "-d", "team", remote.url)
    for name, value in remote.options.items():
        clone.run("dvc", "remote", "modify", "-q", "team", name, value)


def log_in(clone: Clone, remote: Remote) -> None:
    """What every user does in a clone."""
    for name, value in remote.secrets.items():
        clone.run("dvc", "remote", "modify", "-q", "--local", "team", name, value)


def fast_or_slow(name: str):
    """S3 represents all remotes in the fast suite; test_sharing.py uses a folder."""
    return name if name == "s3" else pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=map(fast_or_slow, REMOTES))
def team(request, tmp_path_factory, history) -> Team:
    place = tmp_path_factory.mktemp(request.param)
    with REMOTES[request.param](place / f"{request.param}-remote") as remote:
        owner = history.second(f"{request.param}-owner")
        set_up(owner, remote)
        log_in(owner, remote)
        pushed = {}
        for tag in (COMPUTED, GREW):
            owner.run("git", "checkout", "-q", tag, "--", "dvc.lock", "pictures.txt")
            owner.run("dvc", "push", "-q")
            pushed[tag] = remote.received()
        owner.run("git", "commit", "-qam", "A remote")
        yield Team(owner, remote, pushed)


def objects_of(clone: Clone, cell: Path) -> dict[str, Path]:
    """The files of a feature set, by their MD5 sums, as DVC keeps them."""
    files = (clone.folder / cell).iterdir()
    return {hashlib.md5(file.read_bytes()).hexdigest(): file for file in files}


def test_a_push_after_one_per_cent_of_new_images_sends_only_what_is_new(team, history):
    """New in each set: a shard, the index, its two lists, and DVC's list of its files."""
    sent = team.sent(GREW)
    new = {}
    for cell in (CLIP, RESNET):
        own = {name: file for name, file in objects_of(history, cell).items() if name in sent}
        kinds = sorted(file.name.partition("-")[0] for file in own.values())
        assert kinds == ["index", "set.json", "set.json.next", "shard"]
        new |= own
    lists = sent - new.keys()
    assert len(lists) == 2
    assert all(name.endswith(".dir") for name in lists)
    size = sum(file.stat().st_size for file in new.values())
    received = sum(team.pushed[GREW].values())
    assert size < received < size + 4000  # the lists, and what a protocol puts around an object
    assert received < sum(team.pushed[COMPUTED].values()) / 10


def test_one_feature_set_is_pulled_and_updated_to_its_newer_version(team):
    mate = team.owner.clone(f"{team.owner.folder.name}-mate")
    log_in(mate, team.remote)
    mate.run("git", "checkout", "-q", COMPUTED, "--", "dvc.lock")
    mate.run("dvc", "pull", "-q", CLIP)
    assert len(FeatureSet.open(mate.folder / CLIP)) == 2000
    before = {file.name for file in (mate.folder / CLIP).iterdir()}
    mate.run("git", "checkout", "-q", "HEAD", "--", "dvc.lock")
    mate.run("dvc", "pull", "-q", CLIP)
    assert len(FeatureSet.open(mate.folder / CLIP)) == 2020
    assert "sound" in mate.run("sightline", "cache", "verify", CLIP)
    kept = before & {file.name for file in (mate.folder / CLIP).iterdir()}
    assert {name.partition("-")[0] for name in kept} >= {"shard", "set.json"}
    assert not (mate.folder / RESNET).exists()


@pytest.mark.slow
def test_a_team_mate_trains_and_nothing_is_recomputed(team):
    mate = team.owner.clone(f"{team.owner.folder.name}-trainer")
    log_in(mate, team.remote)
    mate.run("dvc", "pull", "-q", CLIP, DATASET)
    mate.run("dvc", "repro", "-q", "--pull", "--allow-missing", "train-mcse-clip@mcse-clip-0")
    assert mate.calls() == ["code", "train mcse-clip 0"]
    assert not (mate.folder / RESNET).exists()


def test_the_password_stays_with_its_owner_and_is_required(team):
    if not team.remote.secrets:
        pytest.skip("a folder has no password")
    committed = team.owner.run("git", "grep", "-h", "", "HEAD")
    assert team.remote.url in committed
    assert PASSWORD not in committed
    assert PASSWORD in (team.owner.folder / ".dvc/config.local").read_text()
    stranger = team.owner.clone(f"{team.owner.folder.name}-stranger")
    for name in team.remote.secrets:
        stranger.run("dvc", "remote", "modify", "-q", "--local", "team", name, "wrong")
    ended = stranger.attempt("dvc", "pull", CLIP)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert not (stranger.folder / CLIP / "set.json").exists()
