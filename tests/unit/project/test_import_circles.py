"""No files import each other in a circle, also not for types only or within a function."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.unit.project.syntax import nodes_of

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = (
    ".",
    "store",
    "proto",
    "rpc",
    "daemon",
    "nameserver",
    "broker",
    "clients/python",
    "console",
    "pipeline",
)
"""Folders in which packages lie."""
OTHER_PACKAGES: Final = ("pyspark_trovemq", "pyspark_trovemq_log", "bench", "tests")
"""Beside those of the import contracts."""


def modules_in(package: Path) -> dict[str, Path]:
    """Files by module name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules that the file names in an import. The `__init__` of a package counts where it is
    named itself, not where a module below it is."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in nodes_of(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield from [one for one in (inner, source) if one in modules][:1]


def find_circle(modules: Mapping[str, Path]) -> list[str]:
    """Module names, each imports the next, the last is the first; [] where there is none."""
    graph = {name: set(imported(name, path, modules)) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]  # graphlib names them from the imported to the importing one
    return []


def our_packages() -> list[Path]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = [*project["tool"]["importlinter"]["root_packages"], *OTHER_PACKAGES]
    return [
        next(ROOT / source / name for source in SOURCES if (ROOT / source / name).is_dir()) for name in names
    ]


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle() -> None:
    modules = {name: path for package in our_packages() for name, path in modules_in(package).items()}
    assert len(modules) > 500, "the packages are where this test looks for them"
    circle = [str(modules[name].relative_to(ROOT)) for name in find_circle(modules)]
    assert not circle, f"each of these files imports the next: {', '.join(circle)}"


@pytest.mark.parametrize(
    "source",
    [
        "import package.a",
        "from package import a",
        "from package.a import name",
        "from .a import name",
        "from . import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.a import name",
        "def call():\n    from package.a import name",
    ],
)
def test_a_circle_is_named_whatever_its_imports(source: str, tmp_path: Path) -> None:
    files = {
        "__init__": "from package.a import name",
        "a": "import package.b",
        "b": "",
        "c": "import package.a",
    }
    for name, text in (files | {"b": source}).items():
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / f"{name}.py").write_text(text)
    circle = find_circle(modules_in(tmp_path / "package"))
    assert circle in (["package.a", "package.b", "package.a"], ["package.b", "package.a", "package.b"])
    (tmp_path / "package" / "b.py").write_text("import os.path\nfrom package.d import other")
    assert find_circle(modules_in(tmp_path / "package")) == []
