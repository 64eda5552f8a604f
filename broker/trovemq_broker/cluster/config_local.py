"""The broker's own tables beside the cluster's: makes them equal, and keeps the differences for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from trovemq_broker.cluster.config_dropped import DroppedChanges
from trovemq_broker.cluster_config.entries import Entry, Key, Kind
from trovemq_broker.cluster_config.local_tables import LocalTables
from trovemq_broker.cluster_config.reconcile import ActionKind, Plan, forgotten_rights, plan, plan_of
from trovemq_broker.cluster_config.status import Note
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import Update
from trovemq_daemon.logging import get_logger

NOTES_MAX: Final = 1_000
"""Entries of a list that operators are shown."""


class LocalSide:
    """One comparison at a time."""

    def __init__(
        self,
        stored: StoredTable,
        broker: str,
        tables: LocalTables,
        placed: Callable[[Iterable[str]], None],
        dropped: DroppedChanges,
    ) -> None:
        """`placed` is called with the topics whose placement may have changed."""
        self._placed = placed
        self._stored = stored
        self._broker = broker
        self.tables = tables
        self._lock = asyncio.Lock()
        self._unlisted: dict[Key, str] = {}
        self._differing: dict[Key, str] = {}
        self._withheld: dict[Key, str] = {}
        self._failed: dict[Key, str] = {}
        self.dropped: Final = dropped
        self.incomplete = False
        """Whether a comparison ended half-way: everything is compared next."""

    async def whole(self) -> None:
        """Compares everything."""
        async with self._lock:
            made = plan(self._stored.table, self._broker, self.tables.entries().values())
            for notes in self._lists():
                notes.clear()
            await self._carry_out(made)
            self._placed(entry.name for entry in self._stored.table if entry.kind is Kind.TOPIC)

    async def some(self, entries: Sequence[Entry]) -> None:
        """Compares the entries that were changed."""
        async with self._lock:
            keys = {entry.key for entry in entries}
            made = plan_of(self._stored.table, self._broker, entries, self.tables.entries(keys))
            for notes in self._lists():
                for key in keys & notes.keys():
                    del notes[key]
            await self._carry_out(made)
            self._placed(entry.name for entry in entries if entry.kind is Kind.TOPIC)

    def _lists(self) -> tuple[dict[Key, str], ...]:
        return self._unlisted, self._differing, self._withheld, self._failed

    async def _carry_out(self, made: Plan) -> None:
        self.incomplete = True
        self._unlisted.update((key, "") for key in made.unlisted)
        for error in made.differing:
            key = Key(Kind(error.fields["kind"]), error.fields["name"])
            self._differing[key] = error.message
            get_logger().warning("config.differs", kind=key.kind, name=key.name, message=error.message)
        if made.actions:
            for failure in await self.tables.carry_out(made.actions):
                key, error = failure.action.key, failure.error
                self._failed[key] = str(error)
                get_logger().error("config.not_made", kind=key.kind, name=key.name, message=str(error))
        for action in made.actions:
            if action.kind is ActionKind.WITHHOLD and action.key not in self._failed:
                self._withheld[action.key] = ""
        self.incomplete = False

    @property
    def has_failures(self) -> bool:
        return bool(self._failed) or self.incomplete

    async def replaced(self, update: Update, dropped: Sequence[Entry]) -> None:
        """To be called before an update is stored. Notes changes that a take-over has dropped, and ends the
        rights of users that the stored table has, and that were deleted until a deletion is forgotten.
        TroveError: the update is not to be stored."""
        await self.dropped.add(dropped)
        async with self._lock:
            gone = forgotten_rights(self._stored.table, update)
            local = self.tables.entries({one.key for one in gone})
            actions = [one for one in gone if one.key in local]
            for action in actions:
                get_logger().warning("config.rights_ended", kind=action.key.kind, name=action.key.name)
            for failure in await self.tables.carry_out(actions) if actions else ():
                raise failure.error

    def notes(self) -> Mapping[str, Sequence[Note]]:
        """The lists by their names in NodeStatus, each with at most NOTES_MAX entries."""
        lists = {
            "unlisted": self._unlisted,
            "differing": self._differing,
            "withheld": self._withheld,
            "dropped": self.dropped.notes,
            "failed": self._failed,
        }
        return {
            name: [Note(key, text) for key, text in list(notes.items())[:NOTES_MAX]]
            for name, notes in lists.items()
        }

    def warning(self) -> str:
        """For readiness; empty if there is nothing to do."""
        counts = (
            (len(self._differing), "differ from the cluster's configuration"),
            (len(self._failed), "of the cluster's configuration could not be made here"),
            (len(self._withheld), "are withheld: the cluster's configuration has deleted them"),
            (len(self.dropped.notes), "were dropped by a take-over"),
        )
        return "; ".join(f"{count} entries {what}" for count, what in counts if count)
