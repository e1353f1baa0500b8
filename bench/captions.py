"""Time and memory of reading captions and finding their images, three million rows of each format.

    python bench/captions.py
    python bench/captions.py --rows 300000

Every step runs in a process of its own, so that its peak memory is its own: reading a CSV, JSON
lines and Parquet, and finding the image of every caption by its path, by its name below another
folder, and by its name without suffix. There are five captions an image.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CAPTIONS = 5
FORMS = ("csv", "jsonl", "parquet")
NAMES = {
    "by path": "photos/{:03d}/{:08d}.jpg",
    "by a shared beginning": "/data/upload/photos/{:03d}/{:08d}.jpg",
    "by name": "other/{:08d}.jpg",
    "by stem": "{:08d}",
}
ONE_STEP = "--one-step"


def path_of(number: int) -> str:
    return NAMES["by path"].format(number % 1000, number)


def write(folder: Path, rows: int) -> None:
    """The same captions in every format."""
    names = [path_of(row // CAPTIONS) for row in range(rows)]
    texts = [f"a red bird, number {row}, sits beside a small lake" for row in range(rows)]
    with (folder / "captions.csv").open("w") as file:
        file.write("image,caption\n")
        file.writelines(f'{n},"{text}"\n' for n, text in zip(names, texts, strict=True))
    with (folder / "captions.jsonl").open("w") as file:
        for n, text in zip(names, texts, strict=True):
            file.write(json.dumps({"image": n, "caption": text}) + "\n")
    pq.write_table(pa.table({"image": names, "caption": texts}), folder / "captions.parquet")


def read(folder: Path, form: str) -> int:
    """The number of captions that a file of this form has."""
    from pipeline.datasets.caption_tables import read_captions

    return len(read_captions(folder / f"captions.{form}").texts)


def match(rows: int, how: str) -> int:
    """How many names find their image."""
    from sightline.image_names import ImageNames

    images = ImageNames([path_of(number) for number in range(rows // CAPTIONS)])
    form = NAMES[how]
    both = [(n % 1000, n) if form.count("{") == 2 else (n,) for n in range(rows // CAPTIONS)]
    names = [form.format(*numbers) for numbers in both for _ in range(CAPTIONS)]
    of_file = images.of_file(names)
    return sum(of_file.find(name) >= 0 for name in names)


def one_step(folder: Path, rows: int, step: str) -> None:
    """Do one step, and print its seconds, its peak in MB and what it found."""
    start = time.perf_counter()
    found = read(folder, step) if step in FORMS else match(rows, step)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"step": step, "s": seconds, "peak_MB": peak, "found": found}))


def main() -> None:
    """Run every step in a process of its own."""
    from harness import Report, options_of  # not in those processes: it imports PyTorch

    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    options = parser.parse_args()
    report = Report(options, f"{options.rows:,} captions, {CAPTIONS} an image")
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch), options.rows)
        for step in (*FORMS, *NAMES):
            command = [sys.executable, __file__, ONE_STEP, scratch, str(options.rows), step]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            report.add(**json.loads(ended.stdout))


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_STEP]:
        one_step(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
