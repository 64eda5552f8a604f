"""The copies of the log, as appends and acknowledgements see them; and when an acknowledgement waits for
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from trovemq_proto.positions import PhysicalOffset

Ack: TypeAlias = Literal["leader", "replicated"]
"""Who holds a message when it is acknowledged: the leader, or every in-sync copy, as the flush mode says."""
MIB: Final = 1 << 20


class ReplicatedCommit(Protocol):
    """The copies of the log, as acknowledgements see them. For use on the event loop only."""

    @property
    def commit_offset(self) -> PhysicalOffset:
        """Every in-sync copy holds the log up to here. Rises; the end of an append."""

    @property
    def copies(self) -> int:
        """How many those are, the leader included."""

    @property
    def needed_from(self) -> PhysicalOffset:
        """Copies that lag need the log from here on, as far as it is kept for them."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether another node takes over as planned: sends wait, and nothing may be appended."""

    def check_append(self) -> None:
        """Raises TroveError NOT_ENOUGH_REPLICAS, NOT_LEADER: nothing may be appended."""

    def check_delivery(self, *, in_order: bool) -> None:
        """Raises TroveError NOT_LEADER, SERVICE_NOT_AVAILABLE: no consumer may get a message now. `in_order`:
        of a group whose messages one consumer at a time may have."""

    def appended(self) -> None:
        """The log grew: frames are sent."""

    def flushed(self) -> None:
        """flushed_offset moved."""

    def on_commit(self, call: Callable[[], None]) -> None:
        """`call` is called after each move of commit_offset, and when appends are held no more; on the event
        loop."""


@dataclass(frozen=True, kw_only=True)
class ReplicaAckSettings:
    """ack: the level of the group. Times in milliseconds, sizes in bytes."""

    ack: Ack = "replicated"
    ack_timeout_ms: int = 3_000
    """A message that is not committed by then is answered with REPLICA_TIMEOUT."""
    uncommitted_bytes_max: int = 256 * MIB
    """Appended bytes that may wait for the copies; beyond it sends wait for space."""
