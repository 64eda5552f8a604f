"""Modules without the statements that spans need: the code as it would be if nothing could be traced.

As a program it is a broker of such code: `python -m bench.without_hooks ARGUMENTS`.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

HOOKS: Final = frozenset({"_tracing", "_tracer", "tracing", "trace", "on_settled"})
"""Names that such a statement mentions."""
OF_BROKER: Final = {
    "trovemq_broker.groups.delivery.settlements": 2,
    "trovemq_broker.produce.append": 3,
    "trovemq_broker.server.core.receiver": 1,
}
"""Modules, with the number of these statements in each."""
OF_PRODUCER: Final = ("trovemq.producer", 5)


class _Without(ast.NodeTransformer):
    """Drops every `if` about a hook, and assignments from one."""

    def __init__(self) -> None:
        self.count = 0

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        return self._without(node, node.test)

    def visit_Assign(self, node: ast.Assign) -> Any:
        return self._without(node, node.value.test) if isinstance(node.value, ast.IfExp) else node

    def _without(self, node: ast.stmt, test: ast.expr) -> ast.stmt:
        if HOOKS.isdisjoint(getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(test)):
            return node
        self.count += 1
        return ast.copy_location(ast.Pass(), node)


def _parsed(path: str) -> ast.Module:
    """The module's syntax. A collection meanwhile may fail it on Python 3.11: gh-106905."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(Path(path).read_text("utf-8"), path)
    finally:
        if was_enabled:
            gc.enable()


def load(name: str, count: int) -> ModuleType:
    """A copy of the module, whose source must have `count` statements about hooks. Where the module was
    imported before, imports still find that one."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    without = _Without()
    tree = without.visit(_parsed(spec.origin))
    assert without.count == count, f"{name} has {without.count} statements about spans, not {count}"
    before, module = sys.modules.get(name), importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(ast.fix_missing_locations(tree), spec.origin, "exec"), module.__dict__)
    if before is not None:
        sys.modules[name] = before
    return module


def main() -> None:
    for name, count in OF_BROKER.items():
        assert name not in sys.modules, "nothing has imported it yet"
        parent, _, last = name.rpartition(".")
        setattr(importlib.import_module(parent), last, load(name, count))
    from trovemq_broker.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
