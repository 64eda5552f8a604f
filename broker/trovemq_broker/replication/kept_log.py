"""How much of its log a leader keeps for members that lag or are away.

Retention removes nothing that such a member needs, as long as that is not more than `bytes_max`, and the
member was not away for longer than `away_max_ms`. After that its log is not kept: if retention then removes
it, the member joins again, empty, where the leader's log begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trovemq_broker.replication.frames import Node, NowMs, Offset
from trovemq_broker.replication.peers import Peer
from trovemq_proto.positions import LOG_ORIGIN


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """Bytes, and milliseconds."""

    bytes_max: int = 16 << 30
    away_max_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class KeptLog:
    """`begin`: the members need the log from there on; its end if none lacks anything. `not_kept`: the
    members that lack something, and for which the log is not kept."""

    begin: Offset
    not_kept: frozenset[Node]


def kept_log(
    members: Iterable[Node],
    peers: Mapping[Node, Peer],
    limits: KeptLimits,
    log_begin: Offset,
    log_end: Offset,
    began_ms: NowMs,
    now_ms: NowMs,
) -> KeptLog:
    """`peers`: the followers that this leader knows; it leads since began_ms. Of a member that has not
    followed it yet, the end is not known: for it the newest `bytes_max` are kept."""
    begin, not_kept = log_end, set()
    for node in members:
        peer = peers.get(node)
        if peer is not None and peer.sent > LOG_ORIGIN:
            end, lacks = max(log_begin, peer.end), log_end - peer.end
        else:
            end, lacks = max(log_begin, Offset(log_end - limits.bytes_max)), 0
        left_ms = began_ms if peer is None or peer.left_ms is None else peer.left_ms
        away_ms = 0 if peer is not None and peer.stream is not None else now_ms - left_ms
        if lacks > limits.bytes_max or away_ms > limits.away_max_ms:
            not_kept.add(node)
        else:
            begin = min(begin, end)
    return KeptLog(begin, frozenset(not_kept))
