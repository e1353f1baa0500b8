"""What a team shares a cache through, as servers here: S3 and WebDAV.

A server listens on a free port of the loopback interface, turns away anyone who does not know the
password, and ends with its `with` block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

USER, PASSWORD = "team", "not-in-the-repository"


@dataclass(frozen=True)
class Remote:
    """Where to push.

    Attributes:
        options: settings that ``dvc remote modify`` gets, for every clone.
        secrets: the same with ``--local``, for one person.
    """

    url: str
    options: dict[str, str]
    secrets: dict[str, str]


def guarded(app: Any, admits: Callable[[dict], bool] = lambda environ: True) -> Any:
    """A WSGI application for those whom it ``admits``."""
    from werkzeug.wsgi import get_input_stream

    def call(environ, start_response):
        if not admits(environ):
            start_response("403 Forbidden", [("Content-Length", "0")])
            return []
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            # WsgiDAV reads a body until it ends, which the bare socket never says
            environ["wsgi.input"] = get_input_stream(environ)
        return app(environ, start_response)

    return call


@contextmanager
def serving(app: Any) -> Iterator[str]:
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
def s3(_: Path) -> Iterator[Remote]:
    """An empty bucket of moto's S3, in memory."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    def admits(environ: dict) -> bool:
        return f"Credential={USER}/" in environ.get("HTTP_AUTHORIZATION", "")

    app = guarded(DomainDispatcherApplication(create_backend_app), admits)
    with serving(app) as address:
        signed = f"AWS4-HMAC-SHA256 Credential={USER}/d/us-east-1/s3/a"
        for method, what in (("POST", "moto-api/reset"), ("PUT", "cache")):  # nothing, one bucket
            server = HTTPConnection(address.removeprefix("http://"), timeout=30)
            server.request(method, f"/{what}", headers={"Authorization": signed})
            assert server.getresponse().status == 200
            server.close()
        yield Remote(
            "s3://cache/sightline",
            options={"endpointurl": address, "region": "us-east-1"},
            secrets={"access_key_id": USER, "secret_access_key": PASSWORD},
        )


@contextmanager
def webdav(path: Path) -> Iterator[Remote]:
    """A folder behind WsgiDAV."""
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
    with serving(guarded(app)) as address:
        yield Remote(
            address.replace("http", "webdav") + "/sightline",
            options={"user": USER},
            secrets={"password": PASSWORD},
        )
