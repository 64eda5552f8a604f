"""The versions of Python that are tested: how they are found, and where they are named."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from tools.pythons import OURS, VERSIONS, candidates, environment, interpreters, version_of

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = [path for place in ("*/", "clients/*/") for path in ROOT.glob(f"{place}pyproject.toml")]
CLASSIFIER = "Programming Language :: Python :: "


def classifiers(path: Path) -> list[str]:
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return [one.removeprefix(CLASSIFIER) for one in project["classifiers"] if one.startswith(CLASSIFIER)]


def test_each_distribution_and_the_readme_name_the_same_versions() -> None:
    assert len(PROJECTS) == 9
    (named,) = {tuple(classifiers(path)) for path in PROJECTS}
    assert set(named) <= set(VERSIONS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"`python3` 3\.11 or newer \((.*) are tested\)", readme)
    assert tuple(re.findall(r"3\.\d+", sentence)) == named


def test_the_first_program_of_each_version_is_taken() -> None:
    """Programs that do not answer, and versions that are not tested, are left out."""
    answers = {
        "shims/python3.12": None,
        "bin/python3.12": "3.12",
        "3.13.10": "3.13",
        "pypy": None,
        "2.7": "2.7",
    }
    programs = {Path(name): answer for name, answer in answers.items()}
    taken = interpreters(iter([*programs, Path("later")]), {**programs, Path("later"): "3.13"}.get)
    assert taken == {"3.12": Path("bin/python3.12"), "3.13": Path("3.13.10")}


def test_candidates_are_names_on_the_path_and_the_versions_of_pyenv(tmp_path: Path) -> None:
    patches = [tmp_path / f"versions/{version}/bin/python" for version in ("3.12.9", "3.12.10", "3.10.1")]
    for patch in patches:
        patch.parent.mkdir(parents=True)
        patch.touch()
    found = list(candidates("/one:/two", tmp_path))
    assert found[:2] == [Path("/one/python3.11"), Path("/two/python3.11")]
    assert found[2 * len(VERSIONS) :] == [patches[1], patches[0]]


def test_a_program_is_asked_for_its_version(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    assert version_of(shim) is None
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert version_of(shim) is None
    assert version_of(Path(sys.executable)) == OURS
    assert environment(OURS) == ".venv"
    assert environment("3.99") == ".venv-3.99"
