"""Limits of a peer: how much it may make a connection hold or do. Each has its default and its reason.

The limits named `..._allowed` are buckets. Each frame of the kind takes one from its bucket; a second adds
some (the layer above calls `refill`), each call that ends well gives one reset back, and each stream that is
opened two WINDOW_UPDATE frames. A frame that finds the bucket empty ends the connection with
ENHANCE_YOUR_CALM. An honest peer never gets there; a flood does within a second.

How much of this a connection may do before the others are served is another limit (rest.py). Where a
list of header fields is so large that the connection ends, hpack.py says (`LIST_SIZE_BOMB`).

| limit | default | reason |
| --- | --- | --- |
| concurrent_streams_max | 1,000 | a peer's calls and handlers at one time |
| header_list_size_max | 64 KiB | as section 6.5.2 counts it; gRPC's 8 KiB are too little for long tokens |
| header_block_size_max | 64 KiB | a block's compressed bytes with all CONTINUATION frames (CVE-2024-27316) |
| continuations_max | 64 | empty CONTINUATION frames cost processor time but no bytes |
| frame_size_max | 64 KiB | few frames for a large message, and several of them in the receive buffer |
| stream_window | 64 KiB | bytes of a stream that may arrive before they are read; the window grows by use |
| connection_window | 4 MiB | the same for all streams of a connection |
| resets_allowed | 10,000 (2,000 a second) | rapid reset (CVE-2023-44487); busy clients cancel often, too |
| pings_allowed | 200 (20 a second) | each PING is answered at once, so a flood makes us write |
| settings_allowed | 100 (10 a second) | the same, and a change of windows is work for all streams |
| priorities_allowed | 2,000 (200 a second) | PRIORITY means nothing any more (section 5.3.2) |
| empty_data_allowed | 1,000 (100 a second) | DATA without bytes or END_STREAM is work that no window limits |
| window_updates_allowed | 20,000 (20,000 a second) | each may be work for all streams that wait |
| unknown_frames_allowed | 2,000 (200 a second) | undefined types are ignored (section 5.5) |
| reset_memory | 1,000 | remembered streams of which late frames are ignored, or known to be wrong |
"""

from __future__ import annotations

from dataclasses import dataclass

from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.errors import ConnectionFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The table above; one object serves all connections of a server or channel."""

    concurrent_streams_max: int = 1_000
    header_list_size_max: int = 64 << 10
    header_block_size_max: int = 64 << 10
    continuations_max: int = 64
    frame_size_max: int = 64 << 10
    stream_window: int = 64 << 10
    connection_window: int = 4 << 20
    resets_allowed: int = 10_000
    pings_allowed: int = 200
    settings_allowed: int = 100
    priorities_allowed: int = 2_000
    empty_data_allowed: int = 1_000
    window_updates_allowed: int = 20_000
    unknown_frames_allowed: int = 2_000
    reset_memory: int = 1_000


class Allowance:
    """A bucket of one kind of frame."""

    __slots__ = ("capacity", "left", "name", "per_second")

    def __init__(self, name: str, capacity: int, per_second: int) -> None:
        self.name = name
        self.capacity = capacity
        self.per_second = per_second
        self.left = capacity

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many {self.name}")

    def give(self, count: int) -> None:
        self.left = min(self.capacity, self.left + count)


class Allowances:
    """All buckets of a connection."""

    __slots__ = (
        "_all",
        "empty_data",
        "pings",
        "priorities",
        "resets",
        "settings",
        "unknown",
        "window_updates",
    )

    def __init__(self, limits: Limits) -> None:
        self.resets = _allowance("streams reset", limits.resets_allowed, 5)
        self.pings = _allowance("PING frames", limits.pings_allowed, 10)
        self.settings = _allowance("SETTINGS frames", limits.settings_allowed, 10)
        self.priorities = _allowance("PRIORITY frames", limits.priorities_allowed, 10)
        self.empty_data = _allowance("empty DATA frames", limits.empty_data_allowed, 10)
        self.window_updates = _allowance("WINDOW_UPDATE frames", limits.window_updates_allowed, 1)
        self.unknown = _allowance("frames of unknown types", limits.unknown_frames_allowed, 10)
        self._all = (
            self.resets,
            self.pings,
            self.settings,
            self.priorities,
            self.empty_data,
            self.window_updates,
            self.unknown,
        )

    def refill(self) -> None:
        """Once a second."""
        for allowance in self._all:
            if allowance.left < allowance.capacity:
                allowance.give(allowance.per_second)


def _allowance(name: str, capacity: int, seconds_to_fill: int) -> Allowance:
    return Allowance(name, capacity, max(1, capacity // seconds_to_fill))
