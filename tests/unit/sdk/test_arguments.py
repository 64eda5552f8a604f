"""Arguments of a wrong type, and calls of a closed client: errors that name the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import trovemq
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Faults, Handlers, Retry, TroveError, errors
from trovemq_proto.records import BatchEncoder

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ({"keys": [42]}, errors.KEY_ILLEGAL),
        ({"keys": 42}, errors.KEY_ILLEGAL),
        ({"keys": [b"x"]}, errors.KEY_ILLEGAL),
        ({"keys": [None]}, errors.KEY_ILLEGAL),
        ({"tag": 4}, errors.TAG_ILLEGAL),
        ({"properties": {"a": 1}}, errors.PROPERTY_ILLEGAL),
        ({"properties": {1: "a"}}, errors.PROPERTY_ILLEGAL),
        ({"properties": [("a", "b")]}, errors.PROPERTY_ILLEGAL),
        ({"message_id": 3}, errors.UNIQUE_KEY_ILLEGAL),
        ({"message_group": 3}, errors.MESSAGE_GROUP_ILLEGAL),
        ({"ordering_key": 3}, errors.REQUEST_ILLEGAL),
        ({"priority": "3"}, errors.PROPERTY_ILLEGAL),
        ({"queue_id": "0"}, errors.REQUEST_ILLEGAL),
        ({"broker": 3}, errors.REQUEST_ILLEGAL),
        ({"deliver_after": "3"}, errors.DELIVERY_TIME_ILLEGAL),
        ({"deliver_at": 3}, errors.DELIVERY_TIME_ILLEGAL),
        ({"deliver_after": 1, "keys": [42]}, errors.KEY_ILLEGAL),
    ],
)
async def test_an_int_among_the_keys_or_properties_was_a_type_error(
    broker: FakeServer, connect: Connect, arguments: dict[str, Any], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError, match=list(arguments)[-1]) as refused:
        await client.send("orders", b"x", **arguments)
    assert refused.value.spec is spec


@pytest.mark.parametrize(
    ("columns", "spec"),
    [
        ({"keys": ["a", 42]}, errors.KEY_ILLEGAL),
        ({"keys": [["a", 42], None]}, errors.KEY_ILLEGAL),
        ({"keys": 42}, errors.KEY_ILLEGAL),
        ({"tags": [4, None]}, errors.TAG_ILLEGAL),
        ({"tags": 4}, errors.TAG_ILLEGAL),
        ({"properties": [{"a": 1}, None]}, errors.PROPERTY_ILLEGAL),
        ({"properties": {"a": 1}}, errors.PROPERTY_ILLEGAL),
        ({"properties": ["a", "b"]}, errors.PROPERTY_ILLEGAL),
        ({"message_ids": [1, 2]}, errors.UNIQUE_KEY_ILLEGAL),
    ],
)
async def test_a_column_of_another_type_is_named(
    broker: FakeServer, connect: Connect, columns: dict[str, Any], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError, match=next(iter(columns))) as refused:
        await client.producer("orders").send_batch([b"x", b"y"], **columns)
    assert refused.value.spec is spec


async def test_names_and_keys_that_are_no_text_are_named(broker: FakeServer, connect: Connect) -> None:
    client: Any = await connect(broker)
    with pytest.raises(TroveError, match="topic is text, not '42' of type int"):
        await client.send(42, b"x")
    with pytest.raises(TroveError, match="key is text, not '42' of type int"):
        await client.query("orders", 42)
    with pytest.raises(TroveError, match="id is text, not '42' of type int"):
        await client.get(42)
    for arguments, name in (
        (("orders", 42), "group"),
        ((42, "g"), "topic"),
    ):
        with pytest.raises(TroveError, match=f"{name} is text"):
            client.subscribe(*arguments)
    for filters, name in (
        ({"tags": [4]}, "tags"),
        ({"tags": "paid"}, "tags"),
        ({"filter": 4}, "filter"),
        ({"sql": 4}, "sql"),
    ):
        with pytest.raises(TroveError, match=name):
            client.subscribe("orders", "g", **filters)


async def bill(message: object) -> None: ...


def handling(**arguments: Any) -> Any:
    return Handlers().handle("orders", "g", **arguments)(bill)


def batching(**arguments: Any) -> Any:
    return Handlers().handle_batch("orders", "g", **arguments)(bill)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: handling(on_error={"ValueError": "dead_letter"}), "'ValueError' is no class of exceptions"),
        (lambda: handling(on_error={(ValueError, KeyError): "discard"}), "is no class of exceptions"),
        (lambda: handling(on_error=[ValueError]), "no mapping of exception classes"),
        (lambda: handling(on_error={ValueError: "dead"}), "'dead' is no Retry"),
        (lambda: Handlers(on_error=cast("Any", {"x": Retry()})), "'x' is no class of exceptions"),
        (lambda: handling(concurrency="4"), "concurrency is a whole number, not '4' of type str"),
        (lambda: handling(rate_max="5"), "rate_max is a number, not '5' of type str"),
        (lambda: handling(rate_max=0), "rate_max=0 is not positive"),
        (lambda: handling(body=dict), "is no serializer: it has no decode"),
        (lambda: handling(concurency=4), "has no argument 'concurency'; it may have concurrency"),
        (lambda: Handlers().handle("orders", cast("Any", 5))(bill), "group is text, not '5' of type int"),
        (
            lambda: Handlers().handle("orders", "g")(cast("Any", 5)),
            "the handler is a function, not '5' of type int",
        ),
        (lambda: batching(count_max=0), "count_max=0 is not in 1..10000$"),
        (lambda: batching(count_max="1"), "count_max is a whole number"),
        (lambda: batching(wait=-1), "wait=-1 is not a number from 0 on"),
        (lambda: Handlers(middleware=cast("Any", bill)), "a list of functions"),
        (lambda: Handlers(middleware=cast("Any", [5])), "middleware is a function, not '5' of type int"),
        (lambda: Retry(delay=-1), "delay=-1 is not a number from 0 on"),
        (lambda: Retry(delay=cast("Any", "1s")), "delay is a number, not '1s' of type str"),
        (lambda: Retry(attempts_max=0), "attempts_max=0 is not positive"),
        (lambda: Faults(duplicates=cast("Any", "a")), "duplicates is a number, not 'a' of type str"),
    ],
)
async def test_a_wrong_policy_of_a_handler_was_found_when_it_failed(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(TroveError, match=said) as refused:
        make()
    assert refused.value.spec in (errors.REQUEST_ILLEGAL, errors.GROUP_ILLEGAL)


async def test_objects_of_another_class_are_named(broker: FakeServer, connect: Connect) -> None:
    client: Any = await connect(broker)
    handlers = Handlers()
    handlers.handle("orders", "g")(bill)
    for call, said in (
        (lambda: client.run(None), "handlers is of type Handlers, not NoneType"),
        (lambda: client.run(bill), "handlers is of type Handlers, not function"),
        (lambda: client.run(handlers, drain_seconds=-1), "drain_seconds=-1 is not"),
        (lambda: client.subscribe("orders", "g", prefetch=0), "prefetch=0 is not positive"),
        (lambda: trovemq.connect("127.0.0.1:1", options=cast("Any", {})), "options is of type ClientOptions"),
    ):
        with pytest.raises(TroveError, match=said) as refused:
            call()
        assert refused.value.spec is errors.REQUEST_ILLEGAL
    for waiting, said in (
        (client.get_at("orders", "0", 0), "queue_id is a whole number, not '0' of type str"),
        (client.send("orders", b"x", queue_id=True), "queue_id is a whole number, not 'True' of type bool"),
        (client.send("orders", b"x", queue_id=-1), "no queue has the number -1"),
        (client.admin.create_topic(5), "name is text, not '5' of type int"),
        (client.admin.create_topic("new", message_type=5), "message_type is text"),
        (client.admin.groups.create("new", 5), "settings is of type GroupSettings, not int"),
        (client.admin.commit_offset("g", "orders", 0, "5"), "offset is a whole number, not '5' of type str"),
        (client.admin.delete_topic(5), "name is text, not '5' of type int"),
        (client.admin.groups.lag(5), "group is text, not '5' of type int"),
        (client.admin.groups.delete(5), "group is text, not '5' of type int"),
        (client.query("orders", "k", cursor=5), "cursor is text, not '5' of type int"),
        (client.search("orders", cursor=5), "cursor is text, not '5' of type int"),
        (client.consume("orders", "g", 5), "handler is a function, not '5' of type int"),
    ):
        with pytest.raises(TroveError, match=said):
            await waiting
    for arguments, said in (
        ({"linger_ms": "1"}, "linger_ms is a number"),
        ({"batch_bytes_max": 0}, "batch_bytes_max=0 is not positive"),
        ({"in_flight_bytes_max": -1}, "in_flight_bytes_max=-1 is not positive"),
        ({"producer_id": 5}, "producer_id is text"),
        ({"checker": 5}, "checker is a function"),
    ):
        with pytest.raises(TroveError, match=said):
            client.producer("orders", **arguments)


async def test_delays_and_batches_of_another_type_are_named(broker: FakeServer, connect: Connect) -> None:
    client: Any = await connect(broker)
    await broker.consuming.offer(b"one")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        for waiting, said in (
            (message.nack(delay="1s"), "'1s' is not a time from now"),
            (message.extend("5"), "'5' is not a time from now"),
            (anext(messages.batches("3")), "count_max is a whole number"),
            (anext(messages.batches(0)), "count_max=0 is not positive"),
            (anext(messages.batches(1, wait="x")), "wait is a number"),
        ):
            with pytest.raises(TroveError, match=said):
                await waiting


async def test_send_after_close_said_that_it_may_be_tried_again(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    producer = client.producer("orders")
    await client.close()
    for call in (
        lambda: client.send("orders", b"x"),
        lambda: client.send("another", b"x"),
        lambda: client.send("orders", b"x", deliver_after=1),
        lambda: producer.send(b"x"),
        lambda: producer.send_batch([b"x"]),
        lambda: client.query("orders", "k"),
        lambda: anext(client.pull("orders")),
        lambda: client.subscribe("orders", "g").__aenter__(),
        lambda: client.transaction().__aenter__(),
        client.admin.list_topics,
    ):
        with pytest.raises(TroveError, match="closed") as refused:
            await call()
        assert (refused.value.spec, refused.value.retriable) == (errors.CLIENT_CLOSED, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a && b", "no message has two"),
        ("a||b && c", "no message has two"),
        ("a and b", "no message has two"),
        ("a | b", "with ||"),
        ("a or b", "with ||"),
    ],
)
async def test_a_filter_with_and_signs_took_nothing_without_a_word(
    broker: FakeServer, connect: Connect, text: str, said: str
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        client.subscribe("orders", "g", filter=text)
    assert refused.value.spec is errors.FILTER_ILLEGAL
    assert said in refused.value.message


async def test_tags_that_look_like_expressions_can_be_listed(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    for filters in ({"tags": ["a && b"]}, {"filter": "brand || android"}, {"filter": "*"}, {"filter": ""}):
        client.subscribe("orders", "g", **filters)


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ([b"a", "b"], "a message's body is bytes, not str"),
        ([b"a"] * 20 + [None], "a message's body is bytes, not NoneType"),
        (b"abc", "the bodies of a batch are a sequence of bytes, not bytes"),
        ("abc", "the bodies of a batch are a sequence of bytes, not str"),
        (None, "the bodies of a batch are a sequence of bytes, not NoneType"),
    ],
)
async def test_a_batch_with_a_text_among_its_bodies_was_never_answered(
    broker: FakeServer, connect: Connect, bodies: Any, said: str
) -> None:
    client = await connect(broker)
    producer = client.producer("orders")
    with pytest.raises(TypeError, match=said):
        await producer.send_batch(bodies)
    good: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
    assert len(await producer.send_batch(good)) == 3


async def test_a_batch_that_cannot_be_encoded_is_answered_and_the_next_is_sent(
    broker: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(broker)
    producer = client.producer("orders")

    def broken(*_: object, **__: object) -> bytes:
        raise TypeError("a fault of the encoder")

    with monkeypatch.context() as patch:
        patch.setattr(BatchEncoder, "encode", broken)
        with pytest.raises(TroveError, match="cannot be encoded: a fault of the encoder"):
            await producer.send_batch([b"a", b"b"])
    assert len(await producer.send_batch([b"a", b"b"])) == 2


async def test_a_text_where_a_number_belongs_is_named(broker: FakeServer, connect: Connect) -> None:
    client: Any = await connect(broker)
    calls: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("max", lambda: client.query("orders", "k", max="3")),
        ("begin", lambda: client.query("orders", "k", begin="yesterday")),
        ("end", lambda: client.search("orders", end="now")),
        ("max", lambda: client.search("orders", max="3")),
        ("timestamp", lambda: client.search_offset("orders", 0, "now")),
        ("queue_id", lambda: anext(client.pull("orders", queue_id="0"))),
        ("offset", lambda: anext(client.pull("orders", offset="3"))),
        ("bytes_max", lambda: anext(client.pull_batches("orders", bytes_max="1 MiB"))),
        ("queue_count", lambda: client.admin.create_topic("orders", queue_count="3")),
        ("queue_count", lambda: client.admin.alter_topic("orders", queue_count="3")),
    )
    for name, call in calls:
        with pytest.raises(TroveError, match=f"{name} is a whole number, not") as refused:
            await call()
        assert refused.value.spec is errors.REQUEST_ILLEGAL
    for name in ("prefetch", "prefetch_bytes_max", "invisible_ms"):
        with pytest.raises(TroveError, match=f"{name} is a whole number"):
            client.subscribe("orders", "g", **{name: "30"})


async def test_other_arguments_of_a_wrong_type_are_named(broker: FakeServer, connect: Connect) -> None:
    client: Any = await connect(broker)
    calls: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("where must be a condition", lambda: client.search("orders", 5)),
        ("where must be a condition", lambda: anext(client.search_all("orders", "paid"))),
        ("topic is text", lambda: anext(client.pull(5))),
        ("tags is a sequence", lambda: anext(client.pull("orders", tags="paid"))),
        ("recall_handle is text", lambda: client.recall("orders", 5)),
        ("options is text", lambda: client.admin.create_topic("orders", options={"deduplicate": 5})),
        ("options must be a mapping", lambda: client.admin.alter_topic("orders", options=["a"])),
    )
    for said, call in calls:
        with pytest.raises(TroveError, match=said):
            await call()


@pytest.mark.parametrize("server", [5, None, [5], {"a": "b"}])
async def test_a_server_that_is_no_text_is_refused(server: Any) -> None:
    with pytest.raises(TroveError, match="server is"):
        trovemq.connect(server)


async def test_a_closed_client_said_that_a_producer_was_closed(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    producer = client.producer("orders")
    await producer.close()
    with pytest.raises(TroveError, match="the producer is closed"):
        await producer.send_batch([b"x"])
    with pytest.raises(TroveError, match="the producer is closed"):
        producer.send_oneway(b"x")
    await client.close()
    with pytest.raises(TroveError, match="the client is closed"):
        await client.send("orders", b"x")
    await producer.close()
    await client.close()
