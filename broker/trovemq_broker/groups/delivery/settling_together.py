"""Acknowledgements that arrive together, of messages that were received apart.

A client with many threads acknowledges messages of several receives at the same time: their handles come
mixed, and out of order. They are sorted by lease, so that neighbours are consumed in one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.settlements import Settling
from trovemq_proto.positions import EpochMs
from trovemq_store.events.codec import EventKind
from trovemq_store.events.receipt_handle import HandleHead


class SettlingTogether(Settling):
    """As Settling, with this form of acknowledge_many()."""

    def acknowledge_mixed(
        self, group: str, topic: str, receipt_handles: Sequence[bytes], now_ms: EpochMs
    ) -> list[bool]:
        """As acknowledge(), for messages in flight, whose handles may come in any order. Returns whether each
        is consumed now: with the others nothing was done, as they are consumed already, packed, or refused.
        """
        done = [False] * len(receipt_handles)
        pair = self.group_topics.get(group, topic)
        if pair is None:
            return done
        leases = pair.handles.read_mixed(receipt_handles)
        left = _under_several_leases(leases)
        for head, places in leases:
            state = pair.sources.get(head[:2])
            if state is not None:
                own = sorted(place for place in places if not left or (*head[:2], place[0]) not in left)
                self._acknowledge_lease(pair, state, head, own, done, now_ms)
        return done

    def _acknowledge_lease(
        self,
        pair: GroupTopic,
        state: QueueState,
        head: HandleHead,
        places: list[tuple[int, int]],
        done: list[bool],
        now_ms: EpochMs,
    ) -> None:
        """`places`: (queue offset, place in `done`) of each message, sorted."""
        loose = state.open.loose
        lease_now_ms = self.context.lease_time.at(now_ms)
        at, count = 0, len(places)
        while at < count:
            first, place = places[at]
            lease = loose.get(first)
            at += 1
            if (
                lease is None
                or lease.number != head.lease
                or lease.granted_until_ms != head.granted_until_ms
                or lease.over(lease_now_ms)
            ):
                continue
            done[place] = True
            end = first + 1
            while at < count and places[at][0] == end and loose.get(end) is lease:
                done[places[at][1]] = True
                end += 1
                at += 1
            self._settle(pair, state, EventKind.ACKNOWLEDGED, lease, range(first, end), now_ms)


def _under_several_leases(leases: Sequence[tuple[HandleHead, list[tuple[int, int]]]]) -> set[tuple[int, ...]]:
    """(kind, queue id, offset) of the messages that have handles of several leases: which of these counts is
    decided one by one, in the order in which they came."""
    if len(leases) < 2:
        return set()
    named = Counter((*head[:2], offset) for head, places in leases for offset, _ in places)
    return {message for message, count in named.items() if count > 1}
