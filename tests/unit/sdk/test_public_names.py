"""`import trovemq` is light, and its lazy names are the ones that type checkers see."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trovemq
from trovemq_proto import errors

HEAVY = ("grpc", "numpy", "google.protobuf", "asyncio", "rich", "typer")


def names_for_type_checkers() -> dict[str, str]:
    """Name -> module of the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(trovemq.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_every_public_name_is_there_and_is_what_type_checkers_see() -> None:
    seen = names_for_type_checkers()
    assert sorted(seen) == sorted(trovemq.__all__)
    for name, module in seen.items():
        found = __import__(module, fromlist=[name])
        assert getattr(trovemq, name) is getattr(found, name), name
    assert set(trovemq.__all__) <= set(dir(trovemq))


def test_errors_is_the_table_and_an_unknown_name_is_an_attribute_error() -> None:
    assert trovemq.errors is errors
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = trovemq.no_such_name  # type: ignore[attr-defined]


def loaded_after(code: str) -> list[str]:
    """The heavy modules that a fresh interpreter has after some code."""
    script = f"{code}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    found = ast.literal_eval(ran.stdout.splitlines()[-1])
    assert isinstance(found, list)
    return found


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert loaded_after("import trovemq, trovemq.testing") == []


def test_help_needs_neither_grpc_nor_numpy() -> None:
    code = "from trovemq.cli.app import run\nassert run(['--help']) == 0"
    assert not {"grpc", "numpy", "google.protobuf", "rich"} & set(loaded_after(code))
