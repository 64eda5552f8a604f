"""The engine's script with everything that uses the trees: numbered producers, unique keys, atomic
transactions."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from tests.durability.engine_script import QUEUES, SETTINGS, WORKERS, EngineScript, Run
from tests.support.engine import record, validated
from trovemq_broker.atomic.commits import AtomicCommits
from trovemq_broker.atomic.ends import Committed
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import decode_message
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.files.files import StorageError
from trovemq_store.files.trees import TreeChange
from trovemq_store.index.trees.layout import DIRECTORY, FORMAT_KEY, META, NUMBER
from trovemq_store.index.trees.store_trees import TREE_NAMES

ONCE: Final = "once"
"""Deduplicated; each message has a unique key and its producer's number."""
PAIRS: Final = ("left", "right")
"""The queues of transactions; the second is deduplicated."""
PRODUCER: Final = "maker"
STEP_BYTES: Final = 4_096
LEASE_MS: Final = 60_000


class TreeScript(EngineScript):
    deduplication: Deduplication
    commits: AtomicCommits

    def open(self) -> None:
        super().open()
        self.deduplication = Deduplication(self.store)
        self.commits = AtomicCommits(self.store, self.model, self.deduplication)

    # --- unique keys and numbers --------------------------------------------------------------------
    def send_once(self, keys: list[str], *, numbers: bool = True, named: bool = True) -> AppendResult:
        """These again or for the first time, by the path of producers. A key is the message's number."""
        own = [{"TROVEMQ_PRODUCER": PRODUCER, "TROVEMQ_SEQUENCE": str(int(key))} for key in keys]
        records = [
            record(
                key.encode(),
                topic=ONCE,
                unique_key=key if named else "",
                properties=properties if numbers else {},
                append_property_crc=SETTINGS.append_property_crc,
            )
            for key, properties in zip(keys, own, strict=True)
        ]
        batch = validated(self.store, records, ONCE, QueueId(0))
        (result,) = self.deduplication.append(batch, ((ONCE, 0, len(batch)),), self.tick())
        return result

    def send_unique(self, count: int) -> None:
        keys = [self.body(0).decode() for _ in range(count)]
        self.ledger.once_tried += keys
        result = self.send_once(keys)
        assert not result.duplicates
        places = (result.physical_offset + result.positions).tolist()
        self.ledger.once.update(zip(keys, places, strict=True))

    def send_again(self, keys: list[str]) -> None:
        """Duplicates all, by the key alone and by the number alone, wherever these are known from."""
        end = self.store.end_offset
        for named in (True, False):
            result = self.send_once(keys, named=named, numbers=not named)
            found = {index: place.physical_offset for index, place in result.duplicates.items()}
            places = {index: self.ledger.once[key] for index, key in enumerate(keys)}
            assert found == places, "each is answered with the original's place"
        assert self.store.end_offset == end, "a duplicate is not stored"

    def recent_keys(self) -> list[str]:
        kept = [key for key, place in self.ledger.once.items() if place >= self.store.min_offset]
        return self.source.sample(kept, min(3, len(kept)))

    def use_keys(self, times: int) -> None:
        for _ in range(times):
            self.attempt(partial(self.send_unique, self.source.randrange(1, 5)))
            self.attempt(lambda: self.send_again(self.recent_keys()))
            if self.source.random() < 0.5:
                self.attempt(self.sync)
                self.grow_trees()

    # --- transactions -------------------------------------------------------------------------------
    def transact(self, count: int, group_topic: str = "") -> None:
        """A transaction of `count` messages to each queue of two topics, and, where a topic is given, of the
        acknowledgements of the messages that its group receives."""
        delivered: list[Delivered] = []
        if group_topic:
            request = ReceiveRequest(
                group=WORKERS, topic=group_topic, count_max=2, invisible_ms=LEASE_MS, now_ms=self.tick()
            )
            delivered = self.model.delivery.receive(request)
        bodies = [decode_message(one.record).body for one in delivered]
        self.ledger.in_flight.update(bodies)
        name = f"t{self.body(0).decode()}"
        made = [
            (topic, queue_id, self.body(self.source.randrange(200)))
            for topic in PAIRS
            for queue_id in range(QUEUES)
            for _ in range(count)
        ]
        self.ledger.tried[name] = Run(made, bodies)
        given = [Acknowledgement(WORKERS.name, group_topic, one.receipt_handle) for one in delivered]
        try:
            committed = self.commit(name, made, given)
        except TroveError:
            self.ledger.tried[name] = Run(made, [])  # refused: nothing of it was stored
            raise
        self.ledger.committed[name] = committed.messages[0].physical_offset

    def commit(
        self, name: str, made: list[tuple[str, int, bytes]], given: list[Acknowledgement]
    ) -> Committed:
        run = self.commits.new_run(name)
        for topic, queue_id, body in made:
            one = record(body, topic=topic, queue_id=QueueId(queue_id), unique_key=body[:6].decode())
            batch = validated(self.store, [one], topic, QueueId(queue_id))
            run.add(batch, topic, QueueId(queue_id))
        return self.commits.commit(run, given, self.tick())

    # --- the trees ----------------------------------------------------------------------------------
    def grow_trees(self) -> None:
        """The work of the trees' task until they have all records on disk. A step that failed is repeated."""
        while (step := self.store.begin_trees(STEP_BYTES)) is not None:
            try:
                with suppress(StorageError):
                    self.work(step.run)
            finally:
                self.in_work = False
                with suppress(StorageError):
                    self.store.finish_trees(step)
        trees = self.store.trees
        assert trees is not None
        since_of, now_ms = self.store.time.since_of(self.now_ms), self.now_ms
        self.work(lambda: void(trees.sweep(64) or trees.sweep_ids(since_of, now_ms, 64)))

    def spoil_trees(self) -> None:
        """As a later version would leave them: the next start quarantines them."""
        trees = self.files.open_trees(DIRECTORY, TREE_NAMES)
        trees.commit([TreeChange(META, [(FORMAT_KEY, NUMBER.pack(99))])])
        trees.close()

    def go_on_beside(self) -> None:
        super().go_on_beside()
        if any(topic not in self.store.topics for topic in (ONCE, *PAIRS)):
            return  # they are being made
        self.in_work = False
        self.send_unique(2)
        self.send_again(self.recent_keys())
        self.transact(1)
        self.in_work = True


def void(_result: object) -> None:
    """A step gives nothing."""
