"""The own tables of one broker over a disk in memory, and a cluster's table that the test changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from tests.support.engine import NOW_MS, open_store
from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.local_config import LocalConfig
from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.cluster_config.entries import ChangeKind, ConfigChange, Entry, Generation, Kind, Position
from trovemq_broker.cluster_config.local_tables import Failure
from trovemq_broker.cluster_config.reconcile import Plan, plan
from trovemq_broker.cluster_config.table import ConfigTable, Head, Update
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_store.files.files import FileSystem
from trovemq_store.files.memory import MemoryFileSystem

GENERATION = Generation(1, "0123456789abcdef")
KEY = SealingKey(bytes(range(32)))


class ClusterTable:
    """A table that is changed at once, by an owner that is not there."""

    def __init__(self) -> None:
        self.table = ConfigTable()
        self.table.apply(Update(None, Head("c", "a", GENERATION), ()))

    def make(self, *changes: ConfigChange) -> list[Entry]:
        made = []
        for change in changes:
            head = self.table.head
            position = Position(GENERATION, head.version + 1)
            entry = self.table.entry_after(change, position)
            if entry is None:
                continue
            self.table.apply(Update(head.position, replace(head, version=position.version), (entry,)))
            made.append(entry)
        return made

    def create(
        self, kind: Kind, name: str, placement: dict[str, int] | None = None, **settings: str
    ) -> Entry:
        change = ConfigChange(ChangeKind.CREATE, kind, name, settings=settings, placement=placement or {})
        return self.make(change)[0]

    def alter(self, kind: Kind, name: str, placement: dict[str, int] | None = None, **settings: str) -> Entry:
        """`placement` None: it stays."""
        entry = self.table.live(kind, name)
        assert entry is not None
        placed = dict(entry.placement) if placement is None else placement
        change = ConfigChange(ChangeKind.ALTER, kind, name, entry.version, settings, placed, entry.secrets)
        return self.make(change)[0]

    def delete(self, kind: Kind, name: str) -> Entry:
        entry = self.table.live(kind, name)
        assert entry is not None
        return self.make(ConfigChange(ChangeKind.DELETE, kind, name, entry.version))[0]

    def forget(self) -> None:
        """All deletions are forgotten."""
        head = self.table.head
        after = replace(head, version=head.version + 1, horizon=head.version)
        self.table.apply(Update(head.position, after, ()))


class LocalBench:
    """A broker. `authenticated`: it has users."""

    def __init__(
        self,
        table: ClusterTable,
        broker: str = "b",
        *,
        files: FileSystem | None = None,
        authenticated: bool = True,
    ) -> None:
        self.cluster = table
        self.broker = broker
        self.disk = MemoryFileSystem()
        self.files = files or self.disk
        if isinstance(files, MemoryFileSystem):
            self.disk = files
        self.store = open_store(self.files, topics=())
        self.model = ConsumerState.open(self.store, self.files, ConsumerSettings(), NOW_MS)
        self.deleted_topics: list[str] = []
        self.closed_topics: list[str] = []
        self.deleted_groups: list[str] = []
        numbers = itertools.count()
        self.security = None
        if authenticated:
            random_bytes = lambda size: next(numbers).to_bytes(size)  # noqa: E731
            self.security = SecurityChanges(SecurityTable.load(self.files, KEY, random_bytes))
        self.topic_changes = TopicChanges(
            self.store, lambda: NOW_MS, self._persist, self.deleted_topics.append, self.closed_topics.append
        )
        self.group_changes = GroupChanges(
            self.model.groups,
            self.store,
            self.model.delivery,
            self.topic_changes,
            lambda: NOW_MS,
            self._persist,
            deleted=self.deleted_groups.append,
        )
        self.local = LocalConfig(
            broker,
            self.store.topics,
            self.model.groups,
            self.topic_changes,
            self.group_changes,
            self.security,
            lambda: self.cluster.table,
        )

    async def _persist(self) -> None:
        return None

    @property
    def topics(self) -> list[str]:
        return self.store.topics.names()

    def plan(self) -> Plan:
        return plan(self.cluster.table, self.broker, self.local.entries().values())

    async def follow(self) -> Plan:
        """Makes the own tables equal to the cluster's; afterwards there is nothing left to do."""
        made = self.plan()
        failures = await self.local.carry_out(made.actions)
        assert failures == [], failures
        left = self.plan()
        again = [action for action in left.actions if action.kind != "withhold"]
        assert again == [], again
        return made

    async def refused(self, made: Plan | None = None) -> Sequence[Failure]:
        return await self.local.carry_out((made or self.plan()).actions)
