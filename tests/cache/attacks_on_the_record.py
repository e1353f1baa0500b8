"""Commit files that are bombs, or whose fields lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forger import Attacks, Forger

from pipeline.cache.commit import FILE_NAME
from sightline.digest import digest


def _text(text: str | bytes) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        data = text.encode() if isinstance(text, str) else text
        (f.folder / FILE_NAME).write_bytes(data)

    return forge


def _say(change: Callable[[dict[str, Any]], Any]) -> Callable[[Forger], None]:
    def forge(f: Forger) -> None:
        body = f.body()
        change(body)
        if "fingerprint" in body and isinstance(body["spec"], dict):
            spec = {k: v for k, v in body["spec"].items() if k not in ("encoder", "kind")}
            encoder = body["spec"]["encoder"]
            spec |= {"schema": "sightline.feature_set/1", "kind": body["spec"]["kind"]}
            spec |= {"encoder": encoder["name"], "weights_sha256": encoder["weights_sha256"]}
            body["fingerprint"] = digest(spec)
        f.commit(body)

    return forge


def _deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


JSON: Attacks = {
    "JSON nested deeply": (_text("[" * 1_000_000), "truncated or not JSON|nested too deeply"),
    "objects nested deeply": (
        _text('{"a":' * 200_000 + "0" + "}" * 200_000),
        "truncated or not JSON|nested too deeply",
    ),
    "preprocessing nested deeply": (
        _say(lambda b: b["spec"]["preprocessing"].update(x=_deep(300))),
        "recursion|nested|depth",
    ),
    "a number of a million digits": (_text("1" * 1_000_000), "not JSON"),
    "a number that is infinite": (
        _text('{"schema": "sightline.set/2", "rows": 1e999}'),
        "digest does not match",
    ),
    "NaN": (_text('{"schema": "sightline.set/2", "rows": NaN}'), "NaN is not a JSON number"),
    "a huge file": (_text(b" " * (9 << 20)), "more than the"),
    "a million empty lists": (
        _text('{"schema": "sightline.set/2", "x": [' + "[]," * 1_000_000 + "0]}"),
        "digest does not match",
    ),
    "half a surrogate pair": (
        _text('{"schema": "sightline.set/2", "x": "\\ud800", "digest": ""}'),
        "invalid Unicode",
    ),
    "bytes that are not UTF-8": (_text(b'{"schema": "\xff\xfe"}'), "not JSON"),
    "a list": (_text("[1, 2]"), "schema version"),
    "a schema that is no name": (_text('{"schema": {"x": []}}'), "schema version"),
    "a name that writes to the terminal": (
        _say(lambda b: b["spec"]["encoder"].update(name="\x1b]0;owned\x07\x1b[2J")),
        "spec.encoder.name",
    ),
    "a name that turns what follows it around": (
        _say(lambda b: b["spec"]["encoder"].update(name="good\u202e05tenser")),
        "spec.encoder.name",
    ),
    "a source of two lines": (
        _say(lambda b: b["spec"]["encoder"].update(source="good\nrandom:0")),
        "spec.encoder.source",
    ),
    "a library name that writes to the terminal": (
        _say(lambda b: b["shards"][0]["computed"].update(device="\x1b[2J")),
        "computed",
    ),
    "more rows than memory": (_say(lambda b: b.update(rows=1 << 47)), "cannot hold"),
    "more failures than memory": (_say(lambda b: b.update(failed=1 << 47)), "cannot hold"),
    "a shard of more rows than bytes": (
        _say(lambda b: b["shards"][0].update(rows=(1 << 31) - 1)),
        "cannot hold",
    ),
    "rows of a million numbers": (_say(lambda b: b["spec"].update(dim=1 << 20)), "cannot hold"),
    "rows beyond what can be counted": (_say(lambda b: b.update(rows=10**30)), "rows"),
    "a negative number": (_say(lambda b: b["shards"][0].update(rows=-5)), "rows"),
    "true for a number": (_say(lambda b: b.update(failed=True)), "failed"),
    "text for a number": (_say(lambda b: b.update(rows="89")), "rows"),
    "a field that nobody knows": (_say(lambda b: b.update(run="rm -rf /")), "run"),
}
