"""One version for all distributions, in the files that RELEASING.md names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.unit.project.test_tidy import relative, tracked_files

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "RELEASING.md").read_text(encoding="utf-8")
PROJECTS = [path for path in tracked_files() if path.name == "pyproject.toml" and path.parent != ROOT]
VERSION = tomllib.loads((ROOT / "broker/pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.parametrize("path", PROJECTS, ids=relative)
def test_all_distributions_have_one_version(path: Path) -> None:
    assert tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"] == VERSION
    assert f"`{relative(path)}`" in PAGE


def test_no_other_file_has_the_version() -> None:
    """Of the code: a release would leave the former one in it."""
    written = re.compile(rf"(?<![\w.]){re.escape(VERSION)}(?![\w.])")
    found = {
        relative(path)
        for path in tracked_files()
        if path.suffix == ".py" and relative(path).split("/")[0] not in ("tests", "tools", "docs", "bench")
        if written.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"rpc/trovemq_rpc/channel/channel.py"}
    assert all(f"`{name}`" in PAGE for name in found)


def test_the_change_log_begins_with_this_version() -> None:
    newest = re.search(r"^## (\S+), ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION
