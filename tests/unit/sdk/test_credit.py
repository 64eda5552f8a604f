"""Credit between an inbox and its broker, with messages in transit: no message too many, and no drift."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq._consume.credit import CREDIT_SHARE, Credit
from trovemq_broker.server.native import batch_delivery

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["asks", "frame", "sends", "batch", "takes", "returns", "holds", "joined"]),
        st.integers(1, 60),
    ),
    max_size=120,
)


class Pair:
    """A client's credit and its broker's, with the frames and batches that are on their way."""

    def __init__(self, hold: int) -> None:
        self.inbox = SimpleNamespace(count_max=hold, count=0, bytes_max=1 << 40, size=0)
        inbox: Any = self.inbox
        self.credit = Credit(inbox)
        self.largest = hold
        self.broker = 0
        self.frames: deque[int] = deque()
        self.batches: deque[int] = deque()

    def do(self, step: str, count: int) -> None:
        getattr(self, step)(count)
        held = self.inbox.count + sum(self.batches)
        assert held + max(self.broker, 0) <= self.largest, "as much as was ever allowed"
        assert self.credit._messages == self.broker + sum(self.frames) + sum(self.batches)

    # --- the client -----------------------------------------------------------------------------------
    def asks(self, _count: int = 0) -> bool:
        messages, _ = self.credit.next()
        assert messages >= 0 or self.credit.may_shrink
        if messages:
            self.frames.append(messages)
        return messages != 0

    def takes(self, count: int) -> None:
        self.inbox.count -= min(count, self.inbox.count)

    def returns(self, _count: int = 0) -> None:
        self.inbox.count = min(self.inbox.count, self.inbox.count_max)

    def holds(self, count: int) -> None:
        self.inbox.count_max = count
        self.largest = max(self.largest, count)

    def joined(self, _count: int) -> None:
        self.credit.may_shrink = True

    # --- the broker -----------------------------------------------------------------------------------
    def frame(self, _count: int = 0) -> None:
        if self.frames:
            self.broker += self.frames.popleft()

    def sends(self, count: int) -> None:
        count = min(count, self.broker)
        if count > 0:
            self.broker -= count
            self.batches.append(count)

    def batch(self, _count: int = 0) -> None:
        if self.batches:
            count = self.batches.popleft()
            self.credit.used(count, 0)
            self.inbox.count += count

    def settle(self) -> None:
        """Everything arrives, and the client asks until it has nothing to say."""
        while True:
            while self.frames:
                self.frame()
            while self.batches:
                self.batch()
            self.returns()
            if not self.asks():
                return


@given(st.integers(1, 60), STEPS)
def test_credit_never_drifts_however_late_frames_and_batches_are(
    hold: int, steps: list[tuple[str, int]]
) -> None:
    pair = Pair(hold)
    for step, count in steps:
        pair.do(step, count)
    pair.settle()
    assert pair.credit._messages == pair.broker
    share = max(1, pair.inbox.count_max // CREDIT_SHARE)
    allowed = pair.inbox.count_max + share - 1
    if pair.credit.may_shrink:
        assert pair.inbox.count + pair.broker <= allowed
    pair.inbox.count = 0
    pair.settle()
    assert pair.broker > pair.inbox.count_max - share, "the program gets messages again"


@given(st.integers(1, 60), STEPS)
def test_a_broker_that_said_nothing_gets_no_negative_credit(hold: int, steps: list[tuple[str, int]]) -> None:
    pair = Pair(hold)
    for step, count in steps:
        if step != "joined":
            pair.do(step, count)
            assert all(messages > 0 for messages in pair.frames)


def test_credit_on_its_way_that_is_taken_back_counts_below_zero() -> None:
    pair = Pair(40)
    pair.asks()
    pair.frame()
    pair.sends(30)
    pair.joined(0)
    pair.holds(4)
    pair.asks()  # it does not know of the 30 that are on their way
    pair.frame()
    assert (pair.broker, pair.credit._messages) == (-26, 4)
    pair.batch()
    assert pair.credit._messages == -26
    pair.inbox.count = 0
    pair.asks()
    pair.frame()
    assert (pair.broker, pair.credit._messages) == (4, 4)


def test_a_new_stream_takes_nothing_back_before_its_broker_has_said_so() -> None:
    pair = Pair(40)
    pair.joined(0)
    pair.asks()
    pair.credit.restart()
    pair.asks()
    pair.holds(4)
    assert not pair.asks()


@pytest.mark.parametrize(
    ("count_max", "bytes_max"), [(1_000_000, 1 << 40), (10, 4 << 30), (1_000_000, 4 << 30)]
)
def test_a_large_prefetch_got_no_messages_after_the_first_ones(count_max: int, bytes_max: int) -> None:
    """A broker counts no more credit than its limits, and the client waited for the rest of its count."""
    inbox: Any = SimpleNamespace(count_max=count_max, count=0, bytes_max=bytes_max, size=0)
    credit, messages, byte_count = Credit(inbox), 0, 0
    for _ in range(200):
        more = credit.next()
        messages = min(messages + more[0], batch_delivery.CREDIT_MESSAGES_MAX)
        byte_count = min(byte_count + more[1], batch_delivery.CREDIT_BYTES_MAX)
        assert messages > 0, "the broker may send"
        assert byte_count > 0
        count = min(messages, 10_000)
        size = min(byte_count, 10_000_000)
        credit.used(count, size)  # and the program takes them at once
        messages, byte_count = messages - count, byte_count - size
        assert (credit._messages, credit._bytes) == (messages, byte_count)


def test_a_new_stream_of_a_broker_got_no_credit() -> None:
    """The credit of the broken stream counted for the new one."""
    pair = Pair(8)
    assert pair.credit.next()[0] == 8
    assert pair.credit.next()[0] == 0
    pair.credit.restart()
    assert pair.credit.next()[0] == 8
