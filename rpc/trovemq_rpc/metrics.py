"""Counters as plain attributes; an exporter of metrics reads them."""

from __future__ import annotations


class Metrics:
    """The counters of one server or channel."""

    def __init__(self) -> None:
        self.connections = 0
        self.connections_opened = 0
        self.accepts_failed = 0  # no descriptor or memory was free
        self.refused_connections = 0  # another protocol, TLS that failed, or above the limit
        self.keepalive_timeouts = 0
        self.calls_started = 0
        self.calls_active = 0
        self.calls_ended: dict[str, int] = {}  # by status
        self.calls_refused = 0  # above a limit
        self.calls_stalled = 0  # reset because a message did not grow
        self.calls_unread = 0  # reset because the answer was not read
        self.goaways_sent: dict[str, int] = {}  # by code
        self.goaways_received: dict[str, int] = {}
        self.resets_received: dict[str, int] = {}
        self.resets_sent: dict[str, int] = {}  # added when a connection ends
        self.window_stalls = 0  # sends that had to wait for a window; added when a connection ends
        self.too_many_pings = 0
        self.transparent_retries = 0

    @staticmethod
    def count(counts: dict[str, int], key: str, more: int = 1) -> None:
        counts[key] = counts.get(key, 0) + more
