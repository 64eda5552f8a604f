"""The calls of one client to one broker in the v2 protocol; every failure is a TroveError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from trovemq._rocketmq.identity import metadata_of
from trovemq._rocketmq.messages import duration
from trovemq._rocketmq.statuses import check, error_of
from trovemq._wire.connection import Connection, Stream
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
ANY_QUEUE: Final = -1


@dataclass(frozen=True, slots=True)
class Receive:
    """The arguments of one receive call. `invisible_ms` None: the broker renews the leases while the client
    lives."""

    group: str
    topic: str
    broker: str
    filter: v2.FilterExpression
    count_max: int
    poll_ms: int
    invisible_ms: int | None
    attempt_id: str


class MessagingService:
    """RocketMQ's MessagingService.

    Args:
        connection: To the broker.
        client_id: The id of the caller.
    """

    def __init__(self, connection: Connection, client_id: str) -> None:
        self._connection = connection
        self._metadata = metadata_of(client_id)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._connection.address

    async def reach(self) -> int:
        """Waits until the broker answers: the time of its clock, epoch ms. Raises TroveError
        BROKER_UNREACHABLE, REQUEST_TIMEOUT."""
        return await self._connection.clock_ms()

    def open_telemetry(self) -> Stream:
        """The stream of settings and commands; takes serialised TelemetryCommands."""
        decode = service_pb2.TelemetryCommand.FromString
        return self._connection.open(SERVICE + "Telemetry", decode, metadata=self._metadata)

    async def heartbeat(self, client_type: v2.ClientType, group: str) -> None:
        """Reports that the client is alive. Raises CLIENT_UNKNOWN if the broker does not have its
        settings."""
        request = service_pb2.HeartbeatRequest(client_type=client_type, group=_group(group))
        decode = service_pb2.HeartbeatResponse.FromString
        reply = await self._connection.call(SERVICE + "Heartbeat", request, decode, metadata=self._metadata)
        check(reply.status, self.address)

    async def terminate(self, group: str, timeout_ms: int) -> None:
        """Reports the end of the client; its messages may go to others."""
        request = service_pb2.NotifyClientTerminationRequest(group=_group(group))
        method, decode = "NotifyClientTermination", service_pb2.NotifyClientTerminationResponse.FromString
        reply = await self._connection.call(
            SERVICE + method, request, decode, timeout_ms=timeout_ms, metadata=self._metadata
        )
        check(reply.status, self.address)

    # --- sending --------------------------------------------------------------------------------------

    async def send(self, message: v2.Message) -> service_pb2.SendResultEntry:
        """Sends one message. Raises TroveError if it is refused."""
        request = service_pb2.SendMessageRequest(messages=[message])
        decode = service_pb2.SendMessageResponse.FromString
        reply = await self._connection.call(SERVICE + "SendMessage", request, decode, metadata=self._metadata)
        check(reply.status, self.address)
        if len(reply.entries) != 1:
            raise TroveError(errors.UNKNOWN_ERROR, f"{len(reply.entries)} answers to one message")
        (entry,) = reply.entries
        check(entry.status, self.address)
        return entry

    async def recall(self, topic: str, handle: str) -> str:
        """Cancels a delayed message. Returns its message id."""
        request = service_pb2.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
        decode = service_pb2.RecallMessageResponse.FromString
        reply = await self._connection.call(
            SERVICE + "RecallMessage", request, decode, metadata=self._metadata
        )
        if reply.status.code == v2.Code.BAD_REQUEST:  # the protocol has no specific code for it
            raise TroveError(errors.RECALL_HANDLE_ILLEGAL, reply.status.message, server=self.address)
        check(reply.status, self.address)
        return reply.message_id

    async def end_transaction(
        self,
        topic: str,
        message_id: str,
        transaction_id: str,
        *,
        commit: bool,
        asked: bool,
    ) -> None:
        """Commits or rolls back; `asked`: the broker has asked for it. Raises TRANSACTION_ILLEGAL if it is
        not open."""
        request = service_pb2.EndTransactionRequest(
            topic=v2.Resource(name=topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=v2.COMMIT if commit else v2.ROLLBACK,
            source=v2.SOURCE_SERVER_CHECK if asked else v2.SOURCE_CLIENT,
        )
        decode = service_pb2.EndTransactionResponse.FromString
        reply = await self._connection.call(
            SERVICE + "EndTransaction", request, decode, metadata=self._metadata
        )
        check(reply.status, self.address)

    # --- receiving ------------------------------------------------------------------------------------

    async def receive(self, receive: Receive, timeout_ms: int) -> AsyncGenerator[v2.Message, None]:
        """The messages as they arrive; none if there were none within the polling time."""
        request = service_pb2.ReceiveMessageRequest(
            group=v2.Resource(name=receive.group),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name=receive.topic),
                id=ANY_QUEUE,
                permission=v2.READ_WRITE,
                broker=v2.Broker(name=receive.broker),
            ),
            filter_expression=receive.filter,
            batch_size=receive.count_max,
            auto_renew=receive.invisible_ms is None,
            long_polling_timeout=duration(receive.poll_ms),
            attempt_id=receive.attempt_id,
        )
        if receive.invisible_ms is not None:
            request.invisible_duration.CopyFrom(duration(receive.invisible_ms))
        decode = service_pb2.ReceiveMessageResponse.FromString
        replies = self._connection.replies(
            SERVICE + "ReceiveMessage", request, decode, timeout_ms=timeout_ms, metadata=self._metadata
        )
        said = False
        async with aclosing(replies):
            async for reply in replies:
                content = reply.WhichOneof("content")
                if content == "message":
                    yield reply.message
                elif content == "status":
                    said = True
                    if reply.status.code != v2.Code.MESSAGE_NOT_FOUND:
                        check(reply.status, self.address)
        if not said:
            raise TroveError(errors.UNKNOWN_ERROR, "the broker's answer has no status", server=self.address)

    async def acknowledge(
        self, group: str, topic: str, messages: Sequence[ReceivedMessage]
    ) -> list[TroveError | None]:
        """Acknowledges messages of one topic together; returns the result of each."""
        request = service_pb2.AckMessageRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            entries=[
                service_pb2.AckMessageEntry(message_id=m.message_id, receipt_handle=m.receipt_handle)
                for m in messages
            ],
        )
        decode = service_pb2.AckMessageResponse.FromString
        reply = await self._connection.call(SERVICE + "AckMessage", request, decode, metadata=self._metadata)
        if len(reply.entries) == len(messages):
            return [error_of(entry.status, self.address) for entry in reply.entries]
        return [
            error_of(reply.status, self.address)
            or TroveError(errors.UNKNOWN_ERROR, f"{len(reply.entries)} answers to {len(messages)} messages")
        ] * len(messages)

    async def change_invisible(
        self, group: str, message: ReceivedMessage, duration_ms: int, *, suspend: bool
    ) -> str:
        """Makes a message visible again after that time. Returns its new receipt handle. `suspend`: no
        attempt is counted."""
        request = service_pb2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            invisible_duration=duration(duration_ms),
            message_id=message.message_id,
        )
        if suspend:
            request.suspend = True
        method, decode = "ChangeInvisibleDuration", service_pb2.ChangeInvisibleDurationResponse.FromString
        reply = await self._connection.call(SERVICE + method, request, decode, metadata=self._metadata)
        check(reply.status, self.address)
        return reply.receipt_handle

    async def dead_letter(self, group: str, message: ReceivedMessage, attempts_max: int) -> None:
        """Moves a message to the group's dead-letter queue."""
        request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
            delivery_attempt=message.attempt,
            max_delivery_attempts=attempts_max,
        )
        method = "ForwardMessageToDeadLetterQueue"
        decode = service_pb2.ForwardMessageToDeadLetterQueueResponse.FromString
        reply = await self._connection.call(SERVICE + method, request, decode, metadata=self._metadata)
        check(reply.status, self.address)


def _group(name: str) -> v2.Resource | None:
    return v2.Resource(name=name) if name else None
