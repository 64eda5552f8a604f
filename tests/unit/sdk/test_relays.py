"""Look-ups of a client that was given one broker of several: it forwards them to the others."""

from __future__ import annotations

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from tests.unit.sdk.test_queries import FakeIndex, all_pages, times_of
from trovemq import TroveError
from trovemq_proto import errors
from trovemq_proto.records import encode_record
from trovemq_proto.v1 import query_pb2

pytestmark = pytest.mark.asyncio


@pytest.fixture
def given(broker: FakeServer, other: FakeServer) -> FakeServer:
    broker.others, broker.others_count, broker.relayed = ["b2"], 1, {"b2": other}
    return broker


@pytest.mark.parametrize("page", [1, 3, 64])
async def test_a_query_found_the_messages_of_one_of_two_brokers(
    given: FakeServer, other: FakeServer, connect: Connect, page: int
) -> None:
    first, second = FakeIndex(given, list(range(0, 20, 2))), FakeIndex(other, [3, 5, 7, 19])
    client = await connect(given)
    assert await all_pages(client, page) == sorted(first.times + second.times, reverse=True)
    assert client._pool.unasked() == 0
    assert other.streams == 0, "no connection of the client leads there"


async def test_the_broker_that_is_named_is_asked_alone(
    given: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(given, [1])
    FakeIndex(other, [2])
    client = await connect(given)
    for name, times in (("b1", [1]), ("b2", [2])):
        assert times_of((await client.query("orders", "k", broker=name)).messages) == times
    with pytest.raises(TroveError) as refused:
        await client.query("orders", "k", broker="b3")
    assert refused.value.spec is errors.BROKER_NOT_FOUND


async def test_a_broker_that_is_away_is_named_and_asked_again_later(
    given: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(given, [1, 3])
    FakeIndex(other, [2, 4])
    client = await connect(given)
    given.relayed["b2"] = None
    answer = await client.query("orders", "k")
    assert (times_of(answer.messages), answer.complete, answer.unreachable) == ([3, 1], False, ("b2",))
    given.relayed["b2"] = other
    rest = await client.query("orders", "k", cursor=answer.cursor)
    assert (times_of(rest.messages), rest.complete) == ([4, 2], True)


async def test_an_id_is_looked_up_on_all_brokers(
    given: FakeServer, other: FakeServer, connect: Connect
) -> None:
    def absent(_request: query_pb2.GetMessageRequest) -> query_pb2.GetMessageReply:
        raise TroveError(errors.MESSAGE_NOT_FOUND)

    record = encode_record("orders", b"there", physical_offset=0, store_timestamp=1)
    given.on_get = absent
    other.on_get = lambda _: query_pb2.GetMessageReply(records=record, kind=query_pb2.UNIQUE_KEY)
    client = await connect(given)
    assert [one.body for one in (await client.get("k")).messages] == [b"there"]
    given.relayed["b2"] = None
    with pytest.raises(TroveError, match="no answer from b2"):
        await client.get("k")


async def test_a_client_did_not_ask_a_broker_that_had_joined_after_it_connected(
    broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    """It knew the number of the others from the time when its broker was alone."""
    FakeIndex(broker, [1])
    FakeIndex(other, [2])
    client = await connect(broker)
    assert times_of((await client.query("orders", "k")).messages) == [1]
    broker.others, broker.others_count, broker.relayed = ["b2"], 1, {"b2": other}
    broker.set_routes(*broker.routes)
    assert await client._pool.routes.wait_until(lambda: client._pool.unseen() == 1, 30)
    assert times_of((await client.query("orders", "k")).messages) == [2, 1]


async def test_a_broker_that_forwards_no_look_ups_leaves_the_others_out(
    broker: FakeServer, connect: Connect
) -> None:
    """One of an earlier version names none."""
    FakeIndex(broker, [1])
    broker.others_count = 2
    client = await connect(broker)
    assert times_of((await client.query("orders", "k")).messages) == [1]
    assert client._pool.unasked() == 2


async def test_where_a_nameserver_leads_to_all_brokers_none_forwards(
    nameserver: FakeServer, given: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeIndex(given, [1])
    FakeIndex(other, [2])
    client = await connect(nameserver)
    given.relayed["b2"] = None
    asked = given.infos_asked
    assert times_of((await client.query("orders", "k")).messages) == [2, 1]
    assert given.infos_asked == asked
