"""Transactions: END_TRANSACTION of a producer, and the broker's CHECK_TRANSACTION_STATE.

A half message names its producer's group (property PGROUP). Any live producer of the group may be asked about
it, and may end it: the transaction outlives the process that began it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.deferred import DeferredMessages
from trovemq_broker.server.remoting.members import Member, Members
from trovemq_broker.transactions.records import (
    HALF_TOPIC,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_ID,
    read_half,
)
from trovemq_broker.transactions.transactions import TransactionCheck
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_proto.remoting.codes import RequestCode
from trovemq_store.engine.record_writer import NewRecord

COMMIT: Final = 8
ROLLBACK: Final = 12
UNKNOWN: Final = 0
GROUP_MARK: Final = "\N{RIGHTWARDS ARROW}"
"""Begins the client id of a half message that a remoting producer has sent; its group follows. Clients of
gRPC have no such id: metadata is ASCII."""


def client_id_of_group(group: str) -> str:
    return GROUP_MARK + group


class Transactions:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, members: Members) -> None:
        self._core = core
        self._members = members
        self._deferred = DeferredMessages(core)
        self.may_send: Callable[[Member, str], bool] = lambda _member, _topic: True
        """Whether a producer may send to a topic: others are not given its half messages."""

    def end(self, request: Request) -> None:
        """END_TRANSACTION: of any copy of the half message, whichever the producer knows."""
        fields = request.fields
        outcome = fields.int32("commitOrRollback")
        if outcome == UNKNOWN:
            request.answer()
            return
        if outcome not in (COMMIT, ROLLBACK):
            text = f"commitOrRollback is {outcome}: 8 commits, 12 rolls back, 0 leaves it open"
            raise TroveError(errors.TRANSACTION_ILLEGAL, text)
        offset = PhysicalOffset(fields.int64("commitLogOffset"))
        topic, transaction_id = self._half(offset, fields.text("producerGroup"))
        if fields.text("topic", topic) != topic:  # the caller was admitted for the topic that it names
            raise TroveError(errors.TRANSACTION_ILLEGAL, f"the half message at {offset} is of another topic")
        request.run(self._end(request, topic, transaction_id, commit=outcome == COMMIT))

    async def _end(self, request: Request, topic: str, transaction_id: str, *, commit: bool) -> None:
        await self._deferred.end_transaction(topic, transaction_id, commit=commit)
        request.answer()

    def _half(self, offset: PhysicalOffset, group: str) -> tuple[str, str]:
        """The real topic and the id of the half message that lies there. TroveError TRANSACTION_ILLEGAL."""
        record = self._core.store.record_at(offset) if offset >= 0 else None
        message = None if record is None else decode_stored(record)
        half = None
        if message is not None and message.topic == HALF_TOPIC:
            half = read_half(message, message.queue_offset, QueueOffset(0))
        if message is None or half is None:
            raise TroveError(errors.TRANSACTION_ILLEGAL, f"no half message lies at {offset}")
        if message.properties.get(PROPERTY_PRODUCER_GROUP) != group:
            raise TroveError(errors.TRANSACTION_ILLEGAL, f"the producer group wrong: {group} did not send it")
        return half.topic, half.transaction_id

    # --- checks -----------------------------------------------------------------------------------------
    def may_ask(self, client_id: str, topic: str) -> bool:
        """Whether a producer is connected that can be asked. `client_id`: of the half message; "" if it is
        not known any more."""
        if client_id.startswith(GROUP_MARK):
            members = self._members.producers.get(client_id.removeprefix(GROUP_MARK), ())
            return any(self.may_send(one, topic) for one in members)
        return not client_id and bool(self._members.producers)

    def ask(self, check: TransactionCheck) -> bool:
        """Asks a producer of the half message's group; False: none is connected."""
        half = check.message
        group = half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        members = self._members.producers.get(group, {}) if group else {}
        asked = next((one for one in members if self.may_send(one, check.topic)), None)
        if asked is None:
            return False
        members[asked] = members.pop(asked)  # the next check asks another one
        asked.connection.notify(
            RequestCode.CHECK_TRANSACTION_STATE,
            {
                "topic": check.topic,
                "tranStateTableOffset": str(half.queue_offset),
                "commitLogOffset": str(half.physical_offset),
                "msgId": check.transaction_id,
                "transactionId": check.transaction_id,
                "offsetMsgId": half.offset_msg_id,
                "bname": self._core.broker,
            },
            self._body(check, half),
        )
        return True

    def _body(self, check: TransactionCheck, half: Message) -> bytes:
        """The message with its real topic and queue, as a record."""
        record = NewRecord.copy_of(half, check.topic, half.queue_id).with_properties(
            {PROPERTY_TRANSACTION_ID: check.transaction_id}
        )
        return self._core.model.writer.encode(record)
