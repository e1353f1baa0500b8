"""The documentation stays in sync: what it names exists, and the commands it shows are valid."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from demo_params import demo_params
from shown_commands import PAGES, ROOT, check_command, known_options, shown_commands

from docs.reference import KEYS
from pipeline.configure import configuration
from train.report.published import every_row

CODE = [path for room in ("pipeline", "sightline", "train") for path in (ROOT / room).rglob("*.py")]
OF_A_PACKAGE = tuple(  # of docs/extending.md; tests/test_extending.py runs them
    f"sightline {words} "
    for words in ("prepare sidecar", "prepare lake", "train hardest", "train slow", "train triplet")
)
SHOWN = sorted(
    command
    for command in {command for page in PAGES for command in shown_commands(page)}
    if not command.startswith(OF_A_PACKAGE)
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower() for title in titles)
    return {"#" + re.sub(r"[^\w -]", "", title).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_resolve(page):
    text = page.read_text()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)  # heads["image"](x) is not a link
    for target, place in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", prose):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not place or place in anchors(there), f"{page.name} links to {target}{place}"
    for name in re.findall(r"`((?:bench|pipeline|train|tests|docs|configs)/[\w./-]+\.\w+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_readme_links_to_every_page_in_one_screen():
    text = (ROOT / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"decisions.md"}
    assert pages == set(re.findall(r"\]\(docs/([\w-]+\.md)\)", text))
    assert len(pages) == 10
    assert len(text.split()) <= 700


def test_the_pages_that_are_read_have_at_most_twenty_thousand_words():
    pages = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    for looked_up in ("reference.md", "papers.md"):
        del pages[looked_up]
    assert sum(len(text.split()) for text in pages.values()) <= 20_000


@pytest.mark.parametrize("command", [c for c in SHOWN if c.startswith("sightline")])
def test_shown_commands_and_options_exist(command):
    check_command(command)


OF_OTHERS = {
    *("--help", "--output_format", "--local", "--framework", "--mode"),
    *("--no-scm", "--subdir", "--quiet", "--show-toplevel"),
}
"""Options of other programs, and that of all commands."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_options_and_keys_in_the_prose_exist(page):
    text = page.read_text()
    assert set(re.findall(r"`(--[a-z][\w-]*)", text)) - OF_OTHERS <= known_options()
    for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)`", text):
        if section in KEYS and key not in ("losses", "objectives", "py", "txt", "json"):
            assert key in KEYS[section].model_fields, f"{section}.{key}"


def named_in_messages() -> Iterator[str]:
    """The commands in the texts of the code, up to a value that is only known when it runs."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(getattr(part, "value", "…")) for part in parts)
            if all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
                yield from re.findall(r"`(sightline [a-z][a-z -]*)", text)


GROUPS = {f"sightline {name}" for name in ("cache", "look", "prepare", "train")}


@pytest.mark.parametrize("command", sorted({c.strip() for c in named_in_messages()} - GROUPS))
def test_commands_in_messages_exist(command):
    check_command(command)


OF_OTHER_PROGRAMS = OF_OTHERS | {
    *("--debug", "--glob", "--single-item", "--wait-for-lock", "--root"),  # ours for all, and DVC's
    *("--no-build-isolation", "--head", "--query-gpu"),  # of pip, Ray and nvidia-smi
    *("--shm-size", "--ipc"),  # of docker
}


def texts_of_the_code() -> Iterator[tuple[str, str]]:
    """Every message, docstring and help text, with its file."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def test_options_and_keys_in_messages_and_docstrings_exist():
    known = known_options() | OF_OTHER_PROGRAMS
    for file, text in texts_of_the_code():
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*[a-z])(?![\w{-])", text):
            assert option in known, f"{file} names {option}"
        for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)`", text):
            if section in KEYS and f"{section}.{key}" not in OF_MODULES:
                assert key in KEYS[section].model_fields, f"{file} names {section}.{key}"


OF_MODULES = {f"train.{path.stem}" for path in (ROOT / "train").iterdir()}
"""What looks like a key of `train`."""


NAMED_IN = [
    *CODE,
    *(path for end in ("json", "yaml", "md.in") for path in (ROOT / "train").rglob(f"*.{end}")),
    *(ROOT / "configs").rglob("*.yaml"),
    *(ROOT / "docs").glob("*.md*"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "dvc.yaml", "Makefile")),
]
"""Files whose texts a user reads, and that name others."""


def test_pages_configurations_and_examples_that_texts_name_exist():
    for path in NAMED_IN:
        if path.name == "decisions.md":  # a log of what was
            continue
        text = path.read_text()
        for name in re.findall(
            r"\b(?:docs|configs|examples|bench)/[\w/-]+\.(?:md|yaml|py)\b", text
        ):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


def commands_of_the_papers() -> set[str]:
    texts = (ROOT / "train/report/published.json").read_text()
    return set(re.findall(r'"(sightline [^"]+)"', texts))


@pytest.mark.parametrize("command", sorted(commands_of_the_papers()))
def test_commands_of_the_papers_exist(command):
    check_command(command)


def test_metrics_of_the_papers_are_those_of_tasks_that_their_configurations_have():
    """A row is found by its metrics: those of a task under another name have it before them."""
    for row in every_row():
        if row.configuration and any(" R@" in name for name in row.scores):
            tasks = configuration(*row.configuration.split())["evaluation"]["tasks"]
            assert tasks["retrieval"].get("task", "retrieval") == "retrieval", row.full_name


@pytest.mark.parametrize("command", [c for c in SHOWN if c.startswith("make")])
def test_shown_make_targets_exist(command):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert command.split()[1] in targets


def test_the_command_reference_is_up_to_date():
    made = subprocess.run(
        [sys.executable, "docs/reference.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    assert made == (ROOT / "docs/reference.md").read_text(), "run `make docs`"
    prose = re.sub(r"`[^`]*`", "", made)
    assert "`name.jpg#k<TAB>caption`" in made
    assert not re.search(r"<\w", prose), "a renderer drops it as an unknown tag"


ABLATIONS = (
    (ROOT / "docs/training.md")
    .read_text()
    .partition("## The papers' ablations")[2]
    .partition("\n## ")[0]
)


def ablations() -> list[tuple[str, dict]]:
    """Run and parameter change of every row of the table in docs/training.md."""
    rows = re.findall(r"^\| \w.* \| `([\w-]+)` \| (.*) \|$", ABLATIONS, re.M)
    return [(run, yaml.safe_load(c)) for run, cell in rows for c in re.findall("`([^`]+)`", cell)]


@pytest.mark.parametrize(("run", "change"), ablations(), ids=str)
def test_an_ablation_changes_only_the_parameters_it_names(run, change):
    from pipeline.params import validate_params
    from train.objectives import make_objective

    config = validate_params(demo_params(), "params.yaml").run(run)
    told, changed = (
        make_objective(config.objective, {**config.parameters, **more}).describe()
        for more in ({}, change)
    )
    assert {name for name in told if told[name] != changed[name]} == change.keys()


def test_every_ablation_row_is_parsed():
    assert len(ablations()) == ABLATIONS.count("`{") > 0


def test_the_graph_diagram_shows_every_stage():
    picture = (ROOT / "README.md").read_text()
    for stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]:
        kind = stage.split("-")[0] if stage.startswith(("prepare", "train")) else stage
        assert kind in picture, f"README's graph lacks {stage}"


def test_the_sentences_below_the_demos_table_hold_for_it_on_any_cpu():
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| ([\w() -]+) \| 0 \| \**(-?[\d.]+)", text, re.M)
    scores = {name: float(score) for name, score in rows}
    blind = {scores.pop(name) for name in ("SimCSE", "MCSE with shuffled images")}
    assert max(blind) < 10 < 60 < min(scores.values())  # tens of points, where CPUs move a few
    _, _, prose = text.partition("<!-- demo table: end -->")
    assert "Your digits may differ" in prose
    assert not re.search(r"is best with", text)


def test_the_ci_script_runs_the_commands_of_the_readme():
    script = (ROOT / ".ci/run").read_text()
    for command in ("make lint", "make test", "make demo"):
        assert command in script
    assert {"make demo", "make test"} <= set(shown_commands(ROOT / "README.md"))
