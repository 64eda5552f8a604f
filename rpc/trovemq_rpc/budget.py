"""A budget of bytes. It counts received messages that are incomplete or unread, and the answers of a server
that its clients have not taken.

| rule | reason |
| --- | --- |
| a message above its stream's window needs an admission, by its announced length | it can be completed |
| messages above 4 MiB share three quarters of the total | half-received giants never lock out small ones |
| no WINDOW_UPDATE for a connection above its share, or above the total | control frames still pass |
| while no message is admitted, the next one is, however full the budget is | something can always continue |
| bytes of an admitted message need no further window | they are counted already |
| output counts in the total, not in its connection's share | a client that reads late may still send |

A budget cannot refuse bytes that exist. A handler that makes large answers looks at `output_held` first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

TOTAL_DEFAULT: Final = 256 << 20  # a part of a small machine's memory, and several messages of 64 MiB
CONNECTION_SHARE_DEFAULT: Final = 64 << 20  # so that one connection leaves space for three as greedy
SMALL_MESSAGE_MAX: Final = 4 << 20  # gRPC's default for the largest message


class Holder(Protocol):
    """A connection, as the budget sees it."""

    held: int  # of received bytes
    output_held: int
    admissions: int  # messages of it that were admitted and are not read yet

    def peer(self) -> str: ...
    def on_budget(self) -> None:
        """There is space again: return the windows that were withheld."""


Admission = tuple[Holder, int, Callable[[], bool]]


class BytesBudget:
    """One for all connections of a server or channel; may be shared by several."""

    def __init__(self, total: int = TOTAL_DEFAULT, connection_share: int = CONNECTION_SHARE_DEFAULT) -> None:
        self.total = total
        self.connection_share = min(connection_share, total)
        self.held = 0
        self.output_held = 0  # the part of `held` that waits to be sent
        self.large_held = 0
        self.admissions = 0
        self.refused = 0  # admissions that had to wait
        self._small: OrderedDict[int, Admission] = OrderedDict()  # by ticket
        self._large: OrderedDict[int, Admission] = OrderedDict()
        self._tickets = count(1)
        self._is_admitting = False
        self._waiting: set[Holder] = set()

    @property
    def message_size_max(self) -> int:
        """A larger message could never be admitted."""
        return self.total * 3 // 4

    @property
    def admissions_waiting(self) -> int:
        return len(self._small) + len(self._large)

    def exhausted(self, holder: Holder) -> bool:
        """Whether the connection gets no WINDOW_UPDATE now. `on_budget` is called when there is space."""
        if self.held < self.total and holder.held < self.connection_share:
            return False
        self._waiting.add(holder)
        return True

    def take(self, holder: Holder, size: int) -> None:
        self.held += size
        holder.held += size

    def give(self, holder: Holder, size: int) -> None:
        holder.held -= size
        self.held -= size
        assert self.held >= 0, "more returned than taken"
        if self._waiting or self._small or self._large:
            self._release()

    def set_output(self, holder: Holder, size: int) -> None:
        """Sets how many bytes are ready on the connection and not taken by its peer."""
        more = size - holder.output_held
        holder.output_held = size
        self.output_held += more
        if more > 0:
            self.held += more
        else:
            self.held += more
            self._release()

    def _release(self) -> None:
        """There is more space than before: for admissions, and for windows that were withheld."""
        if self._small or self._large:
            self._admit_waiting()
        if self._waiting:
            for waiting in tuple(self._waiting):
                if self.held < self.total and waiting.held < self.connection_share:
                    self._waiting.discard(waiting)
                    waiting.on_budget()

    def forget(self, holder: Holder) -> None:
        self._waiting.discard(holder)

    # --- admission --------------------------------------------------------------------------------------
    def admit(self, holder: Holder, size: int, admitted: Callable[[], bool]) -> int:
        """Takes `size` bytes and calls `admitted`, now or when there is space; False gives the bytes back.
        Returns 0, or a ticket for `withdraw` if it has to wait.
        """
        queue = self._large if size > SMALL_MESSAGE_MAX else self._small
        if not queue and self._fits(holder, size):
            self._grant(holder, size, admitted)
            return 0
        self.refused += 1
        ticket = next(self._tickets)
        queue[ticket] = (holder, size, admitted)
        return ticket

    def withdraw(self, ticket: int) -> None:
        """The wait for this admission was given up; those after it may fit."""
        for queue in (self._small, self._large):
            if queue.pop(ticket, None) is not None:
                self._admit_waiting()

    def give_message(self, holder: Holder, size: int) -> None:
        """The counterpart of `admit`."""
        if size > SMALL_MESSAGE_MAX:
            self.large_held -= size
        holder.admissions -= 1
        self.admissions -= 1
        self.give(holder, size)

    def _fits(self, holder: Holder, size: int) -> bool:
        if not self.admissions:
            return True  # or incomplete messages that fill the budget would wait for each other
        if self.held + size > self.total:
            return False
        if holder.admissions and holder.held + size > self.connection_share:
            return False  # a connection's only message may exceed its share
        return size <= SMALL_MESSAGE_MAX or self.large_held + size <= self.message_size_max

    def _grant(self, holder: Holder, size: int, admitted: Callable[[], bool]) -> None:
        if size > SMALL_MESSAGE_MAX:
            self.large_held += size
        holder.admissions += 1
        self.admissions += 1
        self.take(holder, size)
        if not admitted():
            self.give_message(holder, size)

    def _admit_waiting(self) -> None:
        """Grants one admission after the other. A message that is not wanted any more returns its bytes at
        once: this loop grants them, not a call inside of it, or thousands of such messages would end in a
        RecursionError.
        """
        if self._is_admitting:
            return
        self._is_admitting = True
        try:
            while (queue := self._admissible()) is not None:
                self._grant(*queue.popitem(last=False)[1])
        finally:
            self._is_admitting = False

    def _admissible(self) -> OrderedDict[int, Admission] | None:
        """The queue whose first message fits."""
        for queue in (self._small, self._large):
            if queue:
                holder, size, _ = next(iter(queue.values()))
                if self._fits(holder, size):
                    return queue
        return None
