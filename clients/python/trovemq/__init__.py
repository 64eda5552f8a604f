"""TroveMQ's asyncio client.

    import trovemq

    async with trovemq.connect("127.0.0.1:8081") as client:
        receipt = await client.send("orders", b"...", keys=["42"], tag="paid")
        async for message in client.pull("orders", queue_id=receipt.queue_id):
            ...
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                async with message.process():
                    ...

Every refusal and failure is a `TroveError`; its `spec` is a row of `trovemq.errors`.

A name is imported when it is first used, so that command line and pytest plug-in start without gRPC and
NumPy. This module itself imports nothing: until it is there, Ctrl-C prints Python's traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes as long to import as all else of a start

if TYPE_CHECKING:
    from trovemq import middleware, serializers
    from trovemq._common.backoff import Backoff
    from trovemq.admin import Admin
    from trovemq.answers import GetAnswer, QueryAnswer
    from trovemq.atomic import AtomicTransaction, CommitReceipt
    from trovemq.client import Client, connect
    from trovemq.faults import Faults
    from trovemq.fetched import FetchedBatch
    from trovemq.handlers import Call, Handlers, Retry
    from trovemq.models.all_brokers import BrokerAnswers, TopicDeletion
    from trovemq.models.broker import BrokerCondition, DrainStatus, Remainder, SettingDescription
    from trovemq.models.cluster import (
        BrokerInfo,
        BrokerRoute,
        BrokerStatistics,
        ClusterState,
        ConfigSummary,
        LostBroker,
        OffsetReset,
        QueueOffsets,
        QueueRemainder,
        TopicDescription,
        TopicHold,
        TopicQueue,
        TopicRoute,
        TopicSpread,
        TopicTraffic,
    )
    from trovemq.models.config import ConfigMember, ConfigName, ConfigStatus, ConfigTakeOver
    from trovemq.models.group import (
        DeadLetter,
        DelayedMessage,
        DirectConsumption,
        GroupDescription,
        GroupMember,
        GroupReset,
        GroupSettings,
        QueueLag,
        ResentDeadLetter,
    )
    from trovemq.models.replica import (
        CutMessage,
        CutRecords,
        Promotion,
        ReplicaGroup,
        ReplicaLag,
        ReplicaNode,
    )
    from trovemq.models.search import SearchAnswer, SearchPart, Where
    from trovemq.models.security import (
        AccessDecision,
        AccessRule,
        Quota,
        QuotaDescription,
        UserCredentials,
        UserDescription,
    )
    from trovemq.models.store import BackupProgress, ScrubProgress, StoreFinding
    from trovemq.models.track import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent
    from trovemq.options import ClientOptions
    from trovemq.producer import Producer
    from trovemq.receipts import BatchReceipt, PartialBatchError, SendReceipt
    from trovemq.received import ReceivedMessage
    from trovemq.received_batch import ReceivedBatch
    from trovemq.replies import Reply, ReplyCounts, ReplyMetrics
    from trovemq.running import Running
    from trovemq.send_arguments import MessageArguments, SendArguments
    from trovemq.serializers import Serializer, UndecodableBody
    from trovemq.subscription import Subscription
    from trovemq.transaction import Transaction, TransactionResolution
    from trovemq_proto import errors
    from trovemq_proto.errors import TroveError
    from trovemq_proto.records import Message, RecordBatch
    from trovemq_proto.records.dead_letter_reason import DeadLetterReason
    from trovemq_proto.tls import TlsOptions

__all__ = [
    "AccessDecision",
    "AccessRule",
    "Admin",
    "AtomicTransaction",
    "Backoff",
    "BackupProgress",
    "BatchReceipt",
    "BrokerAnswers",
    "BrokerCondition",
    "BrokerInfo",
    "BrokerRoute",
    "BrokerStatistics",
    "Call",
    "Client",
    "ClientOptions",
    "ClusterState",
    "CommitReceipt",
    "ConfigMember",
    "ConfigName",
    "ConfigStatus",
    "ConfigSummary",
    "ConfigTakeOver",
    "ConsumptionStatus",
    "CutMessage",
    "CutRecords",
    "DeadLetter",
    "DeadLetterReason",
    "DelayedMessage",
    "DirectConsumption",
    "DrainStatus",
    "Faults",
    "FetchedBatch",
    "GetAnswer",
    "GroupDescription",
    "GroupMember",
    "GroupReset",
    "GroupSettings",
    "Handlers",
    "LostBroker",
    "Message",
    "MessageArguments",
    "MessageCopy",
    "MessageTrack",
    "OffsetReset",
    "PartialBatchError",
    "Producer",
    "Promotion",
    "QueryAnswer",
    "QueueLag",
    "QueueOffsets",
    "QueueRemainder",
    "Quota",
    "QuotaDescription",
    "ReceivedBatch",
    "ReceivedMessage",
    "RecordBatch",
    "Remainder",
    "ReplicaGroup",
    "ReplicaLag",
    "ReplicaNode",
    "Reply",
    "ReplyCounts",
    "ReplyMetrics",
    "ResentDeadLetter",
    "Retry",
    "Running",
    "ScrubProgress",
    "SearchAnswer",
    "SearchPart",
    "SendArguments",
    "SendReceipt",
    "Serializer",
    "SettingDescription",
    "StoreFinding",
    "Subscription",
    "TlsOptions",
    "TopicDeletion",
    "TopicDescription",
    "TopicHold",
    "TopicQueue",
    "TopicRoute",
    "TopicSpread",
    "TopicTraffic",
    "TrackEvent",
    "Transaction",
    "TransactionResolution",
    "TroveError",
    "UndecodableBody",
    "UserCredentials",
    "UserDescription",
    "Where",
    "connect",
    "errors",
    "middleware",
    "serializers",
]

# The module of each public name. The imports above are the same for type checkers; a test compares both.
_MODULES = {
    "trovemq._common.backoff": ("Backoff",),
    "trovemq.admin": ("Admin",),
    "trovemq.answers": ("GetAnswer", "QueryAnswer"),
    "trovemq.atomic": ("AtomicTransaction", "CommitReceipt"),
    "trovemq.models.track": ("TrackEvent", "ConsumptionStatus", "MessageTrack", "MessageCopy"),
    "trovemq.models.all_brokers": ("BrokerAnswers", "TopicDeletion"),
    "trovemq.models.broker": ("BrokerCondition", "DrainStatus", "Remainder", "SettingDescription"),
    "trovemq.models.config": ("ConfigMember", "ConfigName", "ConfigStatus", "ConfigTakeOver"),
    "trovemq.models.replica": (
        "CutMessage",
        "CutRecords",
        "Promotion",
        "ReplicaGroup",
        "ReplicaLag",
        "ReplicaNode",
    ),
    "trovemq.client": ("Client", "connect"),
    "trovemq.faults": ("Faults",),
    "trovemq.fetched": ("FetchedBatch",),
    "trovemq.models.group": (
        "DeadLetter",
        "DelayedMessage",
        "DirectConsumption",
        "GroupDescription",
        "GroupMember",
        "GroupReset",
        "GroupSettings",
        "QueueLag",
        "ResentDeadLetter",
    ),
    "trovemq_proto.records.dead_letter_reason": ("DeadLetterReason",),
    "trovemq.handlers": ("Call", "Handlers", "Retry"),
    "trovemq.middleware": ("middleware",),
    "trovemq.models.cluster": (
        "BrokerInfo",
        "BrokerRoute",
        "BrokerStatistics",
        "ClusterState",
        "ConfigSummary",
        "LostBroker",
        "OffsetReset",
        "QueueOffsets",
        "QueueRemainder",
        "TopicDescription",
        "TopicHold",
        "TopicQueue",
        "TopicRoute",
        "TopicSpread",
        "TopicTraffic",
    ),
    "trovemq.options": ("ClientOptions",),
    "trovemq.producer": ("Producer",),
    "trovemq.receipts": ("BatchReceipt", "PartialBatchError", "SendReceipt"),
    "trovemq.received": ("ReceivedMessage",),
    "trovemq.received_batch": ("ReceivedBatch",),
    "trovemq.replies": ("Reply", "ReplyCounts", "ReplyMetrics"),
    "trovemq.running": ("Running",),
    "trovemq.models.search": ("SearchAnswer", "SearchPart", "Where"),
    "trovemq.models.security": (
        "AccessDecision",
        "AccessRule",
        "Quota",
        "QuotaDescription",
        "UserCredentials",
        "UserDescription",
    ),
    "trovemq.send_arguments": ("MessageArguments", "SendArguments"),
    "trovemq.serializers": ("Serializer", "UndecodableBody", "serializers"),
    "trovemq.models.store": ("BackupProgress", "ScrubProgress", "StoreFinding"),
    "trovemq.subscription": ("Subscription",),
    "trovemq.transaction": ("Transaction", "TransactionResolution"),
    "trovemq_proto.errors": ("TroveError", "errors"),
    "trovemq_proto.records": ("Message", "RecordBatch"),
    "trovemq_proto.tls": ("TlsOptions",),
}
_FORMER_NAMES = {
    "BiographyEvent": "TrackEvent",
    "GroupVerdict": "ConsumptionStatus",
    "MessageBiography": "MessageTrack",
}
"""Accepted until the first release."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        """A public name, imported at its first use (PEP 562)."""
        name = _FORMER_NAMES.get(name, name)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(_MODULE_OF[name])
        is_module = module.__name__.endswith(f".{name}")
        value: object = module if is_module else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
