"""The commit of a log that has copies, as acknowledgements see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trovemq_proto.positions import PhysicalOffset


class ReplicatedCommit(Protocol):
    """The copies of the log, as acknowledgements see them."""

    @property
    def commit_offset(self) -> PhysicalOffset: ...  # every in-sync copy holds the log up to here
    @property
    def copies(self) -> int: ...  # how many those are, the leader included
    def check_append(self) -> None: ...  # TroveError NOT_ENOUGH_REPLICAS, NOT_LEADER: nothing may be appended
    def appended(self) -> None: ...  # the log grew: frames are sent
    def flushed(self) -> None: ...  # flushed_offset moved
    def on_commit(
        self, call: Callable[[], None]
    ) -> None: ...  # called after commit_offset moved, on the event loop
