"""Every read of the seam may lack a descriptor, a map or memory: once, a hundred times, or until the release
(R7).

A broker's whole engine works meanwhile. Whatever it answers is right, or an error that says that nothing was
free: a group passes no message and uses up no attempt, a look-up is complete only with every message, timers
and transactions end once, index and trees skip nothing, and nothing is remembered as damage.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from tests.durability.scarcity import LASTS, Scarcity
from tests.support.retention import HOUR_MS, LEASE_MS, SETTINGS, STEPS, WORKERS, Broker, bodies
from tests.support.settling import acknowledge
from tests.support.trials import Trials, strata
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.query.search.conditions import Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import RecordBatch, decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import storage_errors
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.layout import KEY
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_timer_wheel")]

WHAT: Final = "scarce reads of the seam"
SMALL: Final = replace(
    SETTINGS, commit_log_file_size=8_192, body_size_max=3_000, index_item_count=32, tree_index_enable=True
)
NUMBERS: Final = (errno.EMFILE, errno.ENOMEM)
ROUNDS: Final = 3
TOPICS: Final = {"orders": WORKERS, "lines": STEPS, "ranked": WORKERS}
OFFSET: Final = 5
FIRST: Final = 12
"""Messages of each topic before the scarcity."""


class Life:
    """A broker over a disk whose reads may fail, and all that it promised and delivered."""

    def __init__(self, nth: int, lasts: int, error_number: int) -> None:
        self.files = FaultyFileSystem(MemoryFileSystem())
        self.scarcity = Scarcity(self.files, nth, lasts, error_number)
        self.sent: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.received: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.broker = Broker(self.files, settings=SMALL)
        self.broker.store.topics.create("ranked", queue_count=1, options={"order": "priority"})
        self.puller = Puller(self.broker.store, PullSettings())
        self.pulled: list[str] = []
        self.pull_offset = QueueOffset(0)

    def prepare(self) -> None:
        for number in range(FIRST):
            for topic in TOPICS:
                self.send(topic, number)
        self.broker.schedule("timer", EpochMs(self.broker.now_ms + 1_000))
        self.broker.prepare("half")
        for offset in (1, OFFSET):
            place = ("billing", "orders", QueueId(0), QueueOffset(offset))
            self.broker.store.offsets.commit(*place, durable=True)  # the copy beside the file is older
        self.broker.store.flush_projections(index=True)

    def run(self) -> None:
        self.prepare()
        self.restart()  # so that files are closed, and checked as those of another process
        self.scarcity.begin()
        for turn in range(ROUNDS):
            self.work(turn)
        self.scarcity.release()
        self.check()

    def start_after_a_kill(self) -> None:
        """The scarcity begins with the start, which may fail; the next one finds everything."""
        self.prepare()
        assert isinstance(self.files.inner, MemoryFileSystem)
        self.files.inner = self.files.inner.after_process_kill()
        self.files.open_count = 0
        self.scarcity.begin()
        started = False
        try:
            started = self.start()
        finally:
            self.scarcity.release()
        assert started or self.files.open_count == 0, "a file stays open"
        assert started or self.start()
        self.check()

    def start(self) -> bool:
        now_ms = self.broker.now_ms
        opening = Broker.__new__(Broker)  # its store is closed if the start fails
        failure = refusal_of(lambda: opening.__init__(self.files, settings=SMALL, now_ms=now_ms))  # type: ignore[misc]
        if failure is not None:
            assert failure.spec in (errors.RESOURCES_SCARCE, errors.STORE_FAILED), failure
            assert self.scarcity.failed_count, failure
            store = getattr(opening, "store", None)
            if store is not None:
                store.mark_failed()
                store.close(0)
            return False
        self.broker = opening
        self.puller = Puller(opening.store, PullSettings())
        return True

    def work(self, turn: int) -> None:
        broker = self.broker
        for topic, group in TOPICS.items():
            self.attempt(lambda topic=topic: self.send(topic, FIRST + turn))  # type: ignore[misc]
            self.attempt(lambda topic=topic, group=group: self.receive(topic, group))  # type: ignore[misc]
        self.attempt(self.pull)
        for topic in TOPICS:
            self.attempt(lambda topic=topic: self.look_up(topic, turn))  # type: ignore[misc]
        self.attempt(lambda: self.search(turn))
        broker.now_ms = EpochMs(broker.now_ms + 500)
        self.attempt(broker.deliver_timers)
        self.attempt(lambda: broker.model.transactions.due_checks(broker.now_ms))
        self.attempt(lambda: broker.store.catch_up(1 << 20))
        self.attempt(broker.store.catch_up_trees)
        self.attempt(broker.store.flush_projections)
        self.attempt(lambda: broker.model.groups.persist(now_ms=broker.now_ms))

    def attempt(self, call: Callable[[], object]) -> None:
        """A call may fail only by the scarcity."""
        before = self.scarcity.failed_count
        if (failure := refusal_of(call)) is not None:
            assert failure.spec in (errors.RESOURCES_SCARCE, errors.CREATE_MAPPED_FILE_FAILED), failure
            assert self.scarcity.failed_count > before, failure
        assert not self.broker.store.failed, "the store continues"

    # --- the clients ----------------------------------------------------------------------------------
    def send(self, topic: str, number: int) -> None:
        body = f"{topic}-{number:02d}" + "." * 100
        before = self.broker.store.end_offset
        try:
            self.broker.send(body, topic, key=f"{number % 3}" if topic == "lines" else "")
        finally:
            if self.broker.store.end_offset > before:  # it was appended, and a later call has failed
                self.sent[topic].append(body)

    def receive(self, topic: str, group: SubscriptionGroup, count: int = 3) -> int:
        found = self.broker.model.delivery.receive(self._request(topic, group, count))
        assert all(one.attempt == 1 for one in found), "an attempt was used up"
        self.received[topic] += bodies(found)
        for one in found:
            acknowledge(self.broker.model.delivery, group.name, topic, one.receipt_handle, self.broker.now_ms)
        self.broker.model.events.flush(self.broker.now_ms)
        self.broker.sync()
        return len(found)

    def _request(self, topic: str, group: SubscriptionGroup, count: int) -> ReceiveRequest:
        return ReceiveRequest(
            group=group, topic=topic, count_max=count, invisible_ms=LEASE_MS, now_ms=self.broker.now_ms
        )

    def pull(self) -> None:
        result = self.puller.pull(PullRequest("orders", QueueId(0), self.pull_offset, 3))
        assert not result.damaged_offsets, "a message was skipped as damaged"
        for data in result.slices:
            self.pulled += [message.body.decode() for message in RecordBatch.split(bytes(data)).messages()]
        self.pull_offset = result.next_offset

    def look_up(self, topic: str, number: int) -> None:
        """By key and by unique key: exact, or an error."""
        body = next(body for body in self.sent[topic] if body.startswith(f"{topic}-{number:02d}"))
        for key, kind in ((f"k-{body}", KeyType.KEY), (f"id-{body}", KeyType.UNIQUE)):
            pages = list(query_pages(self.broker.store, KeyQuery(topic, key, kind)))
            found = [decode_message(record).body.decode() for page in pages for record in page.records]
            assert found == [body], (topic, number, kind)
            assert not [note for page in pages for note in page.notes if "damage" in note]

    def search(self, number: int) -> None:
        body = self.sent["orders"][number]
        query = SearchQuery("orders", Has(KEY, f"k-{body}".encode()))
        page = search_page(self.broker.store, query)
        assert len(page.records) == 1 if page.complete else page.cursor

    # --- the end --------------------------------------------------------------------------------------
    def restart(self) -> None:
        before = self.broker
        before.model.export_to_rocketmq(before.now_ms)
        before.store.close(before.now_ms)
        self.broker = Broker(self.files, settings=SMALL, now_ms=before.now_ms)
        self.puller = Puller(self.broker.store, PullSettings())

    def check(self) -> None:
        broker = self.broker
        assert broker.store.offsets.get("billing", "orders", QueueId(0)) == OFFSET, "an older copy counted"
        broker.sync()
        broker.model.read_unread()
        broker.now_ms = EpochMs(broker.now_ms + HOUR_MS)
        broker.deliver_timers()
        self.sent["orders"].append("timer")
        asked = broker.model.transactions.due_checks(broker.now_ms)
        assert len(asked) == 1, "the transaction is still open"
        for topic, group in TOPICS.items():
            while self.receive(topic, group):
                pass
            assert sorted(self.received[topic]) == sorted(self.sent[topic]), f"{topic}: passed, or twice"
        assert self.received["lines"] == self.sent["lines"], "the order changed"
        while self.pull_offset < broker.store.consume_queues.next_offset("orders", QueueId(0)):
            self.pull()
        assert sorted(self.pulled) == sorted(self.sent["orders"])
        model = broker.model
        assert model.delivery.context.damaged_count == 0
        assert model.timers.lost_count == 0
        assert not broker.store.damage.ranges, broker.store.damage.ranges
        self.check_look_ups(broker.store)
        self.restart()
        self.check_look_ups(self.broker.store)
        assert self.broker.store.recovery.clean
        assert self.broker.store.trees is not None
        assert not self.broker.store.trees.report.quarantined

    def check_look_ups(self, store: MessageStore) -> None:
        while store.catch_up(1 << 20):
            pass
        store.catch_up_trees()
        for topic in TOPICS:
            for number in range(FIRST):
                self.look_up(topic, number)
        for number in range(FIRST):
            self.search(number)


def refusal_of(call: Callable[[], object]) -> TroveError | None:
    """The error that the call raises, as a broker reports it."""
    try:
        with storage_errors("the call failed", errors.UNKNOWN_ERROR):
            call()
    except TroveError as error:
        return error
    return None


@cache
def read_count(run: Callable[[Life], None]) -> int:
    """How many reads are made in it."""
    life = Life(1 << 30, 1, errno.EMFILE)
    run(life)
    return life.scarcity.read_count


def each_read(trials: Trials, run: Callable[[Life], None], default: int) -> None:
    total, done = read_count(run) * len(LASTS), 0
    for number in trials.chosen(total, strata(total, default, run.__name__)):
        with trials.one(number):
            nth, which = divmod(number, len(LASTS))
            life = Life(1 + nth, LASTS[which], NUMBERS[number % len(NUMBERS)])
            run(life)
            assert life.scarcity.failed_count, "a read has failed"
        done += 1
    trials.count("R7", WHAT, done)


def test_reads_that_lacked_a_descriptor_counted_as_bad_sectors(trials: Trials) -> None:
    each_read(trials, Life.run, 24)


def test_a_start_that_lacked_descriptors_counted_them_as_bad_sectors(trials: Trials) -> None:
    each_read(trials, Life.start_after_a_kill, 12)
