"""Brokers of one cluster in process, whose configuration the first one owns: real services, tables, owner and
followers; messages between brokers are function calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
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
from trovemq_broker.admin.config_texts import (
    group_of,
    group_texts,
    quota_of,
    rule_of,
    topic_of,
    topic_texts,
    user_of,
)
from trovemq_broker.cluster_config.entries import ConfigChange, Entry, Key, Kind, Position
from trovemq_broker.cluster_config.follower import Follower
from trovemq_broker.cluster_config.owner import ChangeResult, Owner
from trovemq_broker.cluster_config.reconcile import ActionKind, LocalEntry, plan_of
from trovemq_broker.cluster_config.table import ConfigTable
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.creators import reset_creator, set_creator
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
        self.owner: Owner = founded(name=names[0])
        self.followers: dict[str, Follower] = {name: follower(name) for name in names[1:]}
        self.away: set[str] = set()
        self.unreachable = False
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
        cluster.forwarded.append((method, caller, source))
        owner = cluster.brokers[cluster.owner.head.owner]
        return await owner.services.all.shared_changes.handle(method, request, caller, source, self._name)


class Broker:
    """One broker, whose own tables follow its copy of the cluster's table."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._ids: dict[Key, Position] = {}
        settings = small_broker_settings(name=name)
        self.services = BrokerServices(MemoryFileSystem(), settings, _Shared(cluster, name))
        self.core = self.services.core
        self.differing: list[TroveError] = []

    async def ask(self, rpc: str, caller: str = ADMIN, **fields: Any) -> Any:
        """The reply to a client's call, as `CreateTopic`, in the name of that user. Raises its TroveError."""
        method = _METHODS[rpc]
        request = request_bytes(self.services, method, fields)
        token = set_creator(Creator(caller))
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
        """Does what reconcile.py plans for these entries."""
        plan = plan_of(self._cluster.table_of(self.name), self.name, entries, self._local(entries))
        self.differing += plan.differing
        for action in plan.actions:
            if action.kind is ActionKind.DELETE:
                await self._delete(action.key)
                self._ids.pop(action.key, None)
                continue
            assert action.entry is not None
            if action.kind is not ActionKind.ADOPT:
                await self._put(action.entry)
            self._ids[action.key] = action.entry.id

    def _local(self, entries: Sequence[Entry]) -> Mapping[Key, LocalEntry]:
        found = {}
        for entry in entries:
            local = self._local_of(entry.key)
            if local is not None:
                found[entry.key] = local
        return found

    def _local_of(self, key: Key) -> LocalEntry | None:
        id_ = self._ids.get(key)
        if key.kind is Kind.TOPIC and (topic := self.core.store.topics.get(key.name)) is not None:
            return LocalEntry(key, id_, topic_texts(topic), topic.queue_count)
        if key.kind is Kind.GROUP and (group := self.core.groups.get(key.name)) is not None:
            return None if group.made_by_use else LocalEntry(key, id_, group_texts(group))
        return None if id_ is None else LocalEntry(key, id_, {"present": "true"})

    async def _put(self, entry: Entry) -> None:
        name, settings = entry.name, entry.settings
        if entry.kind is Kind.TOPIC:
            await self._put_topic(entry)
        elif entry.kind is Kind.GROUP:
            wanted = group_of(name, settings)
            if name in self.core.groups:
                await self.core.group_changes.alter(
                    name,
                    orderly=wanted.orderly,
                    retry_max=wanted.retry_max,
                    retry_policy=wanted.retry_policy,
                )
            else:
                await self.core.group_changes.create(wanted)
        elif entry.kind is Kind.USER:
            users = {**self.state.users, name: user_of(name, settings, entry.secrets)}
            await self._security(lambda state: replace(state, users=users))
        elif entry.kind is Kind.RULE:
            rules = {**self.state.rules, int(name): rule_of(name, settings)}
            number = max(self.state.next_rule, int(name) + 1)
            await self._security(lambda state: replace(state, rules=rules, next_rule=number))
        else:
            quotas = {**self.state.quotas, name: quota_of(name, settings)}
            await self._security(lambda state: replace(state, quotas=quotas))

    async def _put_topic(self, entry: Entry) -> None:
        queues = entry.queues_on(self.name)
        wanted = topic_of(entry.name, entry.settings, max(queues, 1))
        options = {name: text for name, text in entry.settings.items() if name in ("deduplicate", "order")}
        if entry.name not in self.core.store.topics:
            await self.core.topic_changes.create(entry.name, queues, wanted.message_type, options)
        elif queues:
            await self.core.topic_changes.alter(
                entry.name, queue_count=queues, message_type=wanted.message_type, options=options
            )

    async def _delete(self, key: Key) -> None:
        if key.kind is Kind.TOPIC:
            await self.core.topic_changes.delete(key.name)
        elif key.kind is Kind.GROUP:
            await self.core.group_changes.delete(key.name)
        else:
            await self._security(lambda state: _without(state, key))

    async def _security(self, make_state: Callable[[SecurityState], SecurityState]) -> None:
        await self.services.all._users._security.changes.apply(make_state)


def _without(state: SecurityState, key: Key) -> SecurityState:
    return replace(
        state,
        users={name: one for name, one in state.users.items() if (Kind.USER, name) != key},
        rules={number: one for number, one in state.rules.items() if (Kind.RULE, str(number)) != key},
        quotas={name: one for name, one in state.quotas.items() if (Kind.QUOTA, name) != key},
    )
