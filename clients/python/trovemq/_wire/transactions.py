"""TransactionService's frames and replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trovemq._wire.connection import Connection
from trovemq_proto.v1 import common_pb2, transaction_pb2

_METHOD = "/trovemq.v1.TransactionService/"


@dataclass(frozen=True, slots=True)
class CommitReply:
    """A broker's answer to a commit: message i, in the order of sending, is at index i of each column."""

    acknowledged_count: int
    store_timestamp: int
    store_host: bytes
    durability: str
    broker: str
    repeated: bool
    queue_offsets: Sequence[int]
    physical_offsets: Sequence[int]
    copies: int = 1


def begin_frame(transaction_id: str, timeout_ms: int) -> bytes:
    begin = transaction_pb2.BeginTransaction(transaction_id=transaction_id, timeout_ms=timeout_ms)
    return transaction_pb2.TransactionFrame(begin=begin).SerializeToString()


def messages_frame(topic: str, queue_id: int, records: bytes) -> bytes:
    messages = transaction_pb2.TransactionMessages(topic=topic, queue_id=queue_id, records=records)
    return transaction_pb2.TransactionFrame(messages=messages).SerializeToString()


def acknowledgements_frame(group: str, topic: str, receipt_handles: Iterable[str]) -> bytes:
    given = transaction_pb2.TransactionAcknowledgements(
        group=group, topic=topic, receipt_handles=receipt_handles
    )
    return transaction_pb2.TransactionFrame(acknowledgements=given).SerializeToString()


def commit_frame() -> bytes:
    return transaction_pb2.TransactionFrame(commit=transaction_pb2.CommitTransaction()).SerializeToString()


async def transact(connection: Connection, frames: Iterator[bytes], timeout_ms: int) -> CommitReply:
    """Sends a whole transaction, with its commit at the end. Raises TroveError."""
    decode = transaction_pb2.TransactionReply.FromString
    return _reply(await connection.upload(_METHOD + "Transact", frames, decode, timeout_ms=timeout_ms))


async def get_transaction(connection: Connection, transaction_id: str) -> CommitReply:
    """The result of a commit. Raises TroveError TRANSACTION_NOT_FOUND, …"""
    request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
    decode = transaction_pb2.TransactionReply.FromString
    return _reply(await connection.call(_METHOD + "GetTransaction", request, decode))


def _reply(reply: transaction_pb2.TransactionReply) -> CommitReply:
    return CommitReply(
        reply.acknowledged_count,
        reply.store_timestamp,
        reply.store_host,
        common_pb2.Durability.Name(reply.durability).lower(),
        reply.broker,
        reply.repeated_commit,
        tuple(reply.queue_offsets),
        tuple(reply.physical_offsets),
        reply.copies or 1,
    )
