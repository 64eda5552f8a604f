"""A group whose filter is changed member by member: who waits skips nothing that another one takes."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import TestBroker, message
from tests.support.settling import change_invisible
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


FROM_BEGIN = ConsumerSettings(new_group_start="begin")
_NUMBERS = count()


def bodies(receive: asyncio.Task[list[v2.Message]]) -> list[bytes]:
    return [one.body for one in receive.result()]


async def send_tagged(parts: TestBroker, *tags: str) -> None:
    """To the one queue of topic `one`, in this order, visible together."""
    if parts.store.topics.get("one") is None:
        parts.store.topics.create("one", 1, "NORMAL")
    messages = []
    for tag in tags:
        made = message(tag.encode(), "one", message_id=f"M{next(_NUMBERS)}", properties={"t": tag})
        made.system_properties.tag = tag
        messages.append(made)
    if messages:
        await parts.send(*messages)
    await turns()


def polls(parts: TestBroker, *expressions: str) -> list[asyncio.Task[list[v2.Message]]]:
    """Receives of one group that wait, each with its filter (SQL where it has an =)."""
    return [
        asyncio.ensure_future(
            parts.messages("one", expression=text, kind=v2.SQL if "=" in text else v2.TAG, polling_ms=20_000)
        )
        for text in expressions
    ]


@pytest.mark.parametrize(("old", "new"), [("old", "new"), ("old", "old || new"), ("t = 'old'", "t = 'new'")])
async def test_a_waiting_receive_skipped_what_the_groups_new_filter_takes(old: str, new: str) -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    await send_tagged(parts)
    (sleeper,) = polls(parts, old)
    await turns()
    await send_tagged(parts, "new", "neither")
    assert not sleeper.done()
    (member,) = polls(parts, new)
    await turns()
    assert bodies(member) == [b"new"]
    await send_tagged(parts, "old")
    assert bodies(sleeper) == [b"old"]


@pytest.mark.parametrize("filters", [("old", "new"), ("new", "old"), ("t = 'old'", "new")])
@pytest.mark.parametrize("tags", [("new", "old"), ("old", "new")])
async def test_members_with_different_filters_that_wait_get_what_is_theirs(
    filters: tuple[str, str], tags: tuple[str, str]
) -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    await send_tagged(parts)
    waiting = polls(parts, *filters)
    await turns()
    await send_tagged(parts, *tags)
    await turns(20)
    assert [task.done() for task in waiting] == [True, True]
    assert sorted(body for task in waiting for body in bodies(task)) == [b"new", b"old"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_a_member_gave_back_is_not_dropped_by_one_with_another_filter(orderly: bool) -> None:
    parts = TestBroker(consumers=FROM_BEGIN)
    parts.groups.create(SubscriptionGroup("g", orderly))
    await send_tagged(parts, "new")
    (got,) = await parts.messages("one", expression="new")
    old, new = polls(parts, "old", "new")
    await turns()
    handle = got.system_properties.receipt_handle
    change_invisible(parts.delivery, "g", "one", handle, 0, parts.now_ms)
    parts.waits.wake(("g", "one"))
    await turns(20)
    assert not old.done()
    assert bodies(new) == [b"new"]
    old.cancel()
