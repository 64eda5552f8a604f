"""Commands to clients, and their answers, in the forms of both protocols."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from trovemq_broker.server.wire.rocketmq_messages import Record, message_of
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2.service_pb2 import (
    PrintThreadStackTraceCommand,
    ReconnectEndpointsCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
    VerifyMessageCommand,
)
from trovemq_proto.v1 import consumer_pb2

NOT_IMPLEMENTED: Final = v2.NOT_IMPLEMENTED
_CODES: Final = {
    consumer_pb2.DONE: v2.OK,
    consumer_pb2.FAILED: v2.FAILED_TO_CONSUME_MESSAGE,
    consumer_pb2.DAMAGED: v2.MESSAGE_CORRUPTED,
    consumer_pb2.NOT_SUPPORTED: v2.NOT_IMPLEMENTED,
    consumer_pb2.BUSY: v2.TOO_MANY_REQUESTS,
}


class StoredMessage(NamedTuple):
    """A record of the log, with the topic, queue and queue offset by which the client knows it."""

    record: Record
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset


class VerifyMessage(NamedTuple):
    """The client's listener consumes the message now. Its user must be allowed to receive from the topic as a
    member of the group; topic "": as a member of the group is enough."""

    nonce: str
    message: StoredMessage
    group: str
    topic: str


class PrintStackTrace(NamedTuple):
    """The client answers with the stacks of its threads."""

    nonce: str


class Reconnect(NamedTuple):
    """The client opens its connections again; it does not answer."""

    nonce: str


class RecoverTransaction(NamedTuple):
    """The client ends the transaction of this half message; it does not answer."""

    message: StoredMessage
    transaction_id: str


ClientCommand: TypeAlias = VerifyMessage | PrintStackTrace | Reconnect | RecoverTransaction


class Answer(NamedTuple):
    """A client's answer to a command."""

    code: v2.Code
    text: str


def telemetry_command(command: ClientCommand) -> TelemetryCommand:
    """The command in RocketMQ's protocol."""
    match command:
        case VerifyMessage(nonce, message, _, _):
            verify = VerifyMessageCommand(nonce=nonce, message=message_of(*message))
            return TelemetryCommand(verify_message_command=verify)
        case PrintStackTrace(nonce):
            return TelemetryCommand(
                print_thread_stack_trace_command=PrintThreadStackTraceCommand(nonce=nonce)
            )
        case Reconnect(nonce):
            return TelemetryCommand(reconnect_endpoints_command=ReconnectEndpointsCommand(nonce=nonce))
        case RecoverTransaction(message, transaction_id):
            recover = RecoverOrphanedTransactionCommand(
                message=message_of(*message), transaction_id=transaction_id
            )
            return TelemetryCommand(recover_orphaned_transaction_command=recover)


@lru_cache(maxsize=1_024)
def producer_of(topic: str) -> TelemetryCommand:
    """The first message of a producer of the topic: its needs of access are those of the half messages. It is
    the same object each time, and not to be changed."""
    publishing = v2.Publishing(topics=[v2.Resource(name=topic)])
    return TelemetryCommand(settings=v2.Settings(publishing=publishing))


@lru_cache(maxsize=1_024)
def _consumer_of(group: str, topic: str) -> TelemetryCommand:
    entries = [v2.SubscriptionEntry(topic=v2.Resource(name=topic))] if topic else []
    subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
    return TelemetryCommand(settings=v2.Settings(subscription=subscription))


def settings_for(command: ClientCommand) -> TelemetryCommand | None:
    """The first message of a client that may get the command: its needs of access are those of the message in
    the command. None if there is no message in it."""
    match command:
        case VerifyMessage(_, _, group, topic):
            return _consumer_of(group, topic)
        case RecoverTransaction(message, _):
            return producer_of(message.topic)
        case _:
            return None


class CommandAnswer(NamedTuple):
    """A client's answer to the command with the nonce."""

    nonce: str
    answer: Answer


def telemetry_answer(command: TelemetryCommand) -> CommandAnswer:
    """A client's answer in RocketMQ's protocol."""
    if command.HasField("verify_message_result"):
        nonce, text = command.verify_message_result.nonce, ""
    else:
        nonce = command.thread_stack_trace.nonce
        text = command.thread_stack_trace.thread_stack_trace
    # Some clients omit the status after a success.
    return CommandAnswer(nonce, Answer(command.status.code or v2.OK, text or command.status.message))


def consume_command(command: VerifyMessage | PrintStackTrace) -> bytes:
    """The command as a serialised ConsumeReply."""
    wire = consumer_pb2.ConsumeCommand(nonce=command.nonce)
    if isinstance(command, VerifyMessage):
        message = command.message
        wire.consume.topic, wire.consume.record = message.topic, bytes(message.record)
        wire.consume.queue_id, wire.consume.queue_offset = message.queue_id, message.queue_offset
    else:
        wire.print_stacks = True
    return consumer_pb2.ConsumeReply(command=wire).SerializeToString()


def consume_answer(answer: consumer_pb2.CommandAnswer) -> Answer:
    """A client's answer on its Consume stream."""
    return Answer(_CODES.get(answer.result, v2.INTERNAL_ERROR), answer.text)
