"""Every remedy that an error names: provoked and applied, after which the command passes."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline, unboxed
from shown_commands import ROOT
from small_inputs import write_clip, write_photos
from tiny_encoder import make_encoder

from sightline.cache import CAPTIONS, read_manifest, write_manifest, write_tokens
from sightline.cache.keys import keys_of_texts
from sightline.cache.sets import TOKENS as TOKEN_ROWS
from sightline.cache.sets import TableSpec, TokenSet, write_rows

REMEDY = re.compile(r"`[^`]+`|(?<![\w-])--[a-z]\S* \S|\S (?<![\w-])--[a-z]")
ERROR = re.compile(r"(Error|Keys|Loss|BadParameter|refusal|missing)$")


def text_of(node: ast.AST) -> str:
    """A string as it stands in the source, with {} for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "".join(map(text_of, node.values)) if isinstance(node, ast.JoinedStr) else "{}"


def strings_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant | ast.JoinedStr):
        yield text_of(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings_in(child)


def makes_a_message(node: ast.AST) -> bool:
    """Whether a node raises an error, makes one, or words a remedy."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(re.search("remed|hint", ast.unparse(target)) for target in targets)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return bool(ERROR.search(name)) or ("remed" in name and name.endswith(".append"))
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("_why")
    return isinstance(node, ast.Raise)


def remedies() -> dict[str, str]:
    """Each message of the product that names a command, an option or a key, and its file."""
    return {
        message: path.relative_to(ROOT).as_posix()
        for room in ("sightline", "pipeline", "train")
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if makes_a_message(node)
        for message in strings_in(node)
        if REMEDY.search(message)
    }


class Cure(NamedTuple):
    """A remedy: the part of the message, what provokes it, what applies it, what passes then."""

    message: str
    fails: str
    cures: tuple[str | Callable[[], object], ...] = ()
    passes: str = ""
    begins: Callable[[], object] = lambda: None


PREPARE = "prepare pairs --set images=photos --set captions=captions.csv --out d"
EXTRACT = (
    "extract image --data d --encoder clip.json --weights random:0 --workers 0 --threads 1 --out "
)
TEXTS = "extract text --data d --encoder clip.json --weights random:0 --threads 1 --out text"
TOKENS = "tokens --data d --student ./student --out tokens"
TRAIN = (
    "train mcse --data d --tokens tokens --student ./student --set image=clip "
    "--features image-clip=clip --max-steps 1 --batch-size 4 --device cpu --out run"
)
LOOK = "look neighbours red --data d --encoder clip.json --features clip"


def with_header(path: str, header: str, images: int = 1) -> None:
    """Captions under another header, the images' names in its first columns."""
    names = sorted(file.name for file in Path("photos").iterdir())
    lines = [",".join([name] * images + ["a red bird"]) for name in names]
    Path(path).write_text("\n".join([header, *lines]) + "\n")


def as_json(content: Callable[[list[str]], object]) -> None:
    """Captions of the photographs in captions.json."""
    names = sorted(file.name for file in Path("photos").iterdir())
    Path("captions.json").write_text(json.dumps(content(names)))


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


def a_table(columns: Mapping[str, object]) -> Callable[[], object]:
    return lambda: pq.write_table(pa.table(columns), "t.parquet")


def captions_with(old: str, new: str) -> Callable[[], object]:
    def change() -> None:
        path = Path("captions.csv")
        path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))

    return change


VECTORS = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 8, pa.float32()), 2)
IMAGE_ROWS = {"path": [f"{i}.png" for i in range(4)], "rows": VECTORS}
IMPORT = "cache import t.parquet --out imported"

PROVOKED = [
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
        "cache gc clip --compact",
        ("cache repair clip",),
        begins=damage,
    ),
    Cure(
        "delete it and rerun `sightline tokens`",
        TRAIN,
        (lambda: shutil.rmtree("tokens"), TOKENS),
        begins=tokens_of_another_vocabulary,
    ),
    Cure(
        "or prepare it: `sightline prepare sentences --set path={} --set column=NAME --out FOLDER`",
        TOKENS.replace("--data d", "--data captions.csv"),
        ("prepare sentences --set path=captions.csv --set column=caption --out FOLDER",),
        TOKENS.replace("--data d", "--data FOLDER"),
        begins=lambda: shutil.rmtree("tokens"),
    ),
    Cure("run `sightline tokens` over this data set", TRAIN, (TOKENS,), begins=tokens_of_one_text),
    Cure(
        "run `sightline tokens` with `--max-length {}`",
        TRAIN + " --max-length 16",
        (TOKENS + " --max-length 16",),
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
    Cure("not with --dry-run", "cache gc . --compact --dry-run", passes="cache gc . --compact"),
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
        "`captions` is missing",
        "prepare pairs --set images=photos --out d",
        passes=PREPARE,
    ),
    Cure(
        "or omit `strict` to continue without these rows",
        PREPARE + " --set strict=true",
        passes=PREPARE,
        begins=captions_with("3.png", "gone.png"),
    ),
    Cure(
        "{}: do its rows describe images or texts? Give --kind image or text",
        IMPORT + " --data photos",
        passes=IMPORT + " --data photos --kind image",
        begins=a_table(IMAGE_ROWS),
    ),
    Cure(
        "give their folder, or a prepared data set, with --data",
        IMPORT + " --kind image",
        passes=IMPORT + " --kind image --data photos",
        begins=a_table(IMAGE_ROWS),
    ),
    Cure(
        "; --allow-missing leaves these rows out",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --allow-missing",
        begins=a_table(IMAGE_ROWS | {"path": ["0.png", "1.png", "2.png", "gone.png"]}),
    ),
    Cure(
        "name the array, or the column of lists of numbers, with --features",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --features rows",
        begins=a_table(IMAGE_ROWS | {"others": VECTORS}),
    ),
    Cure(
        "there are no keys: give it with --names",
        IMPORT + " --kind image --data photos",
        passes=IMPORT + " --kind image --data photos --names whose",
        begins=a_table({"whose": IMAGE_ROWS["path"], "rows": VECTORS}),
    ),
    Cure(
        "a run needs captions with images (`pairs`, --data)",
        TRAIN.replace(" --data d", ""),
        passes=TRAIN,
    ),
    Cure(
        "a table must end in",
        PREPARE.replace(".csv", ".txt"),
        (lambda: Path("captions.txt").rename("captions.csv"),),
        f"{PREPARE} --set image=picture",
        lambda: with_header("captions.txt", "picture,caption"),
    ),
    Cure(
        "choose one with `{}`",
        PREPARE,
        passes=f"{PREPARE} --set image=picture",
        begins=lambda: with_header("captions.csv", "picture,caption"),
    ),
    Cure(
        "choose one with `{}`",
        PREPARE,
        passes=f"{PREPARE} --set image=file_name",
        begins=lambda: with_header("captions.csv", "file_name,filename,caption", 2),
    ),
    Cure(
        "which `{}` names; it has",
        f"{PREPARE} --set caption=words",
        passes=f"{PREPARE} --set caption=caption",
    ),
    Cure(
        "COCO's captions; use the kind `coco`",
        PREPARE.replace(".csv", ".json"),
        passes="prepare coco --set images=photos --set captions.train=captions.json --out coco",
        begins=lambda: as_json(lambda names: {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
            "annotations": [{"id": n, "image_id": n, "caption": "a"} for n in range(len(names))],
        }),
    ),
    Cure(
        "Karpathy's captions and splits; give it as `karpathy`",
        PREPARE.replace(".csv", ".json"),
        passes="prepare pairs --set images=photos --set karpathy=captions.json --out d",
        begins=lambda: as_json(lambda names: {
            "images": [
                {"filename": name, "split": "train", "sentences": [{"raw": "a"}]} for name in names
            ]
        }),
    ),
    Cure(
        "convert the file with `tr '\\r' '\\n'`",
        TEXTS.replace("--data d", "--data lines.txt"),
        (lambda: subprocess.run("tr '\\r' '\\n' < lines.txt > u && mv u lines.txt", shell=True),),
        begins=lambda: Path("lines.txt").write_bytes(b"a red bird\ra boat\r"),
    ),
    Cure(
        "described by a different version; rerun `{}`", TRAIN, (TOKENS,), begins=unknown_tokens
    ),
]  # fmt: skip
"""Commands on small inputs, and what their errors say to do."""

ELSEWHERE = {
    "store with --dtype float32": "tests/pipeline/test_extract.py::"
    "test_features_beyond_float16_name_their_images_and_what_stores_them",
    "{}: {}; {}convert it: `{}`": "tests/test_encodings.py::"
    "test_the_command_that_is_shown_makes_the_text",
    "put back what is missing and rerun with --retry-failed": "tests/pipeline/test_extract.py::"
    "test_a_missing_file_is_put_back_and_asked_for_again",
    "keep a copy, or pass --overwrite": "tests/pipeline/test_configure.py::"
    "test_the_file_is_complete_and_edits_are_kept_without_overwrite",
    "a part, which changes the configuration named before it": "tests/pipeline/test_configure.py::"
    "test_a_part_follows_the_configuration_that_it_changes",
}
"""Message → the test that provokes it and applies what it says."""

READ = {
    "in fp16: compute with --precision bf16 or fp32": "a GPU: an option of every extraction",
    "use --precision bf16 or a smaller model": "a full device: an option of extract and ground",
    "not on mps; use --device cpu": "an Apple GPU",
    "or train with --device cpu": "several GPUs",
    "or train with `--precision fp32`": "a GPU: said of bf16 and fp16 alone",
    "used: run the command on a node of the cluster": "a Ray cluster",
    "`ray start --head`": "a Ray cluster",
    "give a smaller number": "a Ray cluster",
    "leave out --worker, or use --engine local": "a Ray cluster",
    "for one on disk give `path`": "the hub",
    "`revision` belongs to a data set on the hub": "the hub",
    "on the hub: revision refs/convert/parquet": "the hub",
    "`path` (on disk) or `name` (on the hub)": "the hub",
    "use a model of that family, or change `family`": "the hub's checkpoints",
    "run `dvc config cache.type reflink,hardlink,copy` and `dvc checkout": "DVC's cache",
    "remove its `wdir`, or make that folder": "tests/pipeline/test_doctor.py has the message",
    "run `git init`, or `dvc config core.no_scm true`": "tests/pipeline/test_doctor.py, likewise",
    "but its `name` is {}; fix that package": "a package of others",
    "`{}` of what it makes": "no remedy",
    "Why `sightline repro` cannot run here": "no message",
    "create one with `git init && dvc init`": "a repository of DVC",
    "fix or remove these files": "whatever damaged them",
    "a decode process died": "memory that runs out",
    "torch.compile failed": "a compiler",
    "SetWriter: call `plan` first": "a mistake in the code that writes a set",
    "expected a mapping with a `{}`": "says what the value is, not what to run",
    "--source {}: {}": "says what the value is, not what to run",
    "truncated, or not made by `sightline cache export`": "the other machine has the whole tar",
    "expected a tar from `sightline cache export`": "the other machine has the tar",
    "hides Sightline's own package": "a script of the user",
    "put it below `if __name__": "a script of the user",
}
"""Message → what its remedy depends on that a test does not have; read."""

UNTRIED = (
    "or use the kind `sentences` for text only",
    "a key appears twice; run `sightline cache repair`",
    "delete them and rerun `sightline tokens --phrases`",
    "give it with --curve",
    "not with --paper",
    "or remove --plot",
    "takes one --model and no task",
    "or leave the option out",
    "give the --encoder that made them",
    "give --data once",
    "for tar files use the kind `webdataset`",
    "choose with `splits` or `split_column`",
    "has no column of splits for `splits` to choose from",
    "which `splits.{}` names; it has",
    "has the configurations {}, and {}; choose one with `config`",
    "the table holds the images themselves",
    "write lists (`.tolist()`)",
    "`splits`: give files of image names",
    "`weights_path` reads a second file",
    "its `defaults` name other files",
    "give paths in place of names",
    "name another column with",
    "so `images` does not apply; remove it",
    "save the data set again with `to_parquet`",
    "an image belongs to only one",
    "give `splits` (lists of images) or `karpathy`",
    "also gives splits; use one of them",
    "give `splits` (the lists of Flickr30k Entities)",
    "give `captions` (COCO's JSON",
    "`restval` is a split of `karpathy`",
    "give `shards` or `splits`",
    "a shard is in several of `splits`",
    "expected a pattern below the folder `images`",
    "or decode without processes (--workers 0)",
    "features of objects need `phrases` (--phrases)",
    "give it an entry under `systems`",
    "leave out --data",
    "--features is for files with several arrays or columns",
    "choose with --kind image or text",
    "hold images; choose one with --names",
    "use the commands with explicit paths (`sightline --help`)",
    "is also a name under `datasets`",
    "`ground` finds the objects",
    "graph.grounded: needs a section `grounding`",
    "change the `label` of one",
    "has no section `grounding`",
    "evaluate the run again, with `--model {}`",
    "run `sightline tokens` for both streams",
    "make them with `sightline tokens --phrases`",
    "Features and captions must come from one data set",
    "`sightline cache list` shows the kind of every set",
    "give --data, the data set that `sightline prepare` wrote",
    "must come from one `sightline prepare`",
    "(or `sightline extract {}`) makes it",
    "with its `task`",
    "choose one with `encoder`",
    "expected MODEL or NAME=MODEL",
    "set `frozen` to an encoder such as CLIP",
    "or SentEval's `downstream` folder",
    "`sightline look features SET`",
    "`layers` works for BERT and RoBERTa",
    "run `sightline tokens` with this student",
    "belongs to the combination, beside `parts`",
    "run `sightline tokens --phrases` with this run's student",
    "they share no task: remove --published",
    "or give it as --baseline",
)
"""Messages whose remedy was read against the code, but is not applied by a test yet."""


def known() -> list[str]:
    return [cure.message for cure in PROVOKED] + [*ELSEWHERE, *READ, *UNTRIED]


def test_every_remedy_is_in_a_table():
    new = [
        f"{file}: {message}"
        for message, file in remedies().items()
        if not any(entry in message for entry in known())
    ]
    assert not new


def test_every_entry_is_of_a_message():
    messages = remedies()
    assert [entry for entry in known() if not any(entry in text for text in messages)] == []


@pytest.mark.parametrize("test", ELSEWHERE.values())
def test_a_test_that_is_named_exists(test):
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, captions, models, and what the commands make of them."""
    folder = tmp_path_factory.mktemp("made")
    write_photos(folder / "photos", 4)
    write_clip(folder)
    lines = [f"{i}.png,a red bird {i}\n{i}.png,a boat on a lake {i}\n" for i in range(4)]
    (folder / "captions.csv").write_text("image,caption\n" + "".join(lines))
    for part in make_encoder():
        part.save_pretrained(folder / "student")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (PREPARE, EXTRACT + "clip", TOKENS):
            assert sightline(*command.split()) == 0
    return folder


def pattern_of(message: str) -> str:
    """A message of the source as a pattern, with anything for what is filled in."""
    return ".+".join(re.escape(" ".join(part.split())) for part in message.split("{}"))


@pytest.mark.parametrize("cure", PROVOKED, ids=[cure.message for cure in PROVOKED])
def test_the_remedy_cures(made, tmp_path, monkeypatch, capsys, cure):
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "w"))
    monkeypatch.setenv("COLUMNS", "1000")
    cure.begins()
    capsys.readouterr()
    assert sightline(*cure.fails.split()) in (1, 2)
    said = unboxed(capsys.readouterr().err)
    pattern = pattern_of(cure.message).replace(r"\ ", " ?")
    assert re.search(pattern, said), said
    for step in cure.cures:
        if callable(step):
            step()
        else:
            assert sightline(*step.split()) == 0, capsys.readouterr().err
    assert sightline(*(cure.passes or cure.fails).split()) == 0, capsys.readouterr().err
