"""Transactions against a plain history of each, with checks, kills, power cuts and restarts among the steps.

A half message is never seen in its topic, a committed one once, one that was rolled back or given up never.
After a power cut each transaction is somewhere between its synced and its last state.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.engine import NOW_MS, SMALL, flush, open_store, read_queue
from tests.support.trials import SOAK
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.records import GIVEN_UP_TOPIC
from trovemq_broker.transactions.transaction_log import TransactionsState
from trovemq_broker.transactions.transactions import Transactions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.memory import MemoryFileSystem

OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"
SETTINGS = ConsumerSettings(
    transaction_timeout_ms=6_000, transaction_check_interval_ms=30_000, transaction_check_max=2
)
QUEUES = 2


@dataclass
class Known:
    """The history of one transaction; `synced` of `history` is certainly on disk. `asked`: checks seen."""

    queue_id: QueueId
    history: list[str] = field(default_factory=lambda: [OPEN])
    synced: int = 0
    asked: int = 0
    checks_lost: bool = False

    @property
    def state(self) -> str:
        return self.history[-1]


class TransactionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.now = NOW_MS
        self.known: dict[str, Known] = {}
        self.saved: TransactionsState | None = None
        self.number = 0

    @initialize(mode=st.sampled_from(["sync", "async"]), index=st.booleans())
    def start(self, mode: str, index: bool) -> None:
        self.settings = replace(SMALL, flush_mode=mode, message_index_enable=index)  # type: ignore[arg-type]
        self.open()

    def open(self) -> None:
        self.store: MessageStore = open_store(self.files, self.settings)
        self.writer = RecordWriter(self.store, lambda: None)
        self.events = EventLog(self.store, self.writer)
        self.transactions = Transactions(self.store, self.writer, self.events, SETTINGS)
        self.transactions.restore(self.saved)
        for event in self.events.replay(QueueOffset(0)):
            self.transactions.apply(event)
        self.transactions.settle()
        self.see()

    def see(self) -> None:
        if self.settings.flush_mode == "async":
            self.store.dispatch()
        self.transactions.catch_up()

    def ids(self, state: str) -> list[str]:
        return [name for name, known in self.known.items() if known.state == state]

    # --- steps --------------------------------------------------------------------------------------
    @rule(queue_id=st.integers(0, QUEUES - 1))
    def prepare(self, queue_id: QueueId) -> None:
        self.number += 1
        name = f"T{self.number}"
        record = NewRecord("orders", queue_id, name.encode(), {"UNIQ_KEY": name})
        self.transactions.prepare(record, self.now)
        self.known[name] = Known(queue_id)
        self.see()

    @precondition(lambda self: self.ids(OPEN))
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        name = data.draw(st.sampled_from(self.ids(OPEN)))
        result = self.transactions.end(name, "orders", commit, self.now)
        assert (result is not None) == commit
        self.known[name].history.append(COMMITTED if commit else ROLLED_BACK)
        self.see()

    @precondition(lambda self: self.ids(OPEN))
    @rule(data=st.data())
    def commit_and_die_before_the_op_record(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.ids(OPEN)))
        self.transactions._write_ops = lambda *_: None  # type: ignore[method-assign]
        self.transactions.end(name, "orders", True, self.now)
        self.known[name].history.append(COMMITTED)
        self.kill()

    @precondition(lambda self: len(self.ids(OPEN)) < len(self.known))
    @rule(data=st.data(), commit=st.booleans())
    def end_again(self, data: st.DataObject, commit: bool) -> None:
        name = data.draw(st.sampled_from([name for name in self.known if self.known[name].state != OPEN]))
        with pytest.raises(TroveError) as caught:
            self.transactions.end(name, "orders", commit, self.now)
        assert caught.value.spec is errors.TRANSACTION_ILLEGAL

    @rule(wait_ms=st.sampled_from([1, 6_000, 30_000, 36_000]), save=st.booleans())
    def check(self, wait_ms: int, save: bool) -> None:
        self.now += wait_ms
        before = set(self.ids(OPEN))
        asked = self.transactions.due_checks(self.now)
        if save:
            self.events.flush(self.now)
        for one in asked:
            assert one.transaction_id in before
            assert one.message.body == one.transaction_id.encode()
            self.known[one.transaction_id].asked += 1
        self.see()
        for name in before:
            if not self.is_open(name):
                known = self.known[name]
                assert known.asked >= SETTINGS.transaction_check_max
                assert known.checks_lost or known.asked == SETTINGS.transaction_check_max
                known.history.append(GIVEN_UP)

    @rule()
    def sync(self) -> None:
        flush(self.store)
        for known in self.known.values():
            known.synced = len(known.history)

    @rule()
    def save_offsets(self) -> None:
        self.transactions.save_positions()
        self.store.offsets.persist()

    @rule()
    def save_snapshot(self) -> None:
        """The snapshot is used only once the log is synced up to where it was made."""
        self.events.flush(self.now)
        content = self.transactions.snapshot()
        copied = TransactionsState(content.half_next, content.op_next, [], content.unnamed)
        copied.open = [
            type(half)(*[getattr(half, name) for name in half.__struct_fields__]) for half in content.open
        ]
        self.sync()
        self.saved = copied

    @rule(data=st.data())
    def carry(self, data: st.DataObject) -> None:
        self.transactions.reappend_live_records_before(
            PhysicalOffset(data.draw(st.integers(0, self.store.end_offset))), self.now
        )
        self.see()

    @rule()
    def restart(self) -> None:
        self.transactions.export_to_rocketmq(self.now)
        self.events.flush(self.now)
        self.store.close(self.now)
        for known in self.known.values():
            known.synced = len(known.history)
        self.open()

    @rule()
    def kill(self) -> None:
        for known in self.known.values():
            known.checks_lost |= self.events.pending_count > 0
        self.files = self.files.after_process_kill()
        self.open()

    @rule(seed=st.none() | st.integers(0, 2**16))
    def power_cut(self, seed: int | None) -> None:
        chance = random.Random(seed)
        keep = None if seed is None else lambda: chance.random() < 0.5
        self.files = self.files.after_power_cut(keep)
        self.open()
        flush(self.store)
        seen = self.seen()
        for name, known in list(self.known.items()):
            known.checks_lost = True
            state = OPEN if self.is_open(name) else COMMITTED if seen[name] else None
            if state is None and known.state in (ROLLED_BACK, GIVEN_UP):
                state = known.state
            if state is None:
                assert known.synced == 0, "a synced transaction is not lost"
                del self.known[name]
                continue
            assert state in known.history[max(known.synced - 1, 0) :]
            del known.history[known.history.index(state) + 1 :]
            known.synced = len(known.history)

    # --- invariants ---------------------------------------------------------------------------------
    def is_open(self, name: str) -> bool:
        return self.transactions._open.of("orders", name) is not None

    def seen(self, topic: str = "orders") -> Counter[str]:
        queues = range(QUEUES)
        return Counter(
            m.body.decode() for queue in queues for m in read_queue(self.store, topic, QueueId(queue))
        )

    @invariant()
    def open_ones_are_open(self) -> None:
        assert self.transactions.open_count == len(self.ids(OPEN))
        assert all(self.is_open(name) for name in self.ids(OPEN))
        assert (self.transactions.next_check_ms() is None) == (not self.ids(OPEN))
        assert (self.transactions.lowest_live_record() is None) == (not self.ids(OPEN))

    @invariant()
    def only_committed_ones_are_seen_and_once(self) -> None:
        whole = self.store.visible_offset == self.store.end_offset
        seen, given_up = self.seen(), self.seen(GIVEN_UP_TOPIC)
        for name, known in self.known.items():
            most = int(known.state == COMMITTED)
            assert most * whole <= seen[name] <= most
            assert given_up[name] <= int(known.state == GIVEN_UP) or known.checks_lost

    def teardown(self) -> None:
        flush(self.store)
        self.only_committed_ones_are_seen_and_once()


TestTransactions = pytest.mark.slow(TransactionsMachine.TestCase)
TestTransactions.settings = settings(
    max_examples=60 if SOAK else 30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
