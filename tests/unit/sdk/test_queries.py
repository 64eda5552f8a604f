"""Look-ups over several brokers: the merge equals the answer of one broker with all messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Client, Message, TroveError
from trovemq_proto import errors
from trovemq_proto.positions import LOG_ORIGIN
from trovemq_proto.records import encode_offset_msg_id, encode_record, pack_host
from trovemq_proto.v1 import query_pb2, route_pb2

pytestmark = pytest.mark.asyncio


class FakeIndex:
    """One broker's answer for a key: one message at each of these store times."""

    def __init__(self, server: FakeServer, times: list[int]) -> None:
        self.times = times
        self.failure: TroveError | None = None
        self.page_size_max = 1 << 30
        server.on_query = self._answer

    def _answer(self, request: query_pb2.QueryByKeyRequest) -> list[query_pb2.QueryPage]:
        if self.failure is not None:
            raise self.failure
        below = int(request.cursor) if request.cursor else 1 << 62
        found = [i for i in reversed(range(len(self.times))) if i < below]
        taken = found[: min(request.messages_max, self.page_size_max)]
        records = [
            encode_record("orders", b"%d" % self.times[i], physical_offset=i, store_timestamp=self.times[i])
            for i in taken
        ]
        complete = len(taken) == len(found)
        half = len(records) // 2
        return [
            query_pb2.QueryPage(records=b"".join(records[:half])),
            query_pb2.QueryPage(
                records=b"".join(records[half:]),
                last=True,
                complete=complete,
                cursor="" if complete else str(taken[-1]),
                index_last_update_timestamp=max(self.times, default=0),
                index_last_update_physical_offset=len(self.times),
                notes=[f"{len(taken)} taken"],
            ),
        ]


def times_of(messages: tuple[Message, ...]) -> list[int]:
    return [message.store_timestamp for message in messages]


async def all_pages(client: Client, page: int, between: Callable[[], None] = lambda: None) -> list[int]:
    found: list[int] = []
    cursor: str | None = None
    for _ in range(200):
        answer = await client.query("orders", "k", max=page, cursor=cursor)
        assert len(answer.messages) <= page
        found += times_of(answer.messages)
        assert answer.complete == (answer.cursor is None)
        if answer.complete:
            return found
        cursor = answer.cursor
        between()
    raise AssertionError("it never ends")


@pytest.mark.parametrize("page", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("page_size_max", [1, 2, 100])
async def test_pages_of_two_brokers_merge_newest_first(
    nameserver: FakeServer,
    broker: FakeServer,
    other: FakeServer,
    connect: Connect,
    page: int,
    page_size_max: int,
) -> None:
    first = FakeIndex(broker, list(range(0, 40, 2)))
    second = FakeIndex(other, [3, 5, 7, 21, 23, 25, 27, 39])
    first.page_size_max = page_size_max
    client = await connect(nameserver)
    expected = sorted(first.times + second.times, reverse=True)
    assert await all_pages(client, page) == expected
    assert [m.store_timestamp async for m in client.query_all("orders", "k", page_size=page)] == expected


async def test_messages_that_come_meanwhile_repeat_none(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    first, second = FakeIndex(broker, list(range(0, 40, 2))), FakeIndex(other, list(range(1, 41, 2)))
    client = await connect(nameserver)

    def more_comes() -> None:
        first.times.append(first.times[-1] + 100)
        second.times.append(second.times[-1] + 100)

    assert await all_pages(client, 3, more_comes) == list(range(39, -1, -1))


async def test_an_unreachable_broker_is_named_and_can_be_asked_later(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(broker, [1, 3])
    FakeIndex(other, [2, 4])
    client = await connect(nameserver)
    await other.stop()
    answer = await client.query("orders", "k")
    assert (times_of(answer.messages), answer.complete, answer.unreachable) == ([3, 1], False, ("b2",))
    with pytest.raises(TroveError) as failure:
        async for _ in client.query_all("orders", "k"):
            pass
    assert failure.value.fields["brokers"] == "b2"
    await other.start()
    while not (rest := await client.query("orders", "k", cursor=answer.cursor)).complete:
        await asyncio.sleep(0.001)
    assert times_of(rest.messages) == [4, 2]


@pytest.mark.parametrize("known_as_lost", [False, True])
async def test_a_cursor_that_names_a_broker_which_is_gone_never_ended(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect, *, known_as_lost: bool
) -> None:
    FakeIndex(broker, list(range(0, 20, 2)))
    FakeIndex(other, list(range(1, 21, 2)))
    first = await (await connect(nameserver)).query("orders", "k", max=4)
    nameserver.set_routes(broker.route({"orders": 4}))
    if known_as_lost:
        nameserver.lost["orders"] = route_pb2.LostBroker(name="b2", address="127.0.0.1:1")
    client = await connect(nameserver)  # it has never seen b2
    cursor, found = first.cursor, times_of(first.messages)
    unreachable: set[str] = set()
    for _ in range(10):
        answer = await client.query("orders", "k", max=4, cursor=cursor)
        found += times_of(answer.messages)
        unreachable.update(answer.unreachable)
        assert not answer.complete
        if (cursor := answer.cursor) is None:
            break
    assert (cursor is not None) == known_as_lost  # a lost one may return
    assert (found, unreachable) == ([19, 18, 17, 16, *range(14, -1, -2)], {"b2"})


async def test_a_key_query_failed_as_a_whole_when_one_broker_was_closing(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(broker, [1, 3])
    FakeIndex(other, [2, 4]).failure = TroveError(errors.SERVICE_NOT_AVAILABLE)
    client = await connect(nameserver)
    answer = await client.query("orders", "k")
    assert (times_of(answer.messages), answer.complete, answer.unreachable) == ([3, 1], False, ("b2",))


async def test_a_broker_that_left_the_routes_is_missed(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(broker, [1])
    FakeIndex(other, [2])
    client = await connect(nameserver)
    nameserver.set_routes(broker.route({"orders": 4}))
    while (answer := await client.query("orders", "k")).complete:
        pass
    assert answer.unreachable == ("b2",)
    assert len(other.queries) <= 100
    nameserver.set_routes(broker.route({"orders": 4}), other.route({"orders": 4}))
    while not (answer := await client.query("orders", "k")).complete:
        pass
    assert times_of(answer.messages) == [2, 1]


async def test_one_broker_only(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(broker, [1])
    FakeIndex(other, [2])
    client = await connect(nameserver)
    answer = await client.query("orders", "k", broker="b2", type="message_id", begin=5, end=6)
    assert times_of(answer.messages) == [2]
    (request,) = other.queries
    assert (request.type, request.begin, request.end) == (query_pb2.UNIQUE, 5, 6)
    assert broker.queries == []


async def test_what_an_answer_says_of_itself(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(broker, [1, 9])
    FakeIndex(other, [2, 5])
    answer = await (await connect(nameserver)).query("orders", "k")
    assert (answer.index_last_update_timestamp, answer.index_last_update_physical_offset) == (5, 2)
    assert answer.notes == ("b1: 2 taken", "b2: 2 taken")


@pytest.mark.parametrize(
    ("failing", "spec"),
    [
        (errors.INDEX_DISABLED, errors.INDEX_DISABLED),
        (errors.TOPIC_NOT_FOUND, None),
        (errors.CURSOR_ILLEGAL, errors.CURSOR_ILLEGAL),
    ],
)
async def test_refusals_of_one_broker(
    nameserver: FakeServer,
    broker: FakeServer,
    other: FakeServer,
    connect: Connect,
    failing: errors.ErrorSpec,
    spec: errors.ErrorSpec | None,
) -> None:
    FakeIndex(broker, [1]).failure = TroveError(failing)
    second = FakeIndex(other, [2])
    client = await connect(nameserver)
    if spec is None:
        assert times_of((await client.query("orders", "k")).messages) == [2]
        second.failure = TroveError(failing)
    with pytest.raises(TroveError) as refused:
        await client.query("orders", "k")
    assert refused.value.spec is (spec or failing)


async def test_cursors_are_checked(broker: FakeServer, connect: Connect) -> None:
    FakeIndex(broker, [1, 2, 3])
    client = await connect(broker)
    cursor = (await client.query("orders", "k", max=1)).cursor
    assert cursor is not None
    changed = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    for text in (changed, "x", "é", "A" * (2 << 20)):
        with pytest.raises(TroveError) as refused:
            await client.query("orders", "k", cursor=text)
        assert refused.value.spec is errors.CURSOR_ILLEGAL
    with pytest.raises(TroveError) as refused:
        await client.query("orders", "another key", cursor=cursor)
    assert refused.value.spec is errors.CURSOR_ILLEGAL


@pytest.mark.parametrize("arguments", [{"max": 0}, {"max": 1 << 20}, {"type": "colour"}])
async def test_illegal_questions(broker: FakeServer, connect: Connect, arguments: dict[str, object]) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.query("orders", "k", **arguments)  # type: ignore[arg-type]
    assert refused.value.spec is errors.REQUEST_ILLEGAL


# --- by identifier ------------------------------------------------------------------------------------


def serve(server: FakeServer, kind: int, *times: int) -> None:
    """GetMessage finds messages stored at these times; MESSAGE_NOT_FOUND where there are none."""

    def answer(request: query_pb2.GetMessageRequest) -> query_pb2.GetMessageReply:
        if not times:
            raise TroveError(errors.MESSAGE_NOT_FOUND, request.id)
        records = [encode_record("orders", b"", store_timestamp=time) for time in times]
        return query_pb2.GetMessageReply(kind=kind, records=b"".join(records))  # type: ignore[arg-type]

    server.on_get = answer


async def test_the_broker_of_the_address_is_asked_first(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    serve(broker, query_pb2.OFFSET_MSG_ID)
    serve(other, query_pb2.OFFSET_MSG_ID, 7)
    client = await connect(nameserver)
    found = await client.get(encode_offset_msg_id(pack_host(other.address), LOG_ORIGIN))
    assert (found.kind, times_of(found.messages)) == ("offset_msg_id", [7])
    assert (len(broker.gets), len(other.gets)) == (0, 1)
    moved = encode_offset_msg_id(pack_host("192.0.2.1:10911"), LOG_ORIGIN)
    assert times_of((await client.get(moved)).messages) == [7]
    assert (len(broker.gets), len(other.gets)) == (1, 2)


async def test_a_unique_key_may_be_on_both(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    serve(broker, query_pb2.UNIQUE_KEY, 9, 1)
    serve(other, query_pb2.UNIQUE_KEY, 5)
    client = await connect(nameserver)
    found = await client.get("A" * 34, topic="orders")
    assert (found.kind, times_of(found.messages)) == ("message_id", [9, 5, 1])
    assert broker.gets[0].topic == "orders"


async def test_not_found_is_sure_or_says_who_is_missing(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    serve(broker, query_pb2.UNIQUE_KEY)
    serve(other, query_pb2.UNIQUE_KEY)
    client = await connect(nameserver)
    with pytest.raises(TroveError) as missing:
        await client.get("A" * 34)
    assert missing.value.spec is errors.MESSAGE_NOT_FOUND
    await other.stop()
    with pytest.raises(TroveError) as missing:
        await client.get("A" * 34)
    assert (missing.value.spec, missing.value.fields["brokers"]) == (errors.BROKER_UNREACHABLE, "b2")
    serve(broker, query_pb2.UNIQUE_KEY, 3)
    found = await client.get("A" * 34)
    assert (times_of(found.messages), found.unreachable) == ([3], ("b2",))
