"""Every command that writes, its inputs, and the foreign files in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import h5py
import numpy as np
import pyarrow.parquet as pq
import yaml
from made_results import made_result
from stage_server import Outcome, StageServer
from tiny_scenes import TINY

from train.evaluate.results import save_result

LIBRARIES = [
    *("open_clip", "torchvision.io", "train.train_run", "train.report.write"),
    *(
        "pipeline.encoders.frozen_model",
        "transformers",
        "pipeline.grounding.ground",
    ),
    *("pipeline.interchange.mcse_files", "pipeline.tokenize_texts"),
    *("pipeline.interchange.export", "pipeline.interchange.import_rows"),
    *("pipeline.tokenize_phrases", "pipeline.grounding.gallery.page", "pipeline.grounding.stats"),
    *("train.report.neighbour_tables", "train.evaluate.models"),
    *("train.report.figures", "train.evaluate.neighbours", "scipy.stats"),
    *("transformers.models.bert.modeling_bert", "frozen_heap"),
]


@dataclass(frozen=True)
class Command:
    """One way to write something.

    Attributes:
        line: the command line. ``@`` begins a path among the inputs; ``OUT`` is the output,
            ``PLOT`` is it with another suffix. The stage `report` writes there through a link.
        names: some of those it writes below its output; empty for a single file.
    """

    name: str
    line: str
    names: str = ""

    def words(self, made: Path, out: Path) -> list[str]:
        """Words of the command line, given the folder of the inputs and the output."""
        return [
            word.replace("@", f"{made}/")
            .replace("OUT", str(out))
            .replace("PLOT", str(out if out.is_dir() else out.with_suffix(".png")))
            for word in self.line.split()
        ]

    def inputs(self, made: Path) -> list[Path]:
        """The files and folders that it reads."""
        return [made / word.partition("@")[2] for word in self.line.split() if "@" in word]

    def __str__(self) -> str:
        return self.name


CLIP = "--encoder @scenes/encoders/clip.json --weights random:0"
STUDENT = "--student @scenes/student"
MODEL = "--model @scenes/student --pooling cls"
PHRASES = "--phrases @scenes/phrases.parquet"
EXTRACT_IMAGE = f"extract image --data @scenes/images {CLIP} --batch-size 8 --workers 0 --out OUT"
EXPORT = "cache export @features --data @scenes --out OUT --format"
GROUND = "ground --data @scenes --set block_images=5 --set segmenter.family=annotations --set"
GROUNDER = "grounder.family=annotations --set grounder.path=@scenes/phrases.parquet"
TRAIN = f"train simcse {STUDENT} --tokens @tokens --text @scenes --dev @scenes/similarity/dev.tsv"
DATASET = "dataset.json images.parquet captions.parquet"

FOLDERS = [
    Command(
        "prepare pairs",
        "prepare pairs --images @scenes/images --captions @captions.tsv --out OUT",
        f"{DATASET} sentences.parquet",
    ),
    Command(
        "prepare sentences",
        "prepare sentences --path @texts.txt --out OUT",
        "dataset.json sentences.parquet",
    ),
    Command("extract image", EXTRACT_IMAGE, "set.json set.json.next"),
    Command("extract text", f"extract text --data @texts.txt {CLIP} --out OUT", "set.json"),
    Command(
        "extract object",
        f"extract object {PHRASES} --data @scenes {CLIP} --batch-size 8 --workers 0 --out OUT",
        "set.json",
    ),
    Command(
        "extract teacher",
        "extract teacher --data @texts.txt --encoder @scenes/student --out OUT",
        "set.json",
    ),
    Command(
        "ground",
        f"{GROUND} {GROUNDER} --out OUT --cutouts OUT-cutouts",
        "set.json set.json.next",
    ),
    Command("tokens", f"tokens --data @texts.txt {STUDENT} --out OUT", "set.json"),
    Command("phrase tokens", f"tokens --data @scenes {PHRASES} {STUDENT} --out OUT", "set.json"),
    Command(
        "train",
        f"{TRAIN} --max-steps 2 --eval-steps 1 --batch-size 4 --out OUT",
        "run.json heads.safetensors model/config.json checkpoints/state.json",
    ),
    Command("cache import", "cache import @set.tar --out OUT", "set.json"),
    Command(
        "cache export parquet", f"{EXPORT} parquet", "export.json README.md data/rows-0000.parquet"
    ),
    Command(
        "cache export npy",
        f"{EXPORT} npy",
        "export.json README.md img_emb/img_emb_0000.npy metadata/metadata_0000.parquet",
    ),
    Command(
        "cache import of an export", "cache import @exported --kind image --out OUT", "set.json"
    ),
    Command(
        "cache import of clip-retrieval",
        "cache import @clip-retrieval --data @scenes/images --out OUT",
        "set.json",
    ),
    Command(
        "cache import mcse",
        "cache import @mcse.hdf5 --format mcse --texts @mcse.txt --data OUT --out OUT-features",
        DATASET,
    ),
    Command("stage report", "stage report", "report.json report.html report.txt curves.json"),
]
"""Commands whose output is a folder."""

IN_PLACE = [Command(f"cache {verb}", f"cache {verb} OUT") for verb in ("gc", "repair")]
"""Commands that change a feature set in place."""

COMPARE = "compare @graph/results/simcse @graph/results/mcse"
FILES = [
    Command(
        "look grounding",
        "look grounding @scenes/phrases.parquet --data @scenes --limit 2 --out OUT",
    ),
    Command("look neighbours", f"look neighbours --sample 2 {MODEL} --data @scenes --out OUT"),
    Command("compare --out", f"{COMPARE} --format markdown --out OUT"),
    Command("compare --plot", f"{COMPARE} --plot PLOT"),
    Command("cache export", "cache export @features --out OUT"),
]
"""Commands whose output is a file."""


class OutputWorld:
    """The inputs of every command, and a process that runs them."""

    def __init__(self, folder: Path) -> None:
        self.server = StageServer(*(f"--import={name}" for name in LIBRARIES))
        self.made, self._graphs = folder / "made", folder / "graphs"
        self._graphs.mkdir()
        self._make()

    def run(self, command: Command, out: Path, **request: object) -> Outcome:
        """The outcome of a command that writes to ``out``."""
        words = command.words(self.made, out)
        folder = self._graph_of(out) if words[0] == "stage" else self.made
        return self.server.run(out, words=words, folder=str(folder), **request)

    def make(self, command: Command, out: Path) -> None:
        """The set that ``command`` modifies in place, if it does."""
        if command in IN_PLACE:
            self._must(EXTRACT_IMAGE, out)

    def _graph_of(self, report: Path) -> Path:
        """A working folder of the graph whose folder ``report`` is a link to that one."""
        folder = Path(mkdtemp(dir=self._graphs))
        for name in ("params.yaml", "results", ".dvc"):
            (folder / name).symlink_to(self.made / "graph" / name)
        (folder / "report").symlink_to(report)
        return folder

    def _make(self) -> None:
        made = self.made
        made.mkdir(parents=True)
        smallest = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in TINY.items())
        self._must(f"prepare scenes {smallest} --out OUT", made / "scenes")
        rows = pq.read_table(made / "scenes/captions.parquet").to_pylist()
        lines = ["image\tcaption", *(f"{row['image_id']}\t{row['text']}" for row in rows)]
        (made / "captions.tsv").write_text("\n".join(lines) + "\n")
        (made / "texts.txt").write_text("\n".join(row["text"] for row in rows[:20]) + "\n")
        features = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
        with h5py.File(made / "mcse.hdf5", "w") as file:
            file.create_dataset("features", data=features)
        (made / "mcse.txt").write_text("one\ntwo\nthree\nfour\n")
        _write_graph(made / "graph")
        self._must(f"tokens --data @scenes/sentences.parquet {STUDENT} --out OUT", made / "tokens")
        self._must(EXTRACT_IMAGE, made / "features")
        self._must("cache export @features --out OUT", made / "set.tar")
        for name in ("exported", "clip-retrieval"):
            self._must(f"{EXPORT} npy", made / name)
        (made / "clip-retrieval/export.json").unlink()  # as another tool would have written it

    def _must(self, line: str, out: Path) -> None:
        done = self.run(Command("", line), out)
        assert done.code == 0, done.said


def _write_graph(folder: Path) -> None:
    """Results of two runs with two seeds, and a params.yaml whose report compares them."""
    runs = ("simcse", "mcse")
    for number, run in enumerate(runs):
        for seed in (0, 1):
            score = 60.0 + 10 * number + seed
            scores = {"STS12": score, "Avg": score}
            subsets = {"STS12": {"MSRpar": score - 1, "MSRvid": score + 1}}
            result = made_result(run, seed, scores=scores, subsets=subsets)
            save_result(result, folder / f"results/{run}/seed-{seed}.json")
    params = yaml.safe_load(Path(__file__).parents[2].joinpath("params.yaml").read_text())
    params["systems"] = {"simcse": {"objective": "simcse", "runs": {run: {} for run in runs}}}
    params["graph"]["seeds"] = [0, 1]
    params["report"] = {"title": "Two runs", "baseline": "simcse"}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / ".dvc").mkdir(parents=True)
