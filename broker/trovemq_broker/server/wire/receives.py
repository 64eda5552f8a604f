"""ReceiveMessage: requests to commands, messages to the elements of a stream, which are serialised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from trovemq_broker.filters.filter import Filter
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.server.wire.filters import read_filter
from trovemq_broker.server.wire.forwarded_messages import named_broker
from trovemq_broker.server.wire.receive_elements import fast_element, topic_field
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.rocketmq_messages import duration_ms, received
from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError, request_of
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

ATTEMPT_ID_SIZE_MAX: Final = 255

RECEIVE_OK: Final = service_pb2.ReceiveMessageResponse(status=OK_STATUS).SerializeToString()
"""The first element of a stream with messages."""
RECEIVE_NOTHING: Final = service_pb2.ReceiveMessageResponse(
    status=v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no message came within the polling time")
).SerializeToString()
"""The first element of a stream without messages."""


class TopicAlias(NamedTuple):
    """The topic as the client names it, where that is not its stored name."""

    namespace: str
    name: str


class Receive:
    """The command. Each part is read when it is asked for, and may be refused then."""

    __slots__ = ("_request",)

    def __init__(self, request: service_pb2.ReceiveMessageRequest) -> None:
        self._request = request

    @property
    def polling_ms(self) -> int | None:
        """How long to wait for messages, as the client states it."""
        request = self._request
        stated = request.HasField("long_polling_timeout")
        return duration_ms(request.long_polling_timeout) if stated else None

    @property
    def broker(self) -> str:
        """The broker of the queue; "" if the client names none."""
        return named_broker(self._request)

    @property
    def topic(self) -> str:
        """The stored name. Raises TroveError TOPIC_ILLEGAL."""
        return topic_to_read(self._request.message_queue.topic)

    @property
    def alias(self) -> TopicAlias | None:
        """None if the client uses the stored name."""
        topic = self._request.message_queue.topic
        return TopicAlias(topic.resource_namespace, topic.name) if topic.resource_namespace else None

    @property
    def group(self) -> str:
        """Raises TroveError GROUP_ILLEGAL."""
        return group_name(self._request.group)

    @property
    def filter(self) -> Filter:
        """Raises TroveError FILTER_ILLEGAL."""
        return read_filter(self._request.filter_expression)

    @property
    def invisible_ms(self) -> int | None:
        """None: the broker renews the leases."""
        request = self._request
        return None if request.auto_renew else duration_ms(request.invisible_duration)

    @property
    def count_max(self) -> int:
        """The most messages that the client takes: at least one."""
        return max(self._request.batch_size, 1)

    @property
    def attempt_id(self) -> str:
        """The client's name of this attempt."""
        return self._request.attempt_id[:ATTEMPT_ID_SIZE_MAX]


def receive_of(call: Call) -> Receive:
    """The command of a call. Raises TroveError CLIENT_ID_MISSING, REQUEST_ILLEGAL."""
    return Receive(request_of(call))


def elements(topic: str, alias: TopicAlias | None, messages: Iterable[Delivered]) -> Iterator[bytes]:
    """The elements with these messages, each made when it is asked for. topic: the stored name."""
    name = None if alias is None else v2.Resource(resource_namespace=alias.namespace, name=alias.name)
    field = topic_field(name or v2.Resource(name=topic))
    for one in messages:
        yield fast_element(one, field) or received(one, name)


def delivered_at(epoch_ms: EpochMs) -> bytes:
    """The last element: the time of the delivery."""
    seconds, millis = divmod(epoch_ms, 1000)
    time = Timestamp(seconds=seconds, nanos=millis * 1_000_000)
    return service_pb2.ReceiveMessageResponse(delivery_timestamp=time).SerializeToString()


def polling_time_error(message: str, *, has_code: bool) -> ProtocolError:
    """POLLING_TIME_ILLEGAL. has_code: the client knows its code."""
    code = v2.ILLEGAL_POLLING_TIME if has_code else v2.BAD_REQUEST
    return ProtocolError(code, message, errors.POLLING_TIME_ILLEGAL)
