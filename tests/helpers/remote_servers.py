"""Servers here: what a team shares a cache through (S3, WebDAV, HTTP), and HTTPS with faults.

A server listens on a free port of the loopback interface, and ends with its `with` block.
"""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

USER, PASSWORD = "team", "not-in-the-repository"
_POLL = 0.02  # seconds in which a server sees that it is to end


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
    thread = threading.Thread(target=server.serve_forever, args=(_POLL,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Faults:
    """What goes wrong with the next answers of a server, and what it was asked.

    Attributes:
        of: path → faults of the requests of its bytes, one each: a status, ``reset``, ``cut`` (half
            of the bytes), ``silence`` (no answer before `ended`), or a function to call first.
        asked: method, path with query and range of every request.
        ended: set when the client has what it wants.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[int | str | Callable[[], object]]] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.ended = threading.Event()

    def of_request(self, method: str, path: str, span: str) -> int | str | None:
        """Note a request; the status to answer it with, ``reset``, ``cut``, or None."""
        self.asked.append((method, path, span))
        waiting = self.of.get(path.partition("?")[0], [])
        fault = waiting.pop(0) if method == "GET" and waiting else None
        if callable(fault):
            fault()
        elif fault == "silence":
            self.ended.wait()
        return fault if isinstance(fault, int | str) else None

    def bytes_asked(self, path: str) -> int:
        """Sum of the ranges of a path that were asked for."""
        spans = [span[6:].split("-") for _, asked, span in self.asked if asked == path and span]
        return sum(int(last) + 1 - int(first) for first, last in spans)


@contextmanager
def https(
    folder: Path, faults: Faults, *, ranges: bool = True, secret: str = ""
) -> Iterator[tuple[str, Path]]:
    """The address of a web server of the files in ``folder``, and its certificate.

    Args:
        ranges: whether it answers with ranges.
        secret: the query without which it answers 403.
    """

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            span = self.headers.get("Range", "")
            fault = faults.of_request(self.command, self.path, span)
            file = folder / unquote(path).lstrip("/")
            if fault == "reset":
                self.connection.unwrap().close()  # pyright: ignore
                return
            status = fault if isinstance(fault, int) else 200 if file.is_file() else 404
            status = 403 if secret and query != secret else status
            data, mark, size = b"no", "", 2
            if status == 200:
                size, mark = file.stat().st_size, str(file.stat().st_mtime_ns)
                first, last = 0, size - 1
                if span and ranges:
                    first, last = (int(number) for number in span[6:].split("-"))
                    status = 206 if first < size else 416
                    size = max(0, min(last + 1, size) - first)
                with file.open("rb") as opened:
                    opened.seek(first)
                    data = opened.read(size) if self.command == "GET" else b""
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.send_header("ETag", f'"{mark}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            self.close_connection = fault == "cut"

    with TemporaryDirectory() as scratch:
        certificate = Path(scratch, "certificate.pem")
        certificate.write_bytes(self_signed())
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # pyright: ignore
        threading.Thread(target=server.serve_forever, args=(_POLL,), daemon=True).start()
        try:
            yield f"https://localhost:{server.server_port}", certificate
        finally:
            server.shutdown()
            server.server_close()


def self_signed() -> bytes:
    """A key and a certificate of localhost."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, plain, serialization.NoEncryption()) + certificate.public_bytes(
        pem
    )


class _Moto:
    """moto's S3, in memory, for as long as this process lasts: it takes seconds to import."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self.faults: Faults | None = None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._serving = serving(self._answer)
        self.address = self._serving.__enter__()

    def _answer(self, environ: Any, start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        fault = self.faults and self.faults.of_request(method, path, environ.get("HTTP_RANGE", ""))
        if isinstance(fault, int):
            start_response(f"{fault} Fault", [("Content-Length", "0")])
            return []
        if fault == "reset":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return self._moto(environ, start_response)


_moto = cache(_Moto)


@contextmanager
def s3(_: Path, faults: Faults | None = None) -> Iterator[Remote]:
    """An empty bucket of moto's S3, which knows nobody's password."""
    server = _moto()
    server.faults = None
    signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential={USER}/d/us-east-1/s3/a"}
    for method, what in (("POST", "moto-api/reset"), ("PUT", "cache")):  # nothing, one bucket
        connection = HTTPConnection(server.address, timeout=30)
        connection.request(method, f"/{what}", headers=signed)
        assert connection.getresponse().status == 200
        connection.close()
    server.faults = faults
    yield Remote(
        "s3://cache/sightline",
        options={"endpointurl": f"http://{server.address}", "region": "us-east-1"},
        secrets={"access_key_id": USER, "secret_access_key": PASSWORD},
    )


@contextmanager
def gs(folder: Path, faults: Faults) -> Iterator[str]:
    """The address of a server of the files in ``folder`` as Google's bucket `cache`."""

    def about(path: Path) -> dict[str, object]:
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        mark = hashlib.md5(data).hexdigest()
        return {"name": name, "bucket": "cache", "size": str(len(data)), "etag": mark}

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode()  # unquoted once, as of PEP 3333
        query = parse_qs(environ["QUERY_STRING"])
        name = path.partition("/b/cache/o")[2].lstrip("/")
        media, span = query.get("alt") == ["media"], environ.get("HTTP_RANGE", "")
        of_bytes = faults.of_request("GET", f"/{name}", span) if media else None
        status, data = 200, b""
        if isinstance(of_bytes, int):
            status = of_bytes
        elif "/b/cache/o" not in path:
            error = {"code": 404, "message": "The specified bucket does not exist."}
            status, data = 404, json.dumps({"error": error}).encode()
        elif not name:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            items = [about(path) for path in files]
            prefix = query.get("prefix", [""])[0]
            items = [item for item in items if str(item["name"]).startswith(prefix)]
            data = json.dumps({"items": items}).encode()
        elif not (folder / name).is_file():
            status = 404
        elif media and span:
            first, last = (int(number) for number in span[6:].split("-"))
            whole = (folder / name).read_bytes()
            status, data = (206, whole[first : last + 1]) if first < len(whole) else (416, b"")
        else:
            file = folder / name
            data = file.read_bytes() if media else json.dumps(about(file)).encode()
        start_response(f"{status} {'OK' if status < 300 else 'Fault'}", [])
        return [data]

    with serving(answer) as address:
        yield f"http://{address}"


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


@contextmanager
def hub(folder: Path, name: str, revision: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with the files in ``folder`` as a data set, and the paths asked for."""
    asked: list[str] = []

    def about(path: Path) -> dict[str, object]:
        data = path.read_bytes() if path.is_file() else b""
        kind = "file" if path.is_file() else "directory"
        mark = hashlib.sha1(data).hexdigest()
        return {
            "type": kind,
            "path": path.relative_to(folder).as_posix(),
            "size": len(data),
            "oid": mark,
        }

    def answer(environ: Any, start_response: Any) -> list[bytes]:
        path, span = unquote(environ["PATH_INFO"]), environ.get("HTTP_RANGE", "")
        asked.append(path)
        api, files = f"/api/datasets/{name}", f"/datasets/{name}/resolve/{revision}/"
        status, headers, data = 200, [("Content-Type", "application/json")], b""
        if path == f"{api}/revision/{revision}":
            data = json.dumps({"_id": "1", "id": name, "sha": "1" * 40, "siblings": []}).encode()
        elif path.startswith(f"{api}/tree/{revision}"):
            below = folder / path.removeprefix(f"{api}/tree/{revision}").lstrip("/")
            data = json.dumps([about(each) for each in sorted(below.iterdir())]).encode()
        elif path == f"{api}/paths-info/{revision}":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
            paths = parse_qs(body).get("paths", []) or json.loads(body)["paths"]
            found = [folder / each for each in paths if (folder / each).exists()]
            data = json.dumps([about(each) for each in found]).encode()
        elif path.startswith(files) and (folder / path.removeprefix(files)).is_file():
            data = (folder / path.removeprefix(files)).read_bytes()
            headers = [("X-Repo-Commit", "1" * 40), ("ETag", '"1"')]
            if span:
                first, last = span[6:].split("-")
                status, data = 206, data[int(first) : int(last or len(data)) + 1]
        else:
            code = "RevisionNotFound" if "/revision/" in path else "EntryNotFound"
            status, headers = 404, [("X-Error-Code", code)]
        start_response(f"{status} Answer", [*headers, ("Content-Length", str(len(data)))])
        return [data]

    with serving(answer) as address:
        yield f"http://{address}", asked
