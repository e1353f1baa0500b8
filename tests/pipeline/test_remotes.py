"""A feature set travels through S3 and WebDAV, and only those with the password get it.

`test_sharing.py` does everything else with a folder: DVC treats all remotes alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clones import CLIP, RESNET, Clone, repository, stub_path
from remote_servers import PASSWORD, Remote, s3, webdav

from sightline.cache import verify


def log_in(clone: Clone, remote: Remote, password: str = "") -> None:
    """What every user does in a clone."""
    for name, value in remote.secrets.items():
        clone.run("dvc", "remote", "modify", "-q", "--local", "team", name, password or value)


@pytest.mark.parametrize("server", [s3, pytest.param(webdav, marks=pytest.mark.slow)])
def test_a_feature_set_travels_and_the_password_stays_with_its_owner(server, tmp_path: Path):
    owner = repository(tmp_path / "owner", stub_path(tmp_path / "bin"))
    with server(tmp_path / "remote") as remote:
        owner.run("dvc", "remote", "add", "-q", "-d", "team", remote.url)
        for name, value in remote.options.items():
            owner.run("dvc", "remote", "modify", "-q", "team", name, value)
        log_in(owner, remote)
        owner.run("dvc", "repro", "-q", "image-features")
        owner.run("git", "add", ".")
        owner.run("git", "commit", "-qm", "Features")
        owner.run("dvc", "push", "-q", CLIP)

        mate = owner.clone("mate")
        log_in(mate, remote)
        mate.run("dvc", "pull", "-q", CLIP)
        assert verify(mate.folder / CLIP) == []
        assert not (mate.folder / RESNET).exists()

        committed = owner.run("git", "grep", "-h", "", "HEAD")
        assert remote.url in committed
        assert PASSWORD not in committed
        assert PASSWORD in (owner.folder / ".dvc/config.local").read_text()
        stranger = owner.clone("stranger")
        log_in(stranger, remote, "wrong")
        code, _, err = stranger.attempt(sys.executable, "-m", "dvc", "pull", CLIP)
        assert code != 0
        assert "Traceback" not in err
        assert not (stranger.folder / CLIP / "set.json").exists()
