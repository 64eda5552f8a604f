"""The epochs of a log: who led when, as (epoch, physical offset of its first byte), and where two logs agree.

An epoch has one leader, and a leader only appends. So two logs that have an epoch with one start have the
same bytes from that start up to where the first of them left the epoch, or ends. And they have the same bytes
before it, because the leader of the epoch began it on the log that its followers then copied (KIP-101).

Invariants
- Epochs and starts rise; the starts strictly, because an epoch begins with a record.
- At most ENTRIES_MAX entries: the oldest are forgotten. Logs whose common epoch is forgotten have no common
  point, and the follower begins again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset

ENTRIES_MAX: Final = 4_096
EPOCH_MAX: Final = (1 << 31) - 1
"""RocketMQ's epochs are positive i32."""


class Epoch(NamedTuple):
    """One leadership: its number, and the physical offset at which its records begin."""

    epoch: int
    start: PhysicalOffset


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one log, oldest first. ValueError unless they rise, and are at most ENTRIES_MAX."""

    entries: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        if len(self.entries) > ENTRIES_MAX:
            raise ValueError(f"{len(self.entries)} epochs, the limit is {ENTRIES_MAX}")
        before = Epoch(0, PhysicalOffset(-1))
        for entry in self.entries:
            if not before.epoch < entry.epoch <= EPOCH_MAX or entry.start <= before.start:
                raise ValueError(f"epoch {entry} follows {before}")
            before = entry

    @classmethod
    def of(cls, pairs: Sequence[Sequence[int]]) -> Epochs:
        """From pairs (epoch, start). ValueError."""
        return cls(tuple(Epoch(epoch, PhysicalOffset(start)) for epoch, start in pairs))

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last(self) -> int:
        """The newest epoch; 0 if there is none."""
        return self.entries[-1].epoch if self.entries else 0

    def at(self, physical_offset: PhysicalOffset) -> int:
        """The epoch of the byte there; 0 before the first known one."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start <= physical_offset), 0)

    def begun(self, epoch: int, start: PhysicalOffset) -> Epochs:
        """With one more, later epoch. ValueError if it is not later."""
        entries = (*self.entries, Epoch(epoch, start))
        return Epochs(entries[-ENTRIES_MAX:])

    def truncated(self, end: PhysicalOffset) -> Epochs:
        """The epochs of the log that ends at `end`: one without a byte below it is gone."""
        return Epochs(tuple(entry for entry in self.entries if entry.start < end))

    def trimmed(self, begin: PhysicalOffset) -> Epochs:
        """The epochs of the log that begins at `begin`: one that ended there or before is gone."""
        ends = [entry.start for entry in self.entries[1:]]
        gone = sum(end <= begin for end in ends)
        return Epochs(self.entries[gone:])

    def end_of(self, index: int, log_end: PhysicalOffset) -> PhysicalOffset:
        """Where the epoch of entries[index] ended: the start of the next one, or the log's end."""
        following = self.entries[index + 1 : index + 2]
        return following[0].start if following else log_end


def common_point(
    own: Epochs, own_end: PhysicalOffset, other: Epochs, other_end: PhysicalOffset
) -> PhysicalOffset | None:
    """Up to where two logs, which end at these offsets, have the same bytes; None if that is not known.

    It is the lower of the two ends of the newest epoch that both have. An empty log agrees with every other.
    """
    if LOG_ORIGIN in (own_end, other_end):
        return LOG_ORIGIN
    others = {entry: index for index, entry in enumerate(other)}
    for index in reversed(range(len(own))):
        found = others.get(own.entries[index])
        if found is not None:
            return min(own.end_of(index, own_end), other.end_of(found, other_end))
    return None


def cut_point(
    own: Epochs,
    own_end: PhysicalOffset,
    leader: Epochs,
    leader_end: PhysicalOffset,
    committed: PhysicalOffset,
) -> PhysicalOffset | None:
    """Where a follower cuts its log before it continues with the leader's: at the common point, and not at
    its known commit offset, above which records may be committed. None if no common point is known.

    TroveError STORE_DIVERGED if the common point is below the known commit offset: nothing may be cut.
    """
    point = common_point(own, own_end, leader, leader_end)
    if point is not None and point < committed:
        raise TroveError(
            errors.STORE_DIVERGED,
            f"the logs agree up to {point}, and this one is committed up to {committed}",
            common=point,
            committed=committed,
        )
    return point
