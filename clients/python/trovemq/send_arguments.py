"""The arguments of `send` beside the body, declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

Keys = str | Sequence[str] | None


class MessageArguments(TypedDict, total=False):
    """The parts of a message beside its body; each defaults to None.

    Attributes:
        keys: One key or several; a look-up by any of them finds the message. No spaces within one.
        tag: The message's tag; consumers can filter by it.
        properties: The user's own properties.
        message_id: The UNIQ_KEY; made by the client where None.
        message_group: Orderly consumer groups get the messages of one message group in the order of sending.
        priority: 0 to 9, 9 is received first.
    """

    keys: Keys
    tag: str | None
    properties: Mapping[str, str] | None
    message_id: str | None
    message_group: str | None
    priority: int | None


class SendArguments(MessageArguments, total=False):
    """The keyword arguments of `Producer.send_nowait` and `send_oneway`; `Producer.send` explains them.

    For a function that passes them on: `def publish(body: bytes, **arguments: Unpack[SendArguments])`.

    Attributes:
        queue_id: The queue; None: queues take turns.
        broker: The broker; needed with `queue_id` if several have the topic.
        ordering_key: Messages of one ordering key go to one queue, in the order of sending.
    """

    queue_id: int | None
    broker: str | None
    ordering_key: str | None
