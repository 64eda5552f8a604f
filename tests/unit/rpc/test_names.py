"""docs/rpc-names.md names every public name of the installed grpc.aio and grpc, and is right about each."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import trovemq_rpc as rpc
from trovemq_rpc.refused_names import REFUSED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "rpc-names.md").read_text(encoding="utf-8")
INHERITED = {*dir(Exception), *dir(tuple)}
HERE = {"same", "different", "refused"}


class Row(NamedTuple):
    names: list[str]
    here: str
    text: str


def rows(heading: str) -> list[list[str]]:
    """The cells of the section's table, without its head."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def table(heading: str) -> list[Row]:
    return [Row(names_in(names), here, text.replace("`", "")) for names, here, text in rows(heading)]


NAMES = {heading: table(heading) for heading in ("grpc.aio", "grpc")}
MEMBERS = [
    (names_in(kind)[0], Row(names_in(names), here, text))
    for kind, names, here, text in rows("Members of grpc.aio's classes")
]


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and kinds; values and types are each side's own."""
    return [(one.name, one.kind) for one in inspect.signature(function).parameters.values()]


def assert_alike(ours: Any, theirs: Any) -> None:
    if callable(theirs):
        assert parameters(ours) == parameters(theirs)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)


def further_arguments(row: Row) -> bool:
    return row.here == "refused" or row.text.startswith("further")


def test_each_public_name_of_grpc_aio_is_listed_once() -> None:
    listed = [name for row in NAMES["grpc.aio"] for name in row.names]
    assert sorted(listed) == sorted(grpc.aio.__all__)


def test_each_public_name_of_grpc_is_listed_once() -> None:
    listed = [name for row in NAMES["grpc"] for name in row.names]
    assert sorted(listed) == sorted(set(grpc.__all__) - set(grpc.aio.__all__))


def test_each_member_of_the_classes_of_both_is_listed_once() -> None:
    theirs = {
        f"{name}.{member}"
        for name in set(grpc.aio.__all__) & set(rpc.__all__)
        if inspect.isclass(kind := getattr(grpc.aio, name))
        for member in dir(kind)
        if not member.startswith("_") and member not in INHERITED
    }
    listed = [f"{kind}.{member}" for kind, row in MEMBERS for member in row.names]
    assert sorted(listed) == sorted(theirs)


@pytest.mark.parametrize("heading", NAMES)
def test_each_name_is_what_its_row_says(heading: str) -> None:
    module: Any = grpc.aio if heading == "grpc.aio" else grpc
    for row in NAMES[heading]:
        assert row.here in HERE, row
        assert row.text or row.here == "same", row
        for name in row.names:
            if row.here == "refused":
                assert row.text == REFUSED[name]
                with pytest.raises(AttributeError, match=re.escape(f"no {name}; {row.text}")):
                    getattr(rpc, name)
            else:
                assert name in rpc.__all__
            if inspect.isfunction(getattr(module, name)) and not further_arguments(row):
                assert_alike(getattr(rpc, name), getattr(module, name))


@pytest.mark.parametrize(("kind", "row"), MEMBERS, ids=[kind for kind, _ in MEMBERS])
def test_each_member_is_what_its_row_says(kind: str, row: Row) -> None:
    assert row.here in {"same", "different"}
    for member in row.names:
        ours, theirs = (getattr(getattr(module, kind), member) for module in (rpc, grpc.aio))
        if row.here == "same":
            assert_alike(ours, theirs)


def test_every_reason_to_refuse_is_on_the_page() -> None:
    listed = {name for rows in NAMES.values() for row in rows if row.here == "refused" for name in row.names}
    assert listed == set(REFUSED)


def test_every_name_of_ours_is_on_the_page() -> None:
    assert {name for name in rpc.__all__ if f"`{name}`" not in PAGE} == set()
