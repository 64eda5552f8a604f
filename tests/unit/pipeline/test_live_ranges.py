"""How offsets are shared out and split, and which ranges conditions rule out: against plain references."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.sources.live_admission import Delay, share
from trovemq_spark.sources.live_batch import tags_of
from trovemq_spark.sources.live_client import Span
from trovemq_spark.sources.live_pushdown import Bounds
from trovemq_spark.sources.live_ranges import QueueRange, ranges_between, split_ranges, within
from trovemq_spark.sources.live_report import _end_offsets
from trovemq_spark.sources.offsets import Queue

QUEUE = Queue("t", "b", 0)
QUEUES = [Queue(topic, broker, number) for topic in "tu" for broker in "bc" for number in range(3)]


@given(backlogs=st.dictionaries(st.integers(0, 9), st.integers(0, 1 << 40)), limit=st.integers(1, 1 << 41))
def test_shares_are_in_proportion_and_starve_no_queue(backlogs: dict[int, int], limit: int) -> None:
    taken = share(backlogs, limit)
    present = {key: size for key, size in backlogs.items() if size}
    assert taken.keys() == present.keys()
    assert all(1 <= taken[key] <= size for key, size in present.items())
    total = sum(present.values())
    assert sum(taken.values()) <= max(limit, len(present))
    if total <= limit:
        assert taken == present
    else:
        assert sum(taken.values()) > limit - 2 * len(present), "nearly all of the allowed number"
        assert all(
            abs(taken[key] - limit * size / total) <= 2 + len(present) for key, size in present.items()
        )


@given(
    parts=st.dictionaries(st.sampled_from(QUEUES), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    count_min=st.one_of(st.none(), st.integers(1, 500)),
)
def test_split_ranges_hold_the_same_offsets(
    parts: dict[Queue, tuple[int, int]], count_min: int | None
) -> None:
    starts = {queue: start for queue, (start, _) in parts.items()}
    ranges = ranges_between(starts, {queue: end for queue, (_, end) in parts.items()})
    wanted = [(queue, n) for queue in sorted(parts) for n in range(*parts[queue])]
    split = split_ranges(ranges, count_min)
    assert [(part.queue, n) for part in split for n in range(part.start, part.end)] == wanted
    assert all(part.size for part in split)
    assert len(split) >= min(count_min or 0, len(wanted))
    assert len(split) <= max(len(ranges), (count_min or 0) + len(ranges))


def test_a_queue_that_one_side_does_not_name_has_no_range() -> None:
    assert ranges_between({}, {QUEUE: 5}) == []
    assert ranges_between({QUEUE: 5}, {}) == []


@pytest.mark.parametrize(("wanted", "nearest"), [(4, 5), (9, 8)])
def test_offsets_out_of_range_are_lost_or_skipped(wanted: int, nearest: int) -> None:
    span = Span(5, 8)
    assert within(QUEUE, wanted, span, fail=False) == nearest
    with pytest.raises(TroveError, match=f"topic t, broker b, queue 0: offset {wanted} .* 5") as lost:
        within(QUEUE, wanted, span, fail=True)
    assert lost.value.spec is errors.DATA_LOST
    assert [within(QUEUE, offset, span, fail=True) for offset in (5, 8)] == [5, 8]


def test_a_batch_waits_for_rows_until_its_time_is_over() -> None:
    now = 0.0
    delay = Delay(10, 1000, lambda: now)
    assert not delay.holds(1), "the first does not wait"
    assert delay.holds(9)
    assert not delay.holds(10)
    now = 0.999
    assert delay.holds(9)
    now = 1.0
    assert not delay.holds(0)
    assert delay.holds(0), "a new wait began"


COLUMNS: dict[str, list[Any]] = {
    "topic": ["t", "u", "v"],
    "brokerName": ["b", "c"],
    "queueId": [0, 1, 2],
    "queueOffset": list(range(8)),
}
CONDITIONS = st.sampled_from(sorted(COLUMNS)).flatmap(
    lambda column: st.one_of(
        st.builds(
            lambda kind, value: kind((column,), value),
            st.sampled_from([EqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]),
            st.sampled_from(COLUMNS[column]),
        ),
        st.builds(lambda values: In((column,), tuple(values)), st.sets(st.sampled_from(COLUMNS[column]))),
        st.builds(lambda value: Not(EqualTo((column,), value)), st.sampled_from(COLUMNS[column])),
    )
)


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    if isinstance(condition, Not):
        return not holds(condition.child, row)
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    wanted = condition.value  # type: ignore[attr-defined]
    if isinstance(condition, In):
        return value in wanted
    if isinstance(condition, EqualTo):
        return bool(value == wanted)
    if isinstance(condition, LessThan | LessThanOrEqual):
        return bool(value < wanted or (value == wanted and isinstance(condition, LessThanOrEqual)))
    return bool(value > wanted or (value == wanted and isinstance(condition, GreaterThanOrEqual)))


@given(conditions=st.lists(CONDITIONS, max_size=4))
def test_conditions_rule_out_no_row_that_they_allow(conditions: list[Filter]) -> None:
    bounds = Bounds()
    bounds.add(conditions)
    allowed = set(bounds.queues(QUEUES))
    low = bounds.offset_min if bounds.offset_min is not None else 0
    high = bounds.offset_max if bounds.offset_max is not None else 8
    for queue in QUEUES[::2]:
        for offset in range(8):
            row = {
                "topic": queue.topic,
                "brokerName": queue.broker,
                "queueId": queue.queue_id,
                "queueOffset": offset,
            }
            if all(holds(condition, row) for condition in conditions):
                assert queue in allowed
                assert low <= offset <= high


def test_times_are_rounded_outwards_to_milliseconds() -> None:
    time = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    bounds = Bounds()
    bounds.add([GreaterThan(("storeTimestamp",), time), LessThan(("storeTimestamp",), time)])
    milliseconds = int(time.timestamp()) * 1000
    assert (bounds.stored_min_ms, bounds.stored_max_ms) == (milliseconds + 678, milliseconds + 679)
    naive = Bounds()
    naive.add([GreaterThan(("storeTimestamp",), time.replace(tzinfo=None))])
    assert naive.stored_min_ms is None


def test_tags_of_an_expression() -> None:
    assert tags_of(" * ") == ()
    assert tags_of("a||b || c d") == ("a", "b", "c d")
    for wrong in ("a ||", "||", "  "):
        with pytest.raises(TroveError, match="subExpression"):
            tags_of(wrong)


def test_tags_of_conditions_are_asked_for_where_the_broker_knows_them() -> None:
    def asked(condition: Filter, *wanted: str) -> tuple[str, ...] | None:
        bounds = Bounds()
        bounds.add([condition])
        return bounds.tags(wanted)

    assert asked(In(("tags",), ("b", "a"))) == ("a", "b")
    assert asked(EqualTo(("tags",), "a"), "a", "c") == ("a",)
    assert asked(EqualTo(("tags",), "a"), "c") is None
    assert asked(EqualTo(("tags",), "a|b"), "c") == ("c",)
    assert asked(In(("tags",), tuple(f"t{i}" for i in range(65)))) == ()


def test_a_report_commits_this_querys_offsets_and_skips_others() -> None:
    ours = '{"t": {"b": {"0": 7}}}'
    assert _end_offsets([ours, None, "12", '{"t": {"0": 7}}', {"u": {"b": {"1": 1}}}]) == {
        QUEUE: 7,
        Queue("u", "b", 1): 1,
    }


def test_a_range_pickles() -> None:
    import pickle

    part = QueueRange(QUEUE, 3, 9)
    assert pickle.loads(pickle.dumps(part)) == part
