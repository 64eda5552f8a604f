"""Members of the SDK and the broker's Consume streams in one process, by made-up time. Clients join, leave
and lose their connections; however slow the programs are, every message is done, in the order of its
message group."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.consuming import GROUP
from tests.support.fake_loop import run, turns
from tests.support.memory_broker import TestBroker, message
from tests.support.rpc_context import RpcContext
from tests.support.trials import SOAK
from tests.unit.server.test_consume_stream import parts_with
from trovemq._common.backoff import Backoff
from trovemq._consume.group_subscription import GroupSubscription, MessageFilter
from trovemq._consume.grouped import GroupConsumer
from trovemq._consume.inbox import Inbox
from trovemq._wire.consumer import consume_answer
from trovemq.options import ClientOptions
from trovemq.received import ReceivedMessage
from trovemq_broker.server.native.consume_stream import ConsumerService
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.topics.subscription_groups import SubscriptionGroup

BEGAN_MS = 1_700_000_000_000


class Replies(list[bytes]):
    """The replies of the broker; `queue` is for the client, which waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def append(self, reply: bytes) -> None:
        self.queue.put_nowait(reply)


class Pipe:
    """One stream: the client's end of it, and the broker's call."""

    writable = False

    def __init__(self, service: ConsumerService, client_id: str) -> None:
        self.context = RpcContext(client_id)
        self.context.written = self.replies = Replies()
        context: Any = self.context
        self.serving = asyncio.ensure_future(service.consume(None, context))
        self.serving.add_done_callback(lambda _: self.replies.queue.put_nowait(None))

    async def send(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        await self.context.requests.put(consumer_pb2.ConsumeFrame.FromString(frame))

    async def read(self) -> Any:
        reply = await self.replies.queue.get()
        if reply is None:
            error = None if self.serving.cancelled() else self.serving.exception()
            raise error if isinstance(error, TroveError) else TroveError(errors.BROKER_UNREACHABLE, "lost")
        return consume_answer(reply)

    async def end(self) -> None:
        await self.context.requests.put(grpc.aio.EOF)

    def cancel(self) -> None:
        self.context.is_done = True
        self.serving.cancel()


class Cluster:
    """A broker and its members. `done` has the messages in the order in which their work ended, `faults` the
    message groups of which one member had two at a time, `overlaps` those of two members."""

    def __init__(self, *, orderly: bool) -> None:
        self.parts: TestBroker = parts_with()
        self.parts.follow_loop()
        self.parts.groups.create(SubscriptionGroup(GROUP, orderly=orderly))
        self.orderly = orderly
        self.service = self.parts.consumers
        self.members: list[Member] = []
        self.sent = 0
        self.working: dict[str, list[Member]] = {}
        self.faults: list[str] = []
        self.overlaps: list[str] = []
        self.was_reset = False
        self.leaving: list[asyncio.Future[None]] = []
        self.done: list[tuple[str, int]] = []
        self.attempts: list[int] = []
        self.broke = False
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self.parts.receiver.watch_redeliveries()),
            loop.create_task(self.renew()),
        ]

    async def renew(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.parts.delivery.renew(self.parts.clock_ms(), self._is_known)

    def _is_known(self, client_id: str) -> bool:
        return self.parts.registry.get(client_id) is not None

    async def send(self, count: int, lane: int) -> None:
        for _ in range(count):
            name = "abc"[lane]
            await self.parts.send(
                message(
                    b"%s%d" % (name.encode(), self.sent),
                    "steps",
                    message_id=f"M{self.sent}",
                    message_group=name,
                )
            )
            self.sent += 1

    async def join(self, workers: int, work_s: float, prefetch: int | None, unit: int = 1) -> None:
        self.members.append(member := Member(self, workers, work_s, prefetch))
        member.inbox.hold.unit = unit
        await member.begin()

    async def over(self) -> None:
        await asyncio.gather(*self.leaving, *(member.leave() for member in self.members))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def work(self, taken: ReceivedMessage, member: Member) -> None:
        group, number = taken.body[:1].decode(), int(taken.body[1:])
        self.attempts.append(taken.attempt)
        working = self.working.setdefault(group, [])
        if self.orderly and working:
            (self.faults if member in working else self.overlaps).append(group)
        working.append(member)
        try:
            await asyncio.sleep(member.work_s)
            self.done.append((group, number))
        finally:
            working.remove(member)

    def member(self, which: int) -> Member:
        return self.members[which % len(self.members)]

    async def leave(self, which: int) -> None:
        self.leaving.append(asyncio.ensure_future(self.member(which).leave()))

    async def lose(self, which: int) -> None:
        """A member's connection breaks."""
        self.broke = True
        if not self.member(which).left:
            self.member(which).pipes[-1].cancel()

    async def silent(self, which: int, silent: bool) -> None:
        """Nothing that the broker writes to the member arrives, or it arrives again."""
        self.broke = True
        may_write = self.member(which).pipes[-1].context.may_write
        may_write.clear() if silent else may_write.set()

    async def cancel(self, which: int) -> None:
        self.broke = True
        self.member(which).cancel()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def reset(self) -> None:
        self.broke = self.was_reset = True
        parts = self.parts
        offsets = {
            each: int(queue_range(parts.store, "steps", each)[0]) for each in queue_ids(parts.store, "steps")
        }
        parts.delivery.reset(GROUP, "steps", offsets, parts.clock_ms())
        parts.waits.wake((GROUP, "steps"))


class Member:
    def __init__(self, cluster: Cluster, workers: int, work_s: float, prefetch: int | None) -> None:
        self.cluster, self.work_s = cluster, work_s
        self.inbox = Inbox(prefetch, 1 << 20)
        self.inbox.hold.workers = workers
        routes = SimpleNamespace(
            is_fifo=lambda _: False, find=lambda _: None, has_topic=lambda *_: True, unlisten=lambda _: None
        )
        pool: Any = SimpleNamespace(
            options=ClientOptions(backoff=Backoff(uniform=lambda: 0.5)),
            routes=routes,
            closed=False,
            check_loop=lambda: None,
            connection=lambda _: SimpleNamespace(open=self._open),
        )
        self.subscription = GroupSubscription(topic="steps", group=GROUP, filter=MessageFilter("tag", "*"))
        self.consumer = GroupConsumer(pool, self.subscription, self.inbox)
        self.pipes: list[Pipe] = []
        self.left = False
        self.workers = workers

    def _open(self, *_: object, **__: object) -> Pipe:
        self.pipes.append(Pipe(self.cluster.service, self.subscription.client_id))
        return self.pipes[-1]

    async def begin(self) -> None:
        broker: Any = SimpleNamespace(name="broker-a")
        self.receiving = asyncio.ensure_future(self.consumer._receive(broker))
        self.consumer._brokers.stop = self._stop  # type: ignore[method-assign]
        self.tasks = [asyncio.ensure_future(self.run()) for _ in range(self.workers)]
        await turns()

    async def _stop(self) -> None:
        self.receiving.cancel()
        await asyncio.gather(self.receiving, return_exceptions=True)

    async def run(self) -> None:
        with suppress(asyncio.CancelledError):
            while (taken := await self.inbox.get()) is not None:
                some = [taken, *self.inbox.take_all(self.inbox.hold.unit - 1)]
                try:
                    while some:
                        async with some.pop(0).process():
                            await self.cluster.work(taken, self)
                        taken = some[0] if some else taken
                finally:
                    for each in some:
                        self.consumer.release(each)

    def cancel(self) -> None:
        """One of its tasks gives up, and another one begins."""
        task = self.tasks.pop(0)
        task.cancel()
        self.tasks += [task, asyncio.ensure_future(self.run())] if not self.left else [task]

    async def leave(self) -> None:
        if self.left:
            return
        self.left = True
        self.inbox.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.consumer.close()


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12), st.integers(0, 2)),
    st.tuples(
        st.just("join"),
        st.integers(1, 3),
        st.sampled_from([0.0, 0.01, 0.3, 3.0]),
        st.sampled_from([None, None, 1, 2, 9]),
        st.sampled_from([1, 1, 5]),
    ),
    st.tuples(st.just("reset")),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 5)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("silent"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("pause"), st.sampled_from([0.0, 0.01, 0.2, 1.0, 5.0])),
)


@pytest.mark.parametrize("orderly", [True, False])
@given(steps=st.lists(STEP, max_size=16))
@example(steps=[("join", 3, 3.0, None, 1), ("send", 12, 0), ("send", 12, 1), ("pause", 1.0), ("leave", 0)])
@example(steps=[("reset",), ("lose", 0), ("join", 2, 0.3, None, 1), ("lose", 3), ("reset",)])
@settings(max_examples=60 if SOAK else 30, deadline=None)
def test_every_message_is_done_whoever_joins_and_leaves(orderly: bool, steps: list[tuple[Any, ...]]) -> None:
    async def scene() -> None:
        cluster = Cluster(orderly=orderly)
        await cluster.send(6, 0)
        await cluster.join(1, 0.3, None)
        for kind, *values in steps:
            await getattr(cluster, kind)(*values)
            await turns(3)
        await asyncio.sleep(1.0)
        for member in cluster.members:
            for pipe in member.pipes:
                pipe.context.may_write.set()
        await cluster.join(2, 0.3, None)
        left = cluster.sent if cluster.was_reset else cluster.sent - len(set(cluster.done))
        slowest = max(member.work_s for member in cluster.members) + 0.1
        await asyncio.sleep((60 if cluster.broke else 5) + slowest * left)
        assert not cluster.faults
        missing = set(range(cluster.sent)) - {number for _, number in cluster.done}
        assert not missing, (
            missing,
            [(m.inbox.count, m.left) for m in cluster.members],
            cluster.parts.delivery.in_flight_count,
        )
        if not cluster.broke:
            assert len(cluster.done) == cluster.sent, "each once"
            assert set(cluster.attempts) == {1}
            assert not cluster.overlaps
        if orderly and not cluster.broke:
            for group in "abc":
                numbers = [number for name, number in cluster.done if name == group]
                assert numbers == sorted(numbers)
        await cluster.over()
        await turns(20)
        assert len(cluster.service.streams) == 0
        assert len(cluster.service.members) == 0

    run(scene())
