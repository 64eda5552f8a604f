"""The data plane of a real broker: streams, long polls, tags, errors for one frame alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.support.broker_process import BrokerProcess, Stubs, error_of, refused, running_broker
from tests.support.engine import sent_record
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import Message, decode_message, encode_offset_msg_id
from trovemq_proto.v1 import admin_pb2, common_pb2, message_pb2

pytestmark = pytest.mark.slow

FLUSH_MODES = ("sync", "async")


@pytest.fixture(scope="module", params=FLUSH_MODES)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("store"), f"flush_mode={request.param}") as process:
        yield process
        assert process.stop() == 0


@pytest_asyncio.fixture
async def stubs(broker: BrokerProcess) -> AsyncIterator[Stubs]:
    """A connection; the topic is recreated for each test, and so begins at offset 0 again."""
    async with Stubs(broker.address) as connected:
        await connected.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", queue_count=4))
        yield connected
        listed = await connected.admin.ListTopics(admin_pb2.ListTopicsRequest())
        for topic in listed.topics:
            await connected.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=topic.topic))


def frame(
    number: int, *bodies: bytes, queue_id: QueueId = QueueId(0), **fields: Any
) -> message_pb2.AppendFrame:
    records = b"".join(sent_record(body, queue_id=queue_id) for body in bodies)
    return message_pb2.AppendFrame(
        **{"frame_id": number, "topic": "orders", "queue_id": queue_id, "records": records, **fields}
    )


async def exchange(stubs: Stubs, *frames: message_pb2.AppendFrame) -> list[message_pb2.AppendReply]:
    """Sends all the frames on one stream without waiting, ends it, and reads every reply."""
    call = stubs.messages.Append()
    for one in frames:
        await call.write(one)
    await call.done_writing()
    return [reply async for reply in call]


async def counters(stubs: Stubs) -> dict[str, int]:
    reply = await stubs.admin.GetStatistics(admin_pb2.GetStatisticsRequest())
    return dict(reply.counters)


def messages(reply: message_pb2.FetchReply) -> list[Message]:
    data, found = reply.records, []
    while data:
        size = int.from_bytes(data[:4])
        found.append(decode_message(data[:size]))
        data = data[size:]
    return found


async def read_queue(stubs: Stubs, queue_id: QueueId = QueueId(0), **fields: Any) -> list[Message]:
    found, offset = list[Message](), 0
    while True:
        reply = await stubs.messages.Pull(
            message_pb2.FetchRequest(topic="orders", queue_id=queue_id, offset=offset, **fields)
        )
        if reply.next_offset == offset:
            return found
        found += messages(reply)
        offset = reply.next_offset


@pytest.mark.asyncio
async def test_pipelined_frames_are_appended_in_order_and_acknowledged_each(
    broker: BrokerProcess, stubs: Stubs
) -> None:
    replies = await exchange(stubs, *(frame(i, b"%d" % i, b"+") for i in range(300)))
    assert [reply.frame_id for reply in replies] == list(range(300))
    assert [reply.first_queue_offset for reply in replies] == list(range(0, 600, 2))
    assert {reply.status for reply in replies} == {common_pb2.PUT_OK}
    sync = "flush_mode=sync" in str(broker.process.args)
    assert {reply.durability for reply in replies} == {common_pb2.DISK if sync else common_pb2.MEMORY}
    found = await read_queue(stubs)
    assert [message.body for message in found[::2]] == [b"%d" % i for i in range(300)]
    ids = [encode_offset_msg_id(reply.store_host, PhysicalOffset(reply.physical_offset)) for reply in replies]
    assert [message.offset_msg_id for message in found[::2]] == ids
    assert found[0].store_host == broker.address
    assert found[0].born_host.startswith("127.0.0.1:")
    assert [message.store_timestamp for message in found[::2]] == [reply.store_timestamp for reply in replies]


@pytest.mark.asyncio
async def test_a_message_can_be_read_as_soon_as_it_is_acknowledged(stubs: Stubs) -> None:
    call = stubs.messages.Append()
    for number in range(50):
        await call.write(frame(number, b"x"))
        reply = await call.read()
        request = message_pb2.FetchRequest(topic="orders", offset=reply.first_queue_offset)
        assert len(messages(await stubs.messages.Pull(request))) == 1
    await call.done_writing()


@pytest.mark.asyncio
async def test_a_bad_frame_is_refused_alone(stubs: Stubs) -> None:
    bad: Sequence[tuple[message_pb2.AppendFrame, str, int]] = (
        (frame(1, records=b"nonsense"), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(2, records=b""), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(3, records=sent_record(b"x", body_crc=7)), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(4, records=sent_record(b"x", magic=0xDAA320AB)), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(5, records=sent_record(b"x", topic="others")), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(6, records=sent_record(b"x", queue_id=3)), "BATCH_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(7, b"x", topic="unknown"), "TOPIC_NOT_FOUND", common_pb2.MESSAGE_ILLEGAL),
        (frame(8, b"x", topic="../x"), "TOPIC_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(9, b"x", topic="%RETRY%g"), "TOPIC_ILLEGAL", common_pb2.MESSAGE_ILLEGAL),
        (frame(10, b"x", queue_id=QueueId(4)), "QUEUE_NOT_FOUND", common_pb2.MESSAGE_ILLEGAL),
        (frame(11, b"x" * (1 << 20)), "BATCH_SIZE_EXCEEDED", common_pb2.MESSAGE_ILLEGAL),
    )
    before = await counters(stubs)
    replies = await exchange(stubs, frame(0, b"first"), *(one for one, _, _ in bad), frame(99, b"last"))
    answered = {reply.frame_id: reply for reply in replies}
    assert len(answered) == len(bad) + 2
    for one, symbol, status in bad:
        reply = answered[one.frame_id]
        assert (reply.error.symbol, reply.status) == (symbol, status)
    assert answered[99].first_queue_offset == 1, "a refused frame uses up no queue offset"
    assert [message.body for message in await read_queue(stubs)] == [b"first", b"last"]
    after = await counters(stubs)
    assert after["appends_refused"] == before["appends_refused"] + len(bad)


@pytest.mark.asyncio
async def test_a_frame_that_is_not_a_protobuf_is_refused_alone(stubs: Stubs) -> None:
    call = stubs.channel.stream_stream("/trovemq.v1.MessageService/Append")()
    whole = frame(7, b"x" * 50).SerializeToString()
    for data in (b"\xff", whole[:-9], whole, b"\x08"):
        await call.write(data)
    await call.done_writing()
    replies = [message_pb2.AppendReply.FromString(data) async for data in call]
    good = [reply for reply in replies if not reply.HasField("error")]
    assert [reply.frame_id for reply in good] == [7]
    assert {reply.error.symbol for reply in replies if reply.HasField("error")} == {"BATCH_ILLEGAL"}
    assert len(replies) == 4


@pytest.mark.asyncio
async def test_one_way_frames_have_no_reply_and_refusals_are_counted(
    broker: BrokerProcess, stubs: Stubs
) -> None:
    before = (await counters(stubs))["one_way_refused"]
    replies = await exchange(
        stubs,
        frame(1, b"a", one_way=True),
        frame(2, records=b"bad", one_way=True),
        frame(3, b"b"),
        frame(4, b"c", topic="unknown", one_way=True),
    )
    assert [reply.frame_id for reply in replies] == [3]
    assert [message.body for message in await read_queue(stubs)] == [b"a", b"b"]
    async with asyncio.timeout(60):  # the stream ends before the last frame is refused
        while (await counters(stubs))["one_way_refused"] != before + 2:
            await asyncio.sleep(0.01)
    _, metrics = await asyncio.to_thread(broker.get, "/metrics")
    refusals = [line for line in metrics.splitlines() if line.startswith("trovemq_one_way_refused_total{")]
    assert any('error="TOPIC_NOT_FOUND"' in line and line.endswith(" 1.0") for line in refusals)


class CuttingProxy:
    """Passes bytes on to the broker, and cuts the connection after `bytes_max`."""

    def __init__(self, target: str, bytes_max: int) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._remaining = bytes_max
        self.cut = asyncio.Event()

    async def start(self) -> tuple[asyncio.Server, str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        back = asyncio.create_task(self._pass_back(up_reader, writer))
        while self._remaining > 0 and (data := await reader.read(min(self._remaining, 16_384))):
            self._remaining -= len(data)
            up_writer.write(data)
            await up_writer.drain()
        up_writer.transport.abort()
        writer.transport.abort()
        back.cancel()
        self.cut.set()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(16_384):
            writer.write(data)


@pytest.mark.asyncio
async def test_a_stream_cut_in_the_middle_of_a_frame_harms_nothing(
    broker: BrokerProcess, stubs: Stubs
) -> None:
    proxy = CuttingProxy(broker.address, 300_000)
    server, address = await proxy.start()
    async with Stubs(address) as cut:
        call = cut.messages.Append()
        try:
            for number in range(20):
                await call.write(frame(number, b"x" * 100_000))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        await proxy.cut.wait()
    server.close()
    (reply,) = await exchange(stubs, frame(1, b"after"))
    found = await read_queue(stubs)
    assert [len(message.body) for message in found[:-1]] == [100_000] * (len(found) - 1)
    assert (found[-1].body, reply.first_queue_offset) == (b"after", len(found) - 1)
    assert len(found) <= 4


@pytest.mark.asyncio
async def test_unary_sends_are_coalesced_and_each_has_its_place(stubs: Stubs) -> None:
    async def send(number: int) -> message_pb2.AppendReply:
        outgoing = message_pb2.OutgoingMessage(body=b"%d" % number, keys=["k1", "k2"], tag="t")
        reply = await stubs.messages.Send(
            message_pb2.SendRequest(topic="orders", queue_id=2, messages=[outgoing])
        )
        assert isinstance(reply, message_pb2.AppendReply)
        return reply

    replies = await asyncio.gather(*(send(number) for number in range(100)))
    found = await read_queue(stubs, queue_id=QueueId(2))
    for number, reply in enumerate(replies):
        message = found[reply.first_queue_offset]
        assert (message.body, message.keys, message.tags) == (b"%d" % number, ("k1", "k2"), "t")
        assert message.physical_offset == reply.physical_offset
        assert len(message.unique_key or "") == 34


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("request_", "symbol"),
    [
        (message_pb2.SendRequest(topic="orders"), "REQUEST_ILLEGAL"),
        (message_pb2.SendRequest(topic="", messages=[{}]), "TOPIC_ILLEGAL"),
        (message_pb2.SendRequest(topic="t" * 128, messages=[{}]), "TOPIC_ILLEGAL"),
        (message_pb2.SendRequest(topic="a\tb", messages=[{}]), "TOPIC_ILLEGAL"),
        (message_pb2.SendRequest(topic="none", messages=[{}]), "TOPIC_NOT_FOUND"),
        (message_pb2.SendRequest(topic="orders", queue_id=4, messages=[{}]), "QUEUE_NOT_FOUND"),
        (message_pb2.SendRequest(topic="orders", messages=[{"keys": ["a b"]}]), "KEY_ILLEGAL"),
        (message_pb2.SendRequest(topic="orders", messages=[{"keys": ["a\x01"]}]), "KEY_ILLEGAL"),
        (message_pb2.SendRequest(topic="orders", messages=[{"tag": " "}]), "TAG_ILLEGAL"),
        (
            message_pb2.SendRequest(topic="orders", messages=[{"properties": {"KEYS": "x"}}]),
            "PROPERTY_ILLEGAL",
        ),
        (
            message_pb2.SendRequest(topic="orders", messages=[{"properties": {"p": "x" * 32_767}}]),
            "PROPERTIES_SIZE_EXCEEDED",
        ),
        (
            message_pb2.SendRequest(topic="orders", messages=[{"body": bytes(4_194_305)}]),
            "MESSAGE_SIZE_EXCEEDED",
        ),
    ],
)
async def test_unary_sends_that_are_refused(
    stubs: Stubs, request_: message_pb2.SendRequest, symbol: str
) -> None:
    assert (await refused(stubs.messages.Send(request_))).symbol == symbol
    assert await read_queue(stubs) == []


@pytest.mark.asyncio
async def test_fetches_are_answered_while_others_wait(stubs: Stubs) -> None:
    await exchange(stubs, frame(0, b"a", b"b"))
    call = stubs.messages.Fetch()

    async def ask(fetch_id: int, **fields: Any) -> None:
        await call.write(message_pb2.FetchRequest(**{"fetch_id": fetch_id, "topic": "orders", **fields}))

    await ask(1, offset=2, wait_ms=60_000)
    await ask(2, offset=0)
    await ask(3, offset=3)
    await ask(4, offset=2)
    await ask(5, queue_id=9)
    await ask(6, topic="unknown")
    replies = {reply.fetch_id: reply for reply in [await call.read() for _ in range(5)]}
    assert [message.body for message in messages(replies[2])] == [b"a", b"b"]
    assert replies[3].error.symbol == "OFFSET_OUT_OF_RANGE"
    assert (replies[3].min_offset, replies[3].max_offset) == (0, 2)
    assert dict(replies[3].error.fields)["max_offset"] == "2"
    assert (replies[4].records, replies[4].next_offset) == (b"", 2)
    assert replies[5].error.symbol == "QUEUE_NOT_FOUND"
    assert replies[6].error.symbol == "TOPIC_NOT_FOUND"
    await exchange(stubs, frame(1, b"c"))
    woken = await call.read()
    assert (woken.fetch_id, [message.body for message in messages(woken)]) == (1, [b"c"])
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@pytest.mark.asyncio
async def test_a_long_poll_ends_with_nothing_at_its_time(stubs: Stubs) -> None:
    reply = await stubs.messages.Pull(message_pb2.FetchRequest(topic="orders", wait_ms=30))
    assert (reply.records, reply.next_offset) == (b"", 0)
    call = stubs.messages.Fetch()
    await call.write(message_pb2.FetchRequest(topic="orders", wait_ms=30, fetch_id=5))
    reply = await call.read()
    assert (reply.fetch_id, reply.records) == (5, b"")
    call.cancel()


@pytest.mark.asyncio
async def test_a_waiting_pull_with_tags_skips_other_messages(stubs: Stubs) -> None:
    pull = asyncio.ensure_future(
        stubs.messages.Pull(message_pb2.FetchRequest(topic="orders", wait_ms=60_000, tags=["BB"]))
    )
    await waiting_polls(stubs, 1)
    for number, tag in enumerate(("Aa", "x", "BB", "Aa")):
        await exchange(stubs, frame(number, records=sent_record(b"%d" % number, tag=tag)))
    reply = await pull
    assert [message.body for message in messages(reply)] == [b"2"]
    found = await read_queue(stubs, tags=["Aa"])
    assert [message.body for message in found] == [b"0", b"3"]


async def waiting_polls(stubs: Stubs, count: int) -> None:
    async with asyncio.timeout(240):
        while (await counters(stubs))["long_polls"] != count:
            pass


@pytest.mark.asyncio
async def test_a_stream_that_goes_away_leaves_no_waiter(stubs: Stubs) -> None:
    call = stubs.messages.Fetch()
    for number in range(10):
        await call.write(message_pb2.FetchRequest(fetch_id=number, topic="orders", wait_ms=60_000))
    await waiting_polls(stubs, 10)
    call.cancel()
    await waiting_polls(stubs, 0)


@pytest.mark.asyncio
async def test_a_deleted_topic_wakes_who_waits_for_it(stubs: Stubs) -> None:
    call = stubs.messages.Fetch()
    await call.write(message_pb2.FetchRequest(topic="orders", wait_ms=60_000))
    await waiting_polls(stubs, 1)
    await stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="orders"))
    assert (await call.read()).error.symbol == "TOPIC_NOT_FOUND"
    call.cancel()


@pytest.mark.asyncio
async def test_pull_is_bounded_by_bytes_and_messages(stubs: Stubs) -> None:
    await exchange(stubs, frame(0, *(b"x" * 1_000 for _ in range(100))))
    one = await stubs.messages.Pull(message_pb2.FetchRequest(topic="orders", bytes_max=1))
    assert (len(messages(one)), one.next_offset, one.max_offset) == (1, 1, 100)
    some = await stubs.messages.Pull(message_pb2.FetchRequest(topic="orders", offset=10, messages_max=7))
    assert [message.queue_offset for message in messages(some)] == list(range(10, 17))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stubs.messages.Pull(message_pb2.FetchRequest(topic="orders", offset=101))
    assert error_of(caught.value).fields["max_offset"] == "100"
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
