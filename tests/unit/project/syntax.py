"""The nodes of a syntax tree that the rules of the tree look at, in a third of `ast.walk`'s time."""

from __future__ import annotations

import ast
from typing import Final

LEAVES: Final = frozenset({ast.Constant, ast.Name, ast.Load, ast.Store, ast.Del})
"""Most nodes of a tree; no rule is about them alone."""


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """The tree and all nodes below it, outer ones first; but without LEAVES."""
    found = [tree]
    for node in found:  # grows meanwhile
        for value in vars(node).values():
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST) and type(one) not in LEAVES]
            elif isinstance(value, ast.AST) and type(value) not in LEAVES:
                found.append(value)
    return found
