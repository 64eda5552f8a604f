"""A group that is made at its first use keeps the order of FIFO topics; one that does not is warned of."""

from __future__ import annotations

import pytest

from tests.support.engine import NOW_MS
from tests.support.fake_loop import fake_time, turns
from tests.support.logs import logged
from tests.support.memory_broker import TestBroker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.group_order import fifo_topics
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


FROM_BEGIN = ConsumerSettings(new_group_start="begin")
UNORDERED = ConsumerSettings(new_group_start="begin", fifo_group_orderly=False)


async def send_steps(parts: TestBroker, count: int) -> None:
    for number in range(count):
        await parts.send(message(b"%d" % number, "steps", message_id=f"M{number}", message_group="m"))
    await turns()


async def received(parts: TestBroker) -> list[bytes]:
    return [one.body for one in await parts.messages("steps", group="new")]


async def test_a_group_made_at_first_use_lost_the_order_of_a_fifo_topic() -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    await send_steps(parts, 3)
    (first,) = await parts.messages("steps", group="new", batch_size=1)
    assert first.body == b"0"
    assert await received(parts) == [], "0 is not settled"
    await parts.acknowledge(first.system_properties.receipt_handle, topic="steps", group="new")
    assert await received(parts) == [b"1", b"2"]
    assert parts.groups.require("new").orderly


@pytest.mark.parametrize(
    ("topics", "orderly"),
    [
        (["steps"], True),
        (["orders", "steps"], True),
        (["orders", "mixed", "unknown"], False),
        ([], False),
    ],
)
async def test_what_a_new_group_is(topics: list[str], orderly: bool) -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    assert parts.order.for_use("new", topics, NOW_MS).orderly is orderly
    assert parts.order.for_use("new", ["steps"], NOW_MS).orderly is orderly, "it stays as it was made"


async def test_a_group_that_does_not_keep_an_order_is_warned_of_once() -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    parts.groups.create(SubscriptionGroup("old"))
    with logged() as lines:
        for _ in range(3):
            group = parts.order.for_use("old", ["orders", "steps"], NOW_MS)
    assert not group.orderly, "an existing group is not changed"
    (line,) = lines.getvalue().splitlines()
    assert all(word in line for word in ("group.order_not_kept", "group=old", "topic=steps", "--orderly"))
    assert fifo_topics(parts.store.topics, ["unknown", "orders", "steps"]) == ["steps"]


async def test_the_setting_makes_groups_unordered_as_before() -> None:
    parts = TestBroker(consumers=UNORDERED)
    await send_steps(parts, 3)
    with logged() as lines:
        assert await received(parts) == [b"0", b"1", b"2"]
    assert "group.order_not_kept" in lines.getvalue()
