"""The fields of a list: each is written once, for the table and for the objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Generic, TypeVar, cast

Shown = TypeVar("Shown")

MERGED: Final = "**"
"""A key whose value is a mapping; the members of the mapping become members of the object."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Shown]):
    """One field of a list.

    Attributes:
        key: Its name in the object, or MERGED; None if the object lacks it.
        title: Its column in the table; None if the table lacks it.
        value: Its value.
        text: Its value in the table, if that is another one.
        number: Whether the column is right-aligned.
        escaped: Whether the table shows control characters escaped: for text that others have chosen.
        place: The column's index in the table, where the table has another order than the object.
    """

    key: str | None
    title: str | None
    value: Callable[[Shown], object]
    text: Callable[[Shown], object] | None = None
    number: bool = False
    escaped: bool = False
    place: int | None = None

    def cell(self, one: Shown) -> object:
        """The value in the table."""
        found = self.value(one) if self.text is None else self.text(one)
        if not self.escaped:
            return found
        from trovemq.cli.render import printable

        return printable(str(found))


class Columns(Generic[Shown]):
    """The fields of one list, in the order of the object."""

    def __init__(self, *columns: Column[Shown]) -> None:
        self._in_object = [column for column in columns if column.key is not None]
        in_table = [column for column in columns if column.title is not None]
        self._in_table = [column for column in in_table if column.place is None]
        placed = [(column.place, column) for column in in_table if column.place is not None]
        for place, column in sorted(placed, key=itemgetter(0)):
            self._in_table.insert(place, column)
        self.titles: Final = [str(column.title) for column in self._in_table]
        self.numbers: Final = [str(column.title) for column in self._in_table if column.number]

    def fields(self, one: Shown) -> dict[str, object]:
        """The JSON object."""
        found: dict[str, object] = {}
        for column in self._in_object:
            if column.key == MERGED:
                found |= cast(Mapping[str, object], column.value(one))
            else:
                found[str(column.key)] = column.value(one)
        return found

    def row(self, one: Shown) -> list[object]:
        """The table's line."""
        return [column.cell(one) for column in self._in_table]
