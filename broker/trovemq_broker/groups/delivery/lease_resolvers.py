"""From the names that a caller has for deliveries to the leases under which their messages are open.

| resolver       | the caller has                                                  | place of a message  |
|----------------|-----------------------------------------------------------------|---------------------|
| `Handles`      | receipt handles: one text for each message                      | index of the handle |
| `ReceiptRange` | the receipt that the handles of one receive share, and a range  | queue offset        |
| `GrantedLease` | a lease of the engine, which the engine has checked             | queue offset        |

Invariants
- A handle or receipt names a message only while the message is open under the lease that it names. A lease
  that has ended counts only for the member that had it, by a receipt, until the message is delivered again: a
  member whose program stood still has done its work, and can say so only afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.priority_receiver import was_skipped
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.events.receipt_handle import HandleHead, illegal_handle

Refusals = dict[int, TroveError]
"""By place: why the message was not settled."""
_Messages = list[tuple[int, int]]
"""(queue offset, place) of each message."""


NamedRun: TypeAlias = tuple[QueueState, HandleHead | None, range, Sequence[int], str]
"""Adjacent messages of one queue that a caller names under one lease:

- the queue
- the lease as it is named; None: the engine has checked that the messages are open under one
- their offsets
- their places
- the member, whose lease may have ended; "": it may not
"""


class Leases(Protocol):
    """The deliveries that a caller names."""

    def runs(self, pair: GroupTopic | None, refused: Refusals) -> Iterable[NamedRun]:
        """The messages; those that cannot be any message of the group and topic become `refused`. `pair`: the
        state of group and topic; None if the group has received nothing from the topic. Raises TroveError
        RECEIPT_HANDLE_ILLEGAL where one name is for all messages."""
        ...


class Handles:
    """Messages by their receipt handles, as UTF-8, in any order."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[bytes]) -> None:
        self._handles = handles

    def runs(self, pair: GroupTopic | None, refused: Refusals) -> Iterable[NamedRun]:
        handles = self._handles
        if pair is None:
            refused.update((place, _unknown_group()) for place in range(len(handles)))
            return ()
        leases = pair.handles.read_mixed(handles)
        if len(leases) > 1 and _several_leases_name_one_message(leases):
            leases = _in_given_order(leases)
        found: list[NamedRun] = []
        count = 0
        for head, messages in leases:
            count += len(messages)
            state = pair.sources.get(head[:2])
            if state is None:
                refused.update((place, _unknown_queue()) for _, place in messages)
            else:
                _add_runs(found, state, head, messages)
        if count < len(handles):
            _refuse_unread(leases, len(handles), refused)
        return found


class ReceiptRange:
    """Adjacent messages of one receive. `client_id`: the member, whose lease may have ended; "": it may
    not."""

    __slots__ = ("_client_id", "_offsets", "_receipt")

    def __init__(self, receipt: str, offsets: range, client_id: str = "") -> None:
        self._receipt = receipt
        self._offsets = offsets
        self._client_id = client_id

    def runs(self, pair: GroupTopic | None, refused: Refusals) -> Iterable[NamedRun]:
        if pair is None:
            raise _unknown_group()
        head = pair.handles.read_receipt(self._receipt)
        state = pair.sources.get(head[:2])
        if state is None:
            raise _unknown_queue()
        return ((state, head, self._offsets, self._offsets, self._client_id),)


class GrantedLease:
    """Adjacent messages that are open under one lease."""

    __slots__ = ("_offsets", "_state")

    def __init__(self, state: QueueState, offsets: range) -> None:
        self._state = state
        self._offsets = offsets

    def runs(self, pair: GroupTopic | None, refused: Refusals) -> Iterable[NamedRun]:
        assert pair is not None, "the group received the messages"
        assert self._offsets.stop <= self._state.next_offset, "the queue delivered each of them"
        return ((self._state, None, self._offsets, self._offsets, ""),)


def check_name(
    context: Context, run: NamedRun, offset: int, lease: Lease | None, lease_now_ms: EpochMs
) -> None:
    """Checks that the run's head is valid for this message of it, which is open under the lease; None: it is
    not open, and is consumed already if the head is valid.

    Raises TroveError RECEIPT_HANDLE_ILLEGAL.
    """
    state, head, _, _, client_id = run
    if head is None:
        return
    if lease is None:
        if (
            offset >= state.next_offset
            or head.lease <= state.ended_lease
            or offset in state.held
            or (not head.renewed and head.granted_until_ms <= lease_now_ms)
            or was_skipped(context, state, offset)  # a crash has lost the lease
        ):
            raise illegal_handle("is not valid any more")
        return
    if lease.number != head.lease or lease.granted_until_ms != head.granted_until_ms:
        raise illegal_handle("was replaced: the message was received again, or its time was changed")
    if lease.over(lease_now_ms) and (not client_id or lease.client_id != client_id):
        raise illegal_handle("has expired")


def _refuse_unread(leases: Sequence[tuple[HandleHead, _Messages]], count: int, refused: Refusals) -> None:
    read = {place for _, messages in leases for _, place in messages}
    for place in range(count):
        if place not in read:
            refused[place] = illegal_handle("is not a handle of this group and topic")


def _several_leases_name_one_message(leases: Sequence[tuple[HandleHead, _Messages]]) -> bool:
    named = Counter((head[:2], offset) for head, messages in leases for offset in {at for at, _ in messages})
    return len(named) < named.total()


def _in_given_order(leases: Sequence[tuple[HandleHead, _Messages]]) -> list[tuple[HandleHead, _Messages]]:
    """Each handle separately: the first valid one of a message settles it, and may make later ones void."""
    apart = [(place, head, offset) for head, messages in leases for offset, place in messages]
    return [(head, [(offset, place)]) for place, head, offset in sorted(apart)]


def _add_runs(found: list[NamedRun], state: QueueState, head: HandleHead, messages: _Messages) -> None:
    """Adds the runs of adjacent messages, and after them messages that are named again."""
    messages.sort()
    again: list[NamedRun] = []
    places: list[int] = []
    first = end = messages[0][0]
    for offset, place in messages:
        if offset == end:
            places.append(place)
            end += 1
        elif offset < end:
            again.append((state, head, range(offset, offset + 1), (place,), ""))
        else:
            found.append((state, head, range(first, end), places, ""))
            first, end, places = offset, offset + 1, [place]
    found.append((state, head, range(first, end), places, ""))
    if again:
        found += again


def _unknown_group() -> TroveError:
    return illegal_handle("is of a group that has received nothing from this topic")


def _unknown_queue() -> TroveError:
    return illegal_handle("is of a queue that does not exist")
