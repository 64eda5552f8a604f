"""Brokers of one cluster in process, whose configuration the first one owns: real services, tables, owner and
followers; messages between brokers are function calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tests.support.services_here import (
    NATIVE,
    BrokerServices,
    Outcome,
    in_process,
    methods_of,
    small_broker_settings,
)
from tests.unit.cluster_config.config_parts import LATER, connect, deliver, follower, founded, make
from trovemq_broker.admin.local_config import LocalConfig
from trovemq_broker.cluster_config.entries import ConfigChange, Entry, Position
from trovemq_broker.cluster_config.follower import Follower
from trovemq_broker.cluster_config.owner import ChangeResult, Owner
from trovemq_broker.cluster_config.reconcile import plan_of
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.security.sealing import SealingKey, SecretSealer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import Creator

ADMIN = "admin"
_METHODS = {method.name: name for name, method in methods_of(NATIVE).items()}


@asynccontextmanager
async def open_cluster(*names: str) -> AsyncIterator[Cluster]:
    """With a super user ADMIN."""
    async with AsyncExitStack() as stack:
        stack.enter_context(in_process())
        cluster = Cluster(*names)
        for broker in cluster.brokers.values():
            await stack.enter_async_context(broker.services.working())
        owner = cluster.brokers[names[0]]
        await owner.ask("CreateUser", access_key=ADMIN, kind="Super", secret="secret-of-admin")
        yield cluster


def request_bytes(services: BrokerServices, method: str, fields: Mapping[str, Any]) -> bytes:
    """The request of a method (full name)."""
    request = GetMessageClass(services.methods[method].input_type)(**fields)
    return bytes(request.SerializeToString())


class Cluster:
    """`brokers`: by name; the first one is the owner. `away`: followers that get no changes now."""

    def __init__(self, *names: str) -> None:
        sealer = SecretSealer(SealingKey(bytes(32)), bytes, "cluster:")
        self.owner: Owner = founded(name=names[0], seal=sealer)
        self.followers: dict[str, Follower] = {name: follower(name, seal=sealer) for name in names[1:]}
        self.away: set[str] = set()
        self.unreachable = False
        self.silent = False
        self.forwarded: list[tuple[str, str, str]] = []
        self._changing = asyncio.Lock()
        for one in self.followers.values():
            connect(self.owner, one)
            for other in self.followers.values():
                if other is not one and other.hello().cluster:
                    deliver(self.owner, other)
        self.brokers = {name: Broker(self, name) for name in names}
        self.owner.take_acknowledged()

    @property
    def table(self) -> ConfigTable:
        return self.owner._stored.table

    def table_of(self, name: str) -> ConfigTable:
        return self.followers[name]._stored.table if name in self.followers else self.table

    async def change(
        self, make_changes: Callable[[ConfigTable], Sequence[ConfigChange]]
    ) -> list[ChangeResult]:
        async with self._changing:
            changes = make_changes(self.table)
            await asyncio.sleep(0)  # as a write does
            self._check(changes)
            entries = make(self.owner, *changes, now_ms=LATER)
            await self._deliver()
        self.owner.tick(LATER)
        results = [self.owner.result(entry) for entry in entries]
        await self.brokers[self.owner.head.owner].apply(self.owner.take_acknowledged())
        assert all(results), "another broker holds it, or none is there"
        return [result for result in results if result is not None]

    def _check(self, changes: Sequence[ConfigChange]) -> None:
        for number, change in enumerate(changes, 1):
            position = Position(self.owner.head.generation, self.owner.head.version + number)
            self.table.entry_after(change, position)

    async def _deliver(self) -> None:
        for name, one in self.followers.items():
            if name not in self.away:
                stored = deliver(self.owner, one)
                await self.brokers[name].apply(() if stored is None else stored.entries)

    async def back(self, name: str) -> None:
        self.away.discard(name)
        await self._deliver()


class _Shared:
    """The SharedConfig of one broker."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    is_shared = True

    @property
    def is_owner(self) -> bool:
        return self._name == self._cluster.owner.head.owner

    @property
    def table(self) -> ConfigTable:
        return self._cluster.table_of(self._name)

    async def change(self, make: Callable[[ConfigTable], Sequence[ConfigChange]]) -> list[ChangeResult]:
        return await self._cluster.change(make)

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        cluster = self._cluster
        if cluster.unreachable:
            raise TroveError(errors.CONFIG_OWNER_UNREACHABLE, "broker a does not answer")
        if cluster.silent:
            await asyncio.Event().wait()
        cluster.forwarded.append((method, caller, source))
        owner = cluster.brokers[cluster.owner.head.owner]
        return await owner.services.all.shared_changes.handle(method, request, caller, source)


class Broker:
    """One broker, whose own tables follow its copy of the cluster's table."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        settings = small_broker_settings(name=name)
        self.services = BrokerServices(MemoryFileSystem(), settings, _Shared(cluster, name))
        self.core = core = self.services.core
        self._local = LocalConfig(
            name,
            *(core.store.topics, core.groups, core.topic_changes, core.group_changes),
            self.services.all._users._security.changes,
            lambda: cluster.table_of(name),
        )
        self.differing: list[TroveError] = []

    async def ask(self, rpc: str, caller: str | Creator = ADMIN, **fields: Any) -> Any:
        """The reply to a client's call, as `CreateTopic`, in the name of that user. Raises its TroveError."""
        method = _METHODS[rpc]
        request = request_bytes(self.services, method, fields)
        token = set_creator(Creator(caller) if isinstance(caller, str) else caller)
        try:
            outcome: Outcome = await self.services.call(method, [request])
        finally:
            reset_creator(token)
        if outcome.code != "OK":
            raise errors.from_wire(outcome.symbol or errors.UNKNOWN_ERROR.symbol, outcome.details)
        return self.services.parse(method, outcome.replies[0])

    @property
    def state(self) -> SecurityState:
        security = self.services.all._users._security
        return security.changes.table.state

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Carries out the plan of reconcile.py for these entries."""
        local = self._local.entries([entry.key for entry in entries])
        plan = plan_of(self._cluster.table_of(self.name), self.name, entries, local)
        self.differing += plan.differing
        assert not await self._local.carry_out(plan.actions)
