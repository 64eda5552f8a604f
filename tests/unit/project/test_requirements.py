"""What the distributions require: no version is allowed with which they cannot run."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.unit.project.syntax import nodes_of

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = [path for place in ("", "*/", "clients/*/") for path in ROOT.glob(f"{place}pyproject.toml")]
OURS = [path for path in PROJECTS if path.parent != ROOT]
DISTRIBUTIONS = {
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "opentelemetry": "opentelemetry-api",
    "yaml": "pyyaml",
}
"""Of modules that are not named as their distribution is."""
NOT_IMPORTED = {"pandas"}
"""PySpark's `DataFrame.mapInArrow` raises PACKAGE_NOT_INSTALLED without it."""
GENERATED = [*ROOT.glob("proto/trovemq_proto/**/*_pb2*.py")]
MARK = re.compile(r"^# Protobuf Python Version: (\S+)$", re.MULTILINE)


def lowest(name: str) -> Iterator[tuple[Path, Version]]:
    """The lowest version that each project allows."""
    for project in PROJECTS:
        table = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        texts = [*table.get("dependencies", []), *chain(*table.get("optional-dependencies", {}).values())]
        for requirement in map(Requirement, texts):
            if requirement.name == name:
                (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
                yield project, Version(bound)


def test_a_protobuf_older_than_the_generated_code_broke_each_import() -> None:
    generated = {mark for path in GENERATED for mark in MARK.findall(path.read_text(encoding="utf-8"))}
    needed = max(map(Version, generated))
    bounds = list(lowest("protobuf"))
    assert len(bounds) > 1
    assert [path for path, bound in bounds if bound < needed] == []


def test_typer_has_two_minor_versions_and_both_are_tested() -> None:
    """The older one is that of `faststream[cli]`."""
    assert {bound for _, bound in lowest("typer")} == {Version("0.27.1")}
    assert Version(version("typer")).release[:2] == (0, 28)


def imported(project: Path) -> tuple[set[str], set[str]]:
    """The distributions whose modules the project's packages import: those that each module needs to be
    imported itself, and all of them."""
    at_the_top, anywhere = set(), set()
    for path in project.parent.glob("*/**/*.py"):
        tree = ast.parse(path.read_bytes())
        at_the_top |= modules(tree.body)
        anywhere |= modules(nodes_of(tree))
    own = {path.parent.name for path in project.parent.glob("*/__init__.py")}
    return distributions(at_the_top - own), distributions(anywhere - own)


def modules(nodes: Iterable[ast.AST]) -> set[str]:
    """The first names of the modules that these statements import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def distributions(names: set[str]) -> set[str]:
    return {DISTRIBUTIONS.get(name, name.replace("_", "-")) for name in names - sys.stdlib_module_names}


def name_of(project: Path) -> str:
    return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["name"])


@pytest.mark.parametrize("project", OURS, ids=name_of)
def test_a_distribution_requires_what_it_imports_and_nothing_else(project: Path) -> None:
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    required = {Requirement(text).name for text in table["dependencies"]}
    extras = {Requirement(text).name for text in chain(*table.get("optional-dependencies", {}).values())}
    at_the_top, anywhere = imported(project)
    assert at_the_top <= required | extras
    assert required - anywhere <= NOT_IMPORTED
