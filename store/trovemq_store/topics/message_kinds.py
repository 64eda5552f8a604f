"""Which kinds of messages a topic accepts, by its type: RocketMQ's rule, the same for every protocol.

| type of the topic  | accepts                                  |
|--------------------|------------------------------------------|
| NORMAL             | NORMAL: no mark of the other kinds       |
| FIFO               | FIFO: messages with a message group      |
| DELAY              | DELAY: messages with a delivery time     |
| TRANSACTION        | TRANSACTION: half messages               |
| PRIORITY           | PRIORITY: messages with a priority, or 4 |
| MIXED, UNSPECIFIED | NORMAL, FIFO, DELAY, TRANSACTION         |

A topic with the option `order = priority` accepts PRIORITY, too. Batches of the native protocol have no
half or delayed messages. In them a NORMAL topic also accepts messages with a group or a priority, and
promises nothing for these.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTY_SHARDING_KEY
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import NAME_END, PROPERTY_TIMER_DELIVER_MS
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.property_block import value_of
from trovemq_proto.records.queue_rules import MARKS
from trovemq_store.topics.topics import TopicConfig

NORMAL: Final = "NORMAL"
_ALL: Final = (NORMAL, "FIFO", "DELAY", "TRANSACTION")
_BY_TYPE: Final = {
    NORMAL: (NORMAL,),
    "FIFO": ("FIFO",),
    "DELAY": ("DELAY",),
    "TRANSACTION": ("TRANSACTION",),
    "PRIORITY": (),
}
TAKES_NORMAL: Final = frozenset({NORMAL, "MIXED", "UNSPECIFIED"})
_PROPERTIES: Final = (
    (PROPERTY_TIMER_DELIVER_MS, "DELAY"),
    (PROPERTY_PRIORITY, "PRIORITY"),
    (PROPERTY_SHARDING_KEY, "FIFO"),
)
"""The properties that decide the kind of a stored message; the first one found counts."""
assert tuple(name.encode() + bytes([NAME_END]) for name, _ in _PROPERTIES) == MARKS, (
    "they are noted when records are read"
)
_HINTS: Final = {
    "FIFO": ": give it a message group",
    "DELAY": ": give it a delivery time",
    "TRANSACTION": ": send it in a transaction (Producer.transaction)",
    "PRIORITY": ": give it a priority",
}


def accepted_kinds(config: TopicConfig) -> tuple[str, ...]:
    """The kinds that the topic accepts, by the table above."""
    kinds = _BY_TYPE.get(config.message_type, _ALL)
    return (*kinds, "PRIORITY") if config.by_priority else kinds


def check_kind(config: TopicConfig, kind: str) -> None:
    """Raises TroveError MESSAGE_TYPE_CONFLICT if the topic does not accept the kind."""
    if kind in accepted_kinds(config):
        return
    hint = _HINTS.get(config.message_type, "") if kind == NORMAL else ""
    if kind == "PRIORITY":
        hint = " (its option order is not priority)"
    raise TroveError(
        errors.MESSAGE_TYPE_CONFLICT,
        f"topic {config.name} is of type {config.message_type} and takes no {kind} message{hint}",
        topic=config.name,
        message_type=config.message_type,
    )


def check_kinds(config: TopicConfig, batch: RecordBatch) -> None:
    """check_kind() for each record of a batch; the error is that of the first refused kind."""
    if not has_marks(batch) and config.message_type in TAKES_NORMAL:
        return
    accepted = accepted_kinds(config)
    for kind in dict.fromkeys(_kinds(batch)):
        if kind in ("FIFO", "PRIORITY") and NORMAL in accepted:
            continue  # the group orders, and the priority is kept, as on any topic; nothing is lost
        if kind == NORMAL and config.by_priority:
            continue  # without a priority it has the default one
        check_kind(config, kind)


def has_marks(batch: RecordBatch) -> bool:
    """Whether a record may be of another kind than NORMAL."""
    if not batch.special:
        return False
    blocks = batch.property_bytes
    return MARKS[0] in blocks or MARKS[1] in blocks or MARKS[2] in blocks


def _kinds(batch: RecordBatch) -> list[str]:
    """The kind of each record."""
    if batch.by_rows:
        return [_kind_of(batch, index) for index in range(len(batch))]
    kinds = [NORMAL] * len(batch)
    for name, kind in reversed(_PROPERTIES):
        for scan in batch.property_scans:
            for record in scan.find(name.encode()).records.tolist():
                kinds[record] = kind
    return kinds


def _kind_of(batch: RecordBatch, index: int) -> str:
    row = batch.row(index)
    block = bytes(batch.data[row.property_position : row.property_position + row.property_size])
    return next((kind for name, kind in _PROPERTIES if value_of(block, name)), NORMAL)
