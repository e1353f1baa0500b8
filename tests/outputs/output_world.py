"""Every command that writes, its inputs, and the foreign files in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import yaml
from invented_results import write_results
from stage_server import Outcome, StageServer
from tiny_scenes import TINY

from pipeline.datasets.kinds import prepare
from pipeline.datasets.scenes import ScenesSource

LIBRARIES = [
    *("open_clip", "torchvision.io", "train.train_run", "train.report.write"),
    *("pipeline.encoders.clip", "pipeline.encoders.teacher", "pipeline.grounding.stage"),
    *("pipeline.interchange.mcse", "pipeline.interchange.kdmcse", "pipeline.tokenize_texts"),
    *("pipeline.interchange.export", "pipeline.interchange.import_export"),
    *("pipeline.tokenize_phrases", "pipeline.grounding.gallery.page", "pipeline.grounding.stats"),
    *("train.report.space_page", "train.report.neighbours_page", "train.evaluate.named_models"),
]
SERVER_OPTIONS = [f"--import={name}" for name in LIBRARIES]


@dataclass(frozen=True)
class Command:
    """One way to write something.

    Attributes:
        words: words of the command line, given the folder of the inputs and the output.
        names: some of the names it writes below its output; empty for a single file.
        maker: command that makes the set that this one modifies in place.
    """

    name: str
    words: Callable[[Path, Path], list[object]]
    names: tuple[str, ...] = ()
    maker: str = ""

    def __str__(self) -> str:
        return self.name


def _prepare(kind: str, *options: str) -> Callable[[Path, Path], list[object]]:
    def words(made: Path, out: Path) -> list[object]:
        given = [made / word[1:] if word.startswith("@") else word for word in options]
        return ["prepare", kind, *given, "--out", out]

    return words


def _extract_image(made: Path, out: Path) -> list[object]:
    return ["extract", "image", "--images", made / "scenes/images", *_clip(made, out)]


def _clip(made: Path, out: Path) -> list[object]:
    model = made / "scenes/encoders/clip.json"
    size = ["--batch-size", 8, "--workers", 0]
    return ["--encoder", model, "--weights", "random:0", *size, "--out", out]


def _train(made: Path, out: Path) -> list[object]:
    scenes = made / "scenes"
    return [
        *("train", "--objective", "simcse", "--student", scenes / "student"),
        *("--tokens", made / "tokens", "--sentences", scenes / "sentences.parquet"),
        *("--dev", scenes / "similarity/dev.tsv", "--max-steps", 2, "--eval-steps", 1),
        *("--batch-size", 4, "--out", out),
    ]


def _on_manifests(made: Path) -> list[object]:
    scenes = made / "scenes"
    return [
        *("--images-manifest", scenes / "images.parquet"),
        *("--captions", scenes / "captions.parquet", "--root", scenes / "images"),
    ]


FOLDERS = [
    Command(
        "prepare pairs",
        _prepare("pairs", "--images", "@scenes/images", "--captions", "@captions.tsv"),
        ("dataset.json", "images.parquet", "captions.parquet", "sentences.parquet"),
    ),
    Command(
        "prepare sentences",
        _prepare("sentences", "--path", "@texts.txt"),
        ("dataset.json", "sentences.parquet"),
    ),
    Command("extract image", _extract_image, ("set.json", "set.json.next")),
    Command(
        "extract text",
        lambda made, out: [
            *("extract", "text", "--texts", made / "texts.txt"),
            *("--encoder", made / "scenes/encoders/clip.json", "--weights", "random:0"),
            *("--out", out),
        ],
        ("set.json",),
    ),
    Command(
        "extract object",
        lambda made, out: [
            *("extract", "object", "--phrases", made / "scenes/phrases.parquet"),
            *_on_manifests(made)[:2],
            *("--root", made / "scenes/images", *_clip(made, out)),
        ],
        ("set.json",),
    ),
    Command(
        "extract teacher",
        lambda made, out: [
            *("extract", "teacher", "--texts", made / "texts.txt"),
            *("--encoder", made / "scenes/student", "--out", out),
        ],
        ("set.json",),
    ),
    Command(
        "ground run",
        lambda made, out: [
            *("ground", "run", "--settings", made / "grounding.yaml", *_on_manifests(made)),
            *("--out", out, "--cutouts", out.with_name(out.name + "-cutouts")),
        ],
        ("set.json", "set.json.next"),
    ),
    Command(
        "ground stats",
        lambda made, out: ["ground", "stats", made / "scenes/phrases.parquet", "--out", out],
        ("ground_stats.json", "stats.json", "drops.json"),
    ),
    Command(
        "tokens",
        lambda made, out: [
            *("tokens", "--texts", made / "texts.txt", "--student", made / "scenes/student"),
            *("--out", out),
        ],
        ("set.json",),
    ),
    Command(
        "phrase-tokens",
        lambda made, out: [
            *("phrase-tokens", "--phrases", made / "scenes/phrases.parquet"),
            *("--captions", made / "scenes/captions.parquet"),
            *("--student", made / "scenes/student", "--out", out),
        ],
        ("set.json",),
    ),
    Command(
        "train",
        _train,
        ("run.json", "heads.safetensors", "model/config.json", "best.safetensors"),
    ),
    Command(
        "cache import",
        lambda made, out: ["cache", "import", made / "set.tar", "--out", out],
        ("set.json",),
    ),
    *(
        Command(
            f"cache export {form}",
            lambda made, out, form=form: [
                *("cache", "export", made / "features", "--format", form, "--out", out),
                *("--dataset", made / "scenes"),
            ],
            ("export.json", "README.md", *names),
        )
        for form, names in {
            "parquet": ("data/rows-0000.parquet",),
            "npy": ("img_emb/img_emb_0000.npy", "metadata/metadata_0000.parquet"),
            "safetensors": ("data/rows-0000.safetensors", "metadata/metadata_0000.parquet"),
        }.items()
    ),
    Command(
        "cache import of an export",
        lambda made, out: ["cache", "import", made / "exported", "--out", out],
        ("set.json",),
    ),
    Command(
        "cache import of clip-retrieval",
        lambda made, out: [
            *("cache", "import", made / "clip-retrieval", "--images", made / "scenes/images"),
            *("--out", out),
        ],
        ("set.json",),
    ),
    Command(
        "cache import-mcse",
        lambda made, out: [
            *("cache", "import-mcse", made / "mcse.hdf5", "--texts", made / "mcse.txt"),
            *("--dataset", out, "--out", out.with_name(out.name + "-features")),
        ],
        ("dataset.json", "images.parquet", "captions.parquet"),
    ),
    Command(
        "cache import-kdmcse",
        lambda made, out: [
            *("cache", "import-kdmcse", made / "kdmcse.json", "--dataset", out),
            *("--images", out.with_name(out.name + "-images")),
            *("--texts", out.with_name(out.name + "-texts")),
        ],
        ("dataset.json", "images.parquet", "captions.parquet"),
    ),
    Command(
        "stage report",
        lambda made, out: [
            *("stage", "report", "--params", made / "graph/params.yaml", "--out", out)
        ],
        ("report.json", "report.html", "report.md", "report.txt", "scores.png"),
    ),
    Command(
        "geometry",
        lambda made, out: [
            *("geometry", "--model", made / "scenes/student", "--pooling", "cls"),
            *("--data", made / "scenes/similarity/dev.tsv", "--limit", 12),
            *("--clusters", 2, "--perplexity", 3, "--out", out),
        ],
        ("geometry.json", "geometry.html", "plane.svg", "map.png"),
    ),
]
"""Commands whose output is a folder."""

IN_PLACE = [
    Command(
        f"cache {verb}", lambda made, out, verb=verb: ["cache", verb, out], maker="extract image"
    )
    for verb in ("compact", "gc", "repair")
]
"""Commands that change a feature set in place."""

FILES = [
    Command(
        "gallery",
        lambda made, out: [
            *("gallery", "--phrases", made / "scenes/phrases.parquet", *_on_manifests(made)),
            *("--limit", 2, "--out", out),
        ],
    ),
    Command(
        "neighbours",
        lambda made, out: [
            *("neighbours", "--sample", 2, "--model", made / "scenes/student", "--pooling", "cls"),
            *(*_on_manifests(made), "--out", out),
        ],
    ),
    Command(
        "compare --out",
        lambda made, out: [
            *("compare", made / "graph/results/simcse", made / "graph/results/mcse"),
            *("--format", "markdown", "--out", out),
        ],
    ),
    Command(
        "compare --plot",
        lambda made, out: [
            *("compare", made / "graph/results/simcse", made / "graph/results/mcse"),
            *("--plot", out if out.is_dir() else out.with_suffix(".png")),
        ],
    ),
    Command(
        "cache export",
        lambda made, out: ["cache", "export", made / "features", "--out", out],
    ),
    Command(
        "cache export-mcse",
        lambda made, out: [
            *("cache", "export-mcse", made / "features", "--dataset", made / "scenes"),
            *("--out", out, "--texts", out.with_suffix(".txt")),
        ],
    ),
]
"""Commands whose output is a file."""

COMMANDS = {command.name: command for command in (*FOLDERS, *IN_PLACE, *FILES)}


class OutputWorld:
    """The inputs of every command, and a process that runs them."""

    def __init__(self, folder: Path) -> None:
        self.server = StageServer(*SERVER_OPTIONS)
        self.made = folder / "made"
        self._make()

    def run(self, command: Command, out: Path, **request: object) -> Outcome:
        """The outcome of a command that writes to ``out``."""
        words = [str(word) for word in command.words(self.made, out)]
        folder = self.made / "graph" if words[0] == "stage" else self.made
        return self.server.run(out, words=words, folder=str(folder), **request)

    def close(self) -> None:
        self.server.close()

    def _make(self) -> None:
        made = self.made
        made.mkdir(parents=True)
        prepare("scenes", ScenesSource.model_validate(TINY), made / "scenes")
        rows = pq.read_table(made / "scenes/captions.parquet").to_pylist()
        lines = ["image\tcaption", *(f"{row['image_id']}\t{row['text']}" for row in rows)]
        (made / "captions.tsv").write_text("\n".join(lines) + "\n")
        (made / "texts.txt").write_text("\n".join(row["text"] for row in rows[:20]) + "\n")
        drawn = {"family": "annotations", "path": str(made / "scenes/phrases.parquet")}
        settings = {"grounder": drawn, "segmenter": {"family": "annotations"}, "block_images": 5}
        (made / "grounding.yaml").write_text(yaml.safe_dump(settings))
        features = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
        with h5py.File(made / "mcse.hdf5", "w") as file:
            file.create_dataset("features", data=features)
        (made / "mcse.txt").write_text("one\ntwo\nthree\nfour\n")
        image = {"image_feat": [1, 2], "captions": ["a dog"], "lang_feat": [[3, 4]]}
        (made / "kdmcse.json").write_text(json.dumps({"a.jpg": image}))
        write_results(made / "graph")
        tokens = {"--texts": made / "scenes/sentences.parquet", "--out": made / "tokens"}
        words = [word for pair in tokens.items() for word in pair]
        self._must("tokens", *words, "--student", made / "scenes/student")
        self._must(*_extract_image(made, made / "features"))
        self._must("cache", "export", made / "features", "--out", made / "set.tar")
        words = ["--format", "npy", "--dataset", made / "scenes"]
        for name in ("exported", "clip-retrieval"):
            self._must("cache", "export", made / "features", *words, "--out", made / name)
        (made / "clip-retrieval/export.json").unlink()  # as another tool would have written it

    def _must(self, *words: object) -> None:
        done = self.server.run(self.made, words=[str(word) for word in words])
        assert done.code == 0, done.said


def everything(folder: Path) -> dict[str, str]:
    """The content of ``folder``: path → ``folder``, the target of a link, or a file's digest.

    What readers remember of a set beside it, and the run folder that holds only that, do not count.
    """
    found: dict[str, str] = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(root, name)
            if path.is_symlink():
                what = f"link to {path.readlink()}"
            elif path.is_dir():
                if name.endswith(".run") and {each.name for each in path.iterdir()} <= {
                    "checked.json"
                }:
                    continue
                what = "folder"
            elif name == "checked.json":
                continue
            else:
                what = hashlib.sha256(path.read_bytes()).hexdigest()
            found[path.relative_to(folder).as_posix()] = what
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The entries of ``before`` that are missing or different."""
    return sorted(name for name, what in before.items() if after.get(name) != what)


def copy_of(folder: Path, target: Path) -> Path:
    """A copy to modify freely."""
    return Path(shutil.copytree(folder, target, symlinks=True))


NOTES = {
    "notes.txt": "why",
    ".hidden": "x",
    ".images.parquet.4711.tmp": "not a leftover of ours",
    "features/clip/shard.h5": "a set of somebody's",
    "model/notes.md": "about the model",
    "images/photo.jpg": "a photograph",
    "empty/": "",
}
"""File names that Sightline never uses."""


def write_notes(folder: Path, notes: dict[str, str] = NOTES) -> None:
    for name, text in notes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif not os.path.lexists(path):
            path.write_text(text)


def make(world: OutputWorld, command: Command, out: Path) -> None:
    """The set that ``command`` modifies in place, if any."""
    if command.maker:
        done = world.run(COMMANDS[command.maker], out)
        assert done.code == 0, done.said
