"""A hub that does not answer is tried and reported once; models in the cache still load."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from sightline import loading as hub
from sightline.encoder_folder import load_model, read_recipe
from sightline.errors import SightlineError
from sightline.loading import from_hub

NOBODY = "http://127.0.0.1:9"  # the port that discards


@pytest.fixture
def online(monkeypatch):
    """As if HF_HUB_OFFLINE were not set; changes by a test are undone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    hub._is_silent.cache_clear()
    yield
    hub._is_silent.cache_clear()


def test_a_silent_hub_is_tried_once_a_minute(online, capsys):
    with pytest.raises(
        SightlineError, match=r"someone/something \(no such folder.* cannot be fetched"
    ):
        load_model("someone/something", read_recipe("someone/something"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"{NOBODY} does not answer (")
    assert "only models in this machine's cache can be loaded" in said[0]


def test_a_hub_that_answers_again_is_used_again(online, monkeypatch):
    with from_hub("someone/something", "weights"):
        assert constants.is_offline_mode()
    assert not constants.is_offline_mode()
    monkeypatch.setattr(hub, "why_silent", lambda address: "")
    hub._is_silent.cache_clear()  # a minute passes
    with from_hub("someone/something", "weights"):
        assert not constants.is_offline_mode()


def test_a_folder_does_not_contact_the_hub(online, tmp_path, capsys):
    assert read_recipe(tmp_path).pooling is None
    assert capsys.readouterr().err == ""
    assert not constants.is_offline_mode()


def test_any_response_counts(online, monkeypatch, capsys):
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, format, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with from_hub("someone/something", "weights"):
            assert not constants.is_offline_mode()
        server.shutdown()
    assert capsys.readouterr().err == ""
    assert not constants.is_offline_mode()
