"""What went in and out, as plain numbers: counted on the way, read by metrics and statistics.

All change on the event loop only. A topic is counted only where it exists, so the tables are bounded by the
number of topics; a deleted topic's numbers go with it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# RocketMQ's bounds of rocketmq_message_size, in bytes
MESSAGE_SIZE_BUCKETS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)


@dataclass(slots=True)
class Traffic:
    messages_in: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    messages_out: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)  # appends refused, by symbol
    one_way_refusals: Counter[str] = field(default_factory=Counter)  # of these the ones nobody was told of

    def appended(self, topic: str, message_count: int, byte_count: int) -> None:
        self.messages_in[topic] += message_count
        self.bytes_in[topic] += byte_count

    def fetched(self, topic: str, message_count: int, byte_count: int) -> None:
        if message_count:
            self.messages_out[topic] += message_count
            self.bytes_out[topic] += byte_count

    def refused(self, symbol: str, *, one_way: bool = False) -> None:
        self.refusals[symbol] += 1
        if one_way:
            self.one_way_refusals[symbol] += 1

    def forget(self, topic: str) -> None:
        for counter in (self.messages_in, self.bytes_in, self.messages_out, self.bytes_out):
            counter.pop(topic, None)
