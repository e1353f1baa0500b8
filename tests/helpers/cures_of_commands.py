"""Remedies of commands that read the cache, train, evaluate and compare, provoked and applied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
from command_line import sightline
from cures import EXTRACT, LOOK, PREPARE, TEXTS, TOKENS, TRAIN, Cure

from sightline.cache import CAPTIONS, read_manifest, write_manifest, write_tokens
from sightline.cache.keys import keys_of_texts
from sightline.cache.record import TableSpec
from sightline.cache.table_sets import write_rows
from sightline.cache.tables import TOKENS as TOKEN_ROWS
from sightline.cache.tokens import TokenSet


def overwrite_captions() -> None:
    shutil.copy("d/images.parquet", "d/captions.parquet")


def empty_captions() -> None:
    write_manifest(Path("d/captions.parquet"), CAPTIONS.empty_table(), CAPTIONS)


def damage() -> None:
    path = next(Path("clip").glob("shard*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def tokens_of_another_vocabulary() -> None:
    header = TokenSet.open("tokens").header
    texts = read_manifest("d/captions.parquet", CAPTIONS)["text"].to_pylist()
    shutil.rmtree("tokens")
    write_tokens(Path("tokens"), header, keys_of_texts(texts), [[99_999]] * len(texts))


def unknown_tokens() -> None:
    """Tokens whose record says something else of them than this version does."""
    spec = TableSpec(kind="tokens", description={"student": "x"})
    shutil.rmtree("tokens")
    write_rows(Path("tokens"), spec, keys_of_texts(["a"]), pa.table([pa.array([[1]])], TOKEN_ROWS))


def tokens_of_one_text() -> None:
    Path("one.txt").write_text("a red bird 0\n")
    shutil.rmtree("tokens")
    assert sightline(*TOKENS.replace("--data d", "--data one.txt").split()) == 0


def a_run_folder_of_others() -> None:
    Path("new.run").mkdir()
    Path("new.run/plan.json").write_text("{}")


COMMANDS = [
    Cure(
        "no such manifest; `sightline prepare` writes it",
        TRAIN,
        (PREPARE,),
        begins=lambda: Path("d/captions.parquet").unlink(),
    ),
    Cure("no prepared data set here", LOOK + " --weights random:0", (PREPARE,),
         begins=lambda: shutil.rmtree("d")),
    Cure("Run `sightline prepare` to rewrite it.", TRAIN, (PREPARE,), begins=overwrite_captions),
    Cure("`sightline prepare` writes it again", LOOK + " --weights random:0", (PREPARE,),
         begins=empty_captions),
    Cure(
        "choose another `split`, or prepare the data set with one",
        LOOK + " --weights random:0 --split test",
        passes=LOOK + " --weights random:0",
    ),
    Cure(
        "run `sightline cache repair {}` and rerun its stage, or pull it again",
        TRAIN,
        ("cache repair clip", EXTRACT + "clip"),
        begins=damage,
    ),
    Cure(
        "run `sightline cache repair {}` first",
        "cache diff clip clip",
        ("cache repair clip",),
        begins=damage,
    ),
    Cure(
        "delete it and rerun `sightline tokens`",
        TRAIN,
        (lambda: shutil.rmtree("tokens"), TOKENS),
        begins=tokens_of_another_vocabulary,
    ),
    Cure("run `sightline tokens` over this data set", TRAIN, (TOKENS,), begins=tokens_of_one_text),
    Cure(
        "run `sightline tokens` with `--max-length {}`",
        TRAIN + " --max-length 16",
        (TOKENS + " --max-length 16",),
    ),
    Cure(
        "run `sightline tokens` with `--prompt {}`",
        TRAIN + " --prompt in:",
        (TOKENS + " --prompt in:",),
    ),
    Cure("or train with `--max-length {}`", TRAIN + " --max-length 16", passes=TRAIN),
    Cure(
        "`sightline tokens` and train with `--max-length {}` or less",
        TRAIN + " --max-length 64",
        (TOKENS + " --max-length 32",),
        TRAIN + " --max-length 32",
        lambda: sightline(*TOKENS.split(), "--max-length", 64),
    ),
    Cure(
        "{}\n  Objective {} needs it as {}: {}; `{}` makes it.",
        TRAIN,
        (EXTRACT + "clip",),
        begins=lambda: shutil.rmtree("clip"),
    ),
    Cure(
        "but objective {} needs it as {}: {}; `{}` makes them",
        TRAIN.replace("image-clip=clip", "image-clip=text"),
        (TEXTS, EXTRACT + "clip"),
        TRAIN,
        lambda: sightline(*TEXTS.split()),
    ),
    Cure(
        "move it away, or run `touch {}` if an earlier run left it",
        EXTRACT + "new",
        (lambda: Path("new.run/lock").touch(),),
        begins=a_run_folder_of_others,
    ),
    Cure(
        "give --worker I/N",
        EXTRACT + "new --worker env",
        passes=EXTRACT + "new --worker 0/1",
    ),
    Cure(
        "create one with `sightline extract`, `ground` or `tokens`",
        "cache list sets",
        (EXTRACT + "sets/clip",),
        begins=lambda: Path("sets").mkdir(),
    ),
    Cure(
        "`sightline evaluate list` shows them",
        "evaluate --model ./student",
        passes="evaluate list",
    ),
    Cure("with --paper, name folders of results", "compare nowhere --paper mcse:1",
         passes="compare . --paper mcse:1"),
    Cure("name at least one, or give --paper", "compare", passes="compare --paper list"),
    Cure(
        "`sightline compare --paper list` shows all of them",
        "compare --paper mcsx:1",
        passes="compare --paper list",
    ),
    Cure(
        "give the --encoder and --weights that it was extracted with",
        LOOK + " --weights random:1",
        passes=LOOK + " --weights random:0",
    ),
    Cure(
        "needs --features SET and --weights", LOOK, passes=LOOK + " --weights random:0"
    ),
    Cure(
        "give it with --encoder",
        "look neighbours red --data d --weights random:0",
        passes=LOOK + " --weights random:0",
    ),
    Cure(
        "a frozen encoder needs no --model, --pooling or --to-images",
        LOOK + " --weights random:0 --to-images",
        passes=LOOK + " --weights random:0",
    ),
    Cure(
        "give a sentence, --queries FILE or --sample N",
        LOOK.replace(" red", "") + " --weights random:0",
        passes=LOOK.replace(" red", "") + " --weights random:0 --sample 1",
    ),
    Cure(
        "a run needs captions with images (`pairs`, --data)",
        TRAIN.replace(" --data d", ""),
        passes=TRAIN,
    ),
    Cure(
        "described by a different version; rerun `{}`", TRAIN, (TOKENS,), begins=unknown_tokens
    ),
]  # fmt: skip
