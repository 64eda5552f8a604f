"""The rate of a copy that catches up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.unit.replication.test_leader import EPOCHS, Group
from trovemq_broker.replication import leader as leader_module
from trovemq_broker.replication.frames import Data, Identity
from trovemq_broker.replication.leader import CATCH_UP_AHEAD_MS, Send

A, B, C = (Identity(name, f"store of {name}", 0) for name in "abc")
WINDOW = 2_000
RATE = 10_000
FRAME = 500


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """Leader a and follower b, which has all, and 100,000 bytes that c lacks."""
    monkeypatch.setattr(leader_module, "WINDOW_BYTES", WINDOW)
    for name in ("SENT_BYTES_MAX", "CATCH_UP_BYTES_MAX"):
        monkeypatch.setattr(leader_module, name, FRAME)
    made = Group(A, B)
    made.leader.settings = replace(made.leader.settings, catch_up_bytes_per_s=RATE)
    made.hello(1, B)
    made.report(1, 110, version=5)
    for _ in range(200):
        made.report(1, made.append(FRAME), version=5)
    return made


def sent(group: Group, stream: int) -> int:
    """Bytes of the log that went to that stream."""
    return sum(
        len(one.frame.data)
        for one in group.actions
        if isinstance(one, Send) and one.stream == stream and isinstance(one.frame, Data)
    )


def follow(group: Group, until_ms: int) -> list[tuple[int, int]]:
    """`c` reports all data at once, and the leader ticks when it asks for it. Returns (time, bytes sent
    so far) after each tick."""
    now_ms, done = 0, list[tuple[int, int]]()
    group.hello(2, C, end=100)
    while now_ms < until_ms:
        group.report(2, 100 + sent(group, 2), now_ms=now_ms)
        now_ms = max(now_ms + 1, min(group.leader.next_tick_ms, until_ms))
        group.take(group.leader.tick(now_ms), now_ms)
        done.append((now_ms, sent(group, 2)))
    return done


def test_a_copy_that_catches_up_gets_its_rate_and_not_more(group: Group) -> None:
    found = follow(group, 5_000)
    for now_ms, size in found:
        assert size <= RATE * (now_ms + CATCH_UP_AHEAD_MS) / 1_000 + FRAME
    assert found[-1][1] >= RATE * 5 * 0.9


def test_a_copy_of_the_set_that_lags_is_never_held(group: Group) -> None:
    follow(group, 1_000)
    group.take(group.leader.closed(1, 1_000), 1_000)
    assert B in group.leader.in_sync.counted
    before = sent(group, 1)
    group.hello(1, B, end=110, now_ms=1_000, epochs=EPOCHS)
    while 110 + sent(group, 1) - before < group.log.end:
        at = sent(group, 1)
        group.report(1, 110 + at - before, now_ms=1_000)
        assert sent(group, 1) > at, "at once"


def test_the_last_window_is_sent_without_a_limit(group: Group) -> None:
    follow(group, 10_300)
    assert 100 + sent(group, 2) >= group.log.end - WINDOW
    group.report(2, 100 + sent(group, 2), now_ms=10_300)
    while 100 + sent(group, 2) < group.log.end:
        before = sent(group, 2)
        group.report(2, 100 + before, now_ms=10_300)
        assert sent(group, 2) > before, "at once"


def test_without_a_limit_the_window_alone_counts(group: Group) -> None:
    group.leader.settings = replace(group.leader.settings, catch_up_bytes_per_s=0)
    group.hello(2, C, end=100)
    while 100 + sent(group, 2) < group.log.end:
        group.report(2, 100 + sent(group, 2))
    assert group.leader.next_tick_ms == 0


def test_a_copy_that_is_far_behind_gets_one_frame_at_a_time(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers are served between two frames; the window is filled all the same."""
    monkeypatch.setattr(leader_module, "CATCH_UP_BYTES_MAX", FRAME // 2)
    group.leader.settings = replace(group.leader.settings, catch_up_bytes_per_s=0)
    group.take(group.leader.tick(1), 1)
    group.hello(2, C, end=100, now_ms=1)
    sizes = [sent(group, 2)]
    while sizes[-1] < WINDOW:
        assert group.leader.next_tick_ms <= 1, "the next frame is due"
        group.take(group.leader.tick(1), 1)
        sizes.append(sent(group, 2))
    assert max(after - before for before, after in pairwise([0, *sizes])) <= FRAME
    assert group.leader.next_tick_ms > 1, "it waits for a report"
