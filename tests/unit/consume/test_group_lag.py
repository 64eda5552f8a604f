"""A group's lag against a plain count, and the bounds of the work that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, open_store, record, send
from trovemq_broker.filters.filter import TAKE_ALL, Filter, parse_filter
from trovemq_broker.groups.delivery.request import QueueProgress
from trovemq_broker.groups.lag import filtered
from trovemq_broker.groups.lag.filtered import GroupLags, Position, QueueLag, Work, queue_lag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem

PAID = parse_filter("tag", "paid || sent")
DEAR = parse_filter("sql", "price > 100")


def lag_of(
    store: MessageStore,
    position: Position,
    filters: Sequence[Filter] = (),
    work: Work | None = None,
    now_ms: EpochMs = NOW_MS,
) -> QueueLag:
    steps = queue_lag(store, "orders", QueueId(0), position, filters, now_ms, work or Work())
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: QueueLag = stop.value
            return result


def filled(tags: Sequence[str]) -> MessageStore:
    store = open_store(MemoryFileSystem())
    for number, tag in enumerate(tags):
        send(store, b"x", NOW_MS + number, tag=tag, properties={"price": str(number * 10)})
    return store


def test_without_a_filter_everything_from_the_next_offset_counts() -> None:
    store = filled(["a"] * 10)
    lag = lag_of(store, Position(QueueOffset(4), QueueOffset(6), 1), now_ms=NOW_MS + 1_000)
    assert (lag.min_offset, lag.max_offset, lag.lag, lag.estimated) == (0, 10, 5, False)
    assert lag.lag_ms == 1_000 - 4  # the oldest is the one in flight


def test_held_messages_of_an_orderly_group_count() -> None:
    lag = lag_of(filled(["a"] * 10), Position(QueueOffset(4), QueueOffset(9), 1, held=3), now_ms=NOW_MS + 50)
    assert (lag.lag, lag.lag_ms) == (1 + 3 + 1, 46)


def test_a_group_at_the_end_has_no_lag_and_no_age() -> None:
    lag = lag_of(filled(["a"] * 3), Position(QueueOffset(3), QueueOffset(3)), now_ms=NOW_MS + 99)
    assert (lag.lag, lag.lag_ms) == (0, 0)


def test_a_queue_without_messages_has_no_lag() -> None:
    store = open_store(MemoryFileSystem())
    assert lag_of(store, Position(None, QueueOffset(0))).lag == 0


def test_a_tag_that_the_filter_drops_is_not_counted() -> None:
    lag = lag_of(
        filled(["a", "b", "paid", "a", "sent"]),
        Position(QueueOffset(0), QueueOffset(0)),
        [PAID],
        now_ms=NOW_MS + 100,
    )
    assert (lag.lag, lag.lag_ms, lag.estimated) == (2, 98, False)


def test_an_sql_filter_reads_properties() -> None:
    lag = lag_of(filled(["a"] * 15), Position(QueueOffset(3), QueueOffset(3)), [DEAR], now_ms=NOW_MS + 100)
    assert (lag.lag, lag.lag_ms, lag.estimated) == (4, 100 - 11, False)  # prices 110 to 140


def test_a_member_that_takes_all_makes_all_count() -> None:
    assert lag_of(filled(["a", "paid"]), Position(QueueOffset(0), QueueOffset(0)), [PAID, TAKE_ALL]).lag == 2


def test_members_with_different_filters_count_together() -> None:
    assert (
        lag_of(filled(["a"] * 11 + ["paid", "a"]), Position(QueueOffset(0), QueueOffset(0)), [PAID, DEAR]).lag
        == 2
    )


@given(
    tags=st.lists(st.sampled_from(["paid", "sent", "new", ""]), max_size=40),
    begin=st.integers(0, 45),
    units=st.integers(0, 50),
)
def test_what_fits_the_work_is_exact_and_the_rest_is_marked(tags: list[str], begin: int, units: int) -> None:
    store = filled(tags)
    lag = lag_of(store, Position(QueueOffset(begin), QueueOffset(begin)), [PAID], Work(units_remaining=units))
    rest = tags[begin:]
    if units >= len(rest):
        assert (lag.lag, lag.estimated) == (sum(tag in ("paid", "sent") for tag in rest), False)
    else:
        seen = sum(tag in ("paid", "sent") for tag in rest[:units])
        expected = round(seen * len(rest) / units) if units else len(rest)
        assert (lag.lag, lag.estimated) == (expected, True)


def test_work_is_shared_by_all_queues_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered, "RECORDS_STEP", 4)
    store, work = filled(["a"] * 30), Work(records_remaining=20)
    first = lag_of(store, Position(QueueOffset(20), QueueOffset(20)), [DEAR], work)
    second = lag_of(store, Position(QueueOffset(0), QueueOffset(0)), [DEAR], work)
    assert (first.lag, first.estimated) == (10, False)
    assert second.estimated
    assert work.records_remaining == 0


def test_an_answer_yields_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered, "RECORDS_STEP", 4)
    steps = queue_lag(
        filled(["a"] * 30),
        "orders",
        QueueId(0),
        Position(QueueOffset(0), QueueOffset(0)),
        [DEAR],
        NOW_MS,
        Work(),
    )
    assert sum(1 for _ in steps) == 8


# --- of a whole group ---------------------------------------------------------------------------------
def lags_of(
    store: MessageStore, topics: Sequence[str], progress: Any = lambda *_: [], **delayed: int
) -> list[QueueLag]:
    lags = GroupLags(store, progress, lambda *_: [PAID], lambda topic: delayed.get(topic, 0))
    steps = lags.steps("g", topics, NOW_MS)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: list[QueueLag] = stop.value
            return result


def test_a_group_without_delivery_state_stands_where_its_offsets_say() -> None:
    store = filled(["paid"] * 5)
    store.offsets.commit("g", "orders", QueueId(0), QueueOffset(2))
    first, second, *_ = lags_of(store, ["orders"])
    assert (first.queue_id, first.position, first.lag) == (0, Position(QueueOffset(2), QueueOffset(2)), 3)
    assert (second.queue_id, second.position) == (1, Position(None, QueueOffset(0)))


def test_what_delivery_says_counts_before_the_stored_offset() -> None:
    store = filled(["paid"] * 5)
    store.offsets.commit("g", "orders", QueueId(0), QueueOffset(1))
    lags = lags_of(
        store, ["orders"], lambda *_: [QueueProgress(QueueId(0), QueueOffset(1), QueueOffset(4), 2)]
    )
    assert (lags[0].position, lags[0].lag) == (Position(QueueOffset(1), QueueOffset(4), 2), 3)


def test_retry_topics_have_rows_of_their_own_and_no_filter() -> None:
    store = filled(["new"])
    store.topics.ensure_internal("%RETRY%g_orders", 1)
    append(store, record(b"again", topic="%RETRY%g_orders", tag="new"), topic="%RETRY%g_orders")
    store.dispatch()
    rows = [(lag.topic, lag.queue_id, lag.lag) for lag in lags_of(store, ["orders"])]
    assert rows == [*(("orders", number, 0) for number in range(4)), ("%RETRY%g_orders", 0, 1)]


def test_messages_that_were_returned_are_not_in_flight() -> None:
    store = filled(["paid"] * 5)
    (lag, *_) = lags_of(
        store,
        ["orders"],
        lambda *_: [QueueProgress(QueueId(0), QueueOffset(1), QueueOffset(4), 3, visible_count=2)],
    )
    assert (lag.position.in_flight, lag.position.held, lag.lag) == (1, 2, 4)


def test_what_is_delayed_until_its_retry_counts() -> None:
    store = filled(["new"])
    store.topics.ensure_internal("%RETRY%g_orders", 1)
    delayed = {"%RETRY%g_orders": 2}
    (*_, lag) = lags_of(store, ["orders"], **delayed)
    assert (lag.topic, lag.queue_id, lag.lag, lag.position.in_flight) == ("%RETRY%g_orders", 0, 2, 2)
    append(store, record(b"again", topic="%RETRY%g_orders", tag="new"), topic="%RETRY%g_orders")
    store.dispatch()
    (*_, lag) = lags_of(store, ["orders"], **delayed)
    assert (lag.lag, lag.position.in_flight) == (3, 2)


def test_a_topic_that_is_not_here_is_an_error() -> None:
    with pytest.raises(TroveError) as caught:
        lags_of(open_store(MemoryFileSystem()), ["nothing"])
    assert caught.value.spec is errors.TOPIC_NOT_FOUND


def test_too_many_queues_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered, "QUEUES_MAX", 3)
    with pytest.raises(TroveError) as caught:
        lags_of(filled(["a"]), ["orders"])
    assert caught.value.spec is errors.LIMIT_EXCEEDED


def test_a_lag_by_properties_read_256_large_messages_in_one_step() -> None:
    """A step ends by bytes too: 256 messages of 30 KiB of properties took half a second."""
    store = open_store(MemoryFileSystem(), replace(SMALL, commit_log_file_size=1 << 24))
    properties = {f"p{number:x}": "v" for number in range(4_500)}
    for _ in range(32):
        send(store, b"x", properties=properties)
    taken = [parse_filter("sql", "p1 = 'w'")]
    steps = queue_lag(store, "orders", QueueId(0), Position(None, QueueOffset(0)), taken, NOW_MS, Work())
    assert sum(1 for _ in steps) >= 10
