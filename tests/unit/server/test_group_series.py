"""10,000 groups made a scrape of 14 MB: each family has a bounded number of series, and loses no number."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, send
from tests.support.metrics_bench import Bench
from trovemq_broker.groups.lag.backlog import GroupBacklog
from trovemq_broker.groups.lag.stored import ConsumerLag
from trovemq_broker.server.monitoring import group_series
from trovemq_broker.server.monitoring.group_series import OTHERS, backlogs_together, bounded, lags_together
from trovemq_proto.positions import QueueId, QueueOffset

KEYS = st.tuples(st.text("abc", max_size=2), st.text("t", min_size=1, max_size=2))
TABLES = st.dictionaries(KEYS, st.integers(0, 5), max_size=12)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@given(TABLES, st.integers(1, 6))
def test_the_largest_have_their_own_series_and_the_sum_stays(
    table: dict[tuple[str, str], int], most: int
) -> None:
    shown = bounded(table, int, sum, most)
    assert sum(shown.values()) == sum(table.values())
    assert len(shown) == min(len(table), most + 1)
    own = {key: value for key, value in shown.items() if key != (OTHERS, OTHERS)}
    assert own.items() <= table.items()
    left_out = [value for key, value in table.items() if key not in own]
    assert not left_out or max(left_out) <= min(own.values())


def test_of_equal_ones_the_first_are_shown() -> None:
    table = {(f"g{number}", "t"): 0 for number in range(5)}
    assert list(bounded(table, int, sum, 2)) == [("g0", "t"), ("g1", "t"), (OTHERS, OTHERS)]


def test_the_oldest_message_of_the_others_is_theirs() -> None:
    lags = [ConsumerLag(2, 30), ConsumerLag(3, 20), ConsumerLag(0, None)]
    assert lags_together(lags) == ConsumerLag(5, 20)
    assert lags_together([ConsumerLag()]) == ConsumerLag()
    joined = backlogs_together([GroupBacklog(1, 2, 30), GroupBacklog(3, 4), GroupBacklog(0, 0, 9)])
    assert joined == GroupBacklog(4, 6, 9)


@pytest.mark.asyncio
async def test_a_scrape_with_many_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_series.bounded, "__defaults__", (3,))
    bench.now_ms = NOW_MS + 1_000
    for number in range(4):
        send(bench.store, b"x", now_ms=NOW_MS + number)
    for number in range(20):
        offset = QueueOffset(0 if number == 11 else 3)
        bench.store.offsets.commit(f"app-{number:02}", "orders", QueueId(0), offset)
    name = "rocketmq_consumer_lag_messages"
    assert bench.value(name, consumer_group="app-11") == 4
    assert bench.value(name, consumer_group="app-00") == bench.value(name, consumer_group="app-01") == 1
    assert bench.value(name, consumer_group=OTHERS, topic=OTHERS) == 17
    assert len(bench.values(name)) == 4
    assert bench.value("rocketmq_consumer_lag_latency", consumer_group=OTHERS) == 997
