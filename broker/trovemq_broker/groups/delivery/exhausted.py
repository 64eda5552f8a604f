"""Makes messages whose last attempt is over dead letters as soon as its lease has ended, whether their group
receives or not.

RocketMQ makes them at the group's next receive (its proxy checks the attempts of the received messages). So
does the receive here. This module finds the messages of a group that receives no more, because its consumer
gave up or crashed at the message. A pair notes the leases (GroupTopic.exhausted) when it ends them.

Invariants
- One call copies a bounded number of messages and bytes.
- A message that cannot be copied now stays as it is: the next receive tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.dead_letters import copy_to_dead_letters, reads_of_copy, reason_of_end
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

READS_MAX: Final = 1_024
"""The read budget of one call; a copy is charged 16 reads, and one more for each 4 KiB."""

Settle = Callable[[GroupTopic, QueueState, Lease, range, EpochMs], None]


class ExhaustedMessages:
    """`settle` is called with messages that are open under a lease and whose copies are in the log."""

    def __init__(self, context: Context, settle: Settle) -> None:
        self._context = context
        self._settle = settle
        self._reads_remaining = 0

    def make_dead_letters(self, pairs: set[GroupTopic], now_ms: EpochMs) -> None:
        """Makes dead letters of these pairs' messages; pairs that have no more are removed from the set."""
        self._reads_remaining = READS_MAX
        for pair in list(pairs):
            group = self._context.groups.get(pair.group)
            while pair.exhausted and self._reads_remaining > 0:
                state, lease = pair.exhausted.popleft()
                if group is not None and lease.attempt >= group.max_attempts:
                    self._take(pair, state, lease, now_ms)
            if not pair.exhausted:
                pairs.discard(pair)

    def _take(self, pair: GroupTopic, state: QueueState, lease: Lease, now_ms: EpochMs) -> None:
        for offset in range(lease.first, lease.end):
            if state.open.loose.get(offset) is not lease or not lease.ended:
                continue  # settled, delivered again, or packed since: then the next receive finds it
            if self._reads_remaining <= 0:
                pair.exhausted.appendleft((state, lease))
                return
            try:
                record = self._context.record_of(state, offset)
                if record is None:
                    continue  # the next receive counts it as damaged
                self._reads_remaining -= reads_of_copy(record)
                reason = reason_of_end(state, offset)
                copy_to_dead_letters(self._context, pair, record, lease.attempt, reason, now_ms)
            except TroveError:
                self._context.dead_letter_failures += 1
                pair.exhausted.clear()
                return
            self._settle(pair, state, lease, range(offset, offset + 1), now_ms)
