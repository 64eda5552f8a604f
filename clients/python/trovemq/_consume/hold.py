"""How many messages a subscription receives ahead of its program, unless the program says so itself.

The hold is the greater of two messages for each that the program works on at once and the messages of 250 ms
of work, 256 at most. Other members of the group get the rest: they need not wait for a slow program.

Work is measured by counting: how many messages the program has finished in the time in which none of its
tasks waited for a message. A task has finished a message when it takes the next one or waits for it. So an
empty queue is not slow work, and no message costs anything. Younger work counts more: after `HALF_LIFE_S` of
work earlier work counts half.

| observation                                             | effect                                           |
|---------------------------------------------------------|--------------------------------------------------|
| half a hold was finished, and 250 ms of work are more   | the hold grows, to the fourfold at most          |
| messages than the hold                                  |                                                  |
| they are fewer                                          | it shrinks at once, and messages beyond its      |
|                                                         | double are returned                              |
| orderly: tasks wait for a message although some wait    | it doubles: it must have messages of more        |
| for an earlier one of their message group               | message groups. It shrinks slowly, and nothing   |
|                                                         | is returned                                      |
| another member has joined                               | for `YIELD_S` it is half of the messages that    |
|                                                         | could be taken, at most one for each task of the |
|                                                         | program, or one list; the others are returned    |
| the same, and the program has named the number          | for `YIELD_S` it is that half                    |
"""

from __future__ import annotations

from typing import Final

HOLD_MAX: Final = 256
HOLD_ROUNDS: Final = 2
"""Messages for each one that the program works on."""
WORK_S: Final = 0.25
"""The hold is this much work."""
GROWTH_MAX: Final = 4
"""How many times larger the hold may become in one step."""
HALF_LIFE_S: Final = 0.05
YIELD_S: Final = 0.25
STARVED_SHARE: Final = 0.1
"""The share of its time in which the program of an orderly group may wait although there are messages."""
SHRUNK: Final = 0.75
"""To this part the hold of an orderly group shrinks in `WORK_S`, at most."""


class Hold:
    """The hold of one subscription. Times are those of the event loop, in s; `taken` counts all messages that
    the program has taken so far.

    Args:
        count_max: The program's own number, which is kept; None: the hold follows the work.

    Attributes:
        workers: Tasks that take messages.
        unit: Messages that each of them takes together.
    """

    def __init__(self, count_max: int | None = None) -> None:
        self._fixed = count_max
        self.workers = self.unit = 1
        self._count = count_max or 0
        self._yields_until = 0.0
        self._yielding = 1
        self._done = self._busy_s = self._starved_s = 0.0  # of late
        self._fresh = 0  # finished since the hold last grew
        self._since: float | None = None  # measured up to here
        self._taken = 0
        self._begun = 0
        """Messages begun since the program last waited, up to `at_once`: before these it finished none."""
        self._shrunk_at = 0.0
        self._waits = self._starves = False

    @property
    def at_once(self) -> int:
        """How many messages the program works on at a time."""
        return self.workers * self.unit

    @property
    def is_fixed(self) -> bool:
        """Whether the program has named the number."""
        return self._fixed is not None

    @property
    def least(self) -> int:
        """The smallest hold."""
        return self._limited(HOLD_ROUNDS * self.at_once)

    @property
    def kept(self) -> int:
        """A message for each worker, or one list: the most that is kept when another member joins."""
        return self._limited(max(self.workers, self.unit))

    def _limited(self, count: int) -> int:
        return min(count, HOLD_MAX if self._fixed is None else self._fixed)

    def yields(self, now: float) -> bool:
        """Whether another member has joined just now."""
        return now < self._yields_until

    def looked_at_again(self, now: float, waiting: int) -> float | None:
        """In how many seconds `count` is to be asked for again, if nothing happens: a program may work on one
        message for long. `waiting`: messages in the inbox."""
        if self.yields(now):
            return self._yields_until - now
        if self._starves and self._count < HOLD_MAX:
            return WORK_S
        return None if self.is_fixed or waiting <= self.least else WORK_S

    def begin_to_yield(self, now: float, ready: int) -> None:
        """Another member has joined. `ready`: messages that could be taken now. Each broker of the topic
        notifies of it, so the first notice decides how many are kept: a broker sends its next one later."""
        if not self.yields(now):
            half = (ready + 1) // 2
            self._yielding = half if half and (self.is_fixed or half < self.kept) else self.kept
        self._yields_until = now + YIELD_S

    # --- the work -------------------------------------------------------------------------------------
    def note_waiting(self, now: float, taken: int) -> None:
        """A task of the program begins to wait for a message, and none did before."""
        if self.is_fixed:
            return
        self._advance(now, taken)
        finished = min(self._begun, self.unit)
        self._done += finished
        self._fresh += finished
        self._waits = True

    def note_working(self, now: float, taken: int) -> None:
        """None of them waits any more."""
        if self.is_fixed:
            return
        self._advance(now, taken)
        self._waits, self._starves, self._begun = False, False, 0

    def _advance(self, now: float, taken: int) -> None:
        since, self._since = self._since, now
        count, self._taken = taken - self._taken, taken
        if since is None:
            return
        if self._waits:
            if self._starves:  # earlier work counts less, as while the program works
                faded = 0.5 ** ((now - since) / HALF_LIFE_S)
                self._done, self._busy_s = self._done * faded, self._busy_s * faded
                self._starved_s = min(self._starved_s + now - since, HALF_LIFE_S)
            return
        begun = max(min(count, self.at_once - self._begun), 0)
        self._begun += begun
        finished = count - begun
        faded = 0.5 ** ((now - since) / HALF_LIFE_S)
        self._done = self._done * faded + finished
        self._busy_s = self._busy_s * faded + now - since
        self._starved_s *= faded
        self._fresh += finished

    # --- the hold -------------------------------------------------------------------------------------
    def count(self, now: float, taken: int, waiting: int, *, ordered: bool) -> int:
        """The present hold, at least 1. `waiting`: messages in the inbox. `ordered`: of each message group
        only the first one may be taken."""
        if self._fixed is None:
            self._advance(now, taken)
            self._starves = ordered and self._waits and waiting > 0
            if ordered:
                self._adapt_orderly(now)
            else:
                self._grow_to(self._wanted())
        return min(self._count, self._yielding) if self.yields(now) else self._count

    def _wanted(self) -> int:
        """Messages of `WORK_S` of work; the present hold before any was measured."""
        if not self._busy_s and not self._done:
            return self._count
        if self._done * WORK_S >= HOLD_MAX * self._busy_s:
            return HOLD_MAX
        return int(self._done / self._busy_s * WORK_S)

    def _grow_to(self, wanted: int) -> None:
        """The hold becomes the wanted one; it grows in steps, each after half a hold was finished."""
        present = max(self._count, self.least)
        if wanted > present:
            if self._fresh * 2 < present:
                wanted = present
            else:
                wanted, self._fresh = min(wanted, GROWTH_MAX * present), 0
        self._count = max(self.least, min(wanted, HOLD_MAX))

    def _adapt_orderly(self, now: float) -> None:
        present, wanted = max(self._count, self.least), self._wanted()
        if self._starved_s > STARVED_SHARE * (self._busy_s + self._starved_s):
            self._starved_s, self._fresh, self._shrunk_at = 0.0, present, now
            wanted = max(wanted, 2 * present)
        elif wanted < present:
            if now < self._shrunk_at + WORK_S:
                self._count = present
                return
            self._shrunk_at = now
            wanted = max(wanted, int(present * SHRUNK))
        self._grow_to(wanted)
