"""One way for a message: only the records and the wire have a form for few messages beside one for many."""

from __future__ import annotations

import ast
import re
from typing import Final

from tests.unit.project.test_tidy import CODE, modules, relative, within

NAMES: Final = re.compile(r"_(few|many|usual|plain|one)$")
FORMS: Final = ("proto/trovemq_proto/records", "broker/trovemq_broker/server/wire")
"""The packages that may choose a form by the number of messages."""


def functions() -> set[str]:
    """`path::name` of each function outside `FORMS` whose name says how many messages it takes."""
    return {
        f"{relative(path)}::{node.name}"
        for path in modules(CODE)
        if not within(path, FORMS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NAMES.search(node.name)
    }


def test_no_function_takes_few_or_many_messages_apart() -> None:
    assert functions() == set()
