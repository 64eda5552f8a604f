"""The queue of frames to one follower."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from trovemq_broker.replica_streams.outgoing import Outgoing
from trovemq_broker.replication.frames import (
    SENT_BYTES_MAX,
    Data,
    Heartbeat,
    Identity,
    InSyncSet,
    LeaderFrame,
    Offset,
    Welcome,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_store.replica.epochs import Epochs

SET = InSyncSet(1, 1, frozenset((Identity("a", "s", 0),)))
WELCOME = Welcome(1, Epochs(), LOG_ORIGIN, LOG_ORIGIN, LOG_ORIGIN, LOG_ORIGIN)


def data(offset: int, size: int, blank: int = 0, commit: int = 0) -> Data:
    content = bytes([offset % 251]) * size
    return Data(1, Offset(offset), Offset(commit), content, zlib.crc32(content), blank)


def heartbeat(end: int) -> Heartbeat:
    return Heartbeat(1, LOG_ORIGIN, Offset(end), end, SET)


def sent(outgoing: Outgoing) -> list[LeaderFrame]:
    frames: list[LeaderFrame] = []
    while len(outgoing):
        frames.append(asyncio.run(outgoing.next()))
    return frames


def test_only_the_newest_heartbeat_waits() -> None:
    outgoing = Outgoing(10, LOG_ORIGIN)
    outgoing.put(WELCOME)
    for end in range(1_000):
        outgoing.put(heartbeat(end))
    assert len(outgoing) == 2
    assert sent(outgoing) == [WELCOME, heartbeat(999)]


def test_a_heartbeat_goes_between_two_frames_of_the_log() -> None:
    outgoing = Outgoing(10, Offset(1_000))
    outgoing.put(data(0, 10))
    outgoing.put(heartbeat(1))
    outgoing.put(data(10, 10))
    outgoing.put(data(20, 10))
    assert sent(outgoing) == [data(0, 10), heartbeat(1), data(10, 10), data(20, 10)]


def test_small_frames_that_wait_become_one() -> None:
    outgoing = Outgoing(10, LOG_ORIGIN)
    for offset in (0, 10, 20):
        outgoing.put(data(offset, 10, commit=offset))
    outgoing.put(data(30, 10, blank=60, commit=30))
    outgoing.put(data(100, 10))
    first, second = sent(outgoing)
    joined = b"".join(data(offset, 10).data for offset in (0, 10, 20, 30))
    assert first == Data(1, LOG_ORIGIN, Offset(30), joined, zlib.crc32(joined), 60)
    assert second == data(100, 10)


def test_frames_of_earlier_epochs_stay_apart() -> None:
    outgoing = Outgoing(10, Offset(20))
    for offset in (0, 10, 20, 30):
        outgoing.put(data(offset, 10))
    assert [len(frame.data) for frame in sent(outgoing) if isinstance(frame, Data)] == [10, 10, 20]


def test_a_joined_frame_is_no_larger_than_a_frame() -> None:
    outgoing = Outgoing(10, LOG_ORIGIN)
    half = SENT_BYTES_MAX // 2
    for number in range(3):
        outgoing.put(data(number * half, half))
    sizes = [len(frame.data) for frame in sent(outgoing) if isinstance(frame, Data)]
    assert sizes == [SENT_BYTES_MAX, half]


def test_too_many_frames_are_refused() -> None:
    outgoing = Outgoing(2, LOG_ORIGIN)
    outgoing.put(data(0, 1))
    outgoing.put(data(1, 1))
    with pytest.raises(TroveError) as caught:
        outgoing.put(data(2, 1))
    assert caught.value.spec is errors.LIMIT_EXCEEDED


def test_nothing_is_sent_after_the_end_and_the_first_reason_counts() -> None:
    outgoing = Outgoing(2, LOG_ORIGIN)
    outgoing.put(data(0, 1))
    outgoing.end(TroveError(errors.EPOCH_STALE))
    outgoing.end(TroveError(errors.NOT_LEADER))
    outgoing.put(data(1, 1))
    with pytest.raises(TroveError) as caught:
        asyncio.run(outgoing.next())
    assert caught.value.spec is errors.EPOCH_STALE
