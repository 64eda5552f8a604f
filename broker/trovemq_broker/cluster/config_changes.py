"""Changes of the cluster's configuration that wait for the owner: gathered, and made by one task.

Invariants
- The changes of a caller are made together, or none of them.
- `make` of a caller sees the table after all changes before it. Only creations and alterations of different
  topics and groups share a write: none of them depends on another one.
- A caller that is cancelled stops no change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from trovemq_broker.cluster.config_store import ConfigStore
from trovemq_broker.cluster_config.entries import (
    ChangeKind,
    ClockMs,
    ConfigChange,
    Entry,
    Key,
    Kind,
    Position,
)
from trovemq_broker.cluster_config.owner import CHANGES_AT_ONCE_MAX, Owner, OwnerWork
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

WAITING_MAX: Final = 1_024
_JOINABLE: Final = (Kind.TOPIC, Kind.GROUP)

Make: TypeAlias = Callable[[ConfigTable], Sequence[ConfigChange]]


@dataclass(slots=True, eq=False)
class _Wanted:
    make: Make
    stored: asyncio.Future[list[Entry]]
    changes: Sequence[ConfigChange] = field(default_factory=tuple)

    def refuse(self, error: Exception) -> None:
        if not self.stored.done():
            self.stored.set_exception(error)


class ConfigChanges:
    """`made` is called on the event loop after each write."""

    def __init__(
        self,
        store: ConfigStore,
        owner: Owner,
        broker: str,
        clock_ms: Callable[[], ClockMs],
        made: Callable[[], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._broker = broker
        self._clock_ms = clock_ms
        self._made = made
        self._wanted: deque[_Wanted] = deque()
        self._task: asyncio.Task[None] | None = None

    async def store(self, make: Make) -> list[Entry]:
        """Returns when the changes are on the owner's disk: their entries. TroveError LIMIT_EXCEEDED; the
        errors of `make` and of the changes."""
        if len(self._wanted) >= WAITING_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{WAITING_MAX} changes of the configuration wait already"
            )
        wanted = _Wanted(make, asyncio.get_running_loop().create_future())
        wanted.stored.add_done_callback(_seen)
        self._wanted.append(wanted)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="config-changes")
        return await asyncio.shield(wanted.stored)

    async def settle(self) -> None:
        """Returns when no change waits any more."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._wanted:
            async with self._store.lock:
                taken = self._gather()
                if taken:
                    await self._make(taken)
            self._made()

    def _gather(self) -> list[_Wanted]:
        """The next callers whose changes share a write. The others, and those with nothing to change, stay or
        are answered."""
        taken: list[_Wanted] = []
        keys: set[Key] = set()
        made: list[Entry] = []
        while self._wanted:
            one = self._wanted[0]
            try:
                changes = list(one.make(self._store.stored.table))
                self._check(changes)
            except Exception as error:  # of `make`: its caller's
                self._wanted.popleft().refuse(error)
                continue
            own = {change.key for change in changes}
            if taken:
                joins = all(map(_joins, (*taken[0].changes, *changes)))  # the others have joined the first
                if not joins or keys & own or len(keys) + len(own) > CHANGES_AT_ONCE_MAX:
                    break
            self._wanted.popleft()
            try:
                self._try(changes, made)
            except TroveError as error:
                one.refuse(error)
                continue
            one.changes = changes
            keys |= own
            taken.append(one)
        return taken

    def _check(self, changes: Sequence[ConfigChange]) -> None:
        """TroveError LIMIT_EXCEEDED, CONFIG_OWNER_STAYS."""
        if len(changes) > CHANGES_AT_ONCE_MAX:
            what = f"{len(changes)} entries would change at once, at most {CHANGES_AT_ONCE_MAX} may"
            raise TroveError(errors.LIMIT_EXCEEDED, what)
        assert len({change.key for change in changes}) == len(changes), "one change of an entry at a time"
        for change in changes:
            if change.key == (Kind.BROKER, self._broker) and change.action is ChangeKind.DELETE:
                what = f"broker {self._broker} owns the cluster's configuration, so it cannot be removed"
                raise TroveError(errors.CONFIG_OWNER_STAYS, what, broker=self._broker)

    def _try(self, changes: Sequence[ConfigChange], made: list[Entry]) -> None:
        """Adds the entries that the changes make to `made`, or raises the first refusal and adds none."""
        head, own = self._owner.head, list[Entry]()
        for change in changes:
            position = Position(head.generation, head.version + len(made) + len(own) + 1)
            entry = self._store.stored.table.entry_after(change, position, [*made, *own])
            own.extend([entry] if entry is not None else [])
        made.extend(own)

    async def _make(self, taken: Sequence[_Wanted]) -> None:
        """One write for all. The caller holds the lock."""
        work: OwnerWork | None = None
        failure: TroveError | None = None
        try:
            work = self._owner.begin([change for one in taken for change in one.changes])
            await self._store.run(work)
        except TroveError as error:
            failure = error
        finally:
            if work is not None:
                self._owner.finish(work, self._clock_ms())
            saved = work is not None and (work.stored is None or work.stored.saved)
            if not saved and failure is None:
                failure = TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping")
            for one in taken:
                if failure is not None:
                    one.refuse(failure)
                elif work is not None:
                    self._answer(one, work)

    def _answer(self, one: _Wanted, work: OwnerWork) -> None:
        """Takes the entries of this caller's changes from the front of those of the write."""
        count = len(one.changes)
        entries, refusals = work.entries[:count], work.refusals[:count]
        del work.entries[:count], work.refusals[:count]
        refusal = next((error for error in refusals if error is not None), None)
        if refusal is not None:
            one.refuse(refusal)
        elif not one.stored.done():
            one.stored.set_result([entry for entry in entries if entry is not None])


def _joins(change: ConfigChange) -> bool:
    return change.kind in _JOINABLE and change.action is not ChangeKind.DELETE


def _seen(future: asyncio.Future[list[Entry]]) -> None:
    """A caller that is gone asks for no error."""
    if not future.cancelled():
        future.exception()
