"""A small store with its timers, driven by given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.engine import NOW_MS, SMALL, open_store, read_queue
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.timers.timers import Timers, TimersState
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import Message
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

SETTINGS = ConsumerSettings(timer_batch_max=8)
ROOMY = replace(SMALL, commit_log_file_size=1 << 17)


class Broker:
    """One run of a store with timers; files outlive it."""

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        *,
        settings: ConsumerSettings = SETTINGS,
        store_settings: StoreSettings = ROOMY,
        state: TimersState | None = None,
        events_from: int = 0,
        topics: Sequence[str] = ("orders",),
        import_from_rocketmq: bool = False,
        now_ms: EpochMs = NOW_MS,
    ) -> None:
        self.files = files if files is not None else MemoryFileSystem()
        self.store: MessageStore = open_store(self.files, store_settings, topics=topics)
        self.writer = RecordWriter(self.store, lambda: None)
        self.events = EventLog(self.store, self.writer)
        self.timers = Timers(self.store, self.writer, self.events, settings)
        if import_from_rocketmq:
            self.timers.import_from_rocketmq(self.files, now_ms)
        elif state is not None:
            self.timers.restore(state)
        for event in () if import_from_rocketmq else self.events.replay(QueueOffset(events_from)):
            self.timers.apply(event)
        self.timers.settle(self.store.end_offset if import_from_rocketmq else self.events.recorded_end)

    def schedule(
        self, body: bytes, deliver_ms: EpochMs, now_ms: EpochMs = NOW_MS, **fields: Any
    ) -> AppendResult:
        result = self.timers.schedule(message(body, **fields), deliver_ms, now_ms)
        self.dispatch()
        return result

    def dispatch(self) -> None:
        self.store.dispatch()
        self.timers.catch_up()

    def deliver(self, now_ms: EpochMs) -> int:
        """Every turn that there is to do; how many messages."""
        count = 0
        while done := self.timers.deliver_due(now_ms):
            count += done
        self.dispatch()
        return count

    def delivered(self, topic: str = "orders") -> list[Message]:
        """Of all queues, in log order."""
        queues = self.store.consume_queues.queues(topic)
        found = [found for queue in queues for found in read_queue(self.store, topic, queue.queue_id)]
        return sorted(found, key=lambda found: found.physical_offset)

    def bodies(self, topic: str = "orders") -> list[bytes]:
        return [found.body for found in self.delivered(topic)]

    def stop(self, now_ms: EpochMs = NOW_MS) -> tuple[TimersState, int]:
        """A clean stop: the state, and the first event that is not in it."""
        self.events.flush(now_ms)
        self.dispatch()
        state = self.timers.snapshot()
        self.store.close(now_ms)
        return state, self.events.next_offset

    def kill(self) -> MemoryFileSystem:
        """The files as the next process finds them; events that were not flushed are lost."""
        return self.files.after_process_kill()


def message(
    body: bytes, *, unique_key: str = "", queue_id: QueueId = QueueId(0), topic: str = "orders", **more: Any
) -> NewRecord:
    properties = {"UNIQ_KEY": unique_key or f"01{body.hex():0>30}", **more.pop("properties", {})}
    return NewRecord(
        topic, queue_id, body, properties, EpochMs(NOW_MS - 5), bytes([10, 0, 0, 2, 0, 0, 195, 203]), **more
    )
