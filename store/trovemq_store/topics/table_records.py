"""Entries of the tables (topics, consumer groups, offsets) as records of `rmq_sys_trovemq_meta`, queue 0.

A record's body is a JSON object, in ASCII:

    {"format": 1, "kind": "topic", "name": "T", "value": {…}, "dataVersion": {…}}

| member       | value                                                                                     |
|--------------|-------------------------------------------------------------------------------------------|
| format       | 1. A newer one is refused, never guessed at                                               |
| kind         | `topic`, `group`, `offsets`, `security`, `cluster`. A record of another kind is skipped   |
| name         | of the entry; empty: `value` has several entries                                          |
| value        | RocketMQ's object for the entry, whole, as in the table's file; null: it is deleted.      |
|              | Of several entries: an object of these by name                                            |
| dataVersion  | RocketMQ's version of the table after this change                                         |
| deletedBelow | of a topic that is or was deleted: its records below this physical offset are dead        |
|              | (deletions.py). Of a deleted group: so are its offsets and deliveries. Missing if none    |
|              | is, also where another program removes the entry from the file                            |

Offsets have several entries: those of one iteration of the event loop. An entry is `topic@group`, its value
the offsets by queue. Users, rules and quotas (`security`) have those of a change, sealed as in their file
(security_entries.py). So has the configuration that brokers share, in a replica group (`cluster`, by
cluster_config/logged.py of the broker).

The whole record has a CRC as every other one.

Invariant: the last record of a name counts. So an entry may be appended again at any time, with its present
value: before its older record is removed, for example.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
GROUP_KIND: Final = "group"
OFFSETS_KIND: Final = "offsets"
SECURITY_KIND: Final = "security"
CLUSTER_KIND: Final = "cluster"
CLUSTER_ENTRIES_PATH: Final = "config/trovemq-cluster.json"
CLUSTER_PATH: Final = "config/trovemq-cluster.table"
SEVERAL: Final = frozenset((OFFSETS_KIND, SECURITY_KIND, CLUSTER_KIND))
"""Kinds whose records have several entries."""
PARTS_MAX: Final = 1_024
"""Entries and members of entries in one record, unless a single entry has more."""

Entry = tuple[str, JsonObject | None]


@dataclass(frozen=True, slots=True)
class TableRecord:
    """One entry of a table after a change, or several; `value` None: it is deleted."""

    kind: str
    name: str
    value: JsonObject | None
    version: JsonObject
    deleted_below: PhysicalOffset | None = None

    @property
    def entries(self) -> Sequence[Entry]:
        """(name, value) of each entry."""
        if self.kind not in SEVERAL:
            return ((self.name, self.value),)
        return list((self.value or {}).items())  # type: ignore[arg-type]


def deleted_group(record: TableRecord) -> str:
    """The group whose offsets and deliveries are dead by this record, as far as the log has them before it;
    empty if there is none."""
    is_deleted = record.kind == GROUP_KIND and record.value is None and record.deleted_below is not None
    return record.name if is_deleted else ""


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


def in_parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in runs, each for one record of several."""
    begin, parts = 0, 0
    for at, (_, value) in enumerate(entries):
        own = 1 + len(value or ())
        if at > begin and parts + own > PARTS_MAX:
            yield entries[begin:at]
            begin, parts = at, 0
        parts += own
    if begin < len(entries):
        yield entries[begin:]


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
    if kind in SEVERAL and not all(one is None or isinstance(one, dict) for one in (value or {}).values()):
        raise ValueError("one of its entries is not an object")
    below = document.get(DELETED_BELOW)
    if below is None:
        return TableRecord(kind, name, value, version)
    if not isinstance(below, int) or below < 0:
        raise ValueError("its deletion is not an offset")
    return TableRecord(kind, name, value, version, PhysicalOffset(below))
