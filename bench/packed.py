"""Images in tar, Arrow and Parquet files against the same images as files, in one run.

    python bench/packed.py [--images DIR] [--repeats 9]

Photographs are packed as img2dataset and `datasets` write them, and each form is prepared and then
read in one shuffled order, in one thread, from the page cache: "read" is the bytes alone, "read +
key" also checks their SHA-256, "pixels" also decodes them. The forms alternate; a ratio is the
median of a form's CPU seconds (less sensitive to a busy machine) over that of files. "prepare"
writes the manifests. Skipped if there are no photographs.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from models.photographs import photographs

PER_SHARD = 100


def pack(photos: list[Path], folder: Path) -> dict[str, dict[str, object]]:
    """Write every form below ``folder``; returns kind and parameters of each."""
    import datasets

    (folder / "tar").mkdir()
    for start in range(0, len(photos), PER_SHARD):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in photos[start : start + PER_SHARD]:
                about = json.dumps({"caption": path.stem, "url": "x" * 80}).encode()
                for suffix, data in (("jpg", path.read_bytes()), ("json", about)):
                    member = tarfile.TarInfo(f"{path.stem}.{suffix}")
                    member.size, member.mtime = len(data), 1_700_000_000.5  # pyright: ignore
                    tar.addfile(member, io.BytesIO(data))
        # in one piece: the page cache is slower for files that were written in small ones
        (folder / "tar" / f"{start // PER_SHARD:05}.tar").write_bytes(packed.getvalue())
    (folder / "files").mkdir()
    for path in photos:
        (folder / "files" / path.name).write_bytes(path.read_bytes())
    lines = [f"{path.name}\t{path.stem}" for path in photos]
    (folder / "captions.tsv").write_text("\n".join(["image\tcaption", *lines]))
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": path.name} for path in photos],
        "caption": [path.stem for path in photos],
    }
    image = datasets.Image(decode=False)
    features = datasets.Features({"image": image, "caption": datasets.Value("string")})
    made = datasets.Dataset.from_dict(columns, features=features)
    made.save_to_disk(folder / "arrow")
    made.to_parquet(folder / "all.parquet")
    return {
        "files": {
            "kind": "pairs",
            "images": folder / "files",
            "captions": folder / "captions.tsv",
        },
        "tar": {"kind": "webdataset", "images": folder / "tar", "caption_field": "caption"},
        "Arrow": {"kind": "huggingface", "path": folder / "arrow"},
        "Parquet": {"kind": "huggingface", "path": folder / "all.parquet"},
    }


def main() -> None:
    """Measure and print a table."""
    photos, repeats = photographs("Packed images against files.", 9)

    from pipeline.datasets.kinds import prepare, source_type
    from pipeline.extract.decode import load_image, read_place
    from sightline.cache import IMAGES, key_of_bytes, places_of, read_manifest

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work: dict[str, dict[str, Callable[[], None]]] = {}
        for form, given in pack(photos, folder).items():
            kind = str(given.pop("kind"))
            source = source_type(kind).model_validate(given)
            out = folder / f"{form}.out"
            prepare(kind, source, out)
            table = read_manifest(out / "images.parquet", IMAGES)
            root = source.image_root(out)
            places = [each.below(root) for each in places_of(out / "images.parquet", table)]
            entries = sorted(zip(table["key"].to_pylist(), places, strict=True))
            random.Random(0).shuffle(entries)  # the same images in the same order
            assert len(entries) == len(photos)

            def read(entries: list = entries) -> None:
                for _, place in entries:
                    read_place(place)

            def check(entries: list = entries) -> None:
                for key, place in entries:
                    assert key_of_bytes(read_place(place)) == key

            def decode(entries: list = entries) -> None:
                for key, place in entries:
                    load_image(place, key)

            def whole(kind: str = kind, source: object = source, out: Path = out) -> None:
                prepare(kind, source, out)  # pyright: ignore[reportArgumentType]

            work[form] = {"read": read, "read + key": check, "pixels": decode, "prepare": whole}
        print(f"{len(photos)} photographs, CPU time, median of {repeats}; ratio to files")
        print(f"{'':<12}{'files':>12}" + "".join(f"{form:>10}" for form in list(work)[1:]))
        for step in work["files"]:
            seconds = in_turns([work[form][step] for form in work], repeats)
            files, *others = map(statistics.median, seconds)
            ratios = "".join(f"{each / files:>10.2f}" for each in others)
            print(f"{step:<12}{1e3 * files / len(photos):>9.3f} ms{ratios}")


def in_turns(sides: list[Callable[[], None]], repeats: int) -> list[list[float]]:
    """CPU seconds of `repeats` runs of each side in turn, after one warm-up run."""
    seconds: list[list[float]] = [[] for _ in sides]
    for repeat in range(repeats + 1):
        for side, run in enumerate(sides):
            start = time.process_time()
            run()
            if repeat:
                seconds[side].append(time.process_time() - start)
    return seconds


if __name__ == "__main__":
    main()
