"""The conditions of a search, and which rows of the table (table/schema.py) meet them. Picklable; knows no
Spark.

All conditions must hold. The same test is applied to rows from an archive, a log or a broker: results of
indexes, statistics and a broker's own query are only candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trovemq_proto.records import decode_offset_msg_id
from trovemq_proto.records.keys import keys_with_spaces
from trovemq_proto.records.layout import PROPERTY_KEY_SIZES
from trovemq_spark.search.json_path import Step, has_value, literal_in_body
from trovemq_spark.table.schema import arrow_schema, column_names

TIME_MAX: Final = (1 << 63) - 1
_US_PER_MS: Final = 1000

ANSWER_COLUMNS: Final = column_names(header=True, damage=True)
"""The columns of an answer. A row whose `damage` is not null is not a message but a place that could not be
read, with the reason."""


@dataclass(frozen=True, slots=True)
class Question:
    """The conditions. Empty text and None: any. Times are epoch milliseconds of the store, both included."""

    topic: str = ""
    key: str = ""
    """One of KEYS, or the message id."""
    message_id: str = ""
    offset_msg_id: str = ""
    """An offsetMsgId, upper case."""
    tag: str = ""
    begin_ms: int = 0
    end_ms: int = TIME_MAX
    property_name: str = ""
    property_value: str = ""
    body_text: str = ""
    json_steps: tuple[Step, ...] | None = None
    json_value: str | None = None

    @property
    def has_times(self) -> bool:
        return self.begin_ms > 0 or self.end_ms < TIME_MAX

    @property
    def needs_body(self) -> bool:
        return bool(self.body_text) or self.json_steps is not None

    @property
    def physical_offset(self) -> int | None:
        """Where a message with this offset_msg_id is in its log; None: unknown. Raises TroveError if it is no
        offsetMsgId."""
        return decode_offset_msg_id(self.offset_msg_id)[1] if self.offset_msg_id else None

    @property
    def index_key(self) -> str:
        """The key to look up in the key index; "" if everything must be read."""
        return self.message_id or self.key

    def columns(self) -> list[str]:
        """The columns that `matches` needs; at least one."""
        wanted = {
            "topic": self.topic,
            "keys": self.key,
            "messageId": self.key or self.message_id,
            "offsetMsgId": self.offset_msg_id,
            "tags": self.tag,
            "storeTimestamp": self.has_times,
            "properties": self.property_name or " " in self.key,
            "body": self.needs_body,
        }
        return [name for name, asked in wanted.items() if asked] or ["storeTimestamp"]

    def matches(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The numbers of the matching rows, ascending. batch: has at least columns()."""
        mask = np.ones(batch.num_rows, np.bool_)
        for condition in self._conditions(batch):
            mask &= condition.fill_null(False).to_numpy(zero_copy_only=False)
            if not mask.any():
                break
        rows = np.flatnonzero(mask)
        if self.key and len(rows):
            rows = rows[self._has_key(batch, rows)]
        if self.json_steps is not None and len(rows):
            rows = rows[self._has_json(batch, rows)]
        return rows

    def _conditions(self, batch: pa.RecordBatch) -> list[pa.BooleanArray]:
        equal = {
            "topic": self.topic,
            "messageId": self.message_id,
            "offsetMsgId": self.offset_msg_id,
            "tags": self.tag,
        }
        found = [pc.equal(batch.column(name), pa.scalar(value)) for name, value in equal.items() if value]
        if self.key:
            found.append(
                pc.or_kleene(
                    pc.match_substring(batch.column("keys"), self.key).fill_null(False),
                    pc.equal(batch.column("messageId"), pa.scalar(self.key)).fill_null(False),
                )
            )
        if self.has_times:
            found.append(self._in_time(batch.column("storeTimestamp")))
        if self.property_name:
            values = pc.map_lookup(batch.column("properties"), pa.scalar(self.property_name), "first")
            found.append(pc.equal(values, pa.scalar(self.property_value)))
        if self.body_text:
            found.append(pc.match_substring(batch.column("body"), self.body_text))
        return found

    def _in_time(self, times: pa.Array) -> pa.BooleanArray:
        stored = times.cast(pa.int64())
        begin = min(max(self.begin_ms * _US_PER_MS, -TIME_MAX), TIME_MAX)
        end = min(self.end_ms * _US_PER_MS + _US_PER_MS - 1, TIME_MAX)
        return pc.and_(pc.greater_equal(stored, begin), pc.less_equal(stored, end))

    def _has_key(self, batch: pa.RecordBatch, rows: np.ndarray) -> np.ndarray:
        """Which of these rows, whose KEYS contain the text, have it as one of their keys."""
        chosen = pa.array(rows)
        keys = batch.column("keys").take(chosen).to_pylist()
        message_ids = batch.column("messageId").take(chosen).to_pylist()
        sizes = [None] * len(rows)
        if " " in self.key:
            properties = batch.column("properties").take(chosen)
            sizes = pc.map_lookup(properties, pa.scalar(PROPERTY_KEY_SIZES), "last").to_pylist()
        each = zip(keys, message_ids, sizes, strict=True)
        return np.array([self.key == unique or self._is_of(own or "", size) for own, unique, size in each])

    def _is_of(self, keys: str, sizes: str | None) -> bool:
        if sizes and " " in self.key:
            return self.key.encode() in keys_with_spaces(keys.encode(), sizes.encode())
        return self.key in keys.split(" ")

    def _has_json(self, batch: pa.RecordBatch, rows: np.ndarray) -> np.ndarray:
        assert self.json_steps is not None, "asked for"
        bodies = batch.column("body").take(pa.array(rows))
        literal = literal_in_body(self.json_value)
        likely = np.ones(len(rows), np.bool_)
        if literal is not None:
            may = pc.or_(pc.match_substring(bodies, literal.decode()), pc.match_substring(bodies, "\\"))
            likely = may.fill_null(False).to_numpy(zero_copy_only=False)
        found = np.zeros(len(rows), np.bool_)
        for place in np.flatnonzero(likely).tolist():
            found[place] = has_value(bodies[place].as_py(), self.json_steps, self.json_value)
        return found


def damage_row(physical_offset: int, why: str) -> pa.RecordBatch:
    """A row that reports a place that could not be read."""
    row = {"physicalOffset": physical_offset, "damage": why}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(ANSWER_COLUMNS))
