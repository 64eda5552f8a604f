"""Entries of the tables (topics, consumer groups) as records of the topic `rmq_sys_trovemq_meta`, queue 0.

A record's body is a JSON object, in ASCII:

    {"format": 1, "kind": "topic", "name": "T", "value": {…}, "dataVersion": {…}}

| member       | value                                                                                     |
|--------------|-------------------------------------------------------------------------------------------|
| format       | 1. A newer one is refused, never guessed at                                               |
| kind         | `topic` or `group`. Records of an unknown kind are skipped: the file of that table counts |
| name         | of the entry                                                                              |
| value        | RocketMQ's object for the entry, whole, as in the table's file; null: it is deleted       |
| dataVersion  | RocketMQ's version of the table after this change                                         |
| deletedBelow | of a topic that is or was deleted: its records below this physical offset are dead        |
|              | (deletions.py). Missing if none is, also where another program removes it from the file   |

The whole record has a CRC as every other one.

Invariant: the last record of a name counts. So an entry may be appended again at any time, with its present
value: before its older record is removed, for example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.topics.lax_json import JsonObject, parse

META_TOPIC: Final = "rmq_sys_trovemq_meta"
META_QUEUE_ID: Final = QueueId(0)
FORMAT: Final = 1
DELETED_BELOW: Final = "deletedBelow"


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One entry of a table after a change; `value` None: it is deleted."""

    kind: str
    name: str
    value: JsonObject | None
    version: JsonObject
    deleted_below: PhysicalOffset | None = None


def encode_table_record(
    kind: str,
    name: str,
    value: Mapping[str, object] | None,
    version: Mapping[str, object],
    deleted_below: PhysicalOffset | None = None,
) -> bytes:
    """The record's body."""
    document = {"format": FORMAT, "kind": kind, "name": name, "value": value, "dataVersion": version}
    if deleted_below is not None:
        document[DELETED_BELOW] = deleted_below
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def decode_table_record(body: bytes | memoryview) -> TableRecord:
    """TroveError STORE_NEWER for a newer format; ValueError if it is no such record."""
    document = parse(bytes(body))
    format_ = document.get("format")
    if not isinstance(format_, int) or format_ < 1:
        raise ValueError("it has no format")
    if format_ > FORMAT:
        what = f"a record of {META_TOPIC} has format {format_}; this version knows {FORMAT}"
        raise TroveError(errors.STORE_NEWER, what)
    kind, name = document.get("kind"), document.get("name")
    value, version = document.get("value"), document.get("dataVersion")
    if not isinstance(kind, str) or not isinstance(name, str):
        raise ValueError("it has no kind or no name")
    if not (value is None or isinstance(value, dict)) or not isinstance(version, dict):
        raise ValueError("its value or its version is not an object")
    below = document.get(DELETED_BELOW)
    if below is None:
        return TableRecord(kind, name, value, version)
    if not isinstance(below, int) or below < 0:
        raise ValueError("its deletion is not an offset")
    return TableRecord(kind, name, value, version, PhysicalOffset(below))
