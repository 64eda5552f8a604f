"""The first pages keep their promises: example, layout, links and commands are as the tree has them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from trovemq.testing import BrokerProcess

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE_LINES_MAX = 12
NOT_PACKAGES = ("__main__", "consumer_settings", "settings")  # modules, in the contract
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
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


def test_links_lead_to_files() -> None:
    missing = [
        (name, target)
        for name in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page(name))
        if not ((ROOT / name).parent / target).exists()
    ]
    assert missing == []


def layout() -> list[list[str]]:
    """The folders of each row of ARCHITECTURE.md's table."""
    table = page("ARCHITECTURE.md").split("## Layout", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, flags=re.MULTILINE)
    return [re.findall(r"`([a-z_/]+)/`", row) for row in rows]


def test_the_layout_names_every_package_and_none_that_is_not_there() -> None:
    named = [folder for row in layout() for folder in row]
    places = [ROOT / "broker/trovemq_broker", ROOT / "store/trovemq_store"]
    packages = [path.parent for place in places for path in place.glob("*/__init__.py")]
    assert sorted(
        [*(path.relative_to(ROOT).as_posix() for path in packages), "proto/trovemq_proto"]
    ) == sorted(named)


def test_the_layout_has_the_order_of_the_import_contract() -> None:
    contracts = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    for container, folder in (
        ("trovemq_broker", "broker/trovemq_broker"),
        ("trovemq_store", "store/trovemq_store"),
    ):
        (layers,) = [one["layers"] for one in contracts if one.get("containers") == [container]]
        wanted = [{name for name in layer.split(" | ") if name not in NOT_PACKAGES} for layer in layers]
        rows = [
            {name.rpartition("/")[2] for name in row if name.startswith(f"{folder}/")} for row in layout()
        ]
        assert [row for row in rows if row] == [layer for layer in wanted if layer]


def test_the_first_pages_are_short() -> None:
    assert len(page("README.md").splitlines()) <= 150
    assert len(page("ARCHITECTURE.md").splitlines()) <= 170


def test_the_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), flags=re.MULTILINE))
    pages = "".join(map(page, ("README.md", "CONTRIBUTING.md", "RELEASING.md")))
    used = set(re.findall(r"`?make ([a-z-]+)\b[^\n]*(?:`|#)", pages))
    assert {"run", "test"} <= used
    assert used <= targets


def test_ci_runs_the_checks_and_the_readmes_test_command() -> None:
    assert "make test " in page("README.md")
    assert page(".ci/run").splitlines()[-2:] == ["make check", "exec make test"]
