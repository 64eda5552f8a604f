"""The frames between a leader and its followers, as values; server/wire has their bytes.

    follower                     leader
    Hello              ->
                       <-        Welcome: where the follower cuts its log, or that it joins
                       <-        Data, Heartbeat: one after the other, each with the leader's positions
    Progress           ->

A position is a physical offset of the log, which all nodes of a group share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import MEMBERS_MAX, Identity, InSyncSet

__all__ = ["Identity", "InSyncSet"]

Node: TypeAlias = str
Epoch: TypeAlias = int
Offset: TypeAlias = PhysicalOffset
NowMs: TypeAlias = int
"""Of a clock that never steps back; it starts anywhere."""

FRAME_BYTES_MAX: Final = 1 << 20
"""Of a frame with several records; a larger record has a frame alone."""
SENT_BYTES_MAX: Final = 768 << 10
"""Of such a frame that is sent. From a MiB on, its memory comes from the system and goes back each time:
that takes half of a frame's time again."""
NODES_MAX: Final = MEMBERS_MAX


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a stream. `in_sync`: the set that the follower has stored; None if it never was in
    one. `sealing_key_id`: of the key that seals users' secrets; empty if callers do not log in."""

    cluster: str
    group: str
    identity: Identity
    promised: Epoch
    epochs: Epochs
    begin: Offset
    end: Offset
    commit: Offset
    in_sync: InSyncSet | None
    segment_size: int
    learner: bool = False
    sealing_key_id: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer. `cut_to`: the follower's log continues there; its own computation must agree.
    `joins`: the leader's log begins after the follower's end, which takes the state first."""

    epoch: Epoch
    epochs: Epochs
    begin: Offset
    end: Offset
    commit: Offset
    cut_to: Offset
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """Whole records of one segment. `blank`: the zeros after them, up to the end of the segment."""

    epoch: Epoch
    offset: Offset
    commit: Offset
    data: bytes | memoryview
    crc: int
    blank: int = 0

    @property
    def end(self) -> Offset:
        return Offset(self.offset + len(self.data) + self.blank)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`sent_ms`: of the leader's clock; the next Progress returns it. `in_sync`: a follower that is in it
    stores it before it reports its version. Others must not: they would pass for copies that have all.
    `begin`: where the leader's log begins."""

    epoch: Epoch
    commit: Offset
    end: Offset
    sent_ms: NowMs
    in_sync: InSyncSet
    begin: Offset = LOG_ORIGIN


@dataclass(frozen=True, slots=True)
class Progress:
    """`end`: appended, `flushed`: synced. `set_version`: of the stored set of this epoch; 0 for none."""

    epoch: Epoch
    end: Offset
    flushed: Offset
    set_version: int
    echo_ms: NowMs = 0


class NodeLog(Protocol):
    """The log of a node: its first byte, one past its last, and one past the last that is synced."""

    @property
    def begin(self) -> Offset: ...

    @property
    def end(self) -> Offset: ...

    @property
    def flushed(self) -> Offset: ...


LeaderFrame: TypeAlias = Welcome | Data | Heartbeat
FollowerFrame: TypeAlias = Hello | Progress
