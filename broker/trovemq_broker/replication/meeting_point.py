"""The point from which a follower continues: both sides compute it, and must agree."""

from __future__ import annotations

from trovemq_broker.replication.frames import Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.epochs import Epochs, cut_point


def meeting_point(
    own: Epochs, own_end: Offset, commit: Offset, leader: Epochs, leader_begin: Offset, leader_end: Offset
) -> Offset | None:
    """Up to there a follower's log is the leader's; the rest is cut. None: its log is older than the leader's
    first record, and starts again there, empty.

    TroveError STORE_DIVERGED: the follower has committed records that the leader has not.
    """
    common = cut_point(own, own_end, leader, leader_end, commit)
    if common is None and commit > leader_begin:
        text = f"committed up to {commit}, and no leadership is known that both logs have"
        raise TroveError(errors.STORE_DIVERGED, text)
    return common if common is not None and common >= leader_begin else None
