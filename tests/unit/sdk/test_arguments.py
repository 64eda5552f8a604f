"""Arguments of a wrong type, and calls of a closed client: errors that name the fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import TroveError, errors

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
        ({"unique_key": 3}, errors.UNIQUE_KEY_ILLEGAL),
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
        ({"unique_keys": [1, 2]}, errors.UNIQUE_KEY_ILLEGAL),
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
