"""RocketMQ's timers (docs/store-format.md, "Timer files"): recovery from its files, then delivery.

Written apart from our codec, in plain Python, so that the two can be compared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.topics import lax_json

SLOTS = 1_209_600
WINDOW_MS = 172_800_000


@dataclass
class Slot:
    first: int
    last: int


class RocketMqTimers:
    """One start of RocketMQ on the files of a store that is open for reading."""

    def __init__(self, store: MessageStore, files: FileSystem, now_ms: EpochMs) -> None:
        self.store = store
        self.queue = store.consume_queues.get("rmq_sys_wheel_timer", QueueId(0))
        self.log: dict[int, tuple[int, ...]] = {}
        self.wheel: dict[int, tuple[int, Slot]] = {}  # by index: the second, the slot
        check = files.read_bytes("config/timercheck") if files.exists("config/timercheck") else bytes(56)
        self.read_ms, flush_position, queue_offset, master_offset = struct.unpack_from(">4q", check)
        self._load_wheel(files)
        end = self._scan_log(files, flush_position)
        self.log_end = end
        unit = self.log.get(end - 52)
        message = self._message(unit[5]) if unit is not None else None
        if message is not None:
            queue_offset = message[0] + 1
        queue_offset = min(queue_offset, master_offset)
        bounds = (self.queue.min_offset, self.queue.max_offset) if self.queue is not None else (0, 0)
        self.queue_offset = min(max(queue_offset, bounds[0]), bounds[1])
        self.read_ms = max(self.read_ms, now_ms // 1000 * 1000 - SLOTS // 2 * 1000 + 60_000)

    def _load_wheel(self, files: FileSystem) -> None:
        if not files.exists("timerwheel"):
            return
        data = files.read_bytes("timerwheel")
        assert len(data) == SLOTS * 32
        words = np.frombuffer(data, ">i8").reshape(SLOTS, 4)
        for index in np.flatnonzero(words[:, 0]).tolist():
            second, first, last, count, _ = struct.unpack_from(">qqqii", data, index * 32)
            assert second % SLOTS == index
            assert count > 0
            self.wheel[index] = second, Slot(first, last)

    def _scan_log(self, files: FileSystem, flush_position: int) -> int:
        names = sorted(files.list("timerlog"))
        end = 0
        sizes = {files.file_size(f"timerlog/{name}") for name in names}
        assert len(sizes) <= 1
        begin = max(0, flush_position - sizes.pop()) if names else 0
        for name in names:
            data, stop = files.read_bytes(f"timerlog/{name}"), False
            for at in range(0, len(data), 52):
                position = int(name) + at
                end = position
                if at + 16 > len(data):
                    break
                size, _, magic = struct.unpack_from(">iqi", data, at)
                if magic == 0xCBD43194 - (1 << 32):
                    assert size == len(data) - at
                    break
                if size != 52 or magic | 0xF != 0xF:
                    stop = True
                    break
                unit = struct.unpack_from(">iqiqiqiiq", data, at)
                self.log[position] = unit
                end = position + 52
                if position >= begin // len(data) * len(data):
                    self._revise(unit, position)
            if stop:
                break
        return end

    def _revise(self, unit: tuple[int, ...], position: int) -> None:
        second = (unit[3] + unit[4]) // 1000
        known = self.wheel.get(second % SLOTS)
        if known is None or known[0] != second:
            self.wheel[second % SLOTS] = second, Slot(position, position)
        else:
            known[1].last = position

    def _message(self, physical_offset: int) -> tuple[int, dict[str, str]] | None:
        record = self.store.record_at(PhysicalOffset(physical_offset))
        if record is None:
            return None
        message = decode_message(record)
        return message.queue_offset, message.properties

    def run(self, begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """(queue offset, when) of everything that it delivers while the clock goes from begin to end."""
        delivered: list[tuple[int, int]] = []
        deleted: set[tuple[int, str]] = set()
        position = self.log_end + (1 << 40)
        write_ms = begin_ms // 1000 * 1000

        def enqueue(physical_offset: int, size: int) -> None:
            nonlocal position
            found = self._message(physical_offset)
            assert found is not None
            out_ms, magic = int(found[1]["TIMER_OUT_MS"]), 1
            if out_ms - write_ms >= WINDOW_MS:
                magic |= 2
                far = out_ms - write_ms - WINDOW_MS < WINDOW_MS // 3
                out_ms = write_ms + (WINDOW_MS // 2 if far else WINDOW_MS)
            if "TIMER_DEL_UNIQKEY" in found[1]:
                magic |= 4
            # Late ones are read at once.
            second = max(out_ms, self.read_ms) // 1000
            known = self.wheel.get(second % SLOTS)
            previous = known[1].last if known is not None and known[0] == second else -1
            unit = (52, previous, magic, write_ms, second * 1000 - write_ms, physical_offset, size, 0, 0)
            self.log[position] = unit
            self._revise(unit, position)
            position += 52

        for offset in range(self.queue_offset, self.queue.max_offset if self.queue is not None else 0):
            assert self.queue is not None
            physical_offset, size, _ = self.queue.unit(QueueOffset(offset))
            if "TIMER_OUT_MS" in (self._message(physical_offset) or (0, {}))[1]:
                enqueue(physical_offset, size)
        while True:
            seconds = [second for second, _ in self.wheel.values() if second * 1000 >= self.read_ms]
            if not seconds or min(seconds) * 1000 >= end_ms // 1000 * 1000:
                return delivered
            second = min(seconds)
            units = []
            at = self.wheel.pop(second % SLOTS)[1].last
            while at != -1:
                units.append(self.log[at])
                at = self.log[at][1]
            self.read_ms = (second + 1) * 1000
            write_ms = max(write_ms, self.read_ms)
            for unit in units:
                if unit[2] & 4 and not unit[2] & 2:
                    deleted.add((second, (self._message(unit[5]) or (0, {}))[1]["TIMER_DEL_UNIQKEY"]))
            for unit in reversed(units):
                found = self._message(unit[5])
                assert found is not None
                if unit[2] & 2:
                    enqueue(unit[5], unit[6])
                elif not unit[2] & 4 and (second, found[1].get("UNIQ_KEY", "")) not in deleted:
                    delivered.append((found[0], write_ms))


def pending_levels(store: MessageStore, files: FileSystem) -> dict[int, list[int]]:
    """By delay level the offsets that RocketMQ has still to deliver."""
    path = "config/delayOffset.json"
    document = lax_json.parse(files.read_bytes(path)) if files.exists(path) else {}
    table = lax_json.object_member(document, "offsetTable")
    queues = store.consume_queues.queues("SCHEDULE_TOPIC_XXXX")
    begins = {q.queue_id + 1: lax_json.integer_member(table, str(q.queue_id + 1), 0) for q in queues}
    return {q.queue_id + 1: list(range(begins[q.queue_id + 1], q.max_offset)) for q in queues}
