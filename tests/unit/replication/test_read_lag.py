"""The lag of a follower's readers against a model that knows when each end of the log could be read."""

from __future__ import annotations

import random

import pytest

from trovemq_broker.replication.read_lag import QUICKEST_MS, ReaderLag, ReadLag, check_lag
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

LEADER_CLOCK = 1_000_000
"""The leader's clock minus the follower's."""


def heard(lag: ReadLag, commit: int, sent_ms: int, visible: int, now_ms: int) -> None:
    lag.heard(PhysicalOffset(commit), sent_ms + LEADER_CLOCK, PhysicalOffset(visible), now_ms)


def now(lag: ReadLag, visible: int, now_ms: int) -> ReaderLag:
    return lag.lag(PhysicalOffset(visible), now_ms)


@pytest.mark.parametrize("seed", range(60))
def test_the_lag_is_never_shorter_than_it_is(seed: int) -> None:
    """The quickest heartbeat takes 3 ms, others are late, also many at once after a pause."""
    chance = random.Random(seed)
    lag, commits, visible = ReadLag(), [(0, 0)], 0
    under_way: list[tuple[int, int, int]] = [(3, 0, 0)]
    for at_ms in range(1, 4_000):
        if chance.random() < 0.05:
            commits.append((at_ms, commits[-1][1] + chance.randrange(1, 500)))
        if at_ms % 100 == 0:
            delay = 3 if chance.random() < 0.3 else chance.randrange(3, 900)
            arrives = max(at_ms + delay, under_way[-1][0] if under_way else 0)
            under_way.append((arrives, commits[-1][1], at_ms))
        while under_way and under_way[0][0] <= at_ms:
            _, commit, sent_ms = under_way.pop(0)
            if chance.random() < 0.5:
                visible = max(visible, commit)
            heard(lag, commit, sent_ms, visible, at_ms)
        if chance.random() < 0.004:
            visible = max(visible, 0, *(end for when, end in commits if when <= at_ms - 3))
        since = next((when for when, end in commits if end > visible), at_ms)
        found = now(lag, visible, at_ms)
        assert found.ms is None or found.ms >= at_ms - since - 3, at_ms
        assert found.size is None or found.size <= commits[-1][1] - visible


def test_a_follower_that_sees_all_is_as_old_as_its_last_heartbeat() -> None:
    lag = ReadLag()
    assert now(lag, 0, 5) == ReaderLag(None, None)
    heard(lag, 100, 10, 100, 13)
    assert now(lag, 100, 13) == ReaderLag(0, 0)
    heard(lag, 300, 510, 100, 513)
    assert now(lag, 100, 600) == ReaderLag(200, 587)
    assert now(lag, 300, 600) == ReaderLag(0, 87), "its readers see all that the last heartbeat named"


def test_a_follower_that_lags_counts_from_the_last_end_that_it_had() -> None:
    lag = ReadLag()
    for number in range(10):
        heard(lag, 100 * number, 500 * number, 0, 500 * number + 3)
    assert now(lag, 0, 5_003) == ReaderLag(900, 5_000)
    assert now(lag, 100, 5_003) == ReaderLag(800, 4_500)
    assert now(lag, 900, 5_003) == ReaderLag(0, 500)


def test_a_lost_leader_makes_the_lag_grow() -> None:
    lag = ReadLag()
    heard(lag, 100, 0, 100, 3)
    lag.new_stream()
    assert now(lag, 100, 60_003) == ReaderLag(0, 60_000)


def test_heartbeats_that_lay_in_a_buffer_made_the_lag_nothing() -> None:
    """A stopped process reads old heartbeats when it wakes."""
    lag = ReadLag()
    heard(lag, 100, 0, 100, 3)
    heard(lag, 100, 500, 100, 30_003)
    assert now(lag, 100, 30_003) == ReaderLag(0, 29_500)


def test_a_drift_of_the_clocks_is_forgotten() -> None:
    """The leader's clock is slower by one millisecond in a second."""
    lag, sent_ms = ReadLag(), 0
    for at_ms in range(0, 20 * QUICKEST_MS, 500):
        sent_ms = at_ms - at_ms // 1_000
        heard(lag, 0, sent_ms, 0, at_ms)
    found = now(lag, 0, 20 * QUICKEST_MS - 500)
    assert found.ms is not None
    assert found.ms <= 2 * QUICKEST_MS // 1_000


def test_a_request_bears_a_lag_or_is_refused() -> None:
    check_lag(ReaderLag(5, 100), 100)
    check_lag(ReaderLag(None, None), 0)
    with pytest.raises(TroveError, match="a lag of 101 ms; max_lag_ms is 100") as refused:
        check_lag(ReaderLag(5, 101), 100)
    assert refused.value.symbol == "REPLICA_LAG_EXCEEDED"
    assert (refused.value.fields["lag_ms"], refused.value.fields["lag_bytes"]) == ("101", "5")
    with pytest.raises(TroveError, match="REPLICA_LAG_EXCEEDED"):
        check_lag(ReaderLag(5, None), 1 << 40)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        check_lag(ReaderLag(0, 0), -1)
