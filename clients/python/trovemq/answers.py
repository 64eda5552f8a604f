"""The results of look-ups."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq.models.replica import ReplicaLag
from trovemq_proto.records import Message


@dataclass(frozen=True, slots=True)
class GetAnswer:
    """The message of an offsetMsgId, or every message with a message id.

    Attributes:
        kind: The kind of the identifier: `offset_msg_id` or `message_id`.
        messages: One message, or all with that message id, newest first.
        unreachable: Brokers that did not answer and might have more messages with the message id.
        more: There are older messages with that id; `Client.query` with type `message_id` pages through.
        replica: The lag of the replica that answered; None from a leader.
    """

    kind: str
    messages: tuple[Message, ...]
    unreachable: tuple[str, ...] = ()
    more: bool = False
    replica: ReplicaLag | None = None


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """One page of a key query.

    Attributes:
        messages: Newest first.
        complete: No other message matches, on any broker, and no matching message is known to have been
            removed before its time.
        cursor: Where to continue; None if there are no more messages.
        index_last_update_timestamp: Store time of the newest record that every broker's index has, epoch ms.
        index_last_update_physical_offset: Its physical offset, on the broker with the largest lag.
        unreachable: Brokers that have the topic and did not answer; `complete` is then False.
        notes: Remarks of the brokers, for example on a damaged record that was left out.
        replica: The lag of the replica that answered; None from a leader.
    """

    messages: tuple[Message, ...]
    complete: bool
    cursor: str | None
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    unreachable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    replica: ReplicaLag | None = None
