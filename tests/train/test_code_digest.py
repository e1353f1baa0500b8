"""The digest of what trains a system: which edits change it, for which systems and runs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from installed_package import forget_sources
from made_results import made_result
from training_world import KillAfter, Killed, silent

from sightline import source_code
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.machine.hardware import versions
from sightline.source_code import code_of_others, digest_of_others, with_imports
from train import run_inputs
from train.code_digest import APART, CORE, code_of
from train.evaluate.evaluation import (
    Evaluation,
    accept_code,
    accept_run,
    evaluate_run,
)
from train.evaluate.results import RunResult, load_result, save_result
from train.evaluate.task import TASKS
from train.evaluate.task_code import SCORING, code_of_task
from train.objectives import OBJECTIVES
from train.records import RunSummary, digest_of_run
from train.report.comparison import compare_results
from train.report.run_tables import make_table
from train.run_folder import RunFolder
from train.train_run import train_run

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""A docstring."""
from __future__ import annotations
import math  # a comment
from dataclasses import dataclass, field

T = 0.05

@dataclass(frozen=True)
class Loss(object, metaclass=type):
    """Another."""

    temperature: float = T
    """What follows a field."""
    names: list[str] = field(default_factory=list)

    def value(self, /, x: float, *rest: float, scale: complex = 2j, **more: bytes) -> float:
        """And another."""
        match x:
            case 0 | -1:
                return math.inf
            case float(y) if y > 1e-3:
                x = y
        try:
            with open("f") as a, open(f"{x!r:>{len(rest)}}g{{}}") as b:
                total = [i**2 for i in rest if (n := i) and not n] or {**more}
        except* (ValueError, TypeError) as error:
            raise RuntimeError(b"\\x00") from error
        return (lambda z, *, k=None: z @ k if k else ~z)(x) + sum(total)[..., 1:-1:2]

async def _run(items):
    global T
    async for item in items:
        yield await item
    del items
    assert T is not None, "no"
'''


def tree_digest(source: str) -> str:
    return digest(source_code._plain(ast.parse(source)))


def test_the_stored_digest_of_a_source_is_the_same_on_every_python():
    assert tree_digest(SOURCE) == "b99eb38670451c9599f3f96f412f48552a8e9c6f083133dc73665f3bef439ab8"


def test_comments_docstrings_and_layout_leave_it_alone():
    plain = "def f(x):\n    return x + 1\n"
    same = '"""A module."""\n\n\ndef f(\n    x,\n):  # one\n    """Two."""\n    return (x + 1)\n'
    assert tree_digest(plain) == tree_digest(same)
    for other in (plain.replace("1", "2"), plain.replace("+", "-"), plain.replace("1", "1.0")):
        assert tree_digest(other) != tree_digest(plain)
    assert tree_digest("x = True") != tree_digest("x = 1")
    assert tree_digest("x = ''") != tree_digest("x = b''")


# ---- which modules ------------------------------------------------------------------------------


def test_every_module_that_a_training_imports_is_listed():
    """A new module fails here: list it in `CORE`, or in `APART` with the reason."""
    assert with_imports(["train.train_run"], CORE, APART) == set(CORE)
    listed = {*CORE, *(name.removesuffix(".*") for name in APART)}
    assert {name for name in listed if source_code._file(name) is None} == set()


def test_digests_are_computed_without_importing_what_they_are_of():
    program = (
        "import sys; from train.code_digest import code_of; code_of(['dalr']);"
        "print({'torch', 'train.loop', 'pyarrow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout.strip() == "set()"


def forget() -> None:
    """Read sources again, which have changed."""
    forget_sources()
    code_of_task.cache_clear()


@pytest.fixture
def add_to(monkeypatch):
    """Adds a line to the source of a module, for this test."""
    read = source_code._tree

    def add(module: str, line: str) -> None:
        edited = {module: ast.parse(ast.unparse(read(module)) + f"\n{line}\n")}
        forget()
        monkeypatch.setattr(source_code, "_tree", lambda name: edited.get(name) or read(name))

    yield add
    forget()


OTHER = "train.diagnose.settings"
IMPORTS = (
    "import train.diagnose.settings",
    "from train.diagnose import settings",
    "from train.diagnose.settings import kdmcse_settings as helper",
    "from train.diagnose import *",
    "if 1:\n    from train.diagnose import settings",
    "def f():\n    import train.diagnose.settings",
    "try:\n    from train.diagnose import settings\nexcept ImportError:\n    pass",
)


@pytest.mark.parametrize("line", [*IMPORTS, "from .diagnose import settings"])
def test_no_way_to_import_a_module_escapes_the_list(add_to, line):
    add_to("train.losses", line)
    assert OTHER in with_imports(["train.train_run"], CORE, APART)


@pytest.mark.parametrize("line", [*IMPORTS, "from ..diagnose import settings"])
def test_what_an_objective_or_a_task_imports_is_part_of_its_code(add_to, line):
    add_to("train.objectives.mcse", line)
    assert OTHER in code_of(["mcse"])
    assert OTHER not in code_of(["simcse"])
    before = code_of_task("geometry")
    add_to("train.evaluate.geometry", line)
    assert code_of_task("geometry") != before
    place = ["train.evaluate.geometry"]
    assert OTHER in with_imports(place, SCORING, APART)


EDITS = (
    "def diagonal(scores):\n    return scores",
    "T: float = 0.05",
    "T, S = 0.05, 0.07",
    "if T:\n    T = 0.07",
    "T += 1",
)


@pytest.mark.parametrize("line", EDITS)
def test_an_edited_loss_changes_every_system_and_no_score(add_to, line):
    systems = {name: code_of([name]) for name in OBJECTIVES.places}
    tasks = {name: code_of_task(name) for name in TASKS}
    add_to("train.losses", line)
    for name, before in systems.items():
        changed = {module for module, digest in code_of([name]).items() if digest != before[module]}
        assert changed == {"train.losses"}
    assert {name: code_of_task(name) for name in TASKS} == tasks


def test_a_metric_changes_no_system(add_to):
    systems = {name: code_of([name]) for name in OBJECTIVES.places}
    add_to("train.evaluate.sts", "T: float = 0.05")
    assert {name: code_of([name]) for name in OBJECTIVES.places} == systems


def test_an_objective_has_its_own_file():
    for name in OBJECTIVES.places:
        assert code_of([name]).keys() == {*CORE, f"train.objectives.{name}"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of somebody else with an objective, beside the real one."""
    folder = tmp_path / "other_losses"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "deep/__init__.py").write_text("")
    (folder / "deep/margins.py").write_text("from .. import base\ndef margin(): return base.A\n")
    (folder / "base.py").write_text("A = 1\n")
    (folder / "objective.py").write_text(
        "from other_losses.deep.margins import margin\n"
        "from train.losses import kl_alignment\n"
        "from train.objectives.mcse import MCSE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    places = {**OBJECTIVES.places, "other": "other_losses.objective:Other"}
    monkeypatch.setattr(OBJECTIVES, "places", places)
    forget()
    yield folder
    forget()


def test_another_packages_objective_has_its_whole_package(package):
    code = code_of(["other"])
    own = {name for name in code if name.startswith("other_losses")}
    assert own == {
        *("other_losses", "other_losses.base", "other_losses.objective"),
        *("other_losses.deep", "other_losses.deep.margins"),
    }
    assert {"train.objectives.mcse", *CORE} <= code.keys()
    (package / "objective.py").write_text("from train.evaluate import ranking\n")
    forget()
    assert "train.evaluate.ranking" in code_of(["other"])  # whatever it is to our own objectives


def test_what_a_package_imports_from_elsewhere_is_digested_too(package):
    """Local modules with what they import, and ours; not what is installed."""
    beside = package.parent
    (beside / "my_helpers.py").write_text("import my_numbers.more\nimport numpy, json, nowhere\n")
    (beside / "my_numbers").mkdir()
    for name in ("__init__", "more", "unused"):
        (beside / f"my_numbers/{name}.py").write_text("A = 1\n")
    source = "from my_helpers import f\nfrom sightline.wording import plural\n"
    (package / "objective.py").write_text(source)
    forget()
    code = code_of(["other"])
    others = {name for name in code if name.startswith(("my_", "numpy", "json"))}
    assert others == {"my_helpers", "my_numbers", "my_numbers.more", "my_numbers.unused"}
    assert "sightline.wording" in code
    (beside / "my_numbers/more.py").write_text("A = 2\n")
    forget()
    changed = {name for name, digest in code_of(["other"]).items() if digest != code[name]}
    assert changed == {"my_numbers.more"}
    (beside / "my_numbers/more.py").rename(beside / "my_numbers/more.so")  # no source
    forget()
    with pytest.raises(SightlineError, match=r"my_numbers\.more: source not found"):
        code_of(["other"])


def test_the_code_that_makes_rows_includes_what_its_package_imports(package):
    """Of an encoder or a grounder, too: packages beside it, and what they import in turn."""
    beside = package.parent
    (beside / "my_helpers.py").write_text("import my_numbers, numpy, json\n")
    (beside / "my_numbers").mkdir()
    for name in ("__init__", "more"):
        (beside / f"my_numbers/{name}.py").write_text("A = 1\n")
    (package / "encoder.py").write_text("import my_helpers\nclass Encoder: ...\n")
    forget()
    encoder = type("Encoder", (), {"__module__": "other_losses.encoder"})()
    code = code_of_others(encoder)
    of_its_own = {name for name in code if name.startswith("other_losses")}
    assert code.keys() - of_its_own == {"my_helpers", "my_numbers", "my_numbers.more"}
    before = digest_of_others(encoder)
    (beside / "my_numbers/more.py").write_text("A = 2\n")
    forget()
    assert digest_of_others(encoder) != before


def test_a_folder_of_the_packages_name_around_it_is_not_the_package(package, tmp_path, monkeypatch):
    """Some installations for development add a finder, which is asked after such a folder."""
    before = code_of(["other"])
    around = tmp_path / "around/other_losses"
    shutil.copytree(package, around / "src")
    shutil.rmtree(package)

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None):
            file = (around / "src").joinpath(*name.split(".")[1:])
            file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
            is_there = name.partition(".")[0] == package.name and file.is_file()
            return spec_from_file_location(name, file) if is_there else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    forget()
    assert code_of(["other"]) == before
    monkeypatch.syspath_prepend(around.parent)
    forget()
    assert code_of(["other"]) == before


def test_an_invalid_source_is_one_error(package):
    (package / "broken.py").write_text("def f(:\n")
    with pytest.raises(SightlineError, match=r"broken\.py: not valid Python"):
        code_of(["other"])
    OBJECTIVES.places["other"] = "nowhere_losses.objective:Other"
    with pytest.raises(SightlineError, match=r"nowhere_losses\.objective: source not found"):
        code_of(["other"])
    with pytest.raises(SightlineError, match="unknown objective 'mcsee'; did you mean 'mcse'"):
        code_of(["mcsee"])


# ---- the code of runs ---------------------------------------------------------------------------

LOSS = "train.losses"


@pytest.fixture
def edit(monkeypatch):
    """Changes the source of one module from now on."""

    def change(module: str = LOSS) -> dict[str, str]:
        edited = {**code_of(["simcse"]), module: "0" * 64}
        monkeypatch.setattr(run_inputs, "code_of", lambda objectives: edited)
        return edited

    return change


def test_an_edited_loss_trains_a_finished_run_again(world, tmp_path, edit):
    first = train_run(world.spec(tmp_path), say=silent)
    assert first.code == code_of(["simcse"])
    edited, lines = edit(), []
    found = train_run(world.spec(tmp_path), say=lines.append)
    assert f"replacing the finished run in {tmp_path}: its code changed: {LOSS}" in lines[0]
    assert RunSummary.read(tmp_path).code == found.code == edited
    lines.clear()
    train_run(world.spec(tmp_path), say=lines.append)
    assert lines == [f"{found.run}: already trained, nothing to do ({tmp_path})"]


def test_a_killed_run_does_not_resume_under_another_loss(world, tmp_path, edit):
    with pytest.raises(Killed):
        train_run(world.spec(tmp_path), say=silent, callbacks=[KillAfter(5)])
    edit()
    lines: list[str] = []
    with pytest.raises(Killed):  # in the first step
        train_run(world.spec(tmp_path), say=lines.append, callbacks=[KillAfter(1)])
    assert "the code changed since" in lines[0]
    assert "starting over" in lines[0]


def test_an_accepted_edit_keeps_the_run_and_its_results_say_so(world, tmp_path, edit):
    out = tmp_path / "run"
    spec = world.spec(out)
    before = train_run(spec, say=silent)
    weights = (out / "model/model.safetensors").read_bytes()
    sets = Evaluation.load({"similarity": {"data": spec.dev}})
    plain, _ = evaluate_run(out, sets, tmp_path / "a.json", "cpu")
    edited, lines = edit(), []
    assert RunFolder(out).accept(edited)
    assert not RunFolder(out).accept(edited)
    after = train_run(spec, say=lines.append)
    assert "already trained" in lines[0]
    assert after.code == before.code
    assert (out / "model/model.safetensors").read_bytes() == weights
    marked, _ = evaluate_run(out, sets, tmp_path / "b.json", "cpu")
    assert marked.scores == plain.scores
    assert make_table([plain]).rows[0].marks == ()
    assert make_table([marked]).rows[0].marks == ("code edited since, accepted",)
    edit("train.loop")  # another edit, which was not accepted
    lines.clear()
    train_run(spec, say=lines.append)
    assert "its code changed: train.loop" in lines[0]


def test_only_a_finished_run_is_accepted(tmp_path):
    with pytest.raises(SightlineError, match="no finished run here"):
        RunFolder(tmp_path / "none").accept({})
    assert not (tmp_path / "none").exists()


# ---- code that scores ---------------------------------------------------------------------------


@pytest.fixture
def edited(monkeypatch):
    """Makes as if these modules had been edited."""
    real = source_code._digest

    def edit(*modules: str) -> None:
        code_of_task.cache_clear()
        monkeypatch.setattr(
            source_code, "_digest", lambda module: real(module) + "!" * (module in modules)
        )

    yield edit
    code_of_task.cache_clear()


@pytest.mark.parametrize(
    ("module", "tasks"),
    [
        ("train.embed", {*TASKS}),
        ("sightline.devices", {*TASKS}),
        ("sightline.models.pooling", {*TASKS}),
        ("train.evaluate.sts", {"sts", "similarity", "geometry"}),
        ("train.evaluate.ranking", {*TASKS}),
        ("train.evaluate.softmax_classifiers", {"transfer"}),
        ("train.evaluate.pools", {"retrieval", "neighbours"}),
        ("train.evaluate.results", set()),
        ("train.losses", set()),
        ("train.report.run_tables", set()),
    ],
)
def test_which_tasks_an_edited_module_scores(edited, module, tasks):
    before = {name: code_of_task(name) for name in TASKS}
    edited(module)
    assert {name for name in TASKS if code_of_task(name) != before[name]} == tasks


@pytest.fixture
def scored(world, tmp_path, edited):
    """Scores a finished run; (the result, the tasks that were scored now)."""
    train_run(world.spec(tmp_path / "run", train={"max_steps": 2}), say=silent)
    tasks = {
        "similarity": {"data": world.root / "dev.tsv"},
        "geometry": {"data": world.root / "dev.tsv"},
        "other": {"task": "similarity", "data": world.root / "dev.tsv"},
    }

    def score() -> tuple[RunResult, list[str]]:
        out = tmp_path / "results/run.json"
        out.parent.mkdir(exist_ok=True)
        return evaluate_run(tmp_path / "run", Evaluation.load(tasks), out)

    return score


def test_an_edited_metric_is_scored_again_and_nothing_else_is(scored, edited, tmp_path):
    first, names = scored()
    assert names == ["similarity", "geometry", "other"]
    assert first.tasks["geometry"].code == code_of_task("geometry")
    assert first.tasks["geometry"].versions == first.training.versions == versions()
    assert {*versions()} == {"sightline", "torch", "transformers", "tokenizers", "numpy", "scipy"}
    assert scored() == (first, [])
    edited("train.evaluate.geometry")
    second, names = scored()
    assert names == ["geometry"]
    assert second.scores == first.scores
    assert second.tasks["geometry"].code != first.tasks["geometry"].code


def test_a_result_whose_code_is_accepted_or_unknown_is_not_scored_again(scored, edited, tmp_path):
    scored()
    file = tmp_path / "results/run.json"
    edited("train.evaluate.geometry")
    assert accept_code(file) == ["geometry"]
    assert accept_code(file) == []
    assert scored()[1] == []
    edited("train.embed")
    result = load_result(file)
    unknown = {n: t.model_copy(update={"code": ""}) for n, t in result.tasks.items()}
    save_result(result.model_copy(update={"tasks": unknown}), file)
    assert scored()[1] == []
    assert accept_code(file) == []


def test_an_accepted_run_keeps_its_scores(scored, tmp_path):
    scored()
    run, file = tmp_path / "run", tmp_path / "results/run.json"
    before = digest_of_run(run)
    assert RunFolder(run).accept({"edited": "0"})
    accept_run(file, run, before)
    assert load_result(file).training == RunSummary.read(run)
    assert scored()[1] == []


def test_a_comparison_says_which_rows_were_scored_by_different_code():
    def scored_by(run: str, code: str, *accepted: str) -> RunResult:
        result = made_result(run, scores={"STS12": 70.0})
        tasks = {
            name: task.model_copy(update={"code": code, "accepted_code": accepted})
            for name, task in result.tasks.items()
        }
        return result.model_copy(update={"tasks": tasks})

    def notes(*results: RunResult) -> list[str]:
        return [note for note in compare_results(results).notes if "different code" in note]

    old, new, unknown = scored_by("old", "1"), scored_by("new", "2"), scored_by("unknown", "")
    (note,) = notes(old, new, unknown)
    assert "old and new were scored by different code" in note
    assert notes(old, unknown) == notes(old, scored_by("old-too", "1")) == []
    assert notes(scored_by("old", "1", "2"), new) == []
