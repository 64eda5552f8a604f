"""The Python blocks of docs/how-to, pasted into `python -m asyncio`."""

from __future__ import annotations

import ast
import codeop
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def refused_lines(block: str) -> list[str]:
    """The lines that the prompt refuses. It takes a line at a time, and ends a compound statement at an empty
    one."""
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    refused, statement = [], ""
    for line in [*block.splitlines(), ""]:
        statement += f"{line}\n"
        try:
            complete = compiler(statement.removesuffix("\n"), symbol="single") is not None
        except SyntaxError:
            refused.append(line)
            complete = True
        if complete:
            statement = ""
    return [*refused, *([statement] if statement.strip() else [])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_prompt_refused_a_pasted_block(page: Path) -> None:
    """A statement after an indented one needs an empty line before it."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert [line for block in blocks for line in refused_lines(block)] == []
