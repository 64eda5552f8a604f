"""Subscriptions of a consumer group, on the wire of a scripted broker."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from tests.support.fake_consuming import record_of
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import ReceivedMessage, Subscription, TroveError, errors
from trovemq_proto.v1 import consumer_pb2

pytestmark = pytest.mark.asyncio


async def take(subscription: Subscription, count: int) -> list[ReceivedMessage]:
    async with asyncio.timeout(240):
        return [await anext(subscription) for _ in range(count)]


async def consume(subscription: Subscription, count: int) -> list[bytes]:
    bodies = []
    for message in await take(subscription, count):
        bodies.append(message.body)
        await message.ack()
    return bodies


# --- receiving ------------------------------------------------------------------------------------------
async def test_a_message_has_what_its_sender_gave_it(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"a", message_group="m")
        (message,) = await take(subscription, 1)
        assert (message.topic, message.body, message.message_id) == ("orders", b"a", "id-a")
        assert (message.keys, message.tags, message.properties) == (("key",), "tag", {"p": "v"})
        assert (message.message_group, message.attempt, message.broker) == ("m", 1, "b1")
        assert message.born_timestamp == 1_700_000_000_000
        await message.ack()
    assert broker.consuming.gone == [b"a"]


async def test_brokers_get_the_subscribers(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g", tags=["a", "b"]) as subscription:
        (member,) = broker.consuming.members
        assert (member.client_id, member.topic) == (subscription.client_id, "orders")
        assert (member.start.filter_type, member.start.filter) == ("tag", "a || b")
        assert member.start.invisible_ms == 0
        assert member.start.hostname in subscription.client_id
        metadata = dict(member.context.invocation_metadata())
        assert metadata["x-mq-language"] == "PYTHON"
        assert metadata["x-mq-client-version"]
        await broker.consuming.until(lambda: member.credit == 2)
    assert broker.consuming.left == [subscription.client_id]


async def test_invisible_ms_makes_a_simple_consumer_with_sql(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g", sql="a > 1", invisible_ms=10_500):
        (member,) = broker.consuming.members
        assert (member.start.filter_type, member.start.filter) == ("sql", "a > 1")
        assert member.start.invisible_ms == 10_500


async def test_no_more_is_asked_for_than_may_wait(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", prefetch=3) as subscription:
        await fake.offer(*(b"%d" % i for i in range(8)))
        await fake.until(lambda: len(fake.visible()) == 5)
        assert await consume(subscription, 8) == [b"%d" % i for i in range(8)]
        assert fake.members[0].credit_max == 3


async def test_every_broker_that_has_the_topic_is_received_from(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"one")
        await other.consuming.offer(b"two")
        assert sorted(await consume(subscription, 2)) == [b"one", b"two"]
    assert (broker.consuming.gone, other.consuming.gone) == ([b"one"], [b"two"])


async def test_a_broker_that_gets_the_topic_later_is_received_from(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(broker.route({"orders": 4}))
    client = await connect(nameserver)
    async with client.subscribe("orders", "g") as subscription:
        nameserver.set_routes(broker.route({"orders": 4}), other.route({"orders": 1}))
        await other.consuming.offer(b"new")
        assert await consume(subscription, 1) == [b"new"]


async def test_a_topic_without_a_route_is_not_found(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.subscribe("nowhere", "g").__aenter__()
    assert refused.value.spec is errors.TOPIC_NOT_FOUND


async def test_dead_letters_are_in_no_route_and_can_be_read(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("%DLQ%g", "reader") as subscription:
        await broker.consuming.offer(b"dead", topic="%DLQ%g")
        assert await consume(subscription, 1) == [b"dead"]


async def test_settings_that_a_broker_refuses_are_raised(broker: FakeServer, connect: Connect) -> None:
    broker.consuming.refusal = TroveError(errors.GROUP_ILLEGAL, "blank")
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.subscribe("orders", " ").__aenter__()
    assert refused.value.spec is errors.GROUP_ILLEGAL


@pytest.mark.parametrize(
    "spec", [errors.FILTER_ILLEGAL, errors.PERMISSION_MISSING, errors.INVISIBLE_DURATION_ILLEGAL]
)
async def test_what_makes_receiving_useless_ends_the_iteration(
    broker: FakeServer, connect: Connect, spec: errors.ErrorSpec
) -> None:
    broker.consuming.hooks["deliver"] = lambda _: TroveError(spec)
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        with pytest.raises(TroveError) as failure:
            await anext(subscription)
    assert failure.value.spec is spec


@pytest.mark.parametrize("spec", [errors.LIMIT_EXCEEDED, errors.UNKNOWN_ERROR, errors.CLIENT_UNKNOWN])
async def test_what_may_pass_is_tried_again(
    broker: FakeServer, connect: Connect, spec: errors.ErrorSpec
) -> None:
    answers = [TroveError(spec)] * 3
    broker.consuming.hooks["deliver"] = lambda _: answers.pop() if answers else None
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"a")
        assert await consume(subscription, 1) == [b"a"]
    assert len(broker.consuming.members) == 4
    assert len({member.client_id for member in broker.consuming.members}) == 1


async def test_messages_can_be_settled_after_the_broker_ended_the_batches(
    broker: FakeServer, connect: Connect
) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", prefetch=4) as subscription:
        await fake.offer(b"a", b"b")
        first, second = await take(subscription, 2)
        fake.hooks["deliver"] = lambda _: TroveError(errors.PERMISSION_MISSING)
        await fake.notify()
        with pytest.raises(TroveError, match="PERMISSION_MISSING"):
            await anext(subscription)
        await first.ack()
        async with second.process():
            pass
    assert (fake.gone, subscription.refused) == ([b"a", b"b"], 0)
    assert len(fake.members) == 1


async def test_a_body_that_is_not_its_digests_is_never_shown(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    await fake.offer(b"bad")
    fake.held[0].is_damaged = True
    async with client.subscribe("orders", "g") as subscription:
        await fake.offer(b"good")
        assert await consume(subscription, 1) == [b"good"]
        await fake.until(lambda: bool(fake.requests("RETURN")))
    assert fake.bodies() == [b"bad"]


# --- settlements ----------------------------------------------------------------------------------------
async def test_process_acknowledges_together(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", prefetch=256) as subscription:
        await fake.offer(*(b"%d" % i for i in range(32)))
        await fake.until(lambda: not fake.visible())
        for message in await take(subscription, 32):
            async with message.process():
                pass
    assert sorted(fake.gone) == sorted(b"%d" % i for i in range(32))
    assert len(fake.requests("ACKNOWLEDGE")) == 32
    assert sum(bool(frame.settlements) for frame in fake.members[0].frames) < 32


async def test_an_exception_returns_the_message_with_back_off(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await fake.offer(b"a")
        (first,) = await take(subscription, 1)
        with pytest.raises(ValueError, match="mine"):
            async with first.process():
                raise ValueError("mine")
        (second,) = await take(subscription, 1)
        assert (second.body, second.attempt) == (b"a", 2)
        await second.ack()
    (change,) = fake.requests("RETURN")
    assert change == (b"a", 1, False)


async def test_nack_takes_its_own_delay_and_extend_replaces_the_handle(
    broker: FakeServer, connect: Connect
) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", invisible_ms=60_000) as subscription:
        await fake.offer(b"a")
        (message,) = await take(subscription, 1)
        before = message.receipt_handle
        await message.extend(timedelta(seconds=90))
        assert message.receipt_handle != before
        await message.nack(0)
        (again,) = await take(subscription, 1)
        await again.ack()
    assert fake.requests("EXTEND") == [(b"a", 90_000, False)]
    assert fake.requests("RETURN") == [(b"a", 0, False)]
    assert fake.gone == [b"a"]


@pytest.mark.parametrize("duration", [0, 0.0004, timedelta(0)])
async def test_a_message_extended_to_now_kept_a_void_handle(
    broker: FakeServer, connect: Connect, duration: float | timedelta
) -> None:
    """Its acknowledgement at the end of the block was refused."""
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", invisible_ms=60_000) as subscription:
        await fake.offer(b"a")
        (message,) = await take(subscription, 1)
        async with message.process():
            await message.extend(duration)
            assert message.settled
        (again,) = await take(subscription, 1)
        assert again.attempt == 2
    assert (fake.requests("EXTEND"), fake.requests("ACKNOWLEDGE")) == ([], [])
    assert fake.requests("RETURN")[0] == (b"a", 0, False)


async def test_a_message_is_settled_once(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"a")
        (message,) = await take(subscription, 1)
        async with message.process():
            await message.ack()
        for again in (message.ack(), message.nack(), message.extend(10)):
            with pytest.raises(TroveError) as refused:
                await again
            assert refused.value.spec is errors.REQUEST_ILLEGAL
    assert len(broker.consuming.requests("ACKNOWLEDGE")) == 1


async def test_a_lease_that_is_over_is_reported(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the message is delivered again is not known: it may have been consumed elsewhere."""
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await fake.offer(b"a")
        (message,) = await take(subscription, 1)
        fake.held[0].receipt = "newer"
        with pytest.raises(TroveError) as refused:
            await message.ack()
        assert refused.value.spec is errors.RECEIPT_HANDLE_ILLEGAL
        assert subscription.refused == 1
    (line,) = [record.getMessage() for record in caplog.records if "settled" in record.getMessage()]
    assert "so it may be delivered again" in line


async def test_an_acknowledgement_is_tried_again_until_it_arrives(
    broker: FakeServer, connect: Connect
) -> None:
    answers = [TroveError(errors.UNKNOWN_ERROR)] * 2
    broker.consuming.hooks["ACKNOWLEDGE"] = lambda _: answers.pop() if answers else None
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"a")
        assert await consume(subscription, 1) == [b"a"]
    assert broker.consuming.gone == [b"a"]
    assert len(broker.consuming.requests("ACKNOWLEDGE")) == 3


# --- order ----------------------------------------------------------------------------------------------
async def test_of_a_message_group_one_is_handed_out_at_a_time(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    fake.settings.orderly = True
    client = await connect(broker)
    await fake.offer(b"a1", b"a2", message_group="a")
    await fake.offer(b"b1", message_group="b")
    async with client.subscribe("orders", "g") as subscription:
        first, other = await take(subscription, 2)
        assert (first.body, other.body) == (b"a1", b"b1")
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.wait([waiting], timeout=0)
        assert (waiting.done(), subscription.prefetched) == (False, 1)
        await first.ack()
        assert (await waiting).body == b"a2"


async def test_what_comes_again_comes_before_its_followers(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    fake.settings.orderly = True
    client = await connect(broker)
    await fake.offer(b"a1", b"a2", b"a3", message_group="a")
    order = []
    async with client.subscribe("orders", "g") as subscription:
        for fails in (True, False, True, False, False):
            (message,) = await take(subscription, 1)
            order.append((message.body, message.attempt))
            if fails:
                await message.nack()
            else:
                await message.ack()
    assert order == [(b"a1", 1), (b"a1", 2), (b"a2", 1), (b"a2", 2), (b"a3", 1)]


async def test_orderly_attempts_that_are_used_up_end_in_the_dead_letters(
    broker: FakeServer, connect: Connect
) -> None:
    fake = broker.consuming
    fake.settings.orderly = True
    client = await connect(broker)
    await fake.offer(b"a1", b"a2", message_group="a")
    async with client.subscribe("orders", "g") as subscription:
        for _ in range(3):
            (message,) = await take(subscription, 1)
            assert message.body == b"a1"
            await message.nack(0)
        assert await consume(subscription, 1) == [b"a2"]
    assert (fake.dead, fake.gone) == ([b"a1"], [b"a2"])
    assert [settled.body for settled in fake.requests("DEAD_LETTER")] == [b"a1"]


# --- breaks and ends ------------------------------------------------------------------------------------
async def test_closing_returns_what_was_not_handed_out(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", prefetch=8) as subscription:
        await fake.offer(b"a", b"b", b"c")
        await fake.until_received()
        (message,) = await take(subscription, 1)
        assert subscription.prefetched == 2
        async with message.process():
            pass
    assert fake.gone == [b"a"]
    assert fake.requests("RETURN") == [(b"b", 0, True), (b"c", 0, True)]
    assert fake.left == [subscription.client_id]
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)


async def test_acknowledgements_were_lost_when_a_subscription_closed(
    broker: FakeServer, connect: Connect
) -> None:
    """The receive was cancelled first: the broker took its messages back, the processed ones too, and refused
    their acknowledgements."""
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await fake.offer(b"a", b"b", b"c")
        for message in await take(subscription, 2):
            async with message.process():
                pass
    assert (fake.gone, subscription.refused) == ([b"a", b"b"], 0)
    assert fake.bodies() == [b"c"]


async def test_the_client_closes_its_subscriptions(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    subscription = await client.subscribe("orders", "g").__aenter__()
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.wait([waiting], timeout=0)
    await client.close()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert broker.consuming.left == [subscription.client_id]


async def test_after_the_end_a_message_cannot_be_settled(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await broker.consuming.offer(b"a")
        (message,) = await take(subscription, 1)
    with pytest.raises(TroveError) as refused:
        await message.ack()
    assert refused.value.spec is errors.CLIENT_CLOSED


async def test_a_broker_that_restarts_is_entered_again(broker: FakeServer, connect: Connect) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g") as subscription:
        await fake.offer(b"a", b"b")
        first, second = await take(subscription, 2)
        await first.ack()
        await broker.stop()
        held = asyncio.ensure_future(second.ack())  # continues trying without a broker
        await asyncio.wait([held], timeout=0)
        await broker.start()
        await held
        await fake.until(lambda: len(fake.members) == 2)
        await fake.offer(b"c")
        assert await consume(subscription, 1) == [b"c"]
    assert fake.gone == [b"a", b"b", b"c"]


async def test_a_message_redelivered_while_it_waits_is_delivered_once(
    broker: FakeServer, connect: Connect
) -> None:
    fake = broker.consuming
    client = await connect(broker)
    async with client.subscribe("orders", "g", prefetch=4) as subscription:
        await fake.offer(b"a", b"b")
        await fake.until(lambda: not fake.visible())
        fake.held[1].leased = False  # its lease was lost
        await fake.notify()
        await fake.until_received()
        await fake.offer(b"c")
        assert await consume(subscription, 3) == [b"a", b"b", b"c"]
    assert fake.gone == [b"a", b"b", b"c"]


# --- commands -------------------------------------------------------------------------------------------
def direct(nonce: str, body: bytes = b"direct") -> consumer_pb2.ConsumeCommand:
    message = consumer_pb2.DirectMessage(topic="known", queue_id=2, queue_offset=7, record=record_of(body))
    return consumer_pb2.ConsumeCommand(nonce=nonce, consume=message)


async def test_the_handler_consumes_directly(broker: FakeServer, connect: Connect) -> None:
    seen = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)
        assert (message.topic, message.queue_id, message.queue_offset) == ("known", 2, 7)
        assert (message.keys, message.attempt, message.receipt_handle) == (("key",), 1, "")
        await message.ack()  # without a caller that waits
        if message.body == b"bad":
            raise ValueError("not this one")

    client = await connect(broker)
    async with client.subscribe("orders", "g", handler=handler):
        (member,) = broker.consuming.members
        good = await member.command(direct("n1"))
        assert (good.nonce, good.result) == ("n1", consumer_pb2.DONE)
        bad = await member.command(direct("n2", b"bad"))
        assert bad.result == consumer_pb2.FAILED
        assert bad.text == "ValueError: not this one"
        damaged = direct("n3")
        damaged.consume.record = damaged.consume.record[:-1]
        assert (await member.command(damaged)).result == consumer_pb2.DAMAGED
    assert seen == [b"direct", b"bad"]
    assert broker.consuming.requests("ACKNOWLEDGE") == []


async def test_without_a_handler_nothing_is_consumed_directly(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.subscribe("orders", "g"):
        (member,) = broker.consuming.members
        answer = await member.command(direct("n"))
        assert (answer.nonce, answer.result) == ("n", consumer_pb2.NOT_SUPPORTED)


async def test_stack_traces_name_threads_and_tasks(broker: FakeServer, connect: Connect) -> None:
    async def a_task_of_this_test() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(a_task_of_this_test(), name="the-task")
    client = await connect(broker)
    async with client.subscribe("orders", "g"):
        (member,) = broker.consuming.members
        answer = await member.command(consumer_pb2.ConsumeCommand(nonce="n", print_stacks=True))
    task.cancel()
    text = answer.text
    assert (answer.nonce, answer.result) == ("n", consumer_pb2.DONE)
    assert "MainThread" in text
    assert "task the-task" in text
    assert "a_task_of_this_test" in text


# --- consume --------------------------------------------------------------------------------------------
async def test_consume_runs_handlers_at_a_time_and_continues_after_failures(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    fake = broker.consuming
    together, most = 0, 0
    all_here = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together == 3:
            all_here.set()
        await all_here.wait()
        together -= 1
        if message.attempt == 1 and message.body == b"1":
            raise ValueError("first try")

    client = await connect(broker)
    consuming = asyncio.create_task(client.consume("orders", "g", handler, concurrency=3))
    with caplog.at_level(logging.CRITICAL, "trovemq"):
        await fake.offer(*(b"%d" % i for i in range(6)))
        await fake.until(lambda: len(fake.gone) == 6)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert most == 3
    assert sorted(fake.gone) == [b"%d" % i for i in range(6)]
    assert len(fake.left) == 1


async def test_cancelling_consume_returns_what_is_at_work(broker: FakeServer, connect: Connect) -> None:
    fake, begun = broker.consuming, asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    client = await connect(broker)
    consuming = asyncio.create_task(client.consume("orders", "g", handler, concurrency=1))
    await fake.offer(b"a")
    await asyncio.wait_for(begun.wait(), 30)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
    changes = fake.requests("RETURN")  # it may come once more before the client has left
    assert {one.invisible_ms for one in changes} == {0}


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"prefetch": 0}, errors.REQUEST_ILLEGAL),
        ({"filter": "a", "tags": ["b"]}, errors.FILTER_ILLEGAL),
        ({"sql": "x" * 9_000}, errors.FILTER_ILLEGAL),
        ({"broadcast": True, "sql": "a = 1"}, errors.REQUEST_ILLEGAL),
        ({"start": "begin"}, errors.REQUEST_ILLEGAL),
        ({"broadcast": True, "start": "middle"}, errors.REQUEST_ILLEGAL),
    ],
)
async def test_options_that_do_not_fit_together(
    broker: FakeServer, connect: Connect, options: dict[str, object], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        client.subscribe("orders", "g", **options)  # type: ignore[arg-type]
    assert refused.value.spec is spec


async def test_a_group_that_does_not_keep_a_fifo_topics_order_is_warned_of_once(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    route = broker.route({"orders": 1})
    route.topics[0].message_type = "FIFO"
    broker.set_routes(route)
    client = await connect(broker)
    for fifo in (False, True):
        broker.consuming.settings.orderly = fifo
        caplog.clear()
        async with client.subscribe("orders", "g") as subscription:
            for body in (b"a", b"b"):
                await broker.consuming.offer(body)
                await consume(subscription, 1)
        said = [record.message for record in caplog.records if "does not keep the order" in record.message]
        assert len(said) == (0 if fifo else 1)


async def test_a_function_that_is_not_async_runs_in_a_thread_and_may_block(
    broker: FakeServer, connect: Connect
) -> None:
    threads: set[str] = set()
    both = threading.Barrier(2, timeout=240)

    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        both.wait()  # neither would end if one at a time ran

    client = await connect(broker)
    consuming = asyncio.ensure_future(client.consume("orders", "g", handle, concurrency=2))
    await broker.consuming.offer(b"a")
    await broker.consuming.offer(b"b")
    await broker.consuming.until(lambda: sorted(broker.consuming.gone) == [b"a", b"b"])
    assert len(threads) == 2
    assert all(name.startswith("trovemq orders") for name in threads)
    consuming.cancel()
    await asyncio.gather(consuming, return_exceptions=True)
