"""The lag that a replica's reply has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trovemq.models.replica import ReplicaLag


def replica_lag(reply: Any) -> ReplicaLag | None:
    """Of a reply with the field `replica`; None if no replica has sent it."""
    if not reply.HasField("replica"):
        return None
    lag = reply.replica
    return ReplicaLag(lag.bytes if lag.HasField("bytes") else None, lag.ms if lag.HasField("ms") else None)


def longest_lag(lags: Iterable[ReplicaLag | None]) -> ReplicaLag | None:
    """Of an answer of several brokers; None if no replica is among them."""
    known = [lag for lag in lags if lag is not None]
    if not known:
        return None
    return ReplicaLag(_longest(one.lag_bytes for one in known), _longest(one.lag_ms for one in known))


def _longest(lags: Iterable[int | None]) -> int | None:
    """None, which is longer than any, if one is not known."""
    longest = 0
    for lag in lags:
        if lag is None:
            return None
        longest = max(longest, lag)
    return longest
