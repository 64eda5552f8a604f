"""ProducerService: delayed messages, half messages, and the stream of questions about half messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from trovemq._common.identity import metadata_of
from trovemq._common.pulled import pulled_message
from trovemq._wire.connection import Connection, Stream
from trovemq.received import ReceivedMessage
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records.message import decode_message
from trovemq_proto.v1 import common_pb2, message_pb2, producer_pb2

_METHOD: Final = "/trovemq.v1.ProducerService/"

ALIVE: Final = producer_pb2.CheckHalvesFrame().SerializeToString()
"""A frame that is a sign of life."""
LEAVE: Final = producer_pb2.CheckHalvesFrame(leave=True).SerializeToString()
"""The last frame of a producer that ends."""


class DeferredMessage(NamedTuple):
    """A message that its broker stores now, and that is readable later. Times are epoch ms."""

    topic: str
    body: bytes
    message_id: str
    keys: Sequence[str]
    tag: str
    properties: Mapping[str, str]
    message_group: str
    priority: int | None
    born_timestamp: int


class StoredNow(NamedTuple):
    """A broker's answer. `recall_handle`: of a delayed message; `transaction_id`: of a half message."""

    durability: str
    recall_handle: str = ""
    transaction_id: str = ""
    copies: int = 1


class HalfCheck(NamedTuple):
    """A broker's question about a transaction that is open."""

    topic: str
    transaction_id: str
    queue_id: int
    queue_offset: int
    record: bytes

    def half(self, broker: str) -> ReceivedMessage:
        """The half message. Raises TroveError RECORD_DAMAGED, COMPRESSION_UNSUPPORTED."""
        message = decode_message(self.record, queue_offset=QueueOffset(self.queue_offset))
        received = pulled_message(message, broker)
        received.topic, received.queue_id = self.topic, QueueId(self.queue_id)
        return received


class ProducerCalls:
    """The calls of one producer to one broker; every failure is a TroveError.

    Args:
        connection: To the broker.
        client_id: The producer's id.
    """

    def __init__(self, connection: Connection, client_id: str) -> None:
        self._connection = connection
        self._metadata = metadata_of(client_id)

    async def reach(self) -> None:
        """Waits until the broker answers. Raises TroveError BROKER_UNREACHABLE, REQUEST_TIMEOUT."""
        await self._connection.server_info()

    async def send_delayed(
        self, message: DeferredMessage, *, deliver_ms: int | None = None, delay_ms: int | None = None
    ) -> StoredNow:
        """Sends a message to be delivered at deliver_ms, epoch ms, or delay_ms after the broker gets it."""
        request = producer_pb2.SendDelayedRequest(
            topic=message.topic,
            message=_outgoing(message),
            deliver_timestamp=deliver_ms,
            deliver_after_ms=delay_ms,
            message_group=message.message_group,
            priority=message.priority,
        )
        decode = producer_pb2.SendDelayedReply.FromString
        reply = await self._connection.call(_METHOD + "SendDelayed", request, decode, metadata=self._metadata)
        durability, copies = _durability(reply.durability), reply.copies or 1
        return StoredNow(durability, recall_handle=reply.recall_handle, copies=copies)

    async def prepare_half(self, message: DeferredMessage, check_after_ms: int) -> StoredNow:
        """Sends a half message. `check_after_ms`: 0 for the time in the broker's settings."""
        request = producer_pb2.PrepareHalfRequest(
            topic=message.topic, message=_outgoing(message), check_after_ms=check_after_ms
        )
        decode = producer_pb2.PrepareHalfReply.FromString
        reply = await self._connection.call(_METHOD + "PrepareHalf", request, decode, metadata=self._metadata)
        durability, copies = _durability(reply.durability), reply.copies or 1
        return StoredNow(durability, transaction_id=reply.transaction_id, copies=copies)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message. Returns its message id."""
        request = producer_pb2.RecallRequest(topic=topic, recall_handle=recall_handle)
        decode = producer_pb2.RecallReply.FromString
        reply = await self._connection.call(_METHOD + "Recall", request, decode, metadata=self._metadata)
        return reply.unique_key

    async def end_half(self, topic: str, transaction_id: str, *, commit: bool) -> None:
        """Commits or rolls back. Raises TroveError TRANSACTION_ILLEGAL if the transaction is not open."""
        request = producer_pb2.EndHalfRequest(topic=topic, transaction_id=transaction_id, commit=commit)
        decode = producer_pb2.EndHalfReply.FromString
        await self._connection.call(_METHOD + "EndHalf", request, decode, metadata=self._metadata)

    def open_checks(self) -> Stream:
        """The stream of the broker's questions; takes serialised frames. `read` gives a HalfCheck, or None
        for the answer to start_frame()."""
        return self._connection.open(_METHOD + "CheckHalves", _check_of, metadata=self._metadata)


def start_frame(topics: Sequence[str]) -> bytes:
    """The first frame of a stream of questions about transactions of these topics."""
    return producer_pb2.CheckHalvesFrame(start={"topics": topics}).SerializeToString()


def _check_of(data: bytes) -> HalfCheck | None:
    reply = producer_pb2.CheckHalvesReply.FromString(data)
    if not reply.HasField("check"):
        return None
    check = reply.check
    return HalfCheck(check.topic, check.transaction_id, check.queue_id, check.queue_offset, check.record)


def _outgoing(message: DeferredMessage) -> message_pb2.OutgoingMessage:
    return message_pb2.OutgoingMessage(
        body=message.body,
        tag=message.tag,
        keys=message.keys,
        unique_key=message.message_id,
        properties=message.properties,
        born_timestamp=message.born_timestamp,
    )


def _durability(durability: common_pb2.Durability) -> str:
    return "disk" if durability == common_pb2.DISK else "memory"
