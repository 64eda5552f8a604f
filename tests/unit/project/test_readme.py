"""The README keeps its promises: the example runs, the layout is the tree's, the links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trovemq.testing import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE_LINES_MAX = 15
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", page("README.md"), flags=re.DOTALL)


def example() -> str:
    """The first one; the others are parts of a program."""
    return python_blocks()[0]


def test_every_block_of_python_can_be_compiled() -> None:
    for block in python_blocks():
        compile(f"async def block():\n{textwrap.indent(block, '    ')}", "README.md", "exec")


def test_the_example_is_short() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= EXAMPLE_LINES_MAX


@pytest.mark.slow
def test_the_example_runs() -> None:
    """As it stands, but for the address of the broker."""
    assert "127.0.0.1:8081" in example()
    with BrokerProcess() as broker:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example().replace("127.0.0.1:8081", broker.address)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr + broker.log()
    assert done.stderr == ""
    stored, found, pulled = done.stdout.splitlines()
    assert re.fullmatch(r"stored on disk as [0-9A-F]{32}", stored)
    assert found == "found [b'12 apples'] complete: True"
    assert pulled == "queue offset 0 paid b'12 apples'"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page(name))
    missing = [target for target in targets if not ((ROOT / name).parent / target).exists()]
    assert missing == []


def test_the_layout_is_the_trees() -> None:
    table = page("README.md").split("## What is where", 1)[1].split("\n## ", 1)[0]
    first_column = "\n".join(re.findall(r"^\|([^|]*)\|", table, flags=re.MULTILINE))
    named = set(re.findall(r"`([a-z_/]+)/`", first_column))
    assert [folder for folder in named if not (ROOT / folder).is_dir()] == []
    rooms = {f"broker/{path.parent.name}" for path in (ROOT / "broker").glob("*/__init__.py")}
    assert rooms - named == set(), "a room without a line in the table"


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), flags=re.MULTILINE))
    used = set(re.findall(r"`?make ([a-z-]+)\b[^\n]*(?:`|#)", page("README.md") + page("CONTRIBUTING.md")))
    assert {"run", "test"} <= used
    assert used <= targets


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test " in page("README.md")
    assert page(".ci/run").splitlines()[-1] == "exec make test"
