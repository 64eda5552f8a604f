"""EndTransaction and RecallMessage: the end of messages that were sent and are not visible yet."""

from __future__ import annotations

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.server.wire.transaction_ends import (
    Recall,
    TransactionEnd,
    end_reply,
    recall,
    recall_reply,
    transaction_end,
)


class Ender:
    """Ends the messages of this broker."""

    def __init__(self, core: BrokerCore) -> None:
        self._deferred = DeferredMessages(core)

    @converted(transaction_end, end_reply)
    async def end_transaction(self, end: TransactionEnd, _context: Context) -> None:
        """EndTransaction. An undecided transaction stays open; its producer is asked again later."""
        if end.commit is not None:
            await self._deferred.end_transaction(end.topic, end.transaction_id, commit=end.commit)

    @converted(recall, recall_reply)
    async def recall(self, message: Recall, _context: Context) -> str:
        """RecallMessage: cancels a delayed message. To repeat the call changes nothing."""
        return await self._deferred.recall(message.topic, message.handle)
