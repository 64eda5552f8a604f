"""Reads the requests and frames of TransactionService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from trovemq_broker.atomic.ends import Committed
from trovemq_broker.produce.append import Durability
from trovemq_broker.server.wire.native_messages import wire_copies, wire_durability
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import transaction_pb2

SERVICE: Final = transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"]


@dataclass(frozen=True, slots=True)
class Begin:
    """The first frame. `timeout_ms`: 0 for the default."""

    transaction_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class AddMessages:
    """Encoded records for one queue."""

    topic: str
    queue_id: QueueId
    records: bytes


@dataclass(frozen=True, slots=True)
class AddAcknowledgements:
    """Messages that the group has consumed, by their receipt handles."""

    group: str
    topic: str
    handles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Commit:
    """The last frame: the messages and acknowledgements are to count."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """The last frame: they are not to count."""


TransactionCommand: TypeAlias = Begin | AddMessages | AddAcknowledgements | Commit | RollBack


def command_of(frame: transaction_pb2.TransactionFrame) -> TransactionCommand | None:
    """The command of a frame of Transact; None if it has none."""
    match frame.WhichOneof("frame"):
        case "messages":
            messages = frame.messages
            return AddMessages(messages.topic, QueueId(messages.queue_id), messages.records)
        case "acknowledgements":
            given = frame.acknowledgements
            return AddAcknowledgements(given.group, given.topic, given.receipt_handles)
        case "begin":
            return Begin(frame.begin.transaction_id, frame.begin.timeout_ms)
        case "commit":
            return Commit()
        case "rollback":
            return RollBack()
    return None


def transaction_id_of(request: transaction_pb2.GetTransactionRequest) -> str:
    """The id in a GetTransaction."""
    return request.transaction_id


def rolled_back_reply(transaction_id: str, broker: str) -> transaction_pb2.TransactionReply:
    return transaction_pb2.TransactionReply(transaction_id=transaction_id, broker=broker)


def committed_reply(
    committed: Committed, durability: Durability, broker: str, copies: int = 1
) -> transaction_pb2.TransactionReply:
    topics = list(dict.fromkeys(message.topic for message in committed.messages))
    numbers = {topic: number for number, topic in enumerate(topics)}
    return transaction_pb2.TransactionReply(
        transaction_id=committed.transaction_id,
        committed=True,
        topics=topics,
        topic_indexes=[numbers[message.topic] for message in committed.messages],
        queue_ids=[message.queue_id for message in committed.messages],
        queue_offsets=[message.queue_offset for message in committed.messages],
        physical_offsets=[message.physical_offset for message in committed.messages],
        acknowledged_count=committed.acknowledged_count,
        store_timestamp=committed.store_timestamp,
        store_host=committed.store_host,
        durability=wire_durability(durability),
        broker=broker,
        repeated_commit=committed.repeated,
        copies=wire_copies(copies),
    )
