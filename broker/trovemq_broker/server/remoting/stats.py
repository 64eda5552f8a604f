"""VIEW_BROKER_STATS_DATA: how many messages went through a topic, a group or the broker, in the last minute,
hour and day.

Nothing is sampled for keys that no tool asks for. A key has two samples for each window, made when it is
asked for: the rate is that since the older one, made at least one window ago, or since the start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_daemon.remoting.request import Request
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.json_text import json_text

KEYS_MAX: Final = 16_384
WINDOWS_MS: Final = {"statsMinute": 60_000, "statsHour": 3_600_000, "statsDay": 86_400_000}


class GroupCounts:
    """Messages of remoting clients by (topic, group), since the start; of KEYS_MAX pairs at most."""

    def __init__(self) -> None:
        self._got: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._sent_back: OrderedDict[tuple[str, str], list[int]] = OrderedDict()

    def got(self, topic: str, group: str, messages: int, size: int) -> None:
        counts = _entry(self._got, (topic, group))
        counts[0] += messages
        counts[1] += size

    def sent_back(self, topic: str, group: str) -> None:
        _entry(self._sent_back, (topic, group))[0] += 1

    def total(self, name: str, topic: str, group: str) -> int:
        table = self._sent_back if name == "SNDBCK_PUT_NUMS" else self._got
        return table.get((topic, group), (0, 0))[name == "GROUP_GET_SIZE"]


def _entry(table: OrderedDict[tuple[str, str], list[int]], key: tuple[str, str]) -> list[int]:
    counts = table.get(key)
    if counts is None:
        if len(table) >= KEYS_MAX:
            table.popitem(last=False)
        counts = table[key] = [0, 0]
    return counts


class _Sample(NamedTuple):
    time_ms: int
    total: int


class Stats:
    """`started_ms`: when all counters were 0."""

    def __init__(
        self, core: BrokerCore, counts: GroupCounts, clock_ms: Callable[[], EpochMs], started_ms: int
    ) -> None:
        self._core = core
        self._counts = counts
        self._clock_ms = clock_ms
        self._started_ms = started_ms
        self._samples: OrderedDict[tuple[str, str], list[tuple[_Sample, _Sample]]] = OrderedDict()

    def view(self, request: Request) -> None:
        name, key = request.fields.text("statsName"), request.fields.text("statsKey")
        total = self._total(name, key)
        if not total:
            text = f"The stats <{name[:80]}> <{key[:300]}> not exist"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        else:
            request.answer(body=json_text(self._shown(name, key, total)))

    def _total(self, name: str, key: str) -> int:
        """0 of an unknown key, or of one that was never used."""
        traffic = self._core.traffic
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            sizes = traffic.message_sizes.get(key)
            return 0 if sizes is None else sizes.count if name == "TOPIC_PUT_NUMS" else int(sizes.total)
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
            topic, _, group = key.partition("@")
            return self._counts.total(name, topic, group)
        if key != self._core.store.settings.cluster:
            return 0
        totals = {"BROKER_PUT_NUMS": traffic.messages_in, "BROKER_GET_NUMS": traffic.messages_out.total()}
        return totals.get(name, 0)

    def _shown(self, name: str, key: str, total: int) -> dict[str, object]:
        now = _Sample(self._clock_ms(), total)
        start = _Sample(self._started_ms, 0)
        before = self._samples.pop((name, key), [(start, start)] * len(WINDOWS_MS))
        if len(self._samples) >= KEYS_MAX:
            self._samples.popitem(last=False)
        shown: dict[str, object] = {}
        after = []
        for (window, window_ms), (older, newer) in zip(WINDOWS_MS.items(), before, strict=True):
            if now.time_ms - newer.time_ms >= window_ms:
                older, newer = newer, now  # noqa: PLW2901
            after.append((older, newer))
            elapsed_ms = max(now.time_ms - older.time_ms, 1)
            tps = (total - older.total) * 1_000 / elapsed_ms
            messages = min(round(tps * window_ms / 1_000), total - older.total)
            shown[window] = {"avgpt": 0.0, "sum": messages, "tps": tps}
        self._samples[name, key] = after
        return shown
