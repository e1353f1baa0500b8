"""What a team shares a cache through, as servers here: S3, WebDAV, and HTTP, which is only read.

A server listens on a free port of the loopback interface, and ends with its `with` block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

USER, PASSWORD = "team", "not-in-the-repository"


class Remote(NamedTuple):
    """Where to push: the settings for every clone, and those for one person (``--local``)."""

    url: str
    options: dict[str, str]
    secrets: dict[str, str]


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of a server that runs ``app``."""
    from werkzeug.serving import WSGIRequestHandler, make_server
    from werkzeug.wsgi import get_input_stream

    class Silent(WSGIRequestHandler):
        def log(self, type, message, *args) -> None:
            pass

    def call(environ, start_response):
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            # WsgiDAV reads a body until it ends, which the bare socket never says
            environ["wsgi.input"] = get_input_stream(environ)
        return app(environ, start_response)

    server = make_server("127.0.0.1", 0, call, threaded=True, request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def s3(_: Path) -> Iterator[Remote]:
    """An empty bucket of moto's S3, in memory, which knows nobody's password."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    with serving(DomainDispatcherApplication(create_backend_app)) as address:
        signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential={USER}/d/us-east-1/s3/a"}
        for method, what in (("POST", "moto-api/reset"), ("PUT", "cache")):  # nothing, one bucket
            server = HTTPConnection(address, timeout=30)
            server.request(method, f"/{what}", headers=signed)
            assert server.getresponse().status == 200
            server.close()
        yield Remote(
            "s3://cache/sightline",
            options={"endpointurl": f"http://{address}", "region": "us-east-1"},
            secrets={"access_key_id": USER, "secret_access_key": PASSWORD},
        )


@contextmanager
def webdav(path: Path) -> Iterator[Remote]:
    """A folder behind WsgiDAV, which turns away anyone without the password."""
    from wsgidav.wsgidav_app import WsgiDAVApp

    (path / "sightline").mkdir(parents=True)  # DVC does not make it: webdav4 takes it for the root
    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(path)},
            "simple_dc": {"user_mapping": {"*": {USER: {"password": PASSWORD}}}},
            "http_authenticator": {"accept_digest": False, "default_to_digest": False},
            "verbose": 0,
        }
    )
    with serving(app) as address:
        url = f"webdav://{address}/sightline"
        yield Remote(url, options={"user": USER}, secrets={"password": PASSWORD})


@contextmanager
def read_only(folder: Path) -> Iterator[str]:
    """The address of a web server that hands out the files of a remote and takes none."""

    def answer(environ, start_response):
        file = folder / environ["PATH_INFO"].lstrip("/")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [])
            return []
        if not file.is_file():
            start_response("404 Not Found", [])
            return []
        start_response("200 OK", [("Content-Length", str(file.stat().st_size))])
        return [file.read_bytes()] if environ["REQUEST_METHOD"] == "GET" else []

    with serving(answer) as address:
        yield f"http://{address}"
