"""A planned switch-over, as the leader carries it out.

    hold the appends -> the target has all -> the lock is deleted, `switch` names the target -> step down

Only the target campaigns for TARGET_ALONE_MS then. A hold of more than HOLD_MS is abandoned: the leader
continues. Nothing of it is needed for safety: the target promises, and is elected, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_broker.coordination.coordinator import Revision
from trovemq_broker.replication.frames import Node, NowMs

HOLD_MS: Final = 1_000
TARGET_ALONE_MS: Final = 2_000


@dataclass(slots=True, eq=False)
class SwitchOver:
    """`key`: the revision of the key `switch` that asked for it; 0: this node was asked itself. `is_ready`:
    the target has all."""

    target: Node
    since_ms: NowMs
    key: Revision
    is_ready: bool = False

    @property
    def ends_ms(self) -> NowMs:
        return self.since_ms + HOLD_MS

    def is_over(self, now_ms: NowMs) -> bool:
        return now_ms >= self.ends_ms
