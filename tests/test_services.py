"""The page's model behind an API, against a server that is slow, busy, broken or killed for."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from captioned import CAPTIONS_OF, write_captioned
from command_line import sightline
from installed_package import forget, install
from PIL import Image
from test_extending import PACKAGE, REGISTRIES
from waiting import wait_until

from pipeline.extract import services
from pipeline.extract.services import Service, secret
from sightline.cache import FeatureSet, key_of_text
from sightline.cache.groundings import read_phrases
from sightline.errors import SightlineError, Transient

KEY = "sk-lamplight-31415926535"
Say = Callable[["Handler", int], bool]


def vector(row: str) -> np.ndarray:
    """What the service answers for a text, or an image with this digest."""
    return np.frombuffer(hashlib.sha256(row.encode()).digest()[:4], np.uint8) / 255


class Handler(BaseHTTPRequestHandler):
    """Answers with the first two words of each caption, or a vector of each input.

    The test's ``say`` may answer instead, and then returns False.

    Attributes:
        rows: of an image its digest, of a text itself.
    """

    server: Server
    rows: set[str]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        images = [base64.b64decode(image) for image in body.get("images", [body.get("image", "")])]
        inputs = body.get("texts") or [hashlib.sha256(image).hexdigest() for image in images]
        self.rows = set(inputs)
        with server.lock:
            server.keys.add(self.headers["Authorization"])
            server.asked.update(inputs)
            server.calls += 1
            number = server.calls
            server.running += 1
            server.most = max(server.most, server.running)
        try:
            if not server.say(self, number):
                return
            answer = [vector(row).tolist() for row in inputs]
            if "captions" in body:
                answer = [
                    [
                        {
                            "phrase": " ".join(text.split()[:2]).upper(),
                            "box": [1, 2, 30, 20],
                            "score": 1,
                        }
                    ]
                    for text in body["captions"]
                ]
            self.send(200, json.dumps(answer).encode())
            with server.lock:
                server.answered.update(inputs)
        finally:
            with server.lock:
                server.running -= 1

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def useless(self) -> bool:
        self.send(200, b"[[1]]")
        return False

    def busy(self, after: str = "0.01") -> bool:
        self.send(503, b"", Retry_After=after)
        return False

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Counts, for each image, how often it was asked for and answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked, self.answered = Counter[str](), Counter[str]()
        self.keys: set[str | None] = set()
        self.running = self.most = self.calls = 0
        self.say: Say = lambda handler, number: True

    def handle_error(self, *_: object) -> None:
        pass  # a client that was killed


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    for file in ("lamplight/remote.py", "lamplight/embeddings.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text((PACKAGE / file).read_text())
    points = {
        "sightline.grounders": {"remote": "lamplight.remote:RemoteSettings"},
        "sightline.encoders": {"embeddings": "lamplight.embeddings:EmbeddingsConfig"},
    }
    install(folder, "lamplight", points)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("LAMPLIGHT_KEY", KEY)
    forget(REGISTRIES.values())
    yield folder
    forget(REGISTRIES.values(), "lamplight")


@pytest.fixture
def data(tmp_path) -> Path:
    return write_captioned(tmp_path / "data")


def words(
    server: Server, data: Path, out: Path, *more: str, at_once: int = 2, segmenter: str = "box"
) -> list[str]:
    options = {
        "captions": "all",
        "grounder.family": "remote",
        "grounder.url": f"http://127.0.0.1:{server.server_port}",
        "grounder.model": "finder-2026-11",
        "grounder.concurrency": at_once,
        "segmenter.family": segmenter,
    }
    sets = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    return ["ground", "--data", str(data), "--out", str(out), *sets, *more]


def content(out: Path) -> dict[str, bytes]:
    """The files of a published set; `shards` say when they were written."""
    return {file.name: file.read_bytes() for file in out.rglob("*") if file.is_file()}


def spans(out: Path) -> set[tuple[str, int, int]]:
    rows = read_phrases(out).to_pylist()
    return {(row["phrase"], row["char_start"], row["char_end"]) for row in rows}


def test_answers_come_in_any_order_and_the_set_is_the_same(server, site, data, tmp_path):
    assert sightline(*words(server, data, tmp_path / "one", at_once=1)) == 0
    assert server.most == 1
    server.say = lambda handler, number: not time.sleep(0.3 / number)  # the first is the last
    assert sightline(*words(server, data, tmp_path / "four", at_once=4)) == 0
    assert server.most == 4
    assert content(tmp_path / "one") == content(tmp_path / "four")
    assert set(server.asked.values()) == {2}
    assert len(server.asked) == len(CAPTIONS_OF)
    assert server.keys == {f"Bearer {KEY}"}
    assert ("a big", 0, 5) in spans(tmp_path / "one")  # the service says A BIG


def test_busy_and_broken_services_are_asked_again(server, site, data, tmp_path, monkeypatch):
    monkeypatch.setattr(services, "_FIRST_WAIT", 0.01)

    def say(handler: Handler, number: int) -> bool:
        if number in (1, 4):
            return handler.busy()
        if number == 2:
            handler.connection.shutdown(socket.SHUT_RDWR)  # no answer
        elif number == 5:
            handler.send(200, b"[]", Content_Length="1000")  # ends too early
        return number not in (2, 5)

    server.say = say
    assert sightline(*words(server, data, tmp_path / "out")) == 0
    assert set(server.answered.values()) == {1}
    assert server.asked.total() == len(CAPTIONS_OF) + 4
    assert len(read_phrases(tmp_path / "out"))


def test_rows_are_given_back_and_the_next_run_asks_for_these_alone(
    server, site, data, tmp_path, capsys
):
    image = data / "images/b.png"
    lost = hashlib.sha256(image.read_bytes()).hexdigest()
    server.say = lambda handler, number: lost not in handler.rows or handler.busy()
    out = tmp_path / "out"
    assert sightline(*words(server, data, out)) == 1
    said = capsys.readouterr().err
    assert f"{out}: 3 of 4 images are done and kept, and 1 are left to do" in said
    assert "HTTP status 503. Rerun the same command" in said
    assert server.asked[lost] == services._TRIES
    assert not (out / "record.json").exists()
    server.say = lambda handler, number: True
    assert sightline(*words(server, data, out)) == 0
    assert set(server.answered.values()) == {1}
    assert server.asked.total() == 3 + services._TRIES + 1
    assert sightline(*words(server, data, tmp_path / "whole")) == 0
    assert content(out) == content(tmp_path / "whole")


def test_a_service_that_is_down_is_soon_left_alone(server, site, data, tmp_path, capsys):
    server.say = lambda handler, number: handler.busy(after="1000")  # longer than a call may take
    assert sightline(*words(server, data, tmp_path / "out", at_once=1)) == 1
    assert "0 of 4 images are done and kept, and 4 are left" in capsys.readouterr().err
    assert server.asked.total() == services._GIVEN_UP < len(CAPTIONS_OF)


def test_another_error_ends_the_run_after_the_answers_on_the_way(
    server, site, data, tmp_path, capsys
):
    def say(handler: Handler, number: int) -> bool:
        if number == 1:
            handler.send(401, b"")
        time.sleep(0.2)
        return number != 1

    server.say = say
    assert sightline(*words(server, data, tmp_path / "out")) == 1
    assert "HTTP status 401; check the key" in capsys.readouterr().err
    assert (server.asked.total(), server.answered.total()) == (2, 1)
    server.say = lambda handler, number: True
    assert sightline(*words(server, data, tmp_path / "out")) == 0
    assert set(server.answered.values()) == {1}


def test_a_useless_answer_costs_its_image_alone(server, site, data, tmp_path, capsys):
    bad = hashlib.sha256((data / "images/b.png").read_bytes()).hexdigest()
    server.say = lambda handler, number: bad not in handler.rows or handler.useless()
    more = ("--max-failed", "0.5")
    assert sightline(*words(server, data, tmp_path / "out", *more)) == 0
    assert "1 failed" in capsys.readouterr().out
    assert sightline(*words(server, data, tmp_path / "out")) == 1
    assert (
        "Ask again for the failed ones alone, with --retry-failed, or " in capsys.readouterr().err
    )
    server.asked.clear()
    assert sightline(*words(server, data, tmp_path / "out", *more)) == 0
    assert not server.asked
    server.say = lambda handler, number: True
    assert sightline(*words(server, data, tmp_path / "out"), "--retry-failed") == 0
    assert set(server.asked) == {bad}


MORE = [pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGKILL, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, *MORE])
def test_a_kill_costs_at_most_the_calls_on_the_way_and_a_stop_none(server, site, tmp_path, number):
    data, count, at_once = photographs(tmp_path / "data", 24), 24, 3
    out = tmp_path / "out"
    parts, sent = tmp_path / "out.run/parts", threading.Event()

    def say(handler: Handler, number: int) -> bool:
        """Calls are on their way until the signal is, from the tenth on."""
        if number > 9:
            sent.wait()
            time.sleep(0.15)  # of which many pass before all is asked for
        return True

    server.say = say
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", *words(server, data, out, at_once=at_once)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: server.running == at_once and len([*parts.glob("*.json")]) == 9)
    process.send_signal(number)
    sent.set()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), said
    wait_until(lambda: not server.running)
    first, answered = server.asked.copy(), server.answered.total()
    assert 9 < first.total() < count
    if number != signal.SIGKILL:
        assert f"{answered} of {count} images are done and kept" in said
    server.say = lambda handler, number: True
    assert sightline(*words(server, data, out, at_once=at_once)) == 0
    twice = server.asked.total() - count
    assert twice <= (at_once if number == signal.SIGKILL else 0)
    assert len(server.asked) == count
    assert all(server.asked[row] == 1 for row in server.asked if row not in first)
    found = [file.read_bytes() for file in tmp_path.rglob("out*/**/*") if file.is_file()]
    assert found
    assert not [text for text in [*found, said.encode()] if KEY.encode() in text]


def photographs(folder: Path, count: int) -> Path:
    """A prepared data set of ``count`` pictures, each with a caption."""
    pictures = folder.parent / "pictures"
    pictures.mkdir()
    lines = ["image,caption"]
    for i in range(count):
        Image.fromarray(np.full((40, 60, 3), 9 * i, np.uint8)).save(pictures / f"{i}.png")
        lines.append(f"{i}.png,a dog number {i}")
    (folder.parent / "captions.csv").write_text("\n".join(lines) + "\n")
    prepare = ["prepare", "pairs", "--images", str(pictures), "--out", str(folder)]
    assert sightline(*prepare, "--captions", str(folder.parent / "captions.csv")) == 0
    return folder


def test_the_key_is_in_no_file_and_no_message(server, site, data, tmp_path, capsys, monkeypatch):
    lost = hashlib.sha256((data / "images/b.png").read_bytes()).hexdigest()
    bad = hashlib.sha256((data / "images/c.png").read_bytes()).hexdigest()

    def say(handler: Handler, number: int) -> bool:
        if bad in handler.rows:
            return handler.useless()
        return lost not in handler.rows or handler.busy()

    server.say = say
    run = words(server, data, tmp_path / "out", "--cutouts", str(tmp_path / "cut"))
    assert sightline(*run, "--max-failed", "0.9") == 1
    server.say = lambda handler, number: bad not in handler.rows or handler.useless()
    assert sightline(*run, "--max-failed", "0.9") == 0
    assert server.keys == {f"Bearer {KEY}"}
    said = capsys.readouterr()
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(written) > 10
    for text in (*written, said.out.encode(), said.err.encode()):
        assert KEY.encode() not in text
    assert KEY not in f"{secret('LAMPLIGHT_KEY')!r} {secret('LAMPLIGHT_KEY')}"
    monkeypatch.delenv("LAMPLIGHT_KEY")
    assert sightline(*run) == 1
    assert "LAMPLIGHT_KEY is not set" in capsys.readouterr().err


def test_a_description_cannot_hold_the_key(site, data, tmp_path, server, capsys, monkeypatch):
    from lamplight.remote import RemoteGrounder  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(RemoteGrounder, "describe", lambda self: {"key": self._client._key})
    assert sightline(*words(server, data, tmp_path / "out")) == 1
    said = capsys.readouterr().err
    assert "describe of what it makes: found" in said
    assert KEY not in said
    assert not server.asked


def test_no_device_is_picked(server, site, data, tmp_path, monkeypatch, capsys):
    from pipeline.extract import runner
    from sightline import devices

    def refuse(*_: object) -> None:
        raise AssertionError("a device was picked")

    monkeypatch.setattr(devices, "use_device", refuse)
    monkeypatch.setattr(devices, "computing", refuse)
    monkeypatch.setattr(runner, "cpu_warning", lambda device: "on the CPU")
    assert sightline(*words(server, data, tmp_path / "out")) == 0
    assert "on the CPU" not in capsys.readouterr().err


def test_files_are_given_as_they_lie_there_and_not_decoded(
    server, site, data, tmp_path, monkeypatch
):
    from pipeline.extract import decode

    rows = {hashlib.sha256(path.read_bytes()).hexdigest() for path in data.glob("images/*")}

    def refuse(data: bytes) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(decode, "decode_image", refuse)
    run = words(server, data, tmp_path / "out", segmenter="annotations")
    assert sightline(*run) == 1  # no masks come with its boxes
    assert server.asked.keys() == rows


def encoding(server: Server, kind: str, data: Path, out: Path, *more: str) -> list[str]:
    sets = {"url": f"http://127.0.0.1:{server.server_port}", "dim": 4, "concurrency": 3}
    options = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    encoder = ["--encoder", "embeddings:large", "--weights", "pretrained:2026-11"]
    where = ["--data", str(data), "--out", str(out), "--batch-size", "2"]
    return ["extract", kind, *where, *encoder, *options, *more]


@pytest.mark.parametrize("kind", ["image", "text"])
def test_an_encoder_asks_for_batches_and_gives_back_those_without_an_answer(
    kind, server, site, tmp_path, capsys
):
    data, out = photographs(tmp_path / "data", 7), tmp_path / "out"
    files = {path: hashlib.sha256(path.read_bytes()) for path in data.parent.glob("pictures/*")}
    rows = {digest.digest(): digest.hexdigest() for digest in files.values()}
    if kind == "text":
        texts = [f"a dog number {i}" for i in range(7)]
        rows = {key_of_text(text): text for text in texts}
    lost = rows[min(rows)]
    server.say = lambda handler, number: lost not in handler.rows or handler.busy()
    assert sightline(*encoding(server, kind, data, out)) == 1
    said = capsys.readouterr().err
    assert "5 of 7" in said
    assert "are done and kept, and 2 are left to do" in said
    server.say = lambda handler, number: True
    assert sightline(*encoding(server, kind, data, out, "--precision", "bf16")) == 0
    assert set(server.answered.values()) == {1}
    assert server.answered.keys() == set(rows.values())
    features = FeatureSet.open(out)
    assert features.record.spec.encoder.source == "service:2026-11"
    expected = [vector(row) for row in rows.values()]
    np.testing.assert_allclose(features.take(list(rows)), expected, atol=1e-3)
    assert sightline(*encoding(server, kind, data, tmp_path / "whole")) == 0
    assert content(out) == content(tmp_path / "whole")


def test_objects_go_to_a_service_as_pictures_with_alpha(server, site, data, tmp_path):
    phrases = tmp_path / "phrases"
    assert sightline(*words(server, data, phrases)) == 0
    server.answered.clear()
    out = tmp_path / "out"
    assert sightline(*encoding(server, "object", data, out, "--phrases", str(phrases))) == 0
    objects = {row["cutout_key"] for row in read_phrases(phrases).to_pylist()}
    assert len(FeatureSet.open(out)) == len(objects) == server.answered.total()


def test_a_call_is_made_again_later_and_later(monkeypatch):
    waits: list[float] = []
    service = Service(2)
    monkeypatch.setattr(service._ending, "wait", lambda seconds: waits.append(seconds))

    def call(after: float | None) -> None:
        raise Transient("busy", after)

    with pytest.raises(Transient, match="busy"):
        service.with_retries(call)(None)
    assert len(waits) == services._TRIES - 1
    for number, seconds in enumerate(waits):
        assert 0.5 * 2**number <= seconds <= 2**number
    waits.clear()
    with pytest.raises(Transient):
        service.with_retries(call)(7)
    assert all(7 <= seconds <= 7 * 1.25 for seconds in waits)
    waits.clear()
    with pytest.raises(Transient):
        service.with_retries(call)(services._PATIENCE + 1)
    assert not waits


def test_the_key_must_be_there():
    with pytest.raises(SightlineError, match="NO_SUCH_KEY is not set; put the key"):
        secret("NO_SUCH_KEY")


@pytest.mark.slow
def test_workers_share_a_service_and_the_last_one_asks_again(server, site, data, tmp_path, capsys):
    out, waits = tmp_path / "out", threading.Barrier(2, timeout=60)
    lost = hashlib.sha256((data / "images/b.png").read_bytes()).hexdigest()

    def say(handler: Handler, number: int) -> bool:
        if number <= 2:
            waits.wait()  # both are at work
        return lost not in handler.rows or handler.busy()

    server.say = say
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "pipeline.cli"),
                *words(server, data, out, "--worker", f"{number}/2", at_once=1),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert {process.returncode for process in processes} in ({1}, {0, 1}), said  # 0: not the last
    assert any("3 of 4 images are done and kept, and 1 are left to do" in text for text in said)
    server.say = lambda handler, number: True
    assert sightline(*words(server, data, out)) == 0
    assert set(server.answered.values()) == {1}


def test_a_model_of_this_machine_beside_a_service_computes_once_at_a_time(
    server, site, data, tmp_path, monkeypatch
):
    from pipeline.grounding.segmenters.box import BoxSegmenter

    running, counts = threading.Semaphore(1), list[int]()
    segment = BoxSegmenter.segment

    def alone(self: BoxSegmenter, images: list[object], boxes: list[object]) -> object:
        assert running.acquire(blocking=False)
        time.sleep(0.05)
        running.release()
        counts.append(len(images))
        return segment(self, images, boxes)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(BoxSegmenter, "segment", alone)
    assert sightline(*words(server, data, tmp_path / "out", at_once=4)) == 0
    assert counts == [1] * len(CAPTIONS_OF)
