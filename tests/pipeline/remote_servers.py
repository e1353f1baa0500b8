"""What a team shares a cache through: a folder, S3 and WebDAV, the last two as servers here.

A server listens on a free port of the loopback interface, turns away anyone who does not know the
password, counts what it receives, and ends with its `with` block.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

USER, PASSWORD = "team", "not-in-the-repository"


@dataclass
class Remote:
    """Where to push, and what was received.

    Attributes:
        options: settings that ``dvc remote modify`` gets, for every clone.
        secrets: the same with ``--local``, for one person.
        received: bytes of every object that came in since it was last asked.
    """

    url: str
    received: Callable[[], dict[str, int]]
    options: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)


class Metered:
    """A WSGI application that counts the bytes it receives, by path."""

    def __init__(self, app, admits: Callable[[dict], bool] = lambda environ: True) -> None:
        self._app, self._admits = app, admits
        self._bytes: Counter[str] = Counter()

    def __call__(self, environ, start_response):
        from werkzeug.wsgi import get_input_stream

        if not self._admits(environ):
            start_response("403 Forbidden", [("Content-Length", "0")])
            return []
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            self._bytes[environ["PATH_INFO"]] += int(environ["CONTENT_LENGTH"])
            # WsgiDAV reads a body until it ends, which the bare socket never says
            environ["wsgi.input"] = get_input_stream(environ)
        return self._app(environ, start_response)

    def received(self) -> dict[str, int]:
        found, self._bytes = self._bytes, Counter()
        return dict(found)


@contextmanager
def serving(app) -> Iterator[str]:
    """The address of a server that runs ``app`` until the block exits."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, type, message, *args) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def folder(path: Path) -> Iterator[Remote]:
    """A folder, as on a file server."""
    known: dict[Path, int] = {}

    def received() -> dict[str, int]:
        found = {file: file.stat().st_size for file in path.rglob("*") if file.is_file()}
        new = {file.as_posix(): size for file, size in found.items() if file not in known}
        known.update(found)
        return new

    yield Remote(str(path), received)


@contextmanager
def s3(_: Path) -> Iterator[Remote]:
    """An empty bucket of moto's S3, in memory."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    app = Metered(
        DomainDispatcherApplication(create_backend_app),
        lambda environ: f"Credential={USER}/" in environ.get("HTTP_AUTHORIZATION", ""),
    )
    with serving(app) as address:
        signed = f"AWS4-HMAC-SHA256 Credential={USER}/d/us-east-1/s3/a"
        for method, what in (("POST", "moto-api/reset"), ("PUT", "cache")):  # nothing, one bucket
            server = HTTPConnection(address.removeprefix("http://"), timeout=30)
            server.request(method, f"/{what}", headers={"Authorization": signed})
            assert server.getresponse().status == 200
            server.close()
        app.received()
        yield Remote(
            "s3://cache/sightline",
            app.received,
            options={"endpointurl": address, "region": "us-east-1"},
            secrets={"access_key_id": USER, "secret_access_key": PASSWORD},
        )


@contextmanager
def webdav(path: Path) -> Iterator[Remote]:
    """A folder behind WsgiDAV."""
    from wsgidav.wsgidav_app import WsgiDAVApp

    (path / "sightline").mkdir(parents=True)  # DVC does not make it: webdav4 takes it for the root
    app = Metered(
        WsgiDAVApp(
            {
                "provider_mapping": {"/": str(path)},
                "simple_dc": {"user_mapping": {"*": {USER: {"password": PASSWORD}}}},
                "http_authenticator": {"accept_digest": False, "default_to_digest": False},
                "verbose": 0,
            }
        )
    )
    with serving(app) as address:
        yield Remote(
            address.replace("http", "webdav") + "/sightline",
            app.received,
            options={"user": USER},
            secrets={"password": PASSWORD},
        )


REMOTES = {"folder": folder, "s3": s3, "webdav": webdav}
