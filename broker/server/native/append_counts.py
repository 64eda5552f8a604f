"""Counts the appends of Append streams when they are answered, in the turn of the loop after the replies: no
client waits for it, and no reader of the messages."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from broker.server.monitoring.traffic import Traffic
from trovemq_store.engine.append_result import AppendResult


class _Count(NamedTuple):
    topic: str
    result: AppendResult
    response: str
    elapsed_ms: float
    peer: str


class AppendCounts:
    """Who reads the numbers of `traffic` in a later turn finds all that was answered before."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._noted: list[_Count] = []

    def answered(self, topic: str, result: AppendResult, response: str, elapsed_ms: float, peer: str) -> None:
        """The messages are in the log. `response`: OK, or the symbol of the error if their sync failed."""
        if not self._noted:
            asyncio.get_running_loop().call_soon(self._count)
        self._noted.append(_Count(topic, result, response, elapsed_ms, peer))

    def _count(self) -> None:
        noted, self._noted = self._noted, []
        traffic = self._traffic
        for topic, result, response, elapsed_ms, peer in noted:
            traffic.appended(topic, result.record_count, result.bytes_written, result.positions)
            traffic.took("Append", response, elapsed_ms, peer=peer)
