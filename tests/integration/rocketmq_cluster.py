"""A client of RocketMQ's protocol that is given one address and follows the routes, as the official clients
do."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

from tests.support.rocketmq_client import RawClient
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

WAIT_S_MAX = 240
_numbers = itertools.count()


class ClusterClient:
    """A push consumer and producer of one topic, with a telemetry stream to each endpoint of the routes."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.client_id = f"cluster-{next(_numbers)}"
        self._open = ExitStack()
        self._bootstrap = self._open.enter_context(RawClient(address, self.client_id))
        host, port = address.rsplit(":", 1)
        self._dialled = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=host, port=int(port))])
        self._group = group
        self._topic = topic
        self._at: dict[str, RawClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # --- routes -------------------------------------------------------------------------------------
    def route(self, topic: str | None = None) -> list[Any]:
        request = service.QueryRouteRequest(topic=self._resource(topic), endpoints=self._dialled)
        reply = self._bootstrap.call("QueryRoute", request, service.QueryRouteResponse)
        assert reply.status.code in (v2.OK, v2.TOPIC_NOT_FOUND), reply.status
        return list(reply.message_queues)

    def permissions(self, topic: str | None = None) -> dict[str, str]:
        """Of the queues of each broker of the route; empty if no broker has the topic."""
        return {one.broker.name: v2.Permission.Name(one.permission) for one in self.route(topic)}

    def assignments(self) -> list[Any]:
        request = service.QueryAssignmentRequest(
            topic=self._resource(None), group=v2.Resource(name=self._group), endpoints=self._dialled
        )
        reply = self._bootstrap.call("QueryAssignment", request, service.QueryAssignmentResponse)
        assert reply.status.code == v2.OK, reply.status
        return [one.message_queue for one in reply.assignments]

    def recall(self, topic: str, handle: str) -> Any:
        """RecallMessage, at the given address."""
        request = service.RecallMessageRequest(topic=self._resource(topic), recall_handle=handle)
        return self._bootstrap.call("RecallMessage", request, service.RecallMessageResponse)

    def until(self, condition: Callable[[dict[str, str]], bool], topic: str | None = None) -> float:
        """Asks for the route until its permissions are so. Returns the seconds that this took."""
        began = time.monotonic()
        while not condition(self.permissions(topic)):
            assert time.monotonic() < began + WAIT_S_MAX, self.permissions(topic)
            time.sleep(0.01)
        return time.monotonic() - began

    # --- calls at the endpoints ---------------------------------------------------------------------
    def at(self, message_queue: Any) -> RawClient:
        """The connection to the queue's broker, with this client's settings sent to it."""
        address = message_queue.broker.endpoints.addresses[0]  # others are of nodes that forward to it
        place = f"{address.host}:{address.port}"
        if place not in self._at:
            made = self._at[place] = self._open.enter_context(RawClient(place, self.client_id))
            self._open.callback(self._send_settings(made).cancel)
        return self._at[place]

    def _send_settings(self, client: RawClient) -> Any:
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        entry = v2.SubscriptionEntry(
            topic=self._resource(None), expression=v2.FilterExpression(type=v2.TAG, expression="*")
        )
        settings = v2.Settings(
            client_type=v2.PUSH_CONSUMER,
            subscription=v2.Subscription(group=v2.Resource(name=self._group), subscriptions=[entry]),
        )
        outgoing.put(service.TelemetryCommand(settings=settings))
        stream = client.telemetry(_endless(outgoing))
        assert next(stream).status.code == v2.OK
        return stream

    def heartbeat(self, message_queue: Any) -> Any:
        request = service.HeartbeatRequest(group=v2.Resource(name=self._group), client_type=v2.PUSH_CONSUMER)
        return self.at(message_queue).call("Heartbeat", request, service.HeartbeatResponse)

    def receive(self, message_queue: Any, count: int) -> list[Any]:
        return self.at(message_queue).receive_until(self._group, self._topic, count)

    def acknowledge(self, message_queue: Any, messages: list[Any]) -> Any:
        return self.at(message_queue).acknowledge(self._group, messages)

    def _resource(self, topic: str | None) -> v2.Resource:
        return v2.Resource(name=self._topic if topic is None else topic)


def _endless(outgoing: queue.SimpleQueue[Any]) -> Iterator[Any]:
    while True:
        yield outgoing.get()
