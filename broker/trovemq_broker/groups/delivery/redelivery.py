"""Returns messages that a receive delivered and its client may not have got: they are delivered again, and no
attempt is counted.

| message of an interrupted receive    | delivered again           | its receipt handle      |
|--------------------------------------|---------------------------|-------------------------|
| not written to the client            | at once                   | is void                 |
| written: the client may have got it  | after `released_after_ms` | acknowledges until then |
| settled, or received again meanwhile | as before                 | as before               |

So an acknowledgement counts if it was sent before its receive was cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.lease_resolvers import Handles
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.groups.delivery.settlements import Invisible, Released
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs


def return_messages(
    delivery: Delivery, group: str, topic: str, delivered: Sequence[Delivered], written: int, now_ms: EpochMs
) -> None:
    """Returns the messages of one receive; the first `written` of them were sent to the client."""
    handles = [one.receipt_handle.encode() for one in delivered]
    with suppress(TroveError):  # too many events wait for the disk: the leases expire
        delivery.settle(group, topic, Handles(handles[written:]), Invisible(0, suspend=True), now_ms)
    delivery.settle(group, topic, Handles(handles[:written]), Released(), now_ms)
