"""Receives and acknowledgements on our own transport: clients leave half-way, connections break."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.support.memory_broker import TestBroker, message, receive_request
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.rocketmq.service import RocketmqService
from trovemq_daemon.grpc_server import GuardedServices
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS, TARGET = ("127.0.0.1", 50_051), "127.0.0.1:50051"
V2 = "/apache.rocketmq.v2.MessagingService/"
MESSAGES, CLIENTS, ROUNDS = 48, 4, 6
LEAVES, KEEPS = 0.2, 0.15
"""How likely a client leaves a stream half-way, and how likely it does not acknowledge a message."""


class Consumers:
    """Clients of one group. `acknowledged` are the messages of which the broker has said so."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.acknowledged: set[str] = set()
        self.seen: dict[str, int] = {}

    async def consume(self, client_id: str, rounds: int) -> None:
        for _ in range(rounds):
            async with rpc.insecure_channel(TARGET) as channel:
                try:
                    await self.round(channel, client_id, leaves=LEAVES, keeps=KEEPS)
                except rpc.AioRpcError:
                    await asyncio.sleep(0.1)

    async def round(self, channel: Any, client_id: str, *, leaves: float = 0.0, keeps: float = 0.0) -> int:
        """How many messages came."""
        before = set(self.acknowledged)
        metadata = (("x-mq-client-id", client_id),)
        request = receive_request("orders", batch_size=self.random.choice((1, 3, 32)), polling_ms=1_000)
        call = channel.unary_stream(f"{V2}ReceiveMessage")(
            request.SerializeToString(), timeout=20, metadata=metadata
        )
        got = []
        async for element in call:
            if self.random.random() < leaves:
                call.cancel()
                return 0
            reply = service.ReceiveMessageResponse.FromString(element)
            if reply.HasField("message"):
                got.append(reply.message)
        for one in got:
            system = one.system_properties
            assert system.message_id not in before, "it was delivered again after its acknowledgement"
            self.seen[system.message_id] = max(self.seen.get(system.message_id, 0), system.delivery_attempt)
        acknowledge = channel.unary_unary(f"{V2}AckMessage")
        kept = [one for one in got if self.random.random() >= keeps]
        await asyncio.gather(*(self._acknowledge(acknowledge, one, metadata) for one in kept))
        return len(got)

    async def _acknowledge(self, call: Any, one: v2.Message, metadata: Any) -> None:
        system = one.system_properties
        entry = service.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = service.AckMessageRequest(
            group=v2.Resource(name="g"), topic=v2.Resource(name="orders"), entries=[entry]
        )
        reply = service.AckMessageResponse.FromString(
            await call(request.SerializeToString(), timeout=20, metadata=metadata)
        )
        if reply.status.code == v2.OK:
            self.acknowledged.add(system.message_id)


async def played(loop: MemoryLoop, seed: int, faults: Faults) -> None:
    parts = TestBroker(consumers=ConsumerSettings(new_group_start="begin", receive_poll_min_ms=500))
    parts.follow_loop()
    metrics = RpcMetrics(new_registry("1.2.3"), cluster="c", node_type="t", node_id="n")
    server = rpc.server()
    guard = HandlerGuard(metrics, ReplyBudget(ReplyLimits(), transport_counts=True))
    services: Any = GuardedServices(server, guard, callbacks=True)
    v2_service = RocketmqService(parts)
    v2_service.add_to(services)
    await server.start()
    listener = await loop.create_server(lambda: server.accept(None), *ADDRESS)
    watching = asyncio.create_task(v2_service.receiver.watch_redeliveries())
    random = Random(seed)
    for number in range(MESSAGES):
        size = random.choice((10, 1_000, 8_000))
        await parts.send(message(bytes(size), message_id=f"M{number}"))
    consumers = Consumers(random)
    loop.faults = faults
    await asyncio.gather(*(consumers.consume(f"client-{n}", ROUNDS) for n in range(CLIENTS)))
    loop.faults = Faults()
    async with rpc.insecure_channel(TARGET) as channel:
        while parts.delivery.in_flight_count or len(consumers.seen) < MESSAGES:
            await consumers.round(channel, "last")
    assert set(consumers.seen) == {f"M{number}" for number in range(MESSAGES)}
    receives: Any = v2_service.receives
    assert not receives._taken, "messages waited for a coroutine that never began"
    metrics_of: Any = metrics
    assert not any(metrics_of._streams.values())
    watching.cancel()
    listener.close()
    await server.stop(None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "faults",
    [Faults(), Faults(piece_size_max=4_096, delay_s_max=0.01), Faults(loss_chance=0.02, delay_s_max=0.01)],
    ids=["fast", "slow", "lossy"],
)
def test_each_message_is_consumed_and_none_after_its_acknowledgement(seed: int, faults: Faults) -> None:
    loop = MemoryLoop(seed, end_s=20_000)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(played(loop, seed, faults))
