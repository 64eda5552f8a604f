"""`config/consumerOrderInfo.json`: the messages in flight of orderly groups, in RocketMQ's format.

(docs/store-format.md, "Ordered consumption")

    {"orderedConsumptionLevel": "QUEUE", "table": {"topic@group": {"0": {"popTime": ms, "i": invisible ms,
        "o": [first offset, distance from it, …], "ot": {"offset": visible again at ms},
        "oc": {"offset": redeliveries}, "l": ms, "cm": bits of consumed ones, "a": "attempt id"}}}}

Bit n of `cm` stands for offset n of `o`, so an entry has at most 64 offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

from trovemq_broker.timers.wheel_records import TIME_MAX
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject

ORDER_INFO_PATH: Final = "config/consumerOrderInfo.json"
OFFSETS_MAX: Final = 63
"""Bit 63 would make RocketMQ's number negative."""
_DELIVERIES_MAX: Final = 1 << 31


class OrderInfo(msgspec.Struct):
    """The entry of one queue of one group. The short names are RocketMQ's; see the top."""

    popTime: int = 0  # noqa: N815
    i: int = 0
    o: list[int] = []
    ot: dict[str, int] = {}
    oc: dict[str, int] = {}
    l: int = 0  # noqa: E741
    cm: int = 0
    a: str | None = None

    @property
    def offsets(self) -> list[int]:
        """All offsets of the entry, consumed or not."""
        return [self.o[0], *(self.o[0] + distance for distance in self.o[1:])] if self.o else []

    @property
    def is_plausible(self) -> bool:
        """Whether events can represent it: ascending offsets, and numbers in the range of times and
        counts."""
        offsets = self.offsets
        rising = all(before < after for before, after in pairwise([-1, *offsets]))
        return rising and all(
            0 <= self.visible_ms(offset) <= TIME_MAX and 0 < self.deliveries(offset) <= _DELIVERIES_MAX
            for offset in offsets
        )

    def consumed(self, index: int) -> bool:
        return bool(self.cm >> index & 1)

    def visible_ms(self, offset: int) -> EpochMs:
        """When the message may be received again."""
        return EpochMs(self.ot.get(str(offset), self.popTime + self.i))

    def deliveries(self, offset: int) -> int:
        return self.oc.get(str(offset), 0) + 1


OrderTable = Mapping[tuple[str, str, QueueId], OrderInfo]


def load_order_info(files: FileSystem) -> OrderTable:
    """(group, topic, queue id) -> its entry. An entry that cannot be read is left out."""
    document = JsonFile(files, ORDER_INFO_PATH).load() or {}
    table = document.get("table")
    found: dict[tuple[str, str, QueueId], OrderInfo] = {}
    for name, queues in table.items() if isinstance(table, dict) else ():
        topic, separator, group = name.partition("@")
        if not separator or not isinstance(queues, dict):
            continue
        for queue_id, value in queues.items():
            try:
                number, info = QueueId(int(queue_id)), msgspec.convert(value, OrderInfo)
            except (ValueError, msgspec.ValidationError):
                continue
            if info.is_plausible:
                found[group, topic, number] = info
    return found


def save_order_info(files: FileSystem, table: OrderTable) -> None:
    """Writes the file; it is durable when this returns. Raises TroveError DISK_FULL, STORE_FAILED."""
    file = JsonFile(files, ORDER_INFO_PATH)
    before = file.load()
    if before is None and not table:
        return
    entries: dict[str, dict[str, object]] = {}
    for (group, topic, queue_id), info in sorted(table.items()):
        value = {name: member for name, member in msgspec.to_builtins(info).items() if member is not None}
        entries.setdefault(f"{topic}@{group}", {})[str(queue_id)] = value
    document: JsonObject = {"orderedConsumptionLevel": "QUEUE", **(before or {}), "table": entries}
    file.save(document)
