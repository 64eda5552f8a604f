"""What the distributions require: no version is allowed with which they cannot run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = [path for place in ("", "*/", "clients/*/") for path in ROOT.glob(f"{place}pyproject.toml")]
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


def test_a_typer_without_its_own_exceptions_broke_each_error() -> None:
    """Of typer 0.27 and before these are click's. Its minor versions change what is used here."""
    tested = Version(version("typer")).release[:2]
    assert {bound.release[:2] for _, bound in lowest("typer")} == {tested}
