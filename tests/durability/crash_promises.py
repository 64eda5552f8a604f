"""The promises of crash_script.py's script: the messages that must be there after a crash at this moment.

Whatever may or may not be there (an append that no sync has covered, an acknowledgement whose event was lost)
is bound to nothing. `tests.durability.crash_check` holds a recovered store against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trovemq_proto.positions import QueueId

Place = tuple[str, str, QueueId]
"""Group, topic, queue id."""


@dataclass
class Plain:
    """A message that the group `workers` is pending. `acked` counts once `ack_end` is on disk; None: unknown.

    `copied`: it was appended again; a crash may then bring both (`repeats`).
    """

    physical_offset: int
    end: int
    received: bool = False
    received_end: int | None = None
    expired: bool = False
    copied: bool = False
    repeats: bool = False
    acked: bool = False
    ack_end: int | None = None


@dataclass
class Delayed:
    """Once `ended_end` is on disk it is not delivered again."""

    due_ms: int
    end: int
    ended_end: int | None = None
    gone: bool = False


@dataclass
class Half:
    """`commit` is how it was ended, None while it is open; certain once `ended_end` is on disk."""

    end: int
    commit: bool | None = None
    ended_end: int | None = None
    gone: bool = False


@dataclass
class Promises:
    """`durable_end`: a finished group commit covers the log up to there. Positions are of the log.

    `copying`: the pending messages are just being appended again. Until the events of that are on disk too,
    it is there twice.
    """

    durable_end: int = 0
    begins: tuple[int, ...] = (0,)
    copying: bool = False
    topics: set[str] = field(default_factory=set)
    deletions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    persisted: dict[Place, int] = field(default_factory=dict)
    committed: dict[Place, int] = field(default_factory=dict)
    plain: dict[bytes, Plain] = field(default_factory=dict)
    delayed: dict[bytes, Delayed] = field(default_factory=dict)
    halves: dict[bytes, Half] = field(default_factory=dict)

    def copy_open(self) -> None:
        """The pending messages are appended again now; until that has ended they may be there twice."""
        self.copying = True
        for plain in self.plain.values():
            plain.copied |= plain.received

    def crashed(self, end: int) -> None:
        """The log ends there now; later messages, and those not in it, may be forgotten."""
        self.durable_end = end
        self.copying = False
        self.plain = {body: plain for body, plain in self.plain.items() if plain.physical_offset < end}
        self.delayed = {body: delayed for body, delayed in self.delayed.items() if delayed.end <= end}
        self.halves = {body: half for body, half in self.halves.items() if half.end <= end}
        for plain in self.plain.values():
            plain.end = min(plain.end, end)  # of an unacknowledged batch a beginning may be there
            plain.repeats |= plain.copied
            plain.received = plain.received_end is not None and plain.received_end <= end
            plain.received_end = plain.received_end if plain.received else None
            if plain.ack_end is None or plain.ack_end > end:
                plain.ack_end = None
                plain.expired |= plain.acked  # either is right
        promised: list[Half | Delayed] = [*self.halves.values(), *self.delayed.values()]
        for outstanding in promised:
            if outstanding.ended_end is not None and outstanding.ended_end > end:
                outstanding.ended_end = None
        self.deletions = {topic: (min(end, at[-1]),) for topic, at in self.deletions.items()}
