"""The package's metadata: extras have code behind them, and the citation agrees with the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from shown_commands import ROOT

from sightline.distribution import DISTRIBUTION
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


def test_the_distribution_has_a_name_of_its_own_in_one_place():
    assert PROJECT["name"] == DISTRIBUTION != "sightline"
    assert not re.findall(r"(?<![\w-])sightline\[", source())
    for page in ROOT.glob("docs/*.md"):
        assert not re.findall(r"(?<![\w-])sightline\[", page.read_text()), page


@pytest.mark.slow
def test_the_wheel_stands_beside_another_projects_sightline(tmp_path):
    """Pip adds its extras from it, as messages say to, and doctor names the other one."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "uv", "build", "--wheel", "--out-dir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    site = tmp_path / "site"
    (built,) = tmp_path.glob("sightline_encoders-*.whl")
    install = [*pip, "install", "--no-deps", "--target", site]
    subprocess.run([*install, built], check=True, capture_output=True)
    about = site / "sightline-7.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sightline\nVersion: 7.1\n")
    code = "import sightline; from pipeline.cli import main; print(sightline.__file__); main()"
    doctor = subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert str(site) in doctor.stdout
    assert "sightline 7.1 is another project's package" in doctor.stdout
    asked = [*pip, "install", "--dry-run", "--no-index", f"{DISTRIBUTION}[dvc-s3]"]
    found = subprocess.run(asked, capture_output=True, text=True)
    assert f"Requirement already satisfied: {DISTRIBUTION}" in found.stdout


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
