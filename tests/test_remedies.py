"""Every remedy that an error names: provoked and applied, after which the command passes."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import unboxed
from cures import EXTRACT, GROUND, PREPARE, TOKENS, run, write_inputs
from cures_of_commands import COMMANDS
from cures_of_data import DATA
from cures_of_files import FILES
from cures_of_graph import GRAPH
from cures_of_imports import IMPORTS
from cures_of_models import MODELS
from cures_of_prepare import PREPARED
from cures_of_training import TRAINING
from shown_commands import ROOT

REMEDY = re.compile(r"`[^`]+`|(?<![\w-])--[a-z]\S* \S|\S (?<![\w-])--[a-z]")
STEP = re.compile(r"; (?!expected|found|it has|in the data set|row |they |columns|\{)[^;]+$")
"""A remedy in prose: what follows the last semicolon, but for what was found or expected."""
IMPERATIVE = re.compile(
    r"(call|choose|convert|correct|export|fetch|give|load|opening|put|read|save|unpack|use|write) "
)
"""How a remedy begins that stands in a variable or a table of its own."""
OF_OTHERS = (
    "sightline/tables/",
    "sightline/files/file_kinds.py",
    "sightline/user_files.py",
    "pipeline/interchange/",
    "pipeline/grounding/box_tables.py",
    "pipeline/datasets/",
)
"""What reads files of others: there, remedies in prose are followed too."""
ERROR = re.compile(r"(Error|Keys|Loss|BadParameter|refusal|missing)$")


TREES = {
    path: ast.parse(path.read_text(encoding="utf-8"))
    for room in ("sightline", "pipeline", "train")
    for path in sorted((ROOT / room).rglob("*.py"))
}


def constants() -> dict[str, str]:
    """The texts that modules of the product give names in capitals."""
    return {
        target.id: text_of(node.value)
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
        if isinstance(node.value, ast.Constant | ast.JoinedStr)
    }


def text_of(node: ast.AST) -> str:
    """A string as it stands in the source, with {} for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return CONSTANTS.get(node.value.id, "{}")
    return "".join(map(text_of, node.values)) if isinstance(node, ast.JoinedStr) else "{}"


CONSTANTS: dict[str, str] = {}
CONSTANTS |= constants()


def strings_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant | ast.JoinedStr):
        yield text_of(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings_in(child)


def makes_a_message(node: ast.AST) -> bool:
    """Whether a node raises an error, makes one, or words a remedy."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(re.search("(?i)remed|hint", ast.unparse(target)) for target in targets)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return bool(ERROR.search(name)) or ("remed" in name and name.endswith(".append"))
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("_why")
    return isinstance(node, ast.Raise)


def remedies() -> dict[str, str]:
    """Each message of the product with a remedy, and its file.

    It names a command, an option or a key, or says what to do with a file of others.
    """
    messages = {
        message: path.relative_to(ROOT).as_posix()
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if makes_a_message(node)
        for message in strings_in(node)
    }
    return {
        message: file
        for message, file in messages.items()
        if REMEDY.search(message)
        or (file.startswith(OF_OTHERS) and (STEP.search(message) or IMPERATIVE.match(message)))
    }


PROVOKED = [*COMMANDS, *FILES, *DATA, *PREPARED, *IMPORTS, *TRAINING, *MODELS, *GRAPH]
"""Commands on small inputs, and what their errors say to do."""

ELSEWHERE = {
    "contains more than tensors, and Sightline never unpickles objects": (
        "tests/encoders/test_encoder_config.py::test_of_a_whole_model_the_state_dict_is_read"
    ),
    "holds an adapter (adapter_config.json), so its weights are not": (
        "tests/models/test_one_loader.py::test_a_merged_adapter_is_a_student"
    ),
    "made with another tokenizer than that of {}; make them again": (
        "tests/train/test_model.py::test_tokens_of_another_tokenizer_are_refused_wherever_they_lie"
    ),
    "is a task {} there; name another --out": (
        "tests/evaluate/test_result_files.py::test_a_result_of_something_else_stays_as_it_is"
    ),
    "has a metric {} of another task, {}; name another --out": (
        "tests/evaluate/test_result_files.py::test_a_result_of_something_else_stays_as_it_is"
    ),
    "{} needs --set {}=…: {}": "tests/train/test_retrieval_of_runs.py::"
    "test_a_mistake_in_the_settings_is_one_line",
    "--weights is missing; it has no default": "tests/test_shown_commands.py::"
    "test_a_mistake_is_one_clear_error",
    "name their folder with `features`": "tests/evaluate/test_image_tasks.py::"
    "test_features_are_found_below_the_folder_by_name_and_as_the_folder_itself",
    "; `sightline evaluate` --out writes those of a run": "tests/train/test_retrieval_of_runs.py::"
    "test_runs_have_no_results_until_they_are_scored",
    "takes no model; give its fields with --set {}.NAME=VALUE": "tests/pipeline/test_options.py::"
    "test_a_mistake_is_one_clear_error",
    "of params.yaml says, such as `devices: [cpu]`": "tests/pipeline/test_repro.py::"
    "test_devices_that_are_no_gpus_are_refused",
    "which the command has already; rename the field": "tests/pipeline/test_options.py::"
    "test_a_field_of_a_package_with_another_meaning_is_an_error",
    "set TMPDIR to a folder without *, ?, [ and ::": "tests/datasets/test_odd_names.py::"
    "test_the_temporary_folder_may_have_any_name",
    "`beside` reads captions beside images on this machine": "tests/datasets/test_elsewhere.py::"
    "test_captions_beside_photographs_elsewhere_are_refused",
    "starts from a URL, but this file is read here": "tests/datasets/test_elsewhere.py::"
    "test_paths_start_from_a_source_elsewhere",
    "names its image by path, {}; give `images`": "tests/datasets/test_table_rows.py::"
    "test_paths_start_from_the_given_folder",
    "or decode without processes (--workers 0)": "tests/pipeline/test_extract.py::"
    "test_a_temporary_folder_without_room_for_a_socket",
    "store with --dtype float32": "tests/pipeline/test_extract.py::"
    "test_features_beyond_float16_name_their_images_and_what_stores_them",
    "{}: {}; {}convert it: `{}`": "tests/test_encodings.py::"
    "test_the_command_that_is_shown_makes_the_text",
    "ask again for the failed ones alone, with --retry-failed": "tests/test_services.py::"
    "test_a_useless_answer_costs_its_image_alone",
    "could not be read, such as {} ({}); run the same command again": "tests/datasets/"
    "test_elsewhere.py::test_a_tar_that_fails_ends_the_run_and_is_read_alone_the_next_time",
    "let masks have the size of their images, and rerun with --retry-failed": (
        "tests/grounding/test_ground.py::test_masks_of_the_wrong_size_cost_their_own_rows"
    ),
    "no such grounding; `sightline ground` writes it": (
        "tests/grounding/test_gallery.py::test_the_command_limits_the_images_and_needs_them"
    ),
    "put back what is missing and rerun with --retry-failed": "tests/pipeline/test_extract.py::"
    "test_a_missing_file_is_put_back_and_asked_for_again",
    "with its `task`": "tests/evaluate/test_score.py::"
    "test_a_task_with_anothers_metric_or_without_its_own_is_named",
    "Of SentEval's files, give the folder `downstream`": "tests/evaluate/test_score.py::"
    "test_a_file_of_senteval_is_read_through_its_folder",
    "`weights_path` reads a second file": "tests/grounding/test_segmenters.py::"
    "test_a_configuration_names_no_other_file",
    "its `defaults` name other files": "tests/grounding/test_segmenters.py::"
    "test_a_configuration_names_no_other_file",
    "delete the file and run `sightline repro`": "tests/pipeline/test_stages.py::"
    "test_a_report_refuses_the_scores_of_another_run",
    "exported features of kind {}; leave out --kind": "tests/interchange/test_exports.py::"
    "test_an_export_is_imported_as_what_it_is_alone",
    "keep a copy, or pass --overwrite": "tests/pipeline/test_configure.py::"
    "test_the_file_is_complete_and_edits_are_kept_without_overwrite",
    "a part, which changes the configuration named before it": "tests/pipeline/test_configure.py::"
    "test_a_part_follows_the_configuration_that_it_changes",
}
"""Message → the test that provokes it and applies what it says."""

READ = {
    "captions have {}; give them for all captions": "a source of another package",
    "contains no rows; check where the data are": "a source of another package",
    "no such file; get the complete data set": "the complete data set",
    "are not there, such as {}; check the pattern and the address": "a server",
    "have theirs in one place; copy those of one of them": "a server",
    "Make room on this disk and run `sightline cache gc` again": "a full disk",
    "unpack it with its program": "of 7-Zip and RAR: programs that pack them",
    "call one {}": "tests/grounding/test_box_tables.py",
    "is not the file itself; download that again": "the network",
    "fetch it: `git lfs pull`": "the network",
    "damaged gzip ({}); get the file again": "the whole file",
    "damaged, or not such a file ({}); get it again": "the whole file",
    "damaged or truncated ({}); get it again": "the whole file",
    "write version 2, which is Arrow": "feather.write_feather, as for any Arrow",
    "contains no Parquet files; check the address": "a server",
    "get the complete data set, or correct the description": "the complete data set",
    "name another output, or delete that export first": "tests/interchange/test_exports.py",
    "give the data set that these features were extracted from": "tests/interchange/test_exports",
    "give the folder of the images that the file names": "tests/datasets has it",
    "copy the numbers into one file": "whoever linked them",
    "may both hold the rows; name one of them": "tests/interchange/test_imports.py",
    "not a file, but a folder, a pipe or a device; give a file": "says what the path is",
    "not one number to all readers; write it in decimals": "tests/pipeline/test_params.py",
    "the key {} twice; remove one": "tests/pipeline/test_params.py",
    "docs/grounding.md shows how to": "tests/grounding/test_box_tables.py follows the page",
    "so they would teach it nothing": "no remedy",
    "spans count characters from 0": "tests/grounding/test_box_tables.py",
    "is missing; give both": "tests/grounding/test_box_tables.py",
    "and stand around it. If it is one value of": "tests/datasets/test_caption_files.py",
    "quotation marks in a value are doubled, and stand around it": "the same",
    "which the first object lacks; give it in all": "tests/datasets/test_caption_tables.py",
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
    "The message if memory ran out, or was limited": "no message",
    "`configuration` of its encoder": "no remedy",
    "remove its `wdir`, or make that folder": "tests/pipeline/test_doctor.py has the message",
    "run `git init`, or `dvc config core.no_scm true`": "tests/pipeline/test_doctor.py, likewise",
    "but its `name` is {}; fix that package": "a package of others",
    "make the tokens of their data set too": "a package of others",
    "Why `sightline repro` cannot run here": "no message",
    "project, which `sightline init FOLDER` makes": "tests/pipeline/test_init.py makes one",
    "fix or remove these files": "whatever damaged them",
    "a decode process died": "memory that runs out",
    "torch.compile failed": "a compiler",
    "SetWriter: call `plan` first": "a mistake in the code that writes a set",
    "expected a mapping with a `{}`": "says what the value is, not what to run",
    "--source {}: {}": "says what the value is, not what to run",
    "but the segmenter sam2 needs it; run: ": "an index of packages",
    "set TMPDIR to a folder without": "a folder of the machine",
    "truncated, or not made by `sightline cache export`": "the other machine has the whole tar",
    "expected a tar from `sightline cache export`": "the other machine has the tar",
    "hides Sightline's own package": "a script of the user",
    "put it below `if __name__": "a script of the user",
}
"""Message → what its remedy depends on that a test does not have; read."""


def known() -> list[str]:
    return [cure.message for cure in PROVOKED] + [*ELSEWHERE, *READ]


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
    """`write_inputs`, and what the commands make of them."""
    folder = tmp_path_factory.mktemp("made")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in (PREPARE, EXTRACT + "clip", TOKENS, GROUND):
            assert run(command) == 0
    return folder


def pattern_of(message: str) -> str:
    """A message of the source as a pattern, with anything for what is filled in."""
    return ".+".join(re.escape(" ".join(part.split())) for part in message.split("{}"))


def as_typed(pattern: str) -> str:
    """With each field, such as `beside: txt`, also as its option: --beside txt."""

    def either(field: re.Match[str]) -> str:
        name, value = field.groups()
        option = f"--{name.replace('_', '-')}" + (f" ?{value}" if value else "")
        return f"(?:{field[0]}|{option})"

    return re.sub(r"`(\w+|\.\+)(?:: \?(\w+))?`", either, pattern)


@pytest.mark.parametrize("cure", PROVOKED, ids=[cure.message for cure in PROVOKED])
def test_the_remedy_cures(made, tmp_path, monkeypatch, capsys, cure):
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "w"))
    monkeypatch.setenv("COLUMNS", "1000")
    cure.begins()
    capsys.readouterr()
    assert run(cure.fails) in (1, 2)
    said = unboxed(capsys.readouterr().err)
    pattern = as_typed(pattern_of(cure.message).replace(r"\ ", " ?"))
    assert re.search(pattern, said), said
    for step in (*cure.cures, cure.passes or cure.fails):
        assert run(step) == 0, capsys.readouterr().err
