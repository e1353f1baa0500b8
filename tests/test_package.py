"""The package's metadata: extras have code behind them, and the citation agrees with the rest."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from shown_commands import ROOT

from train.objectives import objective_class

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
MODULES = {"dvc-s3": "dvc_s3", "open-clip-torch": "open_clip", "pillow": "PIL"}
"""Distribution → module, where they differ."""


def source() -> str:
    rooms = ("pipeline", "sightline", "train")
    return "\n".join(file.read_text() for name in rooms for file in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"].keys() - {"dev"}))
def test_an_extra_has_code_behind_it(extra):
    for text in PROJECT["optional-dependencies"][extra]:
        name = Requirement(text).name.lower().replace("_", "-")
        module = MODULES.get(name, name)
        used = rf"^\s*(from|import) {module}\b|(require|import_module)\(\"{module}\""
        assert re.search(used, source(), re.M), f"nothing imports {module}"


def test_every_extra_is_documented():
    page = (ROOT / "docs/start.md").read_text()
    for extra in PROJECT["optional-dependencies"]:
        assert f"`{extra}`" in page.partition("## Installing elsewhere")[2]


def test_the_citation_agrees_with_the_package():
    assert CITATION["cff-version"] == "1.2.0"
    assert "version" not in CITATION  # pyproject.toml alone states it
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["authors"] == PROJECT["authors"]


@pytest.mark.parametrize("name", ["simcse", "mcse", "kdmcse", "dalr", "mcseo"])
def test_the_citation_has_the_paper_of_every_objective(name):
    objective = objective_class(name)
    found = re.match(r"(\w+) \((\w+) et al\.?,?[^)]*?(20\d\d)", objective.source)
    assert found, objective.source
    _, author, year = found.groups()
    (paper,) = [
        reference
        for reference in CITATION["references"]
        if reference["authors"][0]["family-names"] == author and reference["year"] == int(year)
    ]
    number = re.search(r"arXiv (\S+?)\)?,?", objective.source)
    assert paper["title"]
    assert paper["url"].startswith("https://")
    if number and "arxiv.org" in paper["url"]:
        assert number[1] in paper["url"]
