"""Folders behind servers in this process: https, S3 and Google's storage, each with faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from remote_servers import PASSWORD, USER, Faults, gs, https, s3

from sightline.files import storage


class Shelf:
    """A folder whose files a server hands out.

    Attributes:
        url: of the folder.
        folder: where the files are, or were before `put`.
        faults: what goes wrong, by `path`.
    """

    def __init__(
        self, url: str, folder: Path, faults: Faults, root: str, put: Callable[[], None]
    ) -> None:
        self.url, self.folder, self.faults, self._root, self.put = url, folder, faults, root, put

    def path(self, name: str) -> str:
        """How the server calls a file."""
        return f"{self._root}/{name}"

    def write(self, name: str, data: bytes) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)
        self.put()


class _WithoutPauses:
    """`asyncio` for a library that asks again by itself, first at once and then ever later."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@contextmanager
def web_shelf(folder: Path, patch: pytest.MonkeyPatch, **options: object) -> Iterator[Shelf]:
    folder.mkdir(parents=True, exist_ok=True)
    faults = Faults()
    with https(folder, faults, **options) as (url, certificate):
        patch.setenv("SSL_CERT_FILE", str(certificate))
        patch.delenv(storage.SIGNED_URLS, raising=False)
        storage._options.cache_clear()
        yield Shelf(url, folder, faults, "", lambda: None)
        faults.ended.set()
    storage._options.cache_clear()


@cache
def _s3_client(address: str) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=address)


@contextmanager
def s3_shelf(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    folder.mkdir(parents=True, exist_ok=True)
    faults = Faults()
    with s3(folder, faults) as remote:
        for name, value in {
            "AWS_ENDPOINT_URL": remote.options["endpointurl"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
        }.items():
            patch.setenv(name, value)
        patch.setattr("s3fs.core.asyncio", _WithoutPauses())
        client = _s3_client(remote.options["endpointurl"])

        def put() -> None:
            for path in folder.rglob("*"):
                if path.is_file():
                    name = path.relative_to(folder).as_posix()
                    client.put_object(Bucket="cache", Key=f"raw/{name}", Body=path.read_bytes())

        put()
        yield Shelf("s3://cache/raw", folder, faults, "/cache/raw", put)
        faults.ended.set()


@contextmanager
def gs_shelf(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks by gRPC, which is not served
    gcsfs = pytest.importorskip("gcsfs")
    faults = Faults()
    folder.mkdir(parents=True, exist_ok=True)
    with gs(folder.parent, faults) as address:
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setitem(storage._options("gs"), "token", "anon")
        patch.setattr("gcsfs.retry.asyncio", _WithoutPauses())
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield Shelf(f"gs://cache/{folder.name}", folder, faults, f"/{folder.name}", lambda: None)
        faults.ended.set()
    storage._options.cache_clear()


SHELVES = {"https": web_shelf, "s3": s3_shelf, "gs": gs_shelf}
