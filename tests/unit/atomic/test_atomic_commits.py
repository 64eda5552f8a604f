"""Committing atomic transactions: all of one in one run, nothing of one that is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.atomic import GROUP, SEGMENT, AtomicStore, batch_of, body_of
from tests.support.engine import flush, read_queue, send, sent_record, validated
from tests.support.settling import acknowledge
from trovemq_broker.atomic.ends import ENDS_TOPIC, TransactionEnds
from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.atomic.open_transactions import OpenTransactions
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, QueueId
from trovemq_proto.records import pack_host
from trovemq_proto.records.layout import BORN_HOST_AT
from trovemq_store.engine.transaction_run import MESSAGES_MAX, TransactionRun
from trovemq_store.events.codec import EVENTS_TOPIC
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.memory import MemoryFileSystem

MESSAGES = [("orders", 0, b"a"), ("bills", 1, b"b"), ("orders", 0, b"c"), ("orders", 1, b"d")]


@pytest.fixture
def atomic() -> AtomicStore:
    return AtomicStore(MemoryFileSystem())


def refusal(atomic: AtomicStore, *args: object, **more: object) -> ErrorSpec:
    end = atomic.store.end_offset
    with pytest.raises(TroveError) as caught:
        atomic.commit(*args, **more)  # type: ignore[arg-type]
    assert atomic.store.end_offset == end, "nothing was written"
    return caught.value.spec


def test_a_transaction_is_one_run_in_the_order_of_sending(atomic: AtomicStore) -> None:
    committed = atomic.commit("t", MESSAGES)
    places = [(m.topic, m.queue_id, m.queue_offset) for m in committed.messages]
    assert places == [("orders", 0, 0), ("bills", 1, 0), ("orders", 0, 1), ("orders", 1, 0)]
    atomic.flush()
    run = [
        message
        for _, records, _ in atomic.store.scan(committed.messages[0].physical_offset, committed.end)
        for message in records.messages()
    ]
    assert [message.body for message in run[:-1]] == [b"a", b"b", b"c", b"d"]
    assert run[-1].topic == ENDS_TOPIC
    for number, message in enumerate(run):
        assert message.properties["TROVEMQ_TX_ID"] == "t"
        assert int(message.properties["TROVEMQ_TX_NUMBER"]) == number
        assert int(message.properties["TROVEMQ_TX_COUNT"]) == len(run)
        assert int(message.properties["TROVEMQ_TX_BEGIN"]) == run[0].physical_offset
    assert [m.physical_offset for m in run[:-1]] == [m.physical_offset for m in committed.messages]


def test_nothing_of_it_is_seen_before_its_sync_and_all_of_it_after(atomic: AtomicStore) -> None:
    atomic.commit("t", MESSAGES)
    atomic.store.dispatch()
    assert atomic.messages("t") == []
    atomic.flush()
    assert len(atomic.messages("t")) == len(MESSAGES)


def test_with_async_flush_it_is_seen_at_once_and_whole() -> None:
    atomic = AtomicStore(MemoryFileSystem(), replace(SEGMENT, flush_mode="async"))
    atomic.commit("t", MESSAGES)
    assert atomic.messages("t") == []
    atomic.store.dispatch()
    assert len(atomic.messages("t")) == len(MESSAGES)


def test_acknowledgements_count_once_and_for_good(atomic: AtomicStore) -> None:
    atomic.feed(b"1", b"2", b"3")
    first, second, _ = atomic.receive()
    committed = atomic.commit("t", [("orders", 0, b"x")], [first, second, first])
    assert committed.acknowledged_count == 3  # as it was asked; the handle that came twice counts as done
    atomic.flush()
    atomic.commit("u", [], [second])  # once more, while the handle would last
    assert atomic.check_all_or_none() >= {"t"}
    acknowledge(atomic.model.delivery, GROUP, "feed", first.receipt_handle, EpochMs(atomic.now_ms - 10**6))
    assert atomic.store.offsets.get(GROUP, "feed", QueueId(0)) == 2


def test_after_an_atomic_acknowledgement_returned_messages_waited_a_minute(atomic: AtomicStore) -> None:
    """The time of leases stood still, as after a pause of 56 years."""
    atomic.feed(b"1")
    lease_time = atomic.model.delivery.lease_time
    lease_time.tick(atomic.now_ms, 0)
    atomic.commit("t", [], atomic.receive())
    assert lease_time.at(atomic.now_ms) == atomic.now_ms


def test_an_acknowledgement_waits_for_its_transaction_to_be_on_disk(atomic: AtomicStore) -> None:
    atomic.feed(b"1")
    delivered = atomic.receive()
    committed = atomic.commit("t", [("orders", 0, b"x")], delivered)
    assert atomic.store.offsets.get(GROUP, "feed", QueueId(0)) == 1
    assert atomic.store.offsets.log_needed >= committed.end > atomic.store.flushed_offset


def test_after_a_restart_acknowledgements_and_answers_are_the_same(atomic: AtomicStore) -> None:
    atomic.feed(b"1", b"2")
    delivered = atomic.receive(1)
    before = atomic.commit("t", MESSAGES, delivered)
    atomic.flush()
    assert isinstance(atomic.files, MemoryFileSystem)
    again = AtomicStore(atomic.files.after_process_kill(), now_ms=atomic.now_ms, sent=atomic.sent)
    assert again.check_all_or_none() == {"t"}
    answer = again.commits.commit(again.commits.new_run("t"), [], again.now_ms)
    assert replace(answer, repeated=False) == before
    assert again.store.end_offset == atomic.store.end_offset or again.commits.ends.committed("t") == answer
    again.model.export_to_rocketmq(again.now_ms)
    again.store.close(again.now_ms)
    third = AtomicStore(again.files, now_ms=again.now_ms, sent=again.sent)
    assert third.check_all_or_none() == {"t"}
    assert replace(third.commits.ends.committed("t"), repeated=False) == before


@pytest.mark.parametrize(
    "other", [[("bills", 1, b"else")], [*MESSAGES, ("orders", 0, b"more")], MESSAGES[:-1], MESSAGES[::-1]]
)
def test_another_transaction_of_a_committed_id_was_answered_as_stored(
    atomic: AtomicStore, other: list[tuple[str, int, bytes]]
) -> None:
    before = atomic.commit("t", MESSAGES)
    assert refusal(atomic, "t", other) is errors.TRANSACTION_ILLEGAL
    atomic.feed(b"1")
    assert refusal(atomic, "t", MESSAGES, atomic.receive()) is errors.TRANSACTION_ILLEGAL
    assert replace(atomic.commit("t", MESSAGES), repeated=False) == before


def test_what_is_refused_has_written_nothing(atomic: AtomicStore) -> None:
    atomic.feed(b"1", b"2")
    one, two = atomic.receive(2)
    foreign = atomic.receive(1, group="others")
    assert refusal(atomic, "a", []) is errors.REQUEST_ILLEGAL
    assert refusal(atomic, "not an id", MESSAGES) is errors.TRANSACTION_ILLEGAL
    assert refusal(atomic, "b", MESSAGES, foreign) is errors.RECEIPT_HANDLE_ILLEGAL
    atomic.now_ms += 20_000
    assert refusal(atomic, "c", MESSAGES, [one]) is errors.RECEIPT_HANDLE_ILLEGAL
    big = [("orders", 0, bytes([n]) * 1_500) for n in range(6)]
    assert refusal(atomic, "d", big) is errors.TRANSACTION_SIZE_EXCEEDED
    assert body_of(two) == b"2"
    assert atomic.check_all_or_none() == set()
    with pytest.raises(TroveError) as unknown:
        atomic.commits.ends.committed("a")
    assert unknown.value.spec is errors.TRANSACTION_NOT_FOUND


def test_it_has_at_most_4096_messages_and_as_many_acknowledgements(atomic: AtomicStore) -> None:
    run = TransactionRun("t", 1 << 30)
    full = batch_of("orders", QueueId(0), [b"x"] * MESSAGES_MAX, SEGMENT)
    run.add(full, "orders", QueueId(0))
    with pytest.raises(TroveError) as many:
        run.add(batch_of("orders", QueueId(0), [b"x"], SEGMENT), "orders", QueueId(0))
    assert many.value.spec is errors.TRANSACTION_SIZE_EXCEEDED
    assert (len(run), run.message_count) == (MESSAGES_MAX, MESSAGES_MAX)
    with pytest.raises(TroveError) as acknowledged:
        atomic.commits.commit(
            atomic.commits.new_run("t"), [Acknowledgement("g", "feed", "h")] * 4_097, EpochMs(1)
        )
    assert acknowledged.value.spec is errors.TRANSACTION_SIZE_EXCEEDED


def test_records_of_a_queue_have_the_born_host_of_its_first_message() -> None:
    """A producer that reconnects within a transaction has another port."""
    run = TransactionRun("t", 1 << 20)
    first, later = pack_host("10.0.0.2:1"), pack_host("10.0.0.2:2")
    for queue_id, born_host in ((0, first), (1, later), (0, later)):
        batch = batch_of("orders", QueueId(queue_id), [b"x"], SEGMENT)
        run.add(batch, "orders", QueueId(queue_id), born_host)
    found = {
        queue: [bytes(run.part(queue).record(index)[BORN_HOST_AT:][:8]) for index in range(len(indexes))]
        for queue, indexes in run._indexes.items()
    }
    assert found == {("orders", 0): [first, first], ("orders", 1): [later]}


def test_an_id_that_its_topic_has_already_refuses_the_whole_transaction() -> None:
    atomic = AtomicStore(MemoryFileSystem(), replace(SEGMENT, tree_index_enable=True))
    atomic.store.topics.create("once", queue_count=2, options={"deduplicate": "1h"})
    atomic.store.catch_up_trees()
    atomic.commit("t", [("once", 0, b"a"), ("once", 1, b"b"), ("orders", 0, b"a")])
    assert refusal(atomic, "u", [("orders", 0, b"x"), ("once", 1, b"a")]) is errors.TRANSACTION_DUPLICATE
    assert refusal(atomic, "v", [("once", 0, b"c"), ("once", 1, b"c")]) is errors.TRANSACTION_DUPLICATE
    atomic.commit("w", [("once", 0, b"c"), ("orders", 0, b"a")])
    atomic.flush()
    assert [m.body for m in read_queue(atomic.store, "once", QueueId(0))] == [b"a", b"c"]


def test_a_numbered_message_for_a_deduplicated_topic_fails_its_transaction() -> None:
    atomic = AtomicStore(MemoryFileSystem(), replace(SEGMENT, tree_index_enable=True))
    atomic.store.topics.create("once", queue_count=2, options={"deduplicate": "1h"})
    atomic.store.catch_up_trees()
    before = atomic.store.end_offset
    number = {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "0"}
    run = atomic.commits.new_run("t")
    numbered = sent_record(b"x", topic="once", properties=number)
    run.add(validated(atomic.store, [numbered], "once", QueueId(0)), "once", QueueId(0))
    with pytest.raises(TroveError) as caught:
        atomic.commits.commit(run, [], EpochMs(1))
    assert caught.value.spec is errors.PRODUCER_SEQUENCE_ILLEGAL
    assert atomic.store.end_offset == before


def test_a_run_that_does_not_fit_goes_to_the_next_segment(atomic: AtomicStore) -> None:
    size = atomic.settings.commit_log_file_size
    while atomic.store.end_offset % size < size - 1_500:
        send(atomic.store, b"filler" * 30)
    committed = atomic.commit("t", [("orders", n % 2, b"x" * 200) for n in range(8)])
    assert committed.messages[0].physical_offset == size
    atomic.flush()
    assert atomic.check_all_or_none() == {"t"}


@pytest.mark.parametrize("error_number", [28, 5])
def test_a_disk_that_refuses_the_write_refuses_all_of_it(error_number: int) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    atomic = AtomicStore(files)
    atomic.feed(b"1")
    delivered = atomic.receive()
    atomic.model.events.flush(atomic.now_ms)
    atomic.flush()
    files.decide, files.tear = fail_at("write", 1, error_number, "commitlog"), True
    wanted = errors.DISK_FULL if error_number == 28 else errors.UNKNOWN_ERROR
    assert refusal(atomic, "t", MESSAGES, delivered) is wanted
    files.decide = lambda operation, path: None
    atomic.commit("u", MESSAGES, delivered)
    atomic.flush()
    assert atomic.check_all_or_none() == {"u"}


def test_a_consume_queue_without_space_shows_no_half_of_it() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    atomic = AtomicStore(files)
    atomic.feed(b"1")
    files.decide = fail_always("create", 28, "consumequeue/bills")
    atomic.commit("t", MESSAGES)
    atomic.flush()
    assert atomic.messages("t") == []
    files.decide = lambda operation, path: None
    atomic.store.dispatch()
    assert len(atomic.messages("t")) == len(MESSAGES)


def test_only_the_latest_transactions_are_remembered(atomic: AtomicStore) -> None:
    for number in range(6):
        atomic.commit(f"t{number}", [("orders", 0, b"%d" % number)])
    atomic.flush()
    ends = TransactionEnds(atomic.store, remembered_max=4)
    assert len(ends) == 4
    assert "t1" not in ends
    assert "t2" in ends
    ends.add(ends.committed("t5"), LOG_ORIGIN)
    assert len(ends) == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_a_commit_with_a_lost_answer_was_made_twice_by_a_forgetful_broker(
    atomic: AtomicStore, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """A client gets the time from which the broker remembers: before that it cannot know."""
    monkeypatch.setattr(TransactionEnds.__init__, "__defaults__", (4,))
    atomic.commits.ends = TransactionEnds(atomic.store)  # type: ignore[misc]
    for number in range(6):
        atomic.now_ms += 100
        atomic.commit(f"t{number}", [("orders", 0, b"%d" % number)])
    atomic.flush()
    if restarted:
        assert isinstance(atomic.files, MemoryFileSystem)
        atomic = AtomicStore(atomic.files.after_process_kill(), now_ms=atomic.now_ms)
    opened = OpenTransactions(atomic.commits, AtomicLimits(), lambda _topic, _queue_id: None)
    assert opened.committed("t5", atomic.now_ms).repeated
    for unknown in ("t1", "none"):
        with pytest.raises(TroveError) as caught:
            opened.committed(unknown, atomic.now_ms + 50)
        assert caught.value.spec is errors.TRANSACTION_NOT_FOUND
        assert caught.value.fields["remembered_ms"] == ("350" if restarted else "450")  # t2, t1
    with pytest.raises(TroveError) as illegal:
        opened.committed("not an id", atomic.now_ms)
    assert "remembered_ms" not in illegal.value.fields


def test_a_broker_that_has_forgotten_nothing_knows_of_every_transaction(atomic: AtomicStore) -> None:
    atomic.commit("t", MESSAGES)
    opened = OpenTransactions(atomic.commits, AtomicLimits(), lambda _topic, _queue_id: None)
    with pytest.raises(TroveError) as caught:
        opened.committed("none", atomic.now_ms)
    assert "remembered_ms" not in caught.value.fields


def test_events_and_ends_lie_in_topics_of_their_own(atomic: AtomicStore) -> None:
    atomic.feed(b"1")
    atomic.commit("t", [("orders", 0, b"x")], atomic.receive())
    atomic.flush()
    assert len(read_queue(atomic.store, ENDS_TOPIC)) == 1
    assert read_queue(atomic.store, EVENTS_TOPIC)[-1].properties["TROVEMQ_TX_NUMBER"] == "0001"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(["orders", "bills"]), st.integers(0, 1)), max_size=9),
            st.integers(0, 3),
            st.sampled_from(["nothing", "flush", "kill", "flush and kill", "clean stop"]),
        ),
        max_size=6,
    )
)
def test_any_transactions_and_restarts_leave_what_a_model_says(
    steps: list[tuple[list[tuple[str, int]], int, str]],
) -> None:
    """A killed process leaves the page cache, so all that was appended is there, whole."""
    files = MemoryFileSystem()
    atomic, expected, fed = AtomicStore(files), set[str](), 0
    queues: dict[tuple[str, int], list[bytes]] = {}
    for number, (places, take, after) in enumerate(steps):
        atomic.feed(*(b"f%d" % n for n in range(fed, fed + take)))
        fed += take
        atomic.now_ms += 10**6
        delivered = atomic.receive(take) if take else []
        sent = [(*place, b"%d-%d" % (number, index)) for index, place in enumerate(places)]
        if sent or delivered:
            atomic.commit(f"t{number}", sent, delivered)
            expected.add(f"t{number}")
            for topic, queue_id, body in sent:
                queues.setdefault((topic, queue_id), []).append(body)
        if "flush" in after:
            atomic.flush()
        if "kill" in after:
            files = files.after_process_kill()
            atomic = AtomicStore(files, now_ms=atomic.now_ms, sent=atomic.sent)
        if after == "clean stop":
            atomic.model.export_to_rocketmq(atomic.now_ms)
            atomic.store.close(atomic.now_ms)
            atomic = AtomicStore(files, now_ms=atomic.now_ms, sent=atomic.sent)
    flush(atomic.store)
    assert atomic.check_all_or_none() == expected
    for (topic, queue_id), bodies in queues.items():
        assert [message.body for message in read_queue(atomic.store, topic, QueueId(queue_id))] == bodies
