"""The SDK against one real broker, by each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

import trovemq
from trovemq import Client, TroveError, errors
from trovemq.testing import BrokerProcess
from trovemq_proto.channels import TRANSPORTS, GrpcTransport

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> GrpcTransport:
    """Of the client; the broker serves by its own default."""
    name: GrpcTransport = request.param
    return name


@pytest.fixture(scope="module")
def broker(transport: GrpcTransport) -> Iterator[BrokerProcess]:
    """One for each transport, as their tests make the same topics."""
    with BrokerProcess() as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess, transport: GrpcTransport) -> AsyncIterator[Client]:
    options = trovemq.ClientOptions(grpc_transport=transport)
    async with trovemq.connect(broker.address, options=options) as connected:
        yield connected


async def test_the_pytest_fixture(trovemq_broker: BrokerProcess) -> None:
    async with trovemq.connect(trovemq_broker.address) as client:
        assert await client.admin.list_topics() == []
        (description,) = await client.admin.create_topic("first", queue_count=2)
        assert (description.topic, description.queue_count) == ("first", 2)
        assert (await client.send("first", b"x")).durability == "disk"


async def test_a_folder_named_as_ours_beside_the_tests_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trovemq_broker").mkdir()
    (tmp_path / "trovemq_broker" / "__main__.py").write_text("raise SystemExit('not ours')")
    (tmp_path / "trovemq_broker" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with BrokerProcess() as started:
        assert started.ready()


async def test_every_call_about_a_topic_that_is_not_there_says_so_at_once(client: Client) -> None:
    async def transaction() -> None:
        async with client.transaction() as changes:
            await changes.send("absent", b"x")

    for call in (
        lambda: client.send("absent", b"x"),
        lambda: client.send("absent", b"x", deliver_after=5),
        lambda: client.producer("absent").send_batch([b"x"]),
        lambda: client.subscribe("absent", "g").__aenter__(),
        lambda: client.subscribe("absent", "g", broadcast=True).__aenter__(),
        lambda: anext(client.pull("absent")),
        lambda: client.query("absent", "k"),
        lambda: client.search("absent", tag="t"),
        lambda: client.queue_offsets("absent"),
        lambda: client.admin.describe_topic("absent"),
        lambda: client.admin.alter_topic("absent", queue_count=9),
        lambda: client.admin.delete_topic("absent"),
        transaction,
    ):
        async with asyncio.timeout(10):
            with pytest.raises(TroveError) as refused:
                await call()
        assert refused.value.spec is errors.TOPIC_NOT_FOUND


async def test_everything_that_names_a_message_finds_it(client: Client) -> None:
    await client.admin.create_topic("names", queue_count=4)
    receipt = await client.send("names", b"body", keys=["a", "b"], tag="t", properties={"p": "v"})
    at_place = await client.get_at("names", receipt.queue_id, receipt.queue_offset)
    by_id, by_key = await client.get(receipt.offset_msg_id), await client.get(receipt.message_id)
    assert (by_id.kind, by_key.kind) == ("offset_msg_id", "message_id")
    assert by_id.messages == by_key.messages == (at_place,)
    assert (at_place.body, at_place.keys, at_place.tags) == (b"body", ("a", "b"), "t")
    assert at_place.offset_msg_id == receipt.offset_msg_id
    assert at_place.physical_offset == receipt.physical_offset
    for key, kind in (("a", "key"), ("b", "key"), (receipt.message_id, "message_id"), ("t", "tag")):
        answer = await client.query("names", key, type=kind)
        assert (answer.messages, answer.complete) == ((at_place,), True)
    offset = await client.search_offset("names", receipt.queue_id, receipt.store_timestamp)
    assert offset == receipt.queue_offset


async def test_batches_come_back_in_order_and_their_receipts_are_right(client: Client) -> None:
    await client.admin.create_topic("batches", queue_count=2)
    bodies = [b"%06d" % i + bytes(i % 3000) for i in range(5_000)]
    async with client.producer("batches") as producer:
        receipt = await producer.send_batch(bodies, keys=[f"k{i % 100}" for i in range(5_000)], queue_id=1)
    pulled = [message async for message in client.pull("batches", queue_id=1)]
    assert [message.body for message in pulled] == bodies
    assert [message.queue_offset for message in pulled] == receipt.queue_offsets.tolist()
    assert [message.physical_offset for message in pulled] == receipt.physical_offsets.tolist()
    assert [message.unique_key for message in pulled] == receipt.message_ids
    assert receipt[4_321].offset_msg_id == pulled[4_321].offset_msg_id
    found = [message.body async for message in client.query_all("batches", "k7", page_size=9)]
    assert found == [bodies[i] for i in range(5_000) if i % 100 == 7][::-1]


async def test_thousands_of_single_messages(client: Client) -> None:
    await client.admin.create_topic("singles", queue_count=4)
    async with client.producer("singles", linger_ms=1) as producer:
        futures = [producer.send_nowait(b"%d" % i, ordering_key=str(i % 50)) for i in range(3_000)]
        await producer.flush()
    receipts = [future.result() for future in futures]
    assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == 3_000
    for queue_id in range(4):
        bodies = [int(message.body) async for message in client.pull("singles", queue_id=queue_id)]
        for remainder in range(50):
            own = [body for body in bodies if body % 50 == remainder]
            assert own == sorted(own)


async def test_tags_and_following(client: Client) -> None:
    await client.admin.create_topic("tagged", queue_count=1)
    async with aclosing(client.pull("tagged", follow=True, tags=["red"], wait_ms=200)) as messages:
        waiting = asyncio.ensure_future(anext(messages))
        for tag in ("blue", "red", "blue", "red"):
            await client.send("tagged", tag.encode(), tag=tag)
        assert [(await waiting).queue_offset, (await anext(messages)).queue_offset] == [1, 3]


async def test_admin(client: Client) -> None:
    await client.admin.create_topic("admin", queue_count=2, message_type="FIFO")
    with pytest.raises(TroveError) as refused:
        await client.admin.create_topic("admin")
    assert refused.value.spec is errors.TOPIC_EXISTS
    (kept,) = await client.admin.create_topic("admin", exist_ok=True)
    assert (kept.queue_count, kept.message_type) == (2, "FIFO")
    (altered,) = await client.admin.alter_topic("admin", queue_count=4)
    assert (altered.queue_count, altered.message_type) == (4, "FIFO")
    await client.send("admin", b"x", queue_id=3, message_group="g")
    (described,) = await client.admin.describe_topic("admin")
    assert [queue.max_offset for queue in described.queues] == [0, 0, 0, 1]
    assert [queue.max_offset for queue in await client.queue_offsets("admin", queue_ids=[3])] == [1]
    assert await client.admin.get_offset("g", "admin", 3) is None
    await client.admin.commit_offset("g", "admin", 3, 1)
    assert await client.admin.get_offset("g", "admin", 3) == 1
    changes = await client.admin.reset_offset("g", "admin", to_min=True)
    assert [(change.queue_id, change.offset_before, change.offset) for change in changes][3] == (3, 1, 0)
    (statistics,) = await client.admin.statistics()
    assert statistics.broker.name == "broker-test"
    assert await client.admin.delete_topic("admin") != {}
    with pytest.raises(TroveError) as refused:
        await client.send("admin", b"x", message_group="g")
    assert refused.value.spec is errors.TOPIC_NOT_FOUND


async def test_a_topic_made_again_is_another_one_for_every_position(client: Client) -> None:
    async def make(count: int) -> None:
        await client.admin.create_topic("again", queue_count=1)
        for number in range(count):
            await client.send("again", b"%d" % number)

    async def consumed(count: int) -> list[bytes]:
        async with client.subscribe("again", "workers", start="earliest") as subscription:
            found = []
            for _ in range(count):
                async with (await anext(subscription)).process() as message:
                    found.append(message.body)
            return found

    await make(5)
    assert len(await consumed(3)) == 3
    async with aclosing(client.pull_batches("again", follow=True)) as following:
        batch = await anext(following)
        await client.admin.delete_topic("again")
        await make(9)
        with pytest.raises(TroveError, match=r"TOPIC_(RECREATED|NOT_FOUND)"):
            await anext(following)
    position = batch.next_offset
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        await anext(client.pull_batches("again", offset=position, topic_identity=batch.topic_identity))
    assert len([message async for message in client.pull("again", offset=position)]) == 4, "not checked"
    (queue,) = await client.queue_offsets("again")
    own = client.pull_batches("again", offset=position, topic_identity=queue.topic_identity)
    async with aclosing(own):
        assert len(await anext(own)) == 4
    assert await consumed(9) == [b"%d" % number for number in range(9)], "a group begins again"


async def test_one_way(client: Client) -> None:
    await client.admin.create_topic("oneway", queue_count=1)
    async with client.producer("oneway") as producer:
        producer.send_oneway(b"a")
        await producer.flush()
        await producer.send(b"b")
    assert [message.body async for message in client.pull("oneway")] == [b"a", b"b"]


async def test_valid_offsets_are_reported(client: Client) -> None:
    await client.admin.create_topic("range", queue_count=1)
    await client.send("range", b"x")
    with pytest.raises(TroveError) as refused:
        await anext(client.pull("range", offset=5))
    assert refused.value.spec is errors.OFFSET_OUT_OF_RANGE
    assert (refused.value.fields["min_offset"], refused.value.fields["max_offset"]) == ("0", "1")


@pytest.mark.parametrize("kill", [False, True])
async def test_sending_and_following_continue_over_a_restart(kill: bool, transport: GrpcTransport) -> None:
    options = trovemq.ClientOptions(send_attempts_max=100, grpc_transport=transport)
    with BrokerProcess() as broker:
        async with trovemq.connect(broker.address, options=options) as client:
            await client.admin.create_topic("restart", queue_count=1)
            async with aclosing(client.pull("restart", follow=True)) as messages:
                await client.send("restart", b"before")
                assert (await anext(messages)).body == b"before"
                await asyncio.to_thread(broker.kill if kill else broker.stop)
                while kill and not client._pool.suspect(client._pool.routes.broker("broker-test")):
                    await asyncio.sleep(0.001)  # messages written before it noticed would be in doubt
                sending = asyncio.ensure_future(client.send("restart", b"after"))
                await asyncio.to_thread(broker.start)
                assert (await sending).queue_offset == 1
                assert (await anext(messages)).body == b"after"


async def test_property_crcs_are_learned_after_a_restart() -> None:
    with BrokerProcess(enabledAppendPropCRC="false") as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic("crc", queue_count=1)
            await client.send("crc", b"without")
            await asyncio.to_thread(broker.stop)
            broker.arguments += ["--set", "enabledAppendPropCRC=true"]
            await asyncio.to_thread(broker.start)
            async with client.producer("crc") as producer:
                await producer.send(b"with")
                await producer.send_batch([b"1", b"2"])
            messages = [message async for message in client.pull("crc")]
            assert [message.body for message in messages] == [b"without", b"with", b"1", b"2"]
            assert ["__CRC32#" in message.properties for message in messages] == [False, True, True, True]
