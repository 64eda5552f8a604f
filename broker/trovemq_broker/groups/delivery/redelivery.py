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

from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs


def return_messages(
    delivery: Delivery, group: str, topic: str, delivered: Sequence[Delivered], written: int, now_ms: EpochMs
) -> None:
    """Returns the messages of one receive; the first `written` of them were sent to the client."""
    for one in delivered[written:]:
        try:
            delivery.change_invisible(group, topic, one.receipt_handle, 0, now_ms, suspend=True)
        except TroveError:
            continue  # its lease has ended already
    delivery.release_handles(group, topic, [one.receipt_handle for one in delivered[:written]], now_ms)
