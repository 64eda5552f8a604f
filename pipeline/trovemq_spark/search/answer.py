"""The rows found so far: each message once, and only the newest (or oldest) `limit` of them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trovemq_spark.search.question import ANSWER_COLUMNS
from trovemq_spark.table.schema import DAMAGE_COLUMN, arrow_schema

_KEPT_MIN: Final = 4096
_WAITING_BYTES_MAX: Final = 64 << 20
_NOTES_MAX: Final = 100
SOURCE_COLUMN: Final = "source"
IDENTITY: Final = ("offsetMsgId", "topic", "queueId", "storeTimestamp")
"""The identity of a record: its place (store host and physical offset). Two stores that had the same address
can have two records of one place; these differ in the other columns."""

_SCHEMA: Final = arrow_schema(ANSWER_COLUMNS).append(pa.field(SOURCE_COLUMN, pa.string()))


class Answer:
    """Takes rows in any order; of a row from two sources the first one is kept."""

    def __init__(self, limit: int, *, newest_first: bool) -> None:
        self._limit = limit
        direction = "descending" if newest_first else "ascending"
        self._order = [
            ("storeTimestamp", direction),
            ("physicalOffset", direction),
            ("offsetMsgId", direction),
        ]
        self._rows = _SCHEMA.empty_table()
        self._waiting: list[pa.Table] = []
        self._waiting_count = self._waiting_bytes = 0
        self.more = False
        """Rows were left out beyond the limit."""
        self.damage: list[str] = []
        """Places that could not be read."""
        self.damage_count = 0

    def add(self, source: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Rows with ANSWER_COLUMNS."""
        if not rows.num_rows:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        is_damage = pc.is_valid(table.column(DAMAGE_COLUMN))
        if pc.any(is_damage).as_py():
            self._note(table.filter(is_damage))
            table = table.filter(pc.invert(is_damage))
        named = table.append_column(SOURCE_COLUMN, pa.repeat(pa.scalar(source), table.num_rows))
        self._waiting.append(named.select(_SCHEMA.names).cast(_SCHEMA))
        self._waiting_count += table.num_rows
        self._waiting_bytes += table.nbytes
        if self._waiting_count > max(_KEPT_MIN, 4 * self._limit) or (
            self._waiting_bytes > max(_WAITING_BYTES_MAX, self._rows.nbytes)
        ):
            self._settle()

    def _note(self, damage: pa.Table) -> None:
        self.damage_count += damage.num_rows
        for row in damage.select(["physicalOffset", DAMAGE_COLUMN]).to_pylist():
            if len(self.damage) < _NOTES_MAX:
                self.damage.append(f"at {row['physicalOffset']}: {row[DAMAGE_COLUMN]}")

    def _settle(self) -> None:
        """Removes duplicates, sorts, and cuts the rows to the limit."""
        every = pa.concat_tables([self._rows, *self._waiting])
        self._waiting, self._waiting_count, self._waiting_bytes = [], 0, 0
        seen: set[tuple[Any, ...]] = set()
        kept = []
        stored = every.schema.get_field_index("storeTimestamp")  # Python has no time after the year 9999
        plain = every.select(IDENTITY).set_column(3, "storeTimestamp", every.column(stored).cast(pa.int64()))
        for number, identity in enumerate(
            zip(*(column.to_pylist() for column in plain.columns), strict=True)
        ):
            if identity not in seen:
                seen.add(identity)
                kept.append(number)
        once = every.take(pa.array(kept, pa.int64()))
        chosen = pc.sort_indices(once.drop_columns(["properties"]), sort_keys=self._order)
        self.more |= len(chosen) > self._limit
        self._rows = once.take(chosen[: self._limit])

    def table(self) -> pa.Table:
        """The rows, in order."""
        self._settle()
        return self._rows


def row_json(row: dict[str, Any]) -> dict[str, object]:
    """A row of Answer.table() as JSON: times are epoch milliseconds; a body is `body` if it is UTF-8, else
    `bodyBase64`."""
    shown: dict[str, object] = {name: value for name, value in row.items() if name not in {"body", "damage"}}
    shown["properties"] = dict(row["properties"] or ())
    body = row["body"]
    try:
        shown["body"] = None if body is None else body.decode("utf-8")
    except UnicodeDecodeError:
        shown["bodyBase64"] = b64encode(body).decode()
    return shown


def rows_json(table: pa.Table) -> list[dict[str, object]]:
    """All rows of Answer.table() as JSON."""
    for name in ("bornTimestamp", "storeTimestamp"):
        milliseconds = pc.divide(table.column(name).cast(pa.int64()), 1000)
        table = table.set_column(table.column_names.index(name), name, milliseconds)
    return [row_json(row) for row in table.to_pylist()]
