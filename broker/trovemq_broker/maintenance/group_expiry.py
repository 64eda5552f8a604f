"""Forgets groups that their first use created and that no program has used for `group_expiry_ms`.

Invariants - A group is forgotten only if its first use created it and no user has altered it since, if it has
had no member and moved no offset for the whole time, and if no message waits for it. The time counts from
this start on. - The time is never less than EXPIRY_MIN_MS, nor than the time for which messages are kept. - A
name that returns begins at the earliest message, since the setting demands `new_group_start = earliest`: it
reads the messages that are kept again, and skips nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from trovemq_broker.groups.lag.stored import lag_steps
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.subscription_groups import SubscriptionGroups

EXPIRY_MIN_MS: Final = 7 * 86_400_000
SCAN_INTERVAL_S: Final = 600.0
"""Seconds between two scans."""
FORGOTTEN_MAX: Final = 100
"""The most groups that one scan forgets: each deletion writes the table of groups."""
GROUPS_STEP: Final = 64
"""Pairs of group and topic in one step."""
ENTRIES_MAX: Final = 1 << 62
"""All pairs of group and topic: a lag that was not counted would look like none."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The sum of a group's offsets, and since when (the loop's time) it has been unused with this sum."""

    offsets: int
    since_s: float


@dataclass(slots=True)
class _Scan:
    """One scan of the store: by group, the sum of its offsets; the groups with messages that wait."""

    offsets: dict[str, int]
    waiting: set[str]


class GroupExpiry:
    """The task.

    Args:
        groups: The table of groups.
        store: Their offsets, and the queues.
        members: The groups that have members now.
        delayed: topic -> the number of its delayed messages.
        expiry_ms: The time after which a group is forgotten.
        delete: Deletes a group.
        run_steps: Runs steps beside other work.
    """

    def __init__(
        self,
        groups: SubscriptionGroups,
        store: MessageStore,
        members: Callable[[], Collection[str]],
        delayed: Callable[[str], int],
        expiry_ms: Callable[[], int],
        delete: Callable[[str], Awaitable[None]],
        run_steps: Callable[[Steps[_Scan]], Awaitable[_Scan]],
    ) -> None:
        self._groups = groups
        self._store = store
        self._members = members
        self._delayed = delayed
        self._expiry_ms = expiry_ms
        self._delete = delete
        self._run_steps = run_steps
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        """Scans until it is cancelled."""
        while True:
            try:
                await self.forget_unused()
            except TroveError as error:  # a full disk, or another change of a group
                get_logger().warning("group.not_expired", error=error.symbol, detail=error.message)
            await asyncio.sleep(SCAN_INTERVAL_S)

    async def forget_unused(self) -> list[str]:
        """Forgets the groups whose time is over. Returns their names. Raises the TroveErrors of `delete`."""
        scan = await self._run_steps(self._scan_steps())
        now_s, members = asyncio.get_running_loop().time(), set(self._members())
        self._seen = {name: self._seen_now(name, scan, members, now_s) for name in self._made_by_use()}
        old = [name for name, seen in self._seen.items() if self._has_expired(seen, now_s)]
        forgotten = []
        for name in [name for name in old if name not in scan.waiting][:FORGOTTEN_MAX]:
            if name in self._members():  # one may have come during a deletion
                continue
            await self._delete(name)
            unused_s = round(now_s - self._seen.pop(name).since_s)
            get_logger().info("group.expired", group=name, unused_s=unused_s)
            forgotten.append(name)
        return forgotten

    def _made_by_use(self) -> list[str]:
        return [name for name in self._groups.names() if self._groups.require(name).made_by_use]

    def _seen_now(self, name: str, scan: _Scan, members: set[str], now_s: float) -> _Seen:
        offsets, before = scan.offsets.get(name, 0), self._seen.get(name)
        if before is not None and before.offsets == offsets and name not in members:
            return before
        return _Seen(offsets, now_s)

    def _has_expired(self, seen: _Seen, now_s: float) -> bool:
        return (now_s - seen.since_s) * 1000 >= max(EXPIRY_MIN_MS, self._expiry_ms())

    def _scan_steps(self) -> Steps[_Scan]:
        offsets: dict[str, int] = {}
        for number, (group, topic) in enumerate(self._store.offsets.pairs(), 1):
            stored = self._store.offsets.of(group, topic)
            offsets[group] = offsets.get(group, 0) + sum(offset for _, offset in stored)
            if number % GROUPS_STEP == 0:
                yield
        lags = yield from lag_steps(self._store, ENTRIES_MAX, self._delayed)
        return _Scan(offsets, {group for (group, _), lag in lags.items() if lag.messages})
