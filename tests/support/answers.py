"""The right answers of a store: every message of it, by queue offset, id, key and unique key.

An answer is the same, or an error, or nothing; wrong bytes fail at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Final

from tests.support.engine import NOW_MS
from trovemq_broker.query.get_message import get_message, get_message_at
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_page
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import decode_message, encode_offset_msg_id
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

SAME: Final = "same"
ABSENT: Final = "absent"
UNDETECTED: Final = "undetected"


@dataclass(frozen=True, slots=True)
class Known:
    """One message that was acknowledged."""

    topic: str
    queue_id: QueueId
    queue_offset: int
    physical_offset: int
    record: bytes
    unique_key: str
    keys: tuple[str, ...]
    msg_id: str

    @property
    def end(self) -> int:
        return self.physical_offset + len(self.record)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The differences from the whole store: (message or key, way, the answer instead)."""

    lost: frozenset[Known]
    by_query: dict[tuple[str, str], str]

    @property
    def same(self) -> bool:
        return not self.by_query


class Answers:
    """The messages of one undamaged store."""

    def __init__(self, files: MemoryFileSystem, settings: StoreSettings) -> None:
        """`files` are opened, and recovered."""
        store = MessageStore.open(files, settings, NOW_MS)
        self.end = store.end_offset
        self.messages: list[Known] = list(_known(store))
        self.keys: dict[tuple[str, str, KeyType], list[Known]] = {}
        for message in self.messages:
            for key in sorted({*message.keys}):
                self.keys.setdefault((message.topic, key, KeyType.KEY), []).append(message)
            if message.unique_key:
                self.keys.setdefault((message.topic, message.unique_key, KeyType.UNIQUE), []).append(message)
        self.topics = frozenset(message.topic for message in self.messages)

    def at(self, physical_offset: int) -> Known | None:
        """The message whose record has this byte of the log."""
        return next((m for m in self.messages if m.physical_offset <= physical_offset < m.end), None)

    def without(self, gone: Collection[Known]) -> Answers:
        """The answers where nothing is asked about these messages."""
        rest = copy(self)
        rest.messages = [message for message in self.messages if message not in gone]
        rest.keys = {
            key: left
            for key, wanted in self.keys.items()
            if (left := [message for message in wanted if message not in gone])
        }
        return rest

    def ask(self, store: MessageStore, unprotected: Known | None = None) -> Verdict:
        """Asks for every message by every query. AssertionError where an answer has wrong bytes; those of
        `unprotected` may be anything."""
        lost: set[Known] = set()
        by_query: dict[tuple[str, str], str] = {}
        for message in self.messages:
            check = message is not unprotected
            for way, found in (
                ("queue", _by_queue(store, message, check)),
                ("id", _by_id(store, message, check)),
            ):
                if found != SAME:
                    lost.add(message)
                    by_query[f"{message.topic} {message.queue_offset}", way] = found
        for (topic, key, kind), wanted in self.keys.items():
            missing, found = _by_key(store, KeyQuery(topic, key, kind), wanted, unprotected)
            if found != SAME:
                lost.update(missing)
                by_query[f"{topic} {key}", kind.value] = found
        return Verdict(frozenset(lost), by_query)


def _known(store: MessageStore) -> Iterator[Known]:
    for physical_offset, records, alive in store.scan(store.min_offset, store.visible_offset):
        for index in range(len(records)):
            if alive is not None and not alive[index]:
                continue
            at = int(records.positions[index])
            raw = bytes(records.data[at : at + int(records.sizes[index])])
            message = decode_message(raw)
            queue = store.consume_queues.get(message.topic, message.queue_id)
            where = physical_offset + at
            if queue is None or queue.find(PhysicalOffset(where)) is None:
                continue
            yield Known(
                message.topic,
                message.queue_id,
                message.queue_offset,
                where,
                raw,
                message.properties.get("UNIQ_KEY", ""),
                tuple(message.properties.get("KEYS", "").split()),
                encode_offset_msg_id(store._store_host, PhysicalOffset(where)),
            )


def _by_queue(store: MessageStore, wanted: Known, check: bool) -> str:
    try:
        found = get_message_at(store, wanted.topic, wanted.queue_id, QueueOffset(wanted.queue_offset))
    except TroveError as error:
        return error.symbol
    same = [bytes(one) for one in found.records] == [wanted.record]
    assert same or not check, f"wrong bytes for {wanted}"
    return SAME if same else UNDETECTED


def _by_id(store: MessageStore, wanted: Known, check: bool) -> str:
    try:
        found = get_message(store, wanted.msg_id)
    except TroveError as error:
        return error.symbol
    same = [bytes(one) for one in found.records] == [wanted.record]
    assert same or not check, f"wrong bytes for {wanted}"
    if not same:
        return UNDETECTED
    return SAME if found.queue_offsets == [wanted.queue_offset] else "another queue offset"


def _by_key(
    store: MessageStore, query: KeyQuery, wanted: list[Known], unprotected: Known | None
) -> tuple[list[Known], str]:
    try:
        page = query_page(store, query)
    except TroveError as error:
        return wanted, error.symbol
    by_place = {message.physical_offset: message for message in wanted}
    for where, raw in zip(page.physical_offsets, page.records, strict=True):
        message = by_place.pop(where, None)
        if unprotected is not None and where == unprotected.physical_offset:
            continue
        assert message is not None, f"{query}: the record at {where} does not have this key, or came twice"
        assert bytes(raw) == message.record, f"{query}: wrong bytes at {where}"
    if by_place:
        return list(by_place.values()), "; ".join(page.notes) or ABSENT
    return [], SAME if page.complete else "incomplete"
