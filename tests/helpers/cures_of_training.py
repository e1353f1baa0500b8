"""Remedies of objects, tokens and training, provoked and applied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cures import EXTRACT, OBJECTS, PHRASE_TOKENS, PREPARE, TOKENS, TRAIN, Cure, run
from transformers import DistilBertConfig, DistilBertModel

from sightline.cache import IMAGES, PhraseTokens, read_manifest, write_manifest, write_phrase_tokens

MCSEO = TRAIN.replace("mcse", "mcseo", 1) + " --object-weight 1 --features object-clip=objects"
OF_SENTENCES = " --student ./student --max-steps 1 --batch-size 2 --device cpu --out run"
TOKENS_OF_TEXT = "tokens --data s --student ./student --out tokens-of-text"


def sentences() -> None:
    """A data set of plain sentences in ./s."""
    Path("lines.txt").write_text("a red dog\na tree\n")
    assert run("prepare sentences --path lines.txt --out s") == 0


def another_student(**words: int) -> None:
    """The student with other ids of some words, of at most 40, in ./other."""
    shutil.copytree("student", "other")
    for name in ("tokenizer", "config"):
        file = Path(f"other/{name}.json")
        content = json.loads(file.read_text())
        if name == "config":
            content["vocab_size"] = 40
        else:
            content["model"]["vocab"].update(words)
        file.write_text(json.dumps(content))


def made_with_another(command: str, **words: int) -> Callable[[], object]:
    """Makes what a command makes, with another student."""

    def make() -> None:
        another_student(**words)
        shutil.rmtree(command.split()[-1], ignore_errors=True)
        assert run(command.replace("./student", "./other")) == 0

    return make


def broken_phrase_tokens() -> None:
    """Phrase tokens whose only span ends before it begins."""
    header = PhraseTokens.open("phrase-tokens").header
    shutil.rmtree("phrase-tokens")
    key = np.zeros((1, 32), np.uint8)
    write_phrase_tokens(Path("phrase-tokens"), header, key, key, [3], [2])


def a_distilbert() -> None:
    """A student without a stack of layers as BERT has it, with the same tokenizer."""
    shutil.copytree("student", "distil")
    config = DistilBertConfig(vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
    DistilBertModel(config).save_pretrained("distil")


def another_photograph() -> None:
    shutil.copy("photos/0.png", "photos/4.png")
    with Path("photos/4.png").open("ab") as file:
        file.write(b"more")
    with Path("captions.csv").open("a") as file:
        file.write("4.png,a red dog\n")
    assert run(PREPARE) == run(TOKENS) == 0


def objects() -> None:
    """Features of objects."""
    assert run(f"{OBJECTS} --phrases grounding") == 0


def one_image_less() -> None:
    path = Path("d/images.parquet")
    write_manifest(path, read_manifest(path, IMAGES).slice(1), IMAGES)


TRAINING = [
    Cure(
        "features of objects need `phrases` (--phrases)",
        OBJECTS,
        passes=f"{OBJECTS} --phrases grounding",
    ),
    Cure(
        "leave out --data",
        "cache export objects --format parquet --out e --data d",
        passes="cache export objects --format parquet --out e",
        begins=objects,
    ),
    Cure(
        "belong to captions: give their data set as --data alone",
        PHRASE_TOKENS.replace("--data", "--text"),
        passes=PHRASE_TOKENS,
    ),
    Cure("give --data, --text, or both", TOKENS.replace(" --data d", ""), passes=TOKENS),
    Cure(
        "{} has sentences and no images; give it as --text",
        "train simcse --data s" + OF_SENTENCES,
        passes="train simcse --text s" + OF_SENTENCES,
        begins=sentences,
    ),
    Cure(
        "make them with `sightline tokens --phrases`",
        MCSEO,
        (PHRASE_TOKENS,),
        f"{MCSEO} --phrases phrase-tokens",
        objects,
    ),
    Cure(
        "run `sightline tokens --phrases` with this run's student",
        f"{MCSEO} --phrases phrase-tokens",
        (PHRASE_TOKENS,),
        begins=lambda: (objects(), made_with_another(PHRASE_TOKENS, red=5, big=10)()),
    ),
    Cure(
        "delete them and rerun `sightline tokens --phrases`",
        f"{MCSEO} --phrases phrase-tokens",
        (lambda: shutil.rmtree("phrase-tokens"), PHRASE_TOKENS),
        begins=lambda: (objects(), run(PHRASE_TOKENS), broken_phrase_tokens()),
    ),
    Cure(
        "`layers` works for BERT and RoBERTa",
        TRAIN.replace("./student", "./distil --layers 1"),
        passes=TRAIN.replace("./student", "./distil"),
        begins=a_distilbert,
    ),
    Cure(
        "Features and captions must come from one data set",
        TRAIN,
        (EXTRACT + "clip",),
        begins=another_photograph,
    ),
    Cure(
        "must come from one `sightline prepare`",
        TRAIN,
        (PREPARE,),
        begins=one_image_less,
    ),
    Cure(
        "In a first step look at the features: `sightline look features SET`",
        f"{TRAIN} --learning-rate 1e38 --max-steps 3",
        ("look features clip",),
        f"{TRAIN} --max-steps 3",
    ),
]  # fmt: skip
