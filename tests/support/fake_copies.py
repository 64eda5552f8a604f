"""The copies of a replica group as a test moves them: ReplicatedCommit without a network."""

from __future__ import annotations

from collections.abc import Callable

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset


class FakeCopies:
    """`commit` moves the commit; `events`: the calls of the group commit."""

    def __init__(self, copies: int = 3, commit_offset: PhysicalOffset = LOG_ORIGIN) -> None:
        self.commit_offset = commit_offset
        self.copies = copies
        self.needed_from = PhysicalOffset(1 << 62)
        self.refusal: TroveError | None = None
        self.no_delivery: TroveError | None = None
        self.asked_in_order: list[bool] = []
        self.is_held = False
        self.events: list[str] = []
        self._calls: list[Callable[[], None]] = []
        self.on_flushed: Callable[[], None] = lambda: None

    def check_append(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def check_delivery(self, *, in_order: bool) -> None:
        self.asked_in_order.append(in_order)
        if self.no_delivery is not None:
            raise self.no_delivery

    def appended(self) -> None:
        self.events.append("appended")

    def flushed(self) -> None:
        self.events.append("flushed")
        self.on_flushed()

    def on_commit(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def commit(self, offset: int) -> None:
        """Every in-sync copy holds the log up to there."""
        self.commit_offset = PhysicalOffset(offset)
        for call in self._calls:
            call()

    def refuse(self) -> None:
        """From now on too few copies are in sync."""
        self.refusal = TroveError(errors.NOT_ENOUGH_REPLICAS, "1 of 3 nodes is in sync")
