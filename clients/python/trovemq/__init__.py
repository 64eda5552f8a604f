"""TroveMQ's asyncio client.

    import trovemq

    async with trovemq.connect("127.0.0.1:8081") as client:
        receipt = await client.send("orders", b"...", keys=["42"], tag="paid")
        async for message in client.pull("orders", queue_id=receipt.queue_id):
            ...

Every refusal and failure is a `TroveError`; its `spec` is a row of `trovemq.errors`.
"""

from trovemq._backoff import Backoff
from trovemq.admin import Admin
from trovemq.answers import GetAnswer, QueryAnswer
from trovemq.client import Client, connect
from trovemq.fetched import FetchedBatch
from trovemq.model import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    OffsetReset,
    QueueOffsets,
    TopicDescription,
    TopicQueue,
    TopicRoute,
)
from trovemq.options import ClientOptions
from trovemq.producer import Producer
from trovemq.receipts import BatchReceipt, PartialBatchError, SendReceipt
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, RecordBatch

__all__ = [
    "Admin",
    "Backoff",
    "BatchReceipt",
    "BrokerInfo",
    "BrokerRoute",
    "BrokerStatistics",
    "Client",
    "ClientOptions",
    "ClusterState",
    "FetchedBatch",
    "GetAnswer",
    "Message",
    "OffsetReset",
    "PartialBatchError",
    "Producer",
    "QueryAnswer",
    "QueueOffsets",
    "RecordBatch",
    "SendReceipt",
    "TopicDescription",
    "TopicQueue",
    "TopicRoute",
    "TroveError",
    "connect",
    "errors",
]
