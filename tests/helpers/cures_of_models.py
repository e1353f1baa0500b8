"""Remedies of `evaluate`, `compare` and `look`, provoked and applied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cures import EXTRACT, LOOK, TEXTS, TRAIN, Cure, run
from made_results import made_result
from small_inputs import CLIP
from small_senteval import write_senteval

from train.evaluate.results import save_result

SIMILARITY = "evaluate similarity --device cpu --data pairs.tsv"
SCORED = f"{SIMILARITY} --model run --out results"
WITHOUT_DATA = SCORED.replace(" --data pairs.tsv", "")
CARD = "evaluate --card results/run/seed-0.json --model run"
RETRIEVAL = "evaluate retrieval --model ./student --pooling cls --device cpu --data t --features f"
FROZEN = f"{RETRIEVAL} --frozen clip"
NEAREST = "look neighbours red --data d --pooling cls --device cpu"
COMPARE = "compare results/mcse-light.json results/mcse-heavy.json"


def also(*steps: str) -> Callable[[], object]:
    """Commands, which pass."""

    def start() -> None:
        assert [run(step) for step in steps] == [0] * len(steps)

    return start


def pairs() -> None:
    Path("pairs.tsv").write_text(
        "score\tsentence1\tsentence2\n4.5\ta dog\tdogs\n0.5\ta tree\ta dog\n"
    )


def finished() -> None:
    """A run and pairs to score it on."""
    pairs()
    also(TRAIN)()


def spoil(file: Path) -> None:
    file.write_text("{}")


def trained_again() -> None:
    """A run that is not the one whose scores are there."""
    finished()
    also(SCORED)()
    shutil.rmtree("run")
    also(f"{TRAIN} --weight 0.5")()


def results() -> None:
    """Results of two runs."""
    for name in ("mcse-light", "mcse-heavy"):
        result = made_result(name, scores={"score": 1.0})
        Path("results").mkdir(exist_ok=True)
        save_result(result, Path(f"results/{name}.json"))


def narrow_features() -> None:
    """Imported features of two numbers, and a CLIP that gives two."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 2)
    names = [f"{i}.png" for i in range(4)]
    pq.write_table(pa.table({"path": names, "rows": rows}), "t.parquet")
    Path("narrow.json").write_text(json.dumps({**CLIP, "embed_dim": 2}))
    also("cache import t.parquet --kind image --data photos --out narrow")()


def a_test_split(*more: str) -> Callable[[], object]:
    """A data set that is all test, with image features."""

    def prepare() -> None:
        Path("list.txt").write_text("".join(f"{i}.png\n" for i in range(4)))
        also(
            "prepare pairs --images photos --captions captions.csv --out t --splits test=list.txt",
            f"{EXTRACT}f/image/clip",
            *more,
        )()

    return prepare


MODELS = [
    Cure(
        "give this one a name, `--model NAME={}`, or name another --out",
        f"{SCORED} --precision bf16",
        passes=f"{SIMILARITY} --model NAME=run --out results --precision bf16",
        begins=lambda: (finished(), also(SCORED)()),
    ),
    Cure(
        "is not a result that can gain tasks; move it away, or name another --out",
        SCORED,
        passes=SCORED.replace("results", "others"),
        begins=lambda: (finished(), also(SCORED)(), spoil(Path("results/run/seed-0.json"))),
    ),
    Cure("{} needs --data: {}", WITHOUT_DATA, passes=SCORED, begins=finished),
    Cure(
        "data is an option: give --data",
        f"{WITHOUT_DATA} --set data=pairs.tsv",
        passes=SCORED,
        begins=finished,
    ),
    Cure(
        "takes one --model and no task",
        CARD.replace("evaluate", "evaluate similarity"),
        passes=CARD,
        begins=lambda: (finished(), also(SCORED)()),
    ),
    Cure(
        "evaluate the run again, with `--model {}` and another --out",
        CARD,
        (SCORED.replace("results", "again"),),
        passes=CARD.replace("results", "again"),
        begins=trained_again,
    ),
    Cure(
        "or SentEval's `downstream` folder",
        f"{TRAIN} --dev downstream",
        (lambda: write_senteval(Path("downstream")),),
    ),
    Cure(
        "(or `sightline extract {}`) makes it",
        FROZEN,
        (TEXTS.replace("--out text", "--out f/text/clip"),),
        begins=a_test_split(),
    ),
    Cure(
        "set `frozen` to an encoder such as CLIP",
        FROZEN,
        passes=RETRIEVAL,
        begins=a_test_split(
            TEXTS.replace("--out text", "--out f/text/clip").replace("random:0", "random:1")
        ),
    ),
    Cure(
        "expected MODEL or NAME=MODEL",
        f"{NEAREST} --model =./student",
        passes=f"{NEAREST} --model mine=./student",
    ),
    Cure(
        "or leave the option out",
        f"{NEAREST} --model ./student --to-images",
        passes=f"{NEAREST} --model ./student",
    ),
    Cure(
        "give the --encoder that made them",
        LOOK.replace("clip.json --features clip", "clip.json --features narrow")
        + " --weights random:0",
        passes=LOOK.replace("clip.json --features clip", "narrow.json --features narrow")
        + " --weights random:0",
        begins=narrow_features,
    ),
    Cure(
        "`sightline cache list` shows the kind of every set",
        "look features clip other --data d",
        ("cache list .", TEXTS),
        "look features clip text --data d",
        also(f"{EXTRACT}other"),
    ),
    Cure(
        "give --data, the data set that `sightline prepare` wrote",
        "look features clip text",
        passes="look features clip text --data d",
        begins=also(TEXTS),
    ),
    Cure("not with --paper", "compare --paper list --baseline x", passes="compare --paper list"),
    Cure(
        "or remove --plot",
        f"{COMPARE} --plot p.png",
        passes=COMPARE,
        begins=results,
    ),
    Cure(
        "they share no task: remove --published",
        f"{COMPARE} --published MCSE-BERT:wiki+flickr",
        passes=COMPARE,
        begins=results,
    ),
]  # fmt: skip
