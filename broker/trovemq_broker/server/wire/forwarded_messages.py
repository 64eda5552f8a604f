"""ForwardingService: requests to values, and the parts of replies that the forwarding broker reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple, cast

from google.protobuf.message import DecodeError

from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError, reader
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import admin_pb2, service_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import forwarding_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["ForwardingService"]
_read_command: Final = reader(service_pb2.TelemetryCommand)
METADATA_MAX: Final = 16
TEXT_SIZE_MAX: Final = 256


class ForwardedClient(NamedTuple):
    """The client of a call. `caller`: the access key of its user; empty: its broker does not authenticate
    callers. `peer`: its address, as gRPC writes it."""

    caller: str
    peer: str
    metadata: Sequence[tuple[str, str]]


class Forwarded(NamedTuple):
    """A call that another broker has forwarded."""

    client: ForwardedClient
    method: str
    request: bytes


def forwarded(request: pb.ForwardRequest) -> Forwarded:
    """TroveError REQUEST_ILLEGAL."""
    return Forwarded(_client(request.client), request.method, request.request)


def _client(client: pb.ForwardedClient) -> ForwardedClient:
    metadata = sorted(client.metadata.items())
    texts = [client.caller, client.peer, *(text for pair in metadata for text in pair)]
    if len(metadata) > METADATA_MAX or any(len(text) > TEXT_SIZE_MAX for text in texts):
        text = f"more than {METADATA_MAX} metadata, or {TEXT_SIZE_MAX} characters of one"
        raise TroveError(errors.REQUEST_ILLEGAL, f"the client of a forwarded call has {text}")
    return ForwardedClient(client.caller, client.peer, metadata)


def opening_client(request: pb.ForwardTelemetryRequest) -> ForwardedClient:
    """Of the first message of a telemetry stream. TroveError REQUEST_ILLEGAL."""
    if request.WhichOneof("message") != "client":
        raise TroveError(errors.REQUEST_ILLEGAL, "the first message of a forwarded stream is its client")
    return _client(request.client)


def later_command(request: pb.ForwardTelemetryRequest) -> Any:
    """The TelemetryCommand, or Malformed. TroveError REQUEST_ILLEGAL."""
    if request.WhichOneof("message") != "command":
        raise TroveError(errors.REQUEST_ILLEGAL, "after its client a forwarded stream has commands")
    return _read_command(request.command)


def forward_reply(reply: bytes) -> pb.ForwardReply:
    return pb.ForwardReply(reply=reply)


# --- requests and replies of RocketMQ's protocol -----------------------------------------------------------
def named_broker(request: Any) -> str:
    """The broker of the message queue that a request names; "" if it names none."""
    return str(request.message_queue.broker.name)


def acknowledge_part(request: service_pb2.AckMessageRequest, places: Collection[int]) -> bytes:
    """The request with these entries only."""
    entries = [request.entries[place] for place in sorted(places)]
    part = service_pb2.AckMessageRequest(group=request.group, topic=request.topic, entries=entries)
    return part.SerializeToString()


def acknowledged_elsewhere(data: bytes, places: Sequence[int]) -> dict[int, TroveError]:
    """The refusals in the reply of another broker to the entries of these places. Raises the error of a reply
    that has none, and BROKER_UNREACHABLE if it is not readable."""
    reply = _read(service_pb2.AckMessageResponse, data)
    if len(reply.entries) != len(places):
        raise ProtocolError(reply.status.code or v2.INTERNAL_SERVER_ERROR, reply.status.message)
    return {
        place: ProtocolError(entry.status.code, entry.status.message)
        for place, entry in zip(places, reply.entries, strict=True)
        if entry.status.code != OK_STATUS.code
    }


def is_accepted(data: bytes) -> bool:
    """Whether an EndTransaction has the status OK. Raises BROKER_UNREACHABLE if it is not readable."""
    return bool(_read(service_pb2.EndTransactionResponse, data).status.code == OK_STATUS.code)


def refusal_of(data: bytes, broker: str) -> TroveError | None:
    """The error in the broker's reply to a call of Admin; None if it has the status OK."""
    status = _admin_status(data)
    if status.code == OK_STATUS.code:
        return None
    return ProtocolError(status.code, f"broker {broker}: {status.message}")


def is_missing(data: bytes) -> bool:
    """Whether another broker has neither the topic nor the message that a call of Admin names."""
    return _admin_status(data).code in (v2.TOPIC_NOT_FOUND, v2.MESSAGE_NOT_FOUND)


def _admin_status(data: bytes) -> v2.Status:
    """In the replies of Admin it is the first field, and this one has no other."""
    return cast("v2.Status", _read(admin_pb2.ResetGroupOffsetResponse, data).status)


def _read(reply_type: Any, data: bytes) -> Any:
    try:
        return reply_type.FromString(data)
    except DecodeError:
        raise TroveError(errors.BROKER_UNREACHABLE, "the other broker's reply is not readable") from None
