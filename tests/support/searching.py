"""Searches for tests, and their right answers, by comparing every message of the log."""

from __future__ import annotations

from trovemq_broker.query.search.conditions import Condition, Has, SearchQuery
from trovemq_broker.query.search.search import SearchPage, search_page
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import Message
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_MASK, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG


def expected(store: MessageStore, query: SearchQuery) -> list[int]:
    """Physical offsets of the answer, in its order, message by message from the log."""
    found = []
    for start, records, alive in store.scan(store.min_offset, store.visible_offset):
        for i in range(len(records)):
            at = start + int(records.positions[i])
            if (alive is None or alive[i]) and _is_sound(store, at) and _answers(records.message(i), query):
                found.append(at)
    return sorted(found, reverse=query.newest_first)


def _is_sound(store: MessageStore, physical_offset: int) -> bool:
    try:
        return store.record_at(PhysicalOffset(physical_offset)) is not None
    except TroveError:
        return False


def _answers(message: Message, query: SearchQuery) -> bool:
    return (
        message.topic == query.topic
        and query.begin <= message.store_timestamp <= query.end
        and message.sys_flag & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_TRANSACTION_ROLLBACK
        and _meets(message, query.where)
    )


def _meets(message: Message, condition: Condition) -> bool:
    if not isinstance(condition, Has):
        met = [_meets(message, part) for part in condition.parts]
        return all(met) if type(condition).__name__ == "AllOf" else any(met)
    match condition.kind:
        case kind if kind == KEY:
            values = [key for key in message.properties.get("KEYS", "").split(" ") if key]
        case kind if kind == TAG:
            values = [message.properties.get("TAGS", "")]
        case kind if kind == PROPERTY:
            values = [message.properties.get(condition.name, "")]
        case _:
            values = [message.properties.get("UNIQ_KEY", "")]
    wanted = condition.value.decode()
    return any(
        value.startswith(wanted) if condition.is_prefix else value == wanted for value in values if value
    )


def answered(store: MessageStore, query: SearchQuery, page_size: int = 0) -> list[int]:
    """The physical offsets of all pages; every page keeps its promises."""
    found: list[int] = []
    cursor = ""
    while True:
        page = search_page(store, query, messages_max=page_size, cursor=cursor)
        found += page.physical_offsets
        _check_page(page, page_size)
        if page.complete:
            return found
        assert page.cursor != cursor, "every page gets on"
        cursor = page.cursor


def _check_page(page: SearchPage, page_size: int) -> None:
    assert len(page.records) == len(page.queue_offsets) == len(page.physical_offsets)
    assert not page_size or len(page.records) <= page_size
    assert page.complete == (not page.cursor)
