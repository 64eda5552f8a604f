"""The group consumer, as its streams see it, and the settings of its subscription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from trovemq._consume.streamed import StreamedBatch, StreamedMessage
from trovemq.models.group import GroupSettings
from trovemq.received import Handler, ReceivedMessage, Settlement
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class Owner(Settlement, Protocol):
    """The group consumer, as its streams see it."""

    def on_joined(self, broker: str, settings: GroupSettings) -> None:
        """The client is a member of the group, with these settings, at one more broker, or again."""

    def on_broken(self, broker: str, error: TroveError) -> None:
        """The stream to the broker broke, or could not be opened; it is tried again."""

    def put_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """Messages came."""

    def put_batch(self, batch: StreamedBatch) -> None:
        """A batch came, all of whose messages are readable."""

    def release_waiting(self, broker: str, keep: int = 0) -> None:
        """Returns the messages of a broker that the program did not get, except for the first `keep` of all
        that wait."""

    def release_before(self, broker: str, poll: int | None) -> None:
        """The same for those that came before this poll; None: all."""

    def unreadable(self, message: StreamedMessage, error: TroveError) -> None:
        """Returns a message that the program must not see."""

    def on_result(self, message: ReceivedMessage, *, done: bool, failure: TroveError | None) -> None:
        """Is called when the broker knows of the acknowledgement (`done`) or the return, or with the reason
        why it does not."""

    def is_final(self, error: TroveError) -> bool:
        """Whether no later try can succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The subscription, as it is sent to the broker. `handler`: consumes a message that an operator sends
    directly."""

    group: str
    topic: str
    filter_type: str
    filter: str
    invisible_ms: int | None
    client_id: str
    handler: Handler | None = None


def subscription_closed() -> TroveError:
    """The error of settlements that come after the end of their subscription."""
    return TroveError(errors.CLIENT_CLOSED, "the subscription is closed; the message may be delivered again")
