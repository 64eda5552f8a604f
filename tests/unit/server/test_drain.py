"""A broker that is put out of service: its routes, new messages, reads, and when it stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import message, receive_request
from tests.support.services_here import BrokerServices, in_process, small_broker_settings
from trovemq_broker.admin.drain import Drain, DrainState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import admin_pb2 as v2_admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import admin_pb2, broker_pb2, query_pb2, route_pb2
from trovemq_store.files.memory import MemoryFileSystem

NATIVE = "trovemq.v1."
MESSAGING = "trovemq.rocketmq.v2.MessagingService."
ADMIN = "trovemq.rocketmq.v2.Admin."
METADATA = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"))


class Bench:
    """A broker with a topic."""

    def __init__(self) -> None:
        self.calls = BrokerServices(MemoryFileSystem(), small_broker_settings())

    async def ask(self, name: str, request: Any) -> Any:
        """The first reply; its status is 0 where it has none."""
        outcome = await self.calls.call(name, [request.SerializeToString()], METADATA)
        if outcome.symbol:
            raise TroveError(errors.by_symbol(outcome.symbol), outcome.details)
        return self.calls.parse(name, outcome.replies[0])

    async def drain(self, **fields: Any) -> Any:
        return await self.ask(f"{NATIVE}BrokerService.Drain", broker_pb2.DrainRequest(**fields))

    async def state(self) -> str:
        status = await self.ask(f"{NATIVE}BrokerService.GetDrain", broker_pb2.GetDrainRequest())
        return broker_pb2.DrainState.Name(status.state)

    async def sent(self, body: bytes = b"x") -> int:
        """The status of a send."""
        request = service_pb2.SendMessageRequest(messages=[message(body, "orders", keys=["k"])])
        reply = await self.ask(f"{MESSAGING}SendMessage", request)
        code: int = reply.entries[0].status.code if reply.entries else reply.status.code
        return code

    async def offered(self) -> tuple[bool, set[int]]:
        """Whether routes offer the broker for writing: ours, and the permissions in RocketMQ's."""
        ours = await self.ask(f"{NATIVE}RouteService.GetRoute", route_pb2.GetRouteRequest(topic="orders"))
        request = service_pb2.QueryRouteRequest(topic=v2.Resource(name="orders"))
        theirs = await self.ask(f"{MESSAGING}QueryRoute", request)
        permissions = {queue.permission for queue in theirs.message_queues}
        of_operators = v2_admin_pb2.GetTopicRouteRequest(topic=v2.Resource(name="orders"))
        shown = await self.ask(f"{ADMIN}GetTopicRoute", of_operators)
        (queues,) = json.loads(shown.topic_route_data)["queueDatas"]
        assert (queues["perm"] == 6) == (v2.READ_WRITE in permissions)
        return not ours.brokers[0].broker.draining, permissions


def scene(steps: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        with in_process():
            bench = Bench()
            async with bench.calls.working():
                create = admin_pb2.CreateTopicRequest(topic="orders", queue_count=2)
                await bench.ask(f"{NATIVE}AdminService.CreateTopic", create)
                await steps(bench)

    fake_loop.run(whole())


def test_writes_leave_the_routes_at_once_and_are_refused_after_the_grace() -> None:
    async def steps(bench: Bench) -> None:
        assert await bench.offered() == (True, {v2.READ_WRITE})
        version = bench.calls.all.view.data_version
        await bench.drain(grace_ms=5_000)
        assert await bench.offered() == (False, {v2.READ})
        assert bench.calls.all.view.data_version > version, "else no nameserver learns of it"
        await asyncio.sleep(4.9)
        assert (await bench.state(), await bench.sent(b"in time")) == ("DRAINING", v2.OK)
        await asyncio.sleep(0.2)
        assert await bench.state() == "DRAINED"
        assert bench.calls.all.statistics.appender.drained, "trovemq_drained"
        assert await bench.sent(b"too late") == v2.INTERNAL_SERVER_ERROR
        with pytest.raises(TroveError, match="is drained") as refused:
            bench.calls.core.appender.check_accepting()
        assert refused.value.retriable, "clients send it elsewhere"

    scene(steps)


def test_reads_and_acknowledgements_continue() -> None:
    async def steps(bench: Bench) -> None:
        assert await bench.sent(b"before") == v2.OK
        await bench.drain()
        await asyncio.sleep(0.1)
        query = query_pb2.QueryByKeyRequest(topic="orders", key="k", messages_max=1)
        assert (await bench.ask(f"{NATIVE}QueryService.QueryByKey", query)).records
        receive = receive_request("orders", group="workers", batch_size=8, polling_ms=0)
        outcome = await bench.calls.call(
            f"{MESSAGING}ReceiveMessage", [receive.SerializeToString()], METADATA
        )
        replies = [bench.calls.parse(f"{MESSAGING}ReceiveMessage", reply) for reply in outcome.replies]
        (received,) = [reply.message for reply in replies if reply.HasField("message")]
        entry = service_pb2.AckMessageEntry(
            message_id=received.system_properties.message_id,
            receipt_handle=received.system_properties.receipt_handle,
        )
        acknowledge = service_pb2.AckMessageRequest(
            group=v2.Resource(name="workers"), topic=v2.Resource(name="orders"), entries=[entry]
        )
        assert (await bench.ask(f"{MESSAGING}AckMessage", acknowledge)).status.code == v2.OK

    scene(steps)


def test_undo_offers_it_again() -> None:
    async def steps(bench: Bench) -> None:
        await bench.drain()
        await asyncio.sleep(0.1)
        assert await bench.sent() != v2.OK
        await bench.ask(f"{NATIVE}BrokerService.Undrain", broker_pb2.UndrainRequest())
        assert (await bench.state(), await bench.sent()) == ("SERVING", v2.OK)
        assert await bench.offered() == (True, {v2.READ_WRITE})

    scene(steps)


@pytest.mark.parametrize("asked", [{"topics": ["orders"]}, {}, {"changes": True}], ids=str)
def test_watchers_of_routes_learn_of_it(asked: dict[str, Any]) -> None:
    async def steps(bench: Bench) -> None:
        watch = bench.calls.all._route.watch_routes(route_pb2.WatchRoutesRequest(**asked), None)
        assert not (await anext(watch)).brokers[0].broker.draining
        await bench.drain(grace_ms=1_000)
        first, second = [(await anext(watch)).brokers[0].broker for _ in range(2)]
        assert (first.draining, first.drained) == (True, False)
        assert (second.draining, second.drained) == (True, True)

    scene(steps)


@pytest.mark.parametrize(
    "fields", [{"grace_ms": -1}, {"grace_ms": 3_600_001}, {"stop": True, "stop_wait_max_ms": -1}]
)
def test_times_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    async def steps(bench: Bench) -> None:
        with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
            await bench.drain(**fields)
        assert await bench.state() == "SERVING"

    scene(steps)


class FakeAppender:
    def __init__(self) -> None:
        self.refusal: TroveError | None = None

    def drain(self, error: TroveError | None) -> None:
        self.refusal = error


class Alone:
    """A drain without a broker; `open` atomic transactions are open."""

    def __init__(self) -> None:
        self.open, self.stopped_at, self.appender = 0, -1.0, FakeAppender()
        appender: Any = self.appender
        self.drain = Drain("b", appender, lambda _draining, _drained: None, lambda: self.open, self._stop)
        self.task = asyncio.create_task(self.drain.run())

    def _stop(self, _reason: str) -> None:
        self.stopped_at = asyncio.get_running_loop().time()


@fake_time
@pytest.mark.parametrize(("closed_after", "stops_after"), [(0.0, 2.0), (1.0, 2.0), (4.0, 4.0), (60.0, 12.0)])
async def test_it_stops_when_no_transaction_is_open_and_at_the_limit(
    closed_after: float, stops_after: float
) -> None:
    alone, began = Alone(), asyncio.get_running_loop().time()
    alone.open = 1
    alone.drain.begin(2_000, 10_000)
    await asyncio.sleep(closed_after)
    alone.open = 0
    await asyncio.sleep(20)
    assert alone.stopped_at - began == pytest.approx(stops_after, abs=0.1)
    assert alone.drain.state is DrainState.STOPPING
    with pytest.raises(TroveError, match="stopping"):
        alone.drain.undo()
    alone.task.cancel()


def test_a_second_drain_put_off_the_end_of_the_first() -> None:
    async def steps(bench: Bench) -> None:
        await bench.drain(grace_ms=1_000)
        await bench.drain(grace_ms=60_000)
        await asyncio.sleep(1.1)
        assert await bench.state() == "DRAINED"

    scene(steps)


@fake_time
async def test_a_stop_that_is_asked_for_later_waits_for_no_further_grace() -> None:
    alone = Alone()
    alone.drain.begin(1_000, None)
    await asyncio.sleep(500)
    assert (alone.drain.state, alone.stopped_at) == (DrainState.DRAINED, -1.0)
    alone.drain.begin(60_000, 0)
    await asyncio.sleep(0.1)
    assert alone.drain.state is DrainState.STOPPING
    alone.task.cancel()
