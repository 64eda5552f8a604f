"""Each public coroutine that receives, sends or settles is cancelled at each of its suspensions.

Whatever the moment: no message is lost, none stays leased to a member that has it no more, and no attempt is
used up unless the program saw the message. The broker is a real one, in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import trovemq
from tests.support.broker_here import broker_here
from tests.support.event_loop import EventLoop
from tests.world.cancelling import Moment, cancelled, suspension_count
from trovemq import Backoff, Client, ClientOptions, GroupSettings, ReceivedMessage, Subscription

pytestmark = pytest.mark.slow

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": EventLoop,
}
PATIENCE_S = 15  # for messages that come at once, also on a busy machine
SUSPENSIONS_MAX = 100  # of one coroutine: more means that it waits without an end
QUICK = ClientOptions(backoff=Backoff(delay_ms=1, delay_max_ms=8, uniform=lambda: 1.0))
BODIES = (b"a", b"b", b"c")


@dataclass
class Scene:
    """A separate topic and group, and the messages that the program saw."""

    client: Client
    topic: str
    subscription: Subscription | None = None
    in_hand: list[ReceivedMessage] = field(default_factory=list)
    """Messages that the program has and did not settle."""
    seen: dict[bytes, int] = field(default_factory=dict)
    """How often the program got the message of a body."""
    consumed: set[bytes] = field(default_factory=set)

    def subscribe(self) -> Subscription:
        return self.client.subscribe(self.topic, "workers", start="earliest")

    @property
    def open(self) -> Subscription:
        assert self.subscription is not None, "the scene began with a subscription"
        return self.subscription

    def saw(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self.seen[message.body] = self.seen.get(message.body, 0) + 1

    async def handle(self, message: ReceivedMessage) -> None:
        """A handler; its message is consumed if it is not cancelled."""
        self.saw([message])
        await asyncio.sleep(0)
        self.consumed.add(message.body)

    async def send_all(self) -> None:
        for body in BODIES:
            await self.client.send(self.topic, body)

    async def enter(self) -> None:
        self.subscription = await self.subscribe().__aenter__()

    async def committed(self) -> tuple[int, int]:
        """The group's offset, and the end of the queue."""
        (queue,) = await self.client.admin.groups.lag("workers", self.topic)
        return queue.committed or 0, queue.max_offset


# --- before ------------------------------------------------------------------------------------------------
async def messages_wait(scene: Scene) -> None:
    await scene.send_all()


async def messages_are_received(scene: Scene) -> None:
    await scene.send_all()
    await scene.enter()
    while scene.open.prefetched < 1:
        await asyncio.sleep(0)


async def messages_will_come(scene: Scene) -> None:
    await scene.enter()
    task = asyncio.get_running_loop().create_task(scene.send_all())
    scene.open.sending = task  # type: ignore[attr-defined]  # kept until the end


async def one_is_in_hand(scene: Scene) -> None:
    await messages_are_received(scene)
    message = await anext(scene.open)
    scene.saw([message])
    scene.in_hand.append(message)


# --- cancelled coroutines ----------------------------------------------------------------------------------
async def take_one(scene: Scene) -> None:
    message = await anext(scene.open)
    scene.saw([message])
    scene.in_hand.append(message)


async def take_a_batch(scene: Scene) -> None:
    batch = await scene.open.next_batch(3, wait=30)
    scene.saw(batch)
    scene.in_hand += batch


async def take_an_incomplete_batch(scene: Scene) -> None:
    batch = await scene.open.next_batch(9, wait=0.02)
    scene.saw(batch)
    scene.in_hand += batch


async def take_an_item_of_batches(scene: Scene) -> None:
    batches = scene.open.batches(3, wait=30)
    try:
        batch = await anext(batches)
        scene.saw(batch)
        scene.in_hand += batch
    finally:
        await batches.aclose()


async def enter(scene: Scene) -> None:
    await scene.enter()


async def leave(scene: Scene) -> None:
    await scene.open.close()


async def use_a_block(scene: Scene) -> None:
    async with scene.subscribe() as messages:
        async for message in messages:
            async with message.process():
                await scene.handle(message)
            if scene.consumed == set(BODIES):
                break


async def consume(scene: Scene) -> None:
    async def handle(message: ReceivedMessage) -> None:
        await scene.handle(message)
        if scene.consumed == set(BODIES):
            await asyncio.sleep(0)
            subscription.end()

    async with scene.subscribe() as subscription:
        await subscription.consume(handle, 2)


async def run(scene: Scene) -> None:
    handlers = trovemq.Handlers()

    @handlers.handle(scene.topic, group="workers", start="earliest", concurrency=2)
    async def handle(message: ReceivedMessage) -> None:
        await scene.handle(message)
        if scene.consumed == set(BODIES):
            running.stop()

    async with scene.client.run(handlers, signals=()) as running:
        await running.wait()


async def acknowledge(scene: Scene) -> None:
    (message,) = scene.in_hand
    scene.in_hand.clear()
    scene.consumed.add(message.body)
    await message.ack()


async def return_one(scene: Scene) -> None:
    (message,) = scene.in_hand
    scene.in_hand.clear()
    await message.nack(delay=0)


async def extend(scene: Scene) -> None:
    await scene.in_hand[0].extend(3600)


async def make_a_dead_letter(scene: Scene) -> None:
    (message,) = scene.in_hand
    scene.in_hand.clear()
    scene.consumed.add(message.body)
    await message.dead_letter()


Step = Callable[[Scene], Coroutine[Any, Any, object]]


class Case(NamedTuple):
    """`leaves`: a whole life of a member is cancelled; then another one gets the messages."""

    before: Step
    act: Step
    leaves: bool = False


RECEIVING = [
    Case(messages_will_come, take_one),
    Case(messages_will_come, take_a_batch),
    Case(messages_are_received, take_an_incomplete_batch),
    Case(messages_will_come, take_an_item_of_batches),
    Case(messages_wait, enter, leaves=True),
    Case(messages_are_received, leave, leaves=True),
    Case(messages_wait, use_a_block, leaves=True),
    Case(messages_wait, consume, leaves=True),
    Case(messages_wait, run, leaves=True),
    Case(one_is_in_hand, acknowledge),
    Case(one_is_in_hand, return_one),
    Case(one_is_in_hand, extend),
    Case(one_is_in_hand, make_a_dead_letter),
]


async def check(scene: Scene, other: Client, *, leaves: bool) -> None:
    """Consumes the rest: everything comes, and its attempt is how often the program has seen it."""
    for message in scene.in_hand:
        await message.ack()
        scene.consumed.add(message.body)
    reader = scene
    if leaves:
        if scene.subscription is not None:
            await scene.subscription.close()
        reader = Scene(other, scene.topic, seen=scene.seen)
        await reader.enter()
    missing = set(BODIES) - scene.consumed
    while missing:
        message = await anext(reader.open)
        scene.saw([message])
        assert message.attempt == scene.seen[message.body], f"not each attempt of {message.body!r} was seen"
        assert message.body in missing, f"{message.body!r} was consumed before"
        missing.discard(message.body)
        await message.ack()
    while (place := await scene.committed())[0] != place[1]:
        await asyncio.sleep(0.001)
    for one in {scene.subscription, reader.subscription} - {None}:
        assert one is not None
        await one.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("case", RECEIVING, ids=lambda case: case.act.__name__)
def test_a_cancelled_member_loses_no_message_and_no_attempt(case: Case, loop: str, tmp_path: Path) -> None:
    async def trials() -> None:
        async with (
            broker_here(tmp_path) as broker,
            trovemq.connect(str(broker.app.serving.result().grpc), options=QUICK) as client,
            trovemq.connect(str(broker.app.serving.result().grpc), options=QUICK) as other,
        ):

            async def scene(number: int) -> Scene:
                await client.admin.create_topic(f"topic-{number}", queue_count=1)
                made = Scene(client, f"topic-{number}")
                await case.before(made)
                return made

            async with asyncio.timeout(PATIENCE_S):
                made = await scene(0)
                points = await suspension_count(case.act(made))
                assert 0 < points < SUSPENSIONS_MAX
                await check(made, other, leaves=case.leaves)
            for number in range(1, points + 1):
                for moment in get_args(Moment):
                    async with asyncio.timeout(PATIENCE_S):
                        made = await scene(2 * number + (moment == "woken"))
                        await cancelled(case.act(made), number, moment)
                        await check(made, other, leaves=case.leaves)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(trials())


def test_gatherings_out_of_time_made_dead_letters_of_unseen_messages(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with (
            broker_here(tmp_path) as broker,
            trovemq.connect(str(broker.app.serving.result().grpc), options=QUICK) as client,
        ):
            await client.admin.create_topic("orders", queue_count=1)
            await client.admin.groups.create("workers", GroupSettings(retry_max=3))
            made = Scene(client, "orders")
            await messages_are_received(made)
            for _ in range(20):
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await made.open.next_batch(5, wait=30)
            await check(made, client, leaves=False)

    asyncio.run(scene())


# --- sending -----------------------------------------------------------------------------------------------
async def send_one(client: Client, topic: str) -> None:
    await client.send(topic, b"a")


async def send_with_a_producer(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        await producer.send(b"a")


async def send_a_batch(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        await producer.send_batch([b"a"])


async def send_and_flush(client: Client, topic: str) -> None:
    async with client.producer(topic, linger_ms=5) as producer:
        producer.send_nowait(b"a")
        await producer.flush()


async def send_later(client: Client, topic: str) -> None:
    await client.send(topic, b"a", deliver_after=0.001)


async def send_in_a_transaction(client: Client, topic: str) -> None:
    async with client.transaction() as transaction:
        await transaction.send(topic, b"a")


async def send_half(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer, producer.transaction() as transaction:
        await transaction.send(b"a")


SENDING = [
    send_one,
    send_with_a_producer,
    send_a_batch,
    send_and_flush,
    send_later,
    send_in_a_transaction,
    send_half,
]
MESSAGE_TYPES = {"send_later": "DELAY", "send_half": "TRANSACTION"}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("send", SENDING, ids=lambda send: send.__name__)
def test_a_cancelled_send_is_stored_once_or_not_and_hinders_no_other(
    send: Callable[[Client, str], Coroutine[Any, Any, None]], loop: str, tmp_path: Path
) -> None:
    async def trials() -> None:
        async with broker_here(tmp_path) as broker:
            address = str(broker.app.serving.result().grpc)

            async def trial(number: int, moment: Moment) -> int:
                topic = f"topic-{number}-{moment}"
                async with asyncio.timeout(PATIENCE_S), trovemq.connect(address, options=QUICK) as client:
                    await client.admin.create_topic(topic, queue_count=1, message_type=message_type)
                    points = 0
                    if number:
                        await cancelled(send(client, topic), number, moment)
                    else:
                        points = await suspension_count(send(client, topic))
                    await send(client, topic)
                    async with client.subscribe(topic, "workers", start="earliest") as messages:
                        # All of them, as nothing was cancelled; else a second look for a third one.
                        count = len(await messages.next_batch(3 if number else 2, 0.05 if number else 9))
                    assert count == 2 or (number and count == 1)
                return points

            message_type = MESSAGE_TYPES.get(send.__name__, "NORMAL")
            points = await trial(0, "waiting")
            assert 0 < points < SUSPENSIONS_MAX
            for number in range(1, points + 1):
                for moment in get_args(Moment):
                    await trial(number, moment)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(trials())
