"""A consumer group has one kind of client at a time, and is converted when the other kind comes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import trovemq
from tests.support.broker_here import BrokerHere, broker_here
from tests.support.engine import NOW_MS, flush, open_store, read_queue
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.remoting_client import RemotingClient, remoting_client
from trovemq import Client
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.clients import RECONNECT_MS
from trovemq_broker.server.core.group_kinds import REMOTING_RETURN_MS
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers import rocketmq_files
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem

CLASSIC = "%RETRY%g"
LATER_MS = 3_600_000
AREAS = ("delivery", "own_offsets", "timers", "tables", "events")
"""Of fault points that a conversion passes."""
CONSUMERS = ConsumerSettings(new_group_start="earliest", timer_log_file_size=65_536, receive_poll_min_ms=0)
"""Each kill copies the files: a timer log of the default size is 100 MB."""


@pytest.fixture(autouse=True)
def _small_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 4_096)  # two weeks of slots are 38 MB to copy


@asynccontextmanager
async def opened_broker(files: MemoryFileSystem, now_ms: EpochMs = NOW_MS) -> AsyncIterator[TestBroker]:
    """A broker on these files, whose tables are in its log. It is not closed: its files are as after a
    kill."""
    store = open_store(files, replace(ROOMY, tables_in_log=True), topics=("orders", "steps"))
    model = ConsumerState.open(store, files, CONSUMERS, now_ms)
    core = TestBroker(opened=(store, model))
    core.now_ms = now_ms
    syncs = asyncio.create_task(core.group_commit.run())
    try:
        yield core
    finally:
        syncs.cancel()


def visible(core: TestBroker) -> None:
    flush(core.store)
    core.on_messages_available(core.store.dispatch())


async def receive(core: TestBroker, count: int, topic: str = "orders") -> list[tuple[str, str]]:
    """(body, handle) of each message."""
    found = await core.messages(topic, batch_size=count, polling_ms=0)
    return [(one.body.decode(), one.system_properties.receipt_handle) for one in found]


@asynccontextmanager
async def used_group(files: MemoryFileSystem) -> AsyncIterator[tuple[TestBroker, set[str], set[str]]]:
    """A group of leases with messages of every state, after a clean stop in between; the bodies of those that
    it has not consumed, and of those that it has received."""
    async with opened_broker(files) as core:
        for number in range(8):
            await core.send(message(b"m%d" % number, message_id=f"ID{number}"))
        first = await receive(core, 2)
        await core.acknowledge(first[1][1])
        core.now_ms += 20_000
        later = await receive(core, 2)
        await core.group_commit.committed(core.store.end_offset)
        now_ms = core.now_ms
    core.model.export_to_rocketmq(now_ms)
    core.store.close(now_ms)
    async with opened_broker(files, EpochMs(now_ms + 11_000)) as core:
        core.timers.deliver_due(core.now_ms)  # the first retry is due, and not delivered
        visible(core)
        second = await receive(core, 3)
        await core.acknowledge(second[0][1])
        visible(core)
        received = {body for body, _ in (*first, *later, *second)}
        yield core, {f"m{number}" for number in range(8)} - {first[1][0], second[0][0]}, received


def with_own_offsets(core: TestBroker, topic: str = "orders") -> set[str]:
    """The messages that a consumer which keeps its position reads, by the group's offsets."""
    core.timers.deliver_due(EpochMs(core.now_ms + LATER_MS))
    visible(core)
    return unread(core, topic, range(4)) | unread(core, CLASSIC, range(1))


def unread(core: TestBroker, topic: str, queue_ids: Iterable[int]) -> set[str]:
    """The bodies from the group's offsets on."""
    found = set()
    for queue_id in map(QueueId, queue_ids):
        begin = core.store.offsets.get("g", topic, queue_id) or 0
        found |= {one.body.decode() for one in read_queue(core.store, topic, queue_id)[begin:]}
    return found


async def with_leases(core: TestBroker) -> set[str]:
    core.now_ms = EpochMs(core.now_ms + LATER_MS)
    core.timers.deliver_due(core.now_ms)
    core.delivery.due_pairs(core.now_ms)
    visible(core)
    found: set[str] = set()
    while some := await receive(core, 32):
        found |= {body for body, _ in some}
    return found


@pytest.mark.asyncio
async def test_a_group_that_moves_to_remoting_loses_nothing() -> None:
    async with used_group(MemoryFileSystem()) as (core, waiting, received):
        await core.kinds.convert("g")
        assert unread(core, "orders", range(4)).isdisjoint(received), "the copies are read instead"
        assert core.groups.require("g").has_own_offsets
        assert not core.delivery.has_group("g")
        assert with_own_offsets(core) == waiting
        copies = read_queue(core.store, CLASSIC)
        assert {one.properties["RETRY_TOPIC"] for one in copies} == {"orders"}
        assert all(one.reconsume_times >= 1 for one in copies)
        assert max(Counter(one.body for one in copies).values()) == 1, "each is copied once"


@pytest.mark.asyncio
async def test_a_group_that_moves_there_and_back_loses_nothing() -> None:
    async with used_group(MemoryFileSystem()) as (core, waiting, _):
        await core.kinds.convert("g")
        assert await with_leases(core) == waiting
        assert not core.groups.require("g").has_own_offsets


@pytest.mark.asyncio
async def test_a_kill_at_any_step_of_a_conversion_loses_nothing() -> None:
    files, images = MemoryFileSystem(), dict[str, MemoryFileSystem]()

    def passed(point: str) -> None:
        """Keeps the first pass of a point, and the last one of those that end a step."""
        is_last = point.startswith("own_offsets.after") or point == "tables.after_append"
        if point.partition(".")[0] in AREAS and (is_last or point not in images):
            images[point] = files.after_process_kill()

    async with used_group(files) as (core, waiting, _):
        with armed(passed):
            await core.kinds.convert("g")
    assert images.keys() >= {
        "delivery.before_retry",
        "delivery.after_retry",
        "own_offsets.before_offset",
        "own_offsets.after_offsets",
        "own_offsets.after_save",
        "own_offsets.after_forgetting",
        "timers.before_wheel",
        "tables.after_append",
    }
    kinds = set()
    for name, image in images.items():
        async with opened_broker(image.after_process_kill(), core.now_ms) as again:
            kinds.add(again.groups.require("g").has_own_offsets)
            assert await with_leases(again) >= waiting, name
        async with opened_broker(image, core.now_ms) as again:
            await again.kinds.convert("g")
            assert with_own_offsets(again) >= waiting, name
    assert kinds == {True, False}


@pytest.mark.asyncio
async def test_an_orderly_group_begins_at_its_first_unconsumed_message() -> None:
    async with opened_broker(MemoryFileSystem()) as core:
        core.groups.for_use("g", auto_create=True, orderly=True, now_ms=NOW_MS)
        core.store.topics.alter("steps", message_type="FIFO")
        for number in range(3):
            await core.send(message(b"m%d" % number, "steps", message_id=f"ID{number}", message_group="one"))
        ((_, handle),) = await receive(core, 1, "steps")
        await core.acknowledge(handle, topic="steps")
        await receive(core, 1, "steps")
        await core.kinds.convert("g")
        assert with_own_offsets(core, "steps") == {"m1", "m2"}
        assert read_queue(core.store, CLASSIC) == []


# --- a next leader ----------------------------------------------------------------------------------------
@pytest.mark.asyncio
async def test_a_next_leader_took_a_group_from_its_remoting_consumers() -> None:
    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        await core.send(message(b"one"))
        await core.group_commit.committed(core.store.end_offset)
        core.groups.for_use("g", auto_create=True, now_ms=NOW_MS)
        await core.kinds.convert("g")
        assert core.groups.require("g").has_own_offsets
    async with opened_broker(files.after_process_kill()) as core:
        core.now_ms = EpochMs(NOW_MS + REMOTING_RETURN_MS - 1_500)
        with pytest.raises(TroveError, match="unless they come back within 2 s") as caught:
            core.kinds.check_leases("g")
        assert caught.value.spec is errors.GROUP_CLIENTS_DIFFER
        assert core.groups.require("g").has_own_offsets
        core.now_ms = EpochMs(NOW_MS + REMOTING_RETURN_MS)
        core.kinds.check_leases("g")
        assert [body for body, _ in await receive(core, 32)] == ["one"]


@pytest.mark.asyncio
async def test_a_next_leader_ended_the_leases_of_clients_that_had_not_come_yet() -> None:
    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        await core.send(message(b"one"))
        ((_, handle),) = await receive(core, 1)
        await core.acknowledge(handle)
        core.events.flush(NOW_MS)
        core.groups.persist(now_ms=NOW_MS)
        await core.group_commit.committed(core.store.end_offset)
    async with opened_broker(files.after_process_kill()) as core:
        core.now_ms = EpochMs(NOW_MS + RECONNECT_MS - 500)
        with pytest.raises(TroveError, match="unless they come back within 1 s") as caught:
            await core.kinds.convert("g")
        assert caught.value.spec is errors.GROUP_CLIENTS_DIFFER
        assert not core.groups.require("g").has_own_offsets
        core.now_ms = EpochMs(NOW_MS + RECONNECT_MS)
        await core.kinds.convert("g")


@pytest.mark.asyncio
async def test_a_next_leader_refused_the_first_clients_of_a_group() -> None:
    """No client can come back to it."""
    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        core.groups.for_use("g", auto_create=True, now_ms=NOW_MS)
        core.groups.persist(now_ms=NOW_MS)
    async with opened_broker(files.after_process_kill()) as core:
        await core.kinds.convert("g")
        core.kinds.check_leases("g")


# --- two kinds at once ------------------------------------------------------------------------------------
def with_both(path: Path, run: Callable[[BrokerHere, RemotingClient, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with broker_here(path, remoting_enable=True) as broker:
            await broker.create_topic("orders", 1)
            async with remoting_client(broker.address) as remoting, trovemq.connect(broker.address) as client:
                await run(broker, remoting, client)

    asyncio.run(main())


async def committed(client: RemotingClient) -> str:
    asked = {"consumerGroup": "readers", "topic": "orders", "queueId": 0, "setZeroIfNotFound": False}
    return (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)).fields.get("offset", "")


def test_a_remoting_consumer_joined_a_group_with_leases(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, remoting: RemotingClient, client: Client) -> None:
        names = {"consumerGroup": "readers", "topic": "orders", "queueId": 0}
        await remoting.send("orders", b"one")
        async with client.subscribe("orders", group="readers") as subscription:
            received = await anext(aiter(subscription))
            assert (await remoting.heartbeat("c1")).code == ResponseCode.SUCCESS
            for code, fields in (
                (RequestCode.GET_CONSUMER_LIST_BY_GROUP, names),
                (RequestCode.UPDATE_CONSUMER_OFFSET, {**names, "commitOffset": 1}),
            ):
                refused = await remoting.ask(code, fields)
                assert refused.code == ResponseCode.NO_PERMISSION
                assert "stop them first" in refused.header.remark
            pulled = await remoting.pull("orders", 0, sysFlag=0)
            assert (pulled.code, pulled.body) == (ResponseCode.NO_PERMISSION, b"")
            await received.ack()
        members = await remoting.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, names)
        assert members.json() == {"consumerIdList": ["c1"]}
        assert await committed(remoting) == "1"
        assert (await remoting.pull("orders", 1, sysFlag=0)).code == ResponseCode.PULL_NOT_FOUND

    with_both(tmp_path, run)


def test_a_subscription_joined_a_group_of_remoting_consumers(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, remoting: RemotingClient, client: Client) -> None:
        for body in (b"one", b"two"):
            await remoting.send("orders", body)
        async with remoting_client(broker.address) as consumer:
            await consumer.heartbeat("c1")
            with pytest.raises(TroveError) as caught:
                async with client.subscribe("orders", group="readers") as subscription:
                    await anext(aiter(subscription))
            assert caught.value.spec is errors.GROUP_CLIENTS_DIFFER
            consumer.notify(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "readers", "topic": "orders", "queueId": 0, "commitOffset": 1},
            )
            await consumer.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "readers"})
        async with client.subscribe("orders", group="readers") as subscription:
            assert (await anext(aiter(subscription))).body == b"two"

    with_both(tmp_path, run)
