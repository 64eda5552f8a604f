"""An id whose message will never be delivered (rolled back, given up, recalled) may be sent again; any other
one that waited stays known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.deduplicated import TOPIC, opened, send, step
from tests.support.engine import NOW_MS, flush, read_queue
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem

ID = "order-42"
DUE_MS = EpochMs(NOW_MS + 60_000)
LATER = pytest.mark.parametrize("later", ["at once", "in the tree", "killed", "power cut", "trees lost"])


class Bench:
    """A store with a deduplicated topic, and the parts that hold messages back in it."""

    def __init__(self) -> None:
        self.files = MemoryFileSystem()
        self.open()

    def open(self) -> None:
        self.store, self.deduplication = opened(self.files, "1h")
        settings = ConsumerSettings(transaction_check_max=1)
        self.model = ConsumerState.open(self.store, self.files, settings, NOW_MS)

    def once(self, write: Callable[[], AppendResult]) -> AppendResult:
        result = self.deduplication.append_if_absent(TOPIC, ID.encode(), NOW_MS, write)
        self.settle()
        return result

    def half(self) -> AppendResult:
        return self.once(lambda: self.model.transactions.prepare(self.record(), NOW_MS))

    def delayed(self, due_ms: int = DUE_MS) -> AppendResult:
        return self.once(lambda: self.model.timers.schedule(self.record(), EpochMs(due_ms), NOW_MS))

    @staticmethod
    def record() -> NewRecord:
        return NewRecord(TOPIC, QueueId(0), b"body", {"UNIQ_KEY": ID}, born_timestamp=NOW_MS)

    def give_up(self) -> None:
        for turn in range(1, 5):
            self.model.transactions.due_checks(NOW_MS + turn * 600_000)
        assert self.model.transactions.given_up_count == 1

    def settle(self) -> None:
        """The appended messages are synced, and known to all but the trees."""
        flush(self.store)
        self.model.transactions.catch_up()
        self.model.timers.catch_up()

    def go_on(self, later: str) -> None:
        if later == "at once":
            return
        self.settle()
        if later == "in the tree":
            while step(self.store):
                pass
            return
        cut = self.files.after_process_kill if later == "killed" else self.files.after_power_cut
        self.files = cut()
        if later == "trees lost":
            self.files.remove("trovemq/trees/data.mdb")
        self.open()

    def check_free(self) -> None:
        """It is stored, once."""
        first = send(self.deduplication, self.store, [ID])
        assert not first.duplicates
        again = send(self.deduplication, self.store, [ID])
        assert again.duplicates[0].physical_offset == first.physical_offset
        self.go_on("in the tree")
        again = send(self.deduplication, self.store, [ID])
        assert again.duplicates[0].physical_offset == first.physical_offset

    def check_known(self, first: AppendResult) -> None:
        result = send(self.deduplication, self.store, [ID])
        assert result.duplicates[0].physical_offset == first.physical_offset


@LATER
def test_a_message_under_a_rolled_back_id_was_lost_as_a_duplicate(later: str) -> None:
    bench = Bench()
    bench.half()
    bench.model.transactions.end(ID, TOPIC, False, NOW_MS)
    bench.go_on(later)
    bench.check_free()


@LATER
def test_a_half_may_follow_one_that_was_rolled_back(later: str) -> None:
    bench = Bench()
    bench.half()
    bench.model.transactions.end(ID, TOPIC, False, NOW_MS)
    bench.go_on(later)
    second = bench.half()
    assert not second.duplicates
    bench.model.transactions.end(ID, TOPIC, True, NOW_MS)
    bench.go_on(later)
    bench.check_known(second)
    bench.settle()
    assert [message.body for message in read_queue(bench.store, TOPIC, QueueId(0))] == [b"body"]


@LATER
def test_a_half_that_was_given_up_leaves_its_id_free(later: str) -> None:
    bench = Bench()
    bench.half()
    bench.give_up()
    bench.go_on(later)
    bench.check_free()


@LATER
def test_a_half_that_was_moved_and_rolled_back_leaves_its_id_free(later: str) -> None:
    bench = Bench()
    bench.half()
    bench.model.transactions.reappend_live_records_before(bench.store.end_offset, NOW_MS)
    bench.settle()
    bench.model.transactions.end(ID, TOPIC, False, NOW_MS)
    bench.go_on(later)
    bench.check_free()


@LATER
def test_a_delayed_message_that_was_recalled_leaves_its_id_free(later: str) -> None:
    bench = Bench()
    bench.delayed()
    assert bench.model.timers.recall(TOPIC, DUE_MS, ID, NOW_MS) is not None
    bench.go_on(later)
    bench.check_free()


@LATER
@pytest.mark.parametrize("kind", ["open", "committed", "waits", "delivered"])
def test_what_waits_or_has_arrived_stays_known(kind: str, later: str) -> None:
    bench = Bench()
    first = bench.half() if kind in ("open", "committed") else bench.delayed()
    if kind == "committed":
        bench.model.transactions.end(ID, TOPIC, True, NOW_MS)
    if kind == "delivered":
        assert bench.model.timers.deliver_due(DUE_MS + 1_000) == 1
    bench.go_on(later)
    bench.check_known(first)


@LATER
def test_an_end_a_full_disk_delayed_frees_the_id_once_it_is_written(later: str) -> None:
    """The op record of a roll-back comes with the next one; each has one."""
    bench = Bench()
    bench.half()
    writer = bench.model.transactions._writer
    append = writer.append

    def refuse(*_args: object, **_options: object) -> list[AppendResult]:
        raise TroveError(errors.DISK_FULL, "full")

    writer.append = refuse  # type: ignore[method-assign]
    bench.model.transactions.end(ID, TOPIC, False, NOW_MS)
    writer.append = append  # type: ignore[method-assign]
    bench.model.transactions.export_to_rocketmq(NOW_MS)
    bench.go_on(later)
    bench.check_free()


def test_a_message_resent_in_the_second_of_its_recall_was_never_delivered() -> None:
    """The delete marker ends every message of its id and second, with `deduplicate` and without."""
    bench = Bench()
    bench.delayed()
    bench.model.timers.recall(TOPIC, DUE_MS, ID, NOW_MS)
    bench.settle()
    with pytest.raises(TroveError, match="another second") as caught:
        bench.delayed()
    assert caught.value.spec is errors.DELIVERY_TIME_ILLEGAL
    assert not bench.delayed(DUE_MS + 1_000).duplicates
    assert bench.model.timers.deliver_due(DUE_MS + 5_000) == 1
    bench.settle()
    assert [message.body for message in read_queue(bench.store, TOPIC, QueueId(0))] == [b"body"]
