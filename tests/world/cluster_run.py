"""A cluster of real processes that follows steps, under load and under `trovemq verify`.

Without an owner of the configuration the operator follows the how-to "Grow and shrink a cluster": a
broker that joins or is back gets the topics and groups, and the deletions that it missed. With an owner
(`has_owner`) nothing is done for it. Changes go through each broker in turn. Before a broker is removed its
topics are spread over others.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trovemq
from tests.support.command_line import run_here
from tests.support.fork_server import popen
from tests.world.cluster_history import (
    Disturbed,
    Event,
    Expected,
    GroupDeleted,
    GroupMade,
    Holdings,
    QueuePlace,
    Removed,
    Report,
    TopicDeleted,
    TopicMade,
    check,
    read_key,
    unconsumed,
)
from tests.world.cluster_load import ROUTE_WAIT_MS, Load
from tests.world.cluster_steps import BEGINNING, Cluster, Step
from trovemq import Client, ConfigStatus, GroupSettings, TopicDescription, TroveError
from trovemq.cli.config_problems import problems_of
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec

LEDGER_TOPIC: Final = "ledger"
LEDGER_RATE: Final = 50
LEDGER_S: Final = 100_000
GRACE_MS: Final = 200
HELD_S: Final = 0.3
POLL_S: Final = 0.2
REMOVAL_S_MAX: Final = 120
SETTLED_S_MAX: Final = 180
"""Without progress. More than a lease of a client that is gone."""
LOOK_SHARE: Final = 5
"""A look at a long history takes seconds, and the groups of this process wait meanwhile."""
CHANGE_S_MAX: Final = 60
BETWEEN_S: Final = (0.05, 0.6)
VERIFY_S_MAX: Final = 240
UP: Final = ("serving", "drained")
OWNER_IS_AWAY: Final = (errors.CONFIG_OWNER_UNREACHABLE, errors.CONFIG_OWNER_MOVED)
"""For some seconds after its start, or after a take-over."""

KNOWN_LIMITS: Final = {
    "reordered_between": "a message group moves to another broker when one drains, joins or is removed",
}
"""Findings that are expected without an owner of the configuration, with the reason: the only place for
them."""


class Run:
    """`follow` steps, then `settle`. `trace`: the steps so far. `refusals`: removals that were refused."""

    def __init__(
        self, directory: Path, nameserver: NameserverProcess, load: Load, events: list[Event]
    ) -> None:
        self.cluster = Cluster()
        self.trace: list[str] = []
        self.refusals = 0
        self._directory = directory
        self._nameserver = nameserver
        self._load = load
        self._events = events
        self._brokers: dict[str, BrokerProcess] = {}
        self._lives: dict[str, int] = {}
        self._changes = 0
        self._do: dict[str, Callable[[Step], Awaitable[None]]] = {
            "add": self._add,
            "drain": self._drain,
            "undrain": self._undrain,
            "remove": self._remove,
            "kill": self._kill,
            "stop": self._stop,
            "start": self._start,
            "freeze": self._freeze,
            "restart-nameserver": self._restart_nameserver,
            "create-topic": self._create_topic,
            "alter-topic": self._alter_topic,
            "delete-topic": self._delete_topic,
            "create-group": self._create_group,
            "alter-group": self._alter_group,
            "delete-group": self._delete_group,
            "spread": self._spread,
            "take-over": self._take_over,
        }

    async def follow(self, steps: Sequence[Step], source: random.Random) -> None:
        """Applies the steps, with pauses by chance between."""
        for step in steps:
            self.trace.append(str(step))
            self.cluster.apply(step)
            await self._do[step.action](step)
            self._load.check()
            await asyncio.sleep(source.uniform(*BETWEEN_S))

    async def settle(self) -> Report:
        """Waits until everything is consumed; compares the history with the contents of all brokers, which
        must run. The load continues afterwards."""
        await self._load.pause()
        async with self._client() as client:
            await self._consumed()
            if self.cluster.has_owner:
                await _until(client, lambda statuses: not _problems(statuses))
            routed = [one.broker.name for one in client._pool.routes.state.brokers]
            held = {name: await _holdings(client, name) for name in self.cluster.brokers}
        report = check(self._events, held, routed, self._expected())
        self._load.resume()
        return report

    async def _consumed(self) -> None:
        """Until every group has consumed everything. The time of that depends on the machine, so it fails
        only if SETTLED_S_MAX pass without progress."""
        clock, least, since = asyncio.get_running_loop(), -1, 0.0
        while True:
            began = clock.time()
            left = await asyncio.to_thread(unconsumed, list(self._events))
            now = clock.time()
            if not left:
                return
            if not 0 <= least <= left:
                least, since = left, now
            assert now - since < SETTLED_S_MAX, f"{left} deliveries are to come, none came in {now - since} s"
            await asyncio.sleep(max(POLL_S, LOOK_SHARE * (now - began)))

    def close(self) -> None:
        for broker in self._brokers.values():
            broker.send_signal(signal.SIGCONT)
            broker.close()

    def _expected(self) -> dict[str, Expected]:
        """By broker."""
        topics = self.cluster.topics.values()
        groups = {group: _group_text(self._settings(group)) for topic in topics for group in topic.groups}
        found = {}
        for broker in self.cluster.brokers:
            has = {
                topic.name: f"{topic.message_type} {topic.queue_count}"
                for topic in topics
                if not self.cluster.has_owner or broker in topic.placement
            }
            found[broker] = Expected(has, groups, frozenset(self.cluster.topics.keys() - has.keys()))
        return found

    def _settings(self, group: str) -> GroupSettings:
        orderly = self.cluster.topic_of(group).message_type == "FIFO"
        return GroupSettings(orderly=orderly, retry_max=self.cluster.retries[group])

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        """A client that knows all brokers that run."""
        wanted = set(self.cluster.named(*UP)) & self._brokers.keys()
        async with trovemq.connect(self._nameserver.address, wait_ms=ROUTE_WAIT_MS) as client:
            routes = client._pool.routes
            listed = await routes.wait_until(
                lambda: {one.broker.name for one in routes.state.brokers} >= wanted, ROUTE_WAIT_MS / 1000
            )
            assert listed, f"the nameserver does not list all of {sorted(wanted)}"
            yield client

    async def _change(
        self,
        make: Callable[[Client], Awaitable[object]],
        made: ErrorSpec | None = None,
        *,
        through_all: bool = False,
    ) -> None:
        """Makes a change. With an owner it goes through the nameserver and each broker in turn (if not
        `through_all`), and is repeated while the owner is away; then `made` means that it was made before."""
        if not self.cluster.has_owner or through_all:
            servers = [self._nameserver.address]
        else:
            up = [self._brokers[name].address for name in self.cluster.named(*UP)]
            servers = [self._nameserver.address, *up]
        self._changes += 1
        server = servers[self._changes % len(servers)]
        repeated = False
        async with asyncio.timeout(CHANGE_S_MAX), self._client():
            while True:
                try:
                    async with trovemq.connect(server, wait_ms=ROUTE_WAIT_MS) as client:
                        if self.cluster.has_owner:  # a broker that has just joined, and its owner
                            await client._pool.routes.wait_until(lambda: _share(client), ROUTE_WAIT_MS / 1000)
                        await make(client)
                    return
                except TroveError as error:
                    if repeated and error.spec is made:
                        return
                    if not self.cluster.has_owner or error.spec not in OWNER_IS_AWAY:
                        raise
                repeated = True
                await asyncio.sleep(POLL_S)

    # --- brokers --------------------------------------------------------------------------------------

    async def _add(self, step: Step) -> None:
        settings: dict[str, Any] = {"config_owner": self.cluster.owner} if self.cluster.has_owner else {}
        self._brokers[step.name] = broker = BrokerProcess(
            name=step.name, store=self._directory / step.name, nameservers=[self._nameserver], **settings
        )
        await asyncio.to_thread(broker.start)
        await self._made_equal(step.name)

    async def _start(self, step: Step) -> None:
        self._events.append(Disturbed(step.name))
        await asyncio.to_thread(self._brokers[step.name].start)
        await self._made_equal(step.name)

    async def _kill(self, step: Step) -> None:
        await self._held_elsewhere(step.name)
        self._events.append(Disturbed(step.name))
        await asyncio.to_thread(self._brokers[step.name].kill)

    async def _stop(self, step: Step) -> None:
        await self._held_elsewhere(step.name)
        self._events.append(Disturbed(step.name))
        assert await asyncio.to_thread(self._brokers[step.name].stop) == 0

    async def _freeze(self, step: Step) -> None:
        self._events.append(Disturbed(step.name))
        self._brokers[step.name].send_signal(signal.SIGSTOP)
        await asyncio.sleep(step.number / 1000)
        self._brokers[step.name].send_signal(signal.SIGCONT)
        self._events.append(Disturbed(step.name))

    async def _drain(self, step: Step) -> None:
        async with self._client() as client:
            brokers = client.admin.brokers
            await brokers.drain(step.name, grace_ms=GRACE_MS)
            while (await brokers.drain_status(step.name)).state != "drained":
                await asyncio.sleep(POLL_S)

    async def _undrain(self, step: Step) -> None:
        async with self._client() as client:
            await client.admin.brokers.undrain(step.name)

    async def _remove(self, step: Step) -> None:
        """At first while its groups hold messages back; then they consume the rest."""
        async with self._client():
            pass
        if self.cluster.has_owner:
            for topic in self.cluster.topics.values():
                await self._spread(Step("spread", topic.name, ",".join(topic.placement)))
        self._load.hold()
        await asyncio.sleep(HELD_S)
        code, err = await self._removal(step.name, "0s")
        self._load.release()
        async with asyncio.timeout(REMOVAL_S_MAX):
            while code:
                assert json.loads(err.splitlines()[-1])["error"] == "BROKER_NOT_EMPTY", err
                self.refusals += 1
                await asyncio.sleep(POLL_S)
                code, err = await self._removal(step.name, "10s")
        self._events.append(Removed(step.name))
        broker = self._brokers.pop(step.name)
        assert await asyncio.to_thread(broker.wait) == 0
        broker.close()

    async def _removal(self, broker: str, within: str) -> tuple[int, str]:
        words = ("broker", "remove", broker, "--yes", "--grace", f"{GRACE_MS}ms", "--within", within)
        code, _, err = await asyncio.to_thread(run_here, self._nameserver.address, *words)
        return code, err

    async def _restart_nameserver(self, step: Step) -> None:
        await asyncio.to_thread(self._nameserver.kill)
        await asyncio.sleep(step.number / 1000)
        await asyncio.to_thread(self._nameserver.start)

    async def _take_over(self, step: Step) -> None:
        async with self._client():
            words = ("cluster", "config-owner", step.name, "--yes")
            code, out, err = await asyncio.to_thread(run_here, self._nameserver.address, *words)
        assert code == 0, err
        unreached = set(json.loads(out)["unreached"])
        assert not unreached & set(self.cluster.named(*UP)), out

    async def _held_elsewhere(self, broker: str) -> None:
        """Before the owner dies: until a second broker that is up has its changes."""
        others = set(self.cluster.named(*UP)) - {broker}
        if not self.cluster.has_owner or broker != self.cluster.owner or not others:
            return

        def held(statuses: Sequence[ConfigStatus]) -> bool:
            versions = {one.broker: (one.generation, one.version) for one in statuses}
            own = versions.get(broker)  # not there while a nameserver that was restarted waits for it
            return own is not None and any(versions.get(one) == own for one in others)

        async with self._client() as client:
            await _until(client, held)

    async def _made_equal(self, broker: str) -> None:
        """The operator's work on a broker that joined or is back: topics and groups as they should be."""
        if self.cluster.has_owner:
            return
        async with self._client() as client:
            admin = client.admin
            for topic in await admin.list_topics(broker=broker):
                if topic.topic not in self.cluster.topics and topic.topic != LEDGER_TOPIC:
                    await admin.delete_topic(topic.topic, broker=broker)
            for found in await admin.groups.list_all(broker=broker):
                if not any(found.group in one.groups for one in self.cluster.topics.values()):
                    await admin.groups.delete(found.group, broker=broker)
            for one in self.cluster.topics.values():
                await admin.create_topic(
                    one.name, one.queue_count, one.message_type, broker=broker, exist_ok=True
                )
                await admin.alter_topic(one.name, one.queue_count, broker=broker)
                for group in one.groups:
                    await admin.groups.create(group, self._settings(group), broker=broker, exist_ok=True)
                    await admin.groups.alter(group, self._settings(group), broker=broker)

    # --- topics and groups ----------------------------------------------------------------------------

    async def _create_topic(self, step: Step) -> None:
        placement = self.cluster.topics[step.name].placement or None
        await self._change(
            lambda client: client.admin.create_topic(step.name, step.number, step.other, brokers=placement),
            errors.TOPIC_EXISTS,
        )
        life = self._lives[step.name] = self._lives.get(step.name, 0) + 1
        self._events.append(TopicMade(step.name, life, step.other == "FIFO"))
        await self._load.begin_topic(step.name, life, step.other)

    async def _alter_topic(self, step: Step) -> None:
        await self._change(lambda client: client.admin.alter_topic(step.name, step.number))

    async def _spread(self, step: Step) -> None:
        brokers = step.other.split(",")
        await self._change(lambda client: client.admin.spread_topic(step.name, brokers), through_all=True)

    async def _delete_topic(self, step: Step) -> None:
        await self._load.end_topic(step.name)
        groups = [one.group for one in self._events if isinstance(one, GroupMade) and one.topic == step.name]
        gone = {one.group for one in self._events if isinstance(one, GroupDeleted)}
        for group in groups:
            if group not in gone:
                await self._delete_group(Step("delete-group", group))
        await self._change(lambda client: client.admin.delete_topic(step.name), errors.TOPIC_NOT_FOUND)
        self._events.append(TopicDeleted(step.name))

    async def _create_group(self, step: Step) -> None:
        settings = self._settings(step.name)
        await self._change(
            lambda client: client.admin.groups.create(step.name, settings), errors.GROUP_EXISTS
        )
        self._events.append(GroupMade(step.name, step.other))
        self._load.begin_group(step.name, step.other)

    async def _alter_group(self, step: Step) -> None:
        settings = self._settings(step.name)
        await self._change(lambda client: client.admin.groups.alter(step.name, settings))

    async def _delete_group(self, step: Step) -> None:
        await self._load.end_group(step.name)
        await self._change(lambda client: client.admin.groups.delete(step.name), errors.GROUP_NOT_FOUND)
        self._events.append(GroupDeleted(step.name))


@asynccontextmanager
async def running(directory: Path, *, has_owner: bool = False) -> AsyncIterator[Run]:
    """A run after the steps of BEGINNING. Its processes end with the block."""
    async with AsyncExitStack() as exits:
        nameserver = exits.enter_context(NameserverProcess())
        events: list[Event] = []
        load = Load(nameserver.address, events)
        run = Run(directory, nameserver, load, events)
        run.cluster.has_owner = has_owner
        exits.callback(run.close)
        first, *others = BEGINNING
        await run.follow([first], random.Random(0))
        await exits.enter_async_context(_verified(nameserver.address, directory / "ledger"))
        await exits.enter_async_context(load)
        await run.follow(others, random.Random(0))
        yield run


# --- trovemq verify -----------------------------------------------------------------------------------


@asynccontextmanager
async def _verified(server: str, ledger: Path) -> AsyncIterator[None]:
    """`trovemq verify produce` sends to the only broker, which is never removed, until the end of the block;
    then `trovemq verify check` must find everything."""
    words = ["--rate", str(LEDGER_RATE), "--seconds", str(LEDGER_S), "--size", "200"]
    producing = _verify(server, "produce", LEDGER_TOPIC, "--ledger", str(ledger), *words)
    try:
        while not ledger.exists() and producing.poll() is None:
            await asyncio.sleep(POLL_S)
        yield
        assert producing.poll() is None, await asyncio.to_thread(producing.communicate)
    finally:
        producing.kill()
        await asyncio.to_thread(producing.communicate)
    checking = _verify(server, "check", "--ledger", str(ledger), "--sample", "100")
    out, err = await asyncio.to_thread(checking.communicate, timeout=VERIFY_S_MAX)
    report: dict[str, Any] = json.loads(out or b"{}")
    assert report.get("faults") == [], (report, err)
    assert report["acknowledged"] > 0


def _verify(server: str, *words: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "trovemq.cli", "--server", server, "--json", "verify"]
    return popen([*line, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _share(client: Client) -> bool:
    """Whether all brokers of the routes say that they share a configuration."""
    return all(one.broker.config is not None for one in client._pool.routes.state.brokers)


# --- the configuration --------------------------------------------------------------------------------


async def _until(client: Client, condition: Callable[[Sequence[ConfigStatus]], bool]) -> None:
    """Waits until the configurations of the brokers are so."""
    statuses: Sequence[ConfigStatus] = []
    try:
        async with asyncio.timeout(SETTLED_S_MAX):
            while not condition(statuses := await client.admin.config.status()):
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise AssertionError(f"{_problems(statuses)}: {statuses}") from error


def _problems(statuses: Sequence[ConfigStatus]) -> list[str]:
    return [f"{one.broker}: {one.what}" for one in problems_of(statuses)]


# --- the contents of a broker -------------------------------------------------------------------------


async def _holdings(client: Client, broker: str) -> Holdings:
    topics = [one for one in await client.admin.list_topics(broker=broker) if one.topic != LEDGER_TOPIC]
    groups = await client.admin.groups.list_all(broker=broker)
    stored = []
    for topic in topics:
        for queue in await client.queue_offsets(topic.topic, broker=broker):
            async for batch in client.pull_batches(
                topic.topic, queue_id=queue.queue_id, offset=queue.min_offset, broker=broker
            ):
                for message in batch.messages():
                    key = read_key(message.unique_key or "")
                    stored.append((key, QueuePlace(broker, queue.queue_id, message.queue_offset)))
    return Holdings(
        stored,
        {one.topic: _topic_text(one) for one in topics},
        {one.group: _group_text(one.settings) for one in groups if one.created},
    )


def _topic_text(topic: TopicDescription) -> str:
    return f"{topic.message_type} {topic.queue_count}"


def _group_text(settings: GroupSettings) -> str:
    return f"orderly {settings.orderly}, retries {settings.retry_max}"
