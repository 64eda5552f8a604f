"""Whether a tree of files, as a crash left it, keeps the `Promises` once the real code has opened it."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import Final

import numpy as np

from tests.durability.crash_promises import Promises
from tests.durability.crash_script import (
    AUDIT,
    CONSUMERS,
    DEALS,
    LATER,
    LEASE_MS,
    PLAIN,
    QUEUES,
    TAGS,
    TOPICS,
    WORKERS,
)
from tests.durability.crash_seam import Logged, LogImage
from tests.support.engine import flush, read_queue
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.query.get_message import get_message
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

TURNS_MAX: Final = 1_000
Queue = tuple[str, int]


class Recovered:
    """One crash state, recovered. `log` and `promises` are those of the moment of the crash."""

    def __init__(
        self,
        files: MemoryFileSystem,
        settings: StoreSettings,
        log: LogImage,
        promises: Promises,
        now_ms: EpochMs,
        source: random.Random,
    ) -> None:
        self.files = files
        self.log = log
        self.promises = promises
        self.now_ms = now_ms
        self.source = source
        self.store = MessageStore.open(files, settings, now_ms)
        self.end = self.store.end_offset
        self.queues = self._expected_queues()

    def _expected_queues(self) -> dict[Queue, list[Logged]]:
        """By the log as it was written, up to where the recovered one ends."""
        deletions, begin = self.store.deletions, self.store.min_offset
        queues: dict[Queue, list[Logged]] = defaultdict(list)
        for logged in self.log.records:
            alive = max(begin, deletions.deleted_below(logged.topic)) <= logged.physical_offset < self.end
            if alive:
                queues[logged.topic, logged.queue_id].append(logged)
        return queues

    # --- the store ----------------------------------------------------------------------------------
    def check_store(self) -> None:
        self._check_log()
        self._check_deletions()
        self._check_queues()
        self._check_consumer_offsets()
        self._check_look_ups()

    def _check_log(self) -> None:
        store, promises = self.store, self.promises
        assert self.end >= promises.durable_end, "an acknowledged record is in the log"
        assert store.min_offset in promises.begins, "the log begins where it did, or where it was to begin"
        assert store.flushed_offset == store.visible_offset == self.end
        assert not store.recovery.damages
        assert not store.recovery.gaps
        for segment in store.log.segments:
            content = segment.file.view()
            used = max(0, min(self.end, segment.end) - segment.start)
            written = self.log.data[segment.start : segment.start + used]
            assert content[:used] == bytes(written).ljust(used, b"\0"), "it is a prefix of the written bytes"
            assert not any(content[used:]), "and zeros follow"

    def _check_deletions(self) -> None:
        for topic, allowed in self.promises.deletions.items():
            assert self.store.deletions.deleted_below(topic) in {min(at, self.end) for at in allowed}

    def _check_queues(self) -> None:
        store = self.store
        for topic in store.consume_queues.topics():
            for queue in store.consume_queues.queues(topic):
                assert (topic, queue.queue_id) in self.queues or queue.min_offset == queue.max_offset
        for (topic, queue_id), expected in self.queues.items():
            found = store.consume_queues.get(topic, QueueId(queue_id))
            assert found is not None
            assert found.min_offset == expected[0].queue_offset
            assert found.max_offset == expected[-1].queue_offset + 1
            assert len(expected) == found.max_offset - found.min_offset, "a queue has no holes"
            units = found.units(found.min_offset, len(expected))
            assert np.array_equal(units["physical_offset"], [one.physical_offset for one in expected])
            assert np.array_equal(units["size"], [one.size for one in expected])

    def _check_consumer_offsets(self) -> None:
        found = {
            (group, topic, queue_id): offset
            for group, topic, queue_id, offset in self.store.offsets.entries()
            if self.store.topics.get(topic) is not None
        }
        for (_, topic, queue_id), offset in found.items():
            queue = self.store.consume_queues.get(topic, queue_id)
            assert offset <= (0 if queue is None else queue.max_offset), "no offset beyond the log's end"
        for place, persisted in self.promises.persisted.items():
            assert persisted <= found.get(place, 0)
        for place, offset in found.items():
            assert place[0] != AUDIT or offset <= self.promises.committed.get(place, offset)

    # --- look-ups equal the scan --------------------------------------------------------------------
    def _check_look_ups(self) -> None:
        topics = [topic for topic in TOPICS if self.store.topics.get(topic) is not None]
        assert self.promises.topics <= set(topics)
        for topic in topics:
            records = [one for (name, _), queue in self.queues.items() if name == topic for one in queue]
            records.sort(key=lambda one: one.physical_offset)
            self._check_key(records, topic, "all", KeyType.KEY)
            if records:
                chosen = self.source.choice(records)
                self._check_key(records, topic, chosen.unique_key, KeyType.UNIQUE)
                self._check_key(records, topic, self.source.choice(TAGS[1:]), KeyType.TAG)
                self._check_one(chosen)

    def _check_key(self, records: list[Logged], topic: str, key: str, key_type: KeyType) -> None:
        pages = list(query_pages(self.store, KeyQuery(topic, key, key_type), messages_max=100_000))
        found = [at for page in pages for at in page.physical_offsets]
        expected = [one.physical_offset for one in records if _has(one, key_type, key)]
        assert pages[-1].complete
        assert found == expected[::-1], f"{key_type} {key} of {topic}"

    def _check_one(self, chosen: Logged) -> None:
        store, queue = self.store, self.queues[chosen.topic, chosen.queue_id]
        record = store.record_at(PhysicalOffset(chosen.physical_offset))
        assert record is not None
        message = decode_message(record)
        assert message.body == chosen.body
        host, _, port = message.store_host.rpartition(":")
        name = bytes(map(int, host.split("."))) + int(port).to_bytes(4) + chosen.physical_offset.to_bytes(8)
        assert get_message(store, name.hex().upper()).queue_offsets == [chosen.queue_offset]
        times, begin = [one.store_timestamp for one in queue], queue[0].queue_offset
        place, at = (chosen.topic, chosen.queue_id), chosen.store_timestamp
        assert search_offset(store, *place, at) == begin + bisect_left(times, at)
        assert search_offset(store, *place, at, upper=True) == begin + max(0, bisect_right(times, at) - 1)

    def check_again(self, settings: StoreSettings) -> None:
        """A second recovery finds the same; the writes of the first one count as synced or not, as they
        were."""
        again = MessageStore.open(self.files.after_power_cut(), settings, self.now_ms)
        assert again.end_offset == self.end
        assert again.min_offset == self.store.min_offset
        assert list(again.offsets.entries()) == list(self.store.offsets.entries())
        for (topic, queue_id), expected in self.queues.items():
            queue = again.consume_queues.get(topic, QueueId(queue_id))
            assert queue is not None
            assert queue.max_offset == expected[-1].queue_offset + 1

    # --- pending messages of consumers and producers ----------------------------------------------------
    def check_consumers(self) -> None:
        """Lets the recovered broker deliver everything pending."""
        for topic in set(TOPICS) - self.promises.topics:
            if self.store.topics.get(topic) is None:
                self.store.topics.create(topic, queue_count=QUEUES)
        self.model = ConsumerState.open(self.store, self.files, CONSUMERS, self.now_ms)
        self._sync()
        before = self._counts(LATER)
        self._deliver_due(self.now_ms)
        early = self._counts(LATER)
        for body, delayed in self.promises.delayed.items():
            assert delayed.due_ms <= self.now_ms or early[body] == before[body]
        due_ms = [delayed.due_ms for delayed in self.promises.delayed.values()]
        self.now_ms = EpochMs(max([self.now_ms, *due_ms]) + 100 * LEASE_MS)
        self._deliver_due(self.now_ms)
        self._check_delayed(before)
        self._check_transactions()
        self._check_deliveries()

    @property
    def _copies_max(self) -> int:
        return 2 if self.promises.copying else 1

    def _sync(self) -> None:
        flush(self.store)
        self.store.dispatch()
        self.model.timers.catch_up()
        self.model.transactions.catch_up()

    def _deliver_due(self, now_ms: EpochMs) -> None:
        for _ in range(TURNS_MAX):
            done = self.model.timers.deliver_due(now_ms)
            self._sync()
            if not done:
                return
        raise AssertionError("timers have no end")

    def _counts(self, topic: str) -> Counter[bytes]:
        queues = self.store.consume_queues.queues(topic)
        return Counter(m.body for queue in queues for m in read_queue(self.store, topic, queue.queue_id))

    def _check_delayed(self, before: Counter[bytes]) -> None:
        counts, durable_end = self._counts(LATER), self.promises.durable_end
        for body, delayed in self.promises.delayed.items():
            assert counts[body] or delayed.end > durable_end or delayed.gone, "no delayed message is lost"
            again = counts[body] - before[body]
            assert again <= self._copies_max, (
                "it is delivered once by each start that does not know that it was"
            )
            if delayed.ended_end is not None and delayed.ended_end <= durable_end:
                assert not again, "a delivered message is not delivered again"

    def _check_transactions(self) -> None:
        """Whatever is still open is ended here, as its producer would have it."""
        ended: dict[bytes, bool] = {}
        for body, half in self.promises.halves.items():
            try:
                commit = half.commit is not False
                self.model.transactions.end(f"u{body[:6].decode()}", DEALS, commit, self.now_ms)
                ended[body] = True
            except TroveError as error:
                assert error.spec.symbol == "TRANSACTION_ILLEGAL"  # noqa: PT017
                ended[body] = False
        self._sync()
        counts = self._counts(DEALS)
        durable_end = self.promises.durable_end
        for body, half in self.promises.halves.items():
            if half.gone:
                continue
            prepared = half.end <= durable_end
            assert counts[body] <= (half.commit is not False), (
                "committed at most once, rolled back never seen"
            )
            assert counts[body] == 1 or half.commit is False or not prepared, "no transaction is lost"
            if half.ended_end is not None and half.ended_end <= durable_end:
                assert not ended[body], "an ended transaction is not open"
            elif half.commit is None and prepared:
                assert ended[body], "a transaction without an end is open"

    def _check_deliveries(self) -> None:
        delivered = self._receive_all()
        durable_end = self.promises.durable_end
        for body, plain in self.promises.plain.items():
            if plain.expired or plain.end > durable_end:
                continue
            count = delivered[body]
            if not plain.acked:
                assert count, "an unconsumed message is delivered"
            elif plain.ack_end is not None and plain.ack_end <= durable_end and not plain.repeats:
                assert not count, "a consumed message is not delivered again"
            assert count <= 1 + plain.copied or plain.repeats, "and once"

    def _receive_all(self) -> Counter[bytes]:
        group = self.model.groups.get(WORKERS.name) or WORKERS
        delivered: Counter[bytes] = Counter()
        for _ in range(TURNS_MAX):
            request = ReceiveRequest(group=group, topic=PLAIN, invisible_ms=LEASE_MS, now_ms=self.now_ms)
            found = self.model.delivery.receive(request)
            if not found:
                return delivered
            for one in found:
                delivered[decode_message(one.record).body] += 1
        raise AssertionError("deliveries have no end")


def _has(logged: Logged, key_type: KeyType, key: str) -> bool:
    if key_type is KeyType.TAG:
        return logged.tag == key
    return logged.unique_key == key or (key_type is KeyType.KEY and key in logged.keys)
