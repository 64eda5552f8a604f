"""EndTransaction and RecallMessage: the end of messages that were sent and are not visible yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.core.other_brokers import NO_OTHERS, Forward, OtherBrokers
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.statuses import CLIENT_ID_KEY, REQUEST_ID_KEY, Context, metadata_value
from trovemq_broker.server.wire.transaction_ends import (
    Recall,
    TransactionEnd,
    end_reply,
    recall,
    recall_reply,
    recalled_elsewhere,
    transaction_end,
)
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

FORWARDED_KEY: Final = "x-trovemq-forwarded"
FORWARDED_KEYS: Final = (CLIENT_ID_KEY, REQUEST_ID_KEY, "authorization", "x-mq-date-time", "x-mq-language")
"""The metadata that is passed on with a call."""


class Ender:
    """`others`: the cluster's other brokers. Clients send RecallMessage to any broker, so it is passed on to
    the one that made the handle; `forward` does that, None: it is not possible."""

    def __init__(
        self, core: BrokerCore, others: OtherBrokers = NO_OTHERS, forward: Forward | None = None
    ) -> None:
        self._deferred = DeferredMessages(core)
        self._broker = core.broker
        self._others = others
        self._forward = forward

    @converted(transaction_end, end_reply)
    async def end_transaction(self, end: TransactionEnd, _context: Context) -> None:
        """EndTransaction. An undecided transaction stays open; its producer is asked again later."""
        if end.commit is not None:
            await self._deferred.end_transaction(end.topic, end.transaction_id, commit=end.commit)

    @converted(recall, recall_reply)
    async def recall(self, message: Recall, context: Context) -> str:
        """RecallMessage: cancels a delayed message. To repeat the call changes nothing."""
        maker = self._other_maker(message)
        if maker is not None and self._forward is not None and not metadata_value(context, FORWARDED_KEY):
            metadata = [*_forwarded(context), (FORWARDED_KEY, self._broker)]
            by_tls = came_by_tls(context)
            reply = await self._forward(maker, "RecallMessage", message.request, metadata, by_tls=by_tls)
            return recalled_elsewhere(reply)
        return await self._deferred.recall(message.topic, message.handle)

    def _other_maker(self, message: Recall) -> str | None:
        """The other live broker that made the handle; None if there is none."""
        try:
            handle = decode_recall_handle(message.handle)
        except TroveError:
            return None
        if handle.topic != message.topic or handle.broker == self._broker:
            return None
        return handle.broker if handle.broker in self._others.names() else None


def _forwarded(context: Context) -> Iterator[tuple[str, str]]:
    """Raises REQUEST_ILLEGAL for a value that this broker takes, but cannot send."""
    for key in FORWARDED_KEYS:
        value = metadata_value(context, key)
        if not value.isascii() or not value.isprintable():
            raise TroveError(errors.REQUEST_ILLEGAL, f"metadata {key} is not printable ASCII", field=key)
        if value:
            yield key, value
