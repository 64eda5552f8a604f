"""The track as a service: members and filters of the registry, and a disk that takes no events."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from tests.unit.track.conftest import World
from trovemq_broker.server.core.clients import ClientDescription, Subscription
from trovemq_broker.server.native.track_service import TrackService
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import biography_pb2 as pb


class Served:
    """The service over one world; every wait for the disk ends with `disk_error`."""

    def __init__(self) -> None:
        self.world = World()
        self.disk_error: TroveError | None = None
        self.running = 0
        core = TestBroker(opened=(self.world.store, self.world.model))
        core.clock = lambda: self.world.now_ms
        core.sync_by(self._durable)
        self.registry = core.registry
        self.service = TrackService(core, self._one_more)

    async def _durable(self, _end: int) -> None:
        await asyncio.sleep(0)  # the dispatch of this iteration
        if self.disk_error is not None:
            raise self.disk_error

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self.running += 1
        yield
        self.running -= 1

    def join(self, group: str, topic: str, expression: str, kind: str = "tag") -> None:
        description = ClientDescription(
            client_type=ClientType.SIMPLE_CONSUMER,
            group=group,
            subscriptions={topic: Subscription(kind, expression)},
        )
        self.registry.settle(f"{group}-{topic}", description, self.world.now_ms)

    def ask(self, **request: Any) -> pb.BiographyReply:
        reply: pb.BiographyReply = asyncio.run(
            self.service.biography(pb.BiographyRequest(**request), cast(Any, None))
        )
        return reply


def test_members_and_filters_are_those_of_the_registry() -> None:
    served = Served()
    served.world.send("a", tag="void")
    served.join("wants", "orders", "*")
    served.join("picks", "orders", "paid")
    served.join("broken", "orders", "n >", kind="sql")
    served.join("elsewhere", "bills", "*")
    reply = served.ask(id="id-a")
    found = {one.group: (one.reason, one.online, one.subscribed, one.filter) for one in reply.verdicts}
    assert found == {
        "wants": ("not-reached", 1, 1, "*"),
        "picks": ("filtered-out", 1, 1, "paid"),
        "broken": ("not-reached", 1, 1, "n >"),
    }
    assert [one.consumed for one in reply.verdicts] == [False, True, False]
    assert reply.complete
    assert served.running == 0


def test_a_place_or_an_id_and_never_neither() -> None:
    served = Served()
    served.world.send("a")
    place = pb.BiographyRequest(location={"topic": "orders", "queue_id": 0, "queue_offset": 0}).location
    assert served.ask(location=place).copies == served.ask(id="id-a").copies
    with pytest.raises(TroveError) as refused:
        served.ask(topic="orders")
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def test_events_that_wait_are_brought_to_the_log_first() -> None:
    served = Served()
    served.world.send("a")
    served.world.receive()
    assert served.world.model.events.pending_count
    reply = served.ask(id="id-a")
    assert not served.world.model.events.pending_count
    assert [event.kind for event in reply.events] == ["produced", "stored", "delivered"]


def test_a_disk_that_fails_costs_nothing_but_a_note() -> None:
    served = Served()
    served.world.send("a")
    served.world.receive()
    served.world.model.on_append = lambda: None  # nothing becomes visible
    served.disk_error = TroveError(errors.DISK_FULL)
    reply = served.ask(id="id-a")
    assert not reply.complete
    assert "the newest events are not on disk yet" in list(reply.notes)
    assert [verdict.reason for verdict in reply.verdicts] == ["in-flight"]
