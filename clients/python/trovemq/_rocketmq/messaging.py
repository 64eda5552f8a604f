"""The calls of one client to one broker in the v2 protocol; every failure is a TroveError."""

from __future__ import annotations

from typing import Final

from trovemq._rocketmq.identity import metadata_of
from trovemq._rocketmq.statuses import check
from trovemq._wire.connection import Connection, Stream
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


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


def _group(name: str) -> v2.Resource | None:
    return v2.Resource(name=name) if name else None
