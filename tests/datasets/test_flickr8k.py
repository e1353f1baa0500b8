"""Flickr8k's 8,091 photographs and 40,455 captions are prepared to the rows they always had."""

from __future__ import annotations

import hashlib
import json

from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from sightline.cache import CAPTIONS, IMAGES, SENTENCES, read_manifest

DIGESTS = {
    "images": "7218b187abc121ed82c989b7667d16cc72ecc9b0aee4b6e9aad10f62f47c463f",
    "captions": "ef85ef7559e52496af477425653d776647e84f0d5c5bd03d1a524ee37747c329",
    "sentences": "8165b1b0e9f7125adab1f2f2fd24ea70e239ded6b1e48b79d2cc3b3a4362969a",
}
"""SHA-256 of the rows, as JSON lines."""


def test_the_manifests_are_as_they_were(shared_data, tmp_path):
    folder = shared_data / "flickr8k"
    lists = {name: folder / f"Flickr_8k.{name}Images.txt" for name in ("train", "dev", "test")}
    source = PairsSource(
        images=folder / "images_224", captions=folder / "Flickr8k.token.txt", splits=lists
    )
    report = prepare("pairs", source, tmp_path / "out")
    assert report.problems == {}
    schemas = {"images": IMAGES, "captions": CAPTIONS, "sentences": SENTENCES}
    digests = {}
    for name, schema in schemas.items():
        digest = hashlib.sha256()
        for row in read_manifest(tmp_path / "out" / f"{name}.parquet", schema).to_pylist():
            digest.update(json.dumps(row, default=bytes.hex, sort_keys=True).encode() + b"\n")
        digests[name] = digest.hexdigest()
    assert digests == DIGESTS
