"""A clean stop exports the store to Apache RocketMQ 5.4.0: it starts on it, reads every message as we do, and
delivers the pending ones once (delayed messages, messages in flight, open transactions), and nothing else.

The test looks at one store with all of it, and one run of RocketMQ with its own consumers and producers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.ours import (
    BROKER_CONFIG,
    CONSUMERS,
    all_messages,
    assert_same_messages,
    bodies,
    encoded,
    now_ms,
    open_ours,
    sync,
)
from tests.interop.probe import Seen, run_probe
from tests.support.engine import append, record
from tests.support.golden import load_manifest, settings_of, unpack
from tests.support.settling import acknowledge
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.timers.timers import WHEEL_TOPIC
from trovemq_broker.transactions.records import HALF_TOPIC, OP_TOPIC
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.table_records import META_TOPIC

pytestmark = pytest.mark.slow

TOPICS: Final = ("bills", "deals", "entries", "orders", "sizes")
CONFIG: Final = {
    **BROKER_CONFIG,
    "defaultMessageRequestMode": "POP",
    "transactionCheckInterval": "4000",
    "transactionOpBatchInterval": "200",  # else it asks, and commits, once more before its op record is there
    "transactionTimeOut": "1000",
    "transactionCheckMax": "1000",
}
ANSWER: Final = "answer:deals:deals:commit"
AUDIT: Final = "consume:audit:sizes"
BILLING: Final = "pop:billing:orders"
LEDGER: Final = "pop_in_order:ledger:entries"
STEPS: Final = ("query:sizes:k77", "view:sizes:U00078", ANSWER, AUDIT, BILLING, LEDGER, "sleep:16000")
DAY_MS: Final = 86_400_000
INVISIBLE_MS: Final = 12_000
BODIES: Final = (b"x", b"hello", "größer 大きい".encode(), bytes(range(256)) * 40, b"z" * 150_000)


@dataclass
class Exported:
    """The store's messages at the stop, and RocketMQ's deliveries."""

    root: Path
    due: dict[str, int] = field(default_factory=dict)  # delayed messages: deliver times
    texts: list[str] = field(default_factory=list)  # of orders
    in_flight: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    audit_places: list[tuple[int, int]] = field(default_factory=list)  # (queue, offset) that audit lacks
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    seen: Seen = field(default_factory=lambda: Seen([], ""))

    def found(self, topic: str) -> list[dict[str, Any]]:
        return [one for one in self.seen.messages("dump:after") if one["topic"] == topic]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    directory = tmp_path_factory.mktemp("exported")
    state = Exported(directory / "store")
    store, model = open_model(state.root)
    _messages_of_many_sizes(state, store)
    _messages_in_flight(state, store, model)
    _ordered_messages(store, model)
    _transactions(store, model)
    _delayed_messages(state, store, model)
    model.export_to_rocketmq(now_ms())
    state.messages = all_messages(store)
    assert store.segment_count > 1, "the tests are about several segments"
    store.close(now_ms())
    last = max(state.due.values())
    state.seen = run_probe(state.root, CONFIG, [*STEPS, f"until:{last + 3_000}", "dump:after"], directory)
    return state


def open_model(root: Path) -> tuple[MessageStore, ConsumerState]:
    store = open_ours(root, TOPICS)
    return store, ConsumerState.open(store, RealFileSystem(root), CONSUMERS, now_ms())


def message(text: str, topic: str, queue_id: QueueId = QueueId(0), **properties: str) -> NewRecord:
    named = {"UNIQ_KEY": f"U-{text}", "WAIT": "true", **properties}
    return NewRecord(topic, queue_id, text.encode(), named, born_timestamp=now_ms())


def text_of(message: dict[str, Any]) -> str:
    return str(message["properties"]["UNIQ_KEY"])[2:]


def texts_of(messages: list[dict[str, Any]]) -> list[str]:
    return [text_of(one) for one in messages]


def receive(model: ConsumerState, group: SubscriptionGroup, topic: str, count: int) -> dict[str, Delivered]:
    """The group's messages, by body."""
    request = ReceiveRequest(
        group=group, topic=topic, count_max=count, invisible_ms=INVISIBLE_MS, now_ms=now_ms(), client_id="c"
    )
    found: dict[str, Delivered] = {}
    while len(found) < count and (some := model.delivery.receive(request)):
        found |= {decode_message(one.record).body.decode(): one for one in some}
    return found


def _messages_of_many_sizes(state: Exported, store: MessageStore) -> None:
    """Single and batched ones; the group audit has consumed all but the last few of each queue."""
    number = 0
    for turn in range(12):
        for queue_id in range(4):
            records = []
            for body in BODIES[: 1 + turn % 5]:
                number += 1
                properties = {"KEYS": f"k{number} all", "TAGS": f"t{turn % 3}", "ö": "ü", "WAIT": "true"}
                properties["UNIQ_KEY"] = f"U{number:05d}"
                records.append(
                    record(
                        body, topic="sizes", queue_id=QueueId(queue_id), properties=properties, flag=number
                    )
                )
            append(store, *records, topic="sizes", queue_id=QueueId(queue_id), now_ms=now_ms())
    sync(store)
    for queue in store.consume_queues.queues("sizes"):
        position = queue.max_offset - queue.queue_id - 1
        store.offsets.commit("audit", "sizes", queue.queue_id, QueueOffset(position))
        state.audit_places += [(queue.queue_id, offset) for offset in range(position, queue.max_offset)]


def _messages_in_flight(state: Exported, store: MessageStore, model: ConsumerState) -> None:
    group = model.groups.create(SubscriptionGroup("billing"), now_ms=now_ms())
    state.texts = [f"order {number}" for number in range(12)]
    for number, text in enumerate(state.texts):
        model.writer.append([message(text, "orders", QueueId(number % 4))], now_ms())
    sync(store)
    given = receive(model, group, "orders", 6)
    assert len(given) == 6
    state.acknowledged = set(sorted(given)[:2])
    state.in_flight = given.keys() - state.acknowledged
    for text in state.acknowledged:
        acknowledge(model.delivery, "billing", "orders", given[text].receipt_handle, now_ms())


def _ordered_messages(store: MessageStore, model: ConsumerState) -> None:
    group = model.groups.create(SubscriptionGroup("ledger", orderly=True), now_ms=now_ms())
    texts = [f"entry {number}" for number in range(6)]
    model.writer.append(
        [message(text, "entries", QueueId(0), __SHARDINGKEY="account") for text in texts], now_ms()
    )
    sync(store)
    given = receive(model, group, "entries", 3)
    assert sorted(given) == texts[:3]
    acknowledge(model.delivery, "ledger", "entries", given["entry 0"].receipt_handle, now_ms())


def _transactions(store: MessageStore, model: ConsumerState) -> None:
    """0 and 4 are committed, 2 is rolled back, 1 was moved to the end of its topic, as retention does."""
    transactions = model.transactions
    for number in range(6):
        results = transactions.prepare(
            message(f"deal {number}", "deals", QueueId(number % 4)), now_ms(), immunity_ms=1_000
        )
        if number == 1:
            behind_first = results.end
    sync(store)
    for number, commit in ((0, True), (2, False), (4, True)):
        transactions.end(f"U-deal {number}", "deals", commit, now_ms())
    sync(store)
    assert transactions.reappend_live_records_before(behind_first, now_ms()) == 1
    sync(store)


def _delayed_messages(state: Exported, store: MessageStore, model: ConsumerState) -> None:
    timers, start = model.timers, now_ms()
    due = start + 24_000
    state.due = {f"waits {number}": due + number * 400 for number in range(8)}
    timers.schedule(message("delivered", "bills"), start + 200, start)
    for text, deliver_ms in state.due.items():
        timers.schedule(message(text, "bills", QueueId(1)), EpochMs(deliver_ms), start)
    timers.schedule(message("recalled", "bills"), due, start)
    timers.schedule(message("in a month", "bills", QueueId(2)), start + 30 * DAY_MS, start)
    timers.schedule(message("delivered too", "bills"), start + 300, start)
    sync(store)
    timers.catch_up()
    timers.recall("bills", due, "U-recalled", start)
    sync(store)
    timers.catch_up()
    assert timers.deliver_due(start + 1_000) == 2
    sync(store)


# --- RocketMQ's results -----------------------------------------------------------------------------
def test_every_message_is_read_back_as_we_wrote_it(exported: Exported) -> None:
    listed = {*TOPICS, WHEEL_TOPIC, HALF_TOPIC, OP_TOPIC, "%RETRY%billing_orders"}
    ours = {at: one for at, one in exported.messages.items() if one["topic"] in listed}
    assert META_TOPIC in {one["topic"] for one in exported.messages.values()}, "records of tables lie between"
    seen = [one for one in exported.seen.messages("dump:after") if one["commitLogOffset"] in ours]
    assert_same_messages(seen, ours)
    assert exported.seen.troubles("dump:after") == []


def test_our_key_index_is_used(exported: Exported) -> None:
    assert [one["flag"] for one in exported.seen.messages("query:sizes:k77")] == [77]
    assert [one["flag"] for one in exported.seen.messages("view:sizes:U00078")] == [78]


def test_a_group_continues_at_its_offsets(exported: Exported) -> None:
    consumed = exported.seen.messages(AUDIT)
    places = sorted((one["queueId"], one["queueOffset"]) for one in consumed)
    assert places == sorted(exported.audit_places)


def test_messages_in_flight_come_again_and_acknowledged_ones_do_not(exported: Exported) -> None:
    given = exported.seen.messages(BILLING)
    outstanding = [text for text in exported.texts if text not in exported.acknowledged]
    assert Counter(texts_of(given)) == Counter(outstanding)
    attempts = {text_of(one): one["reconsumeTimes"] for one in given}
    assert attempts == {text: int(text in exported.in_flight) for text in outstanding}


def test_an_orderly_group_continues_at_its_first_open_message(exported: Exported) -> None:
    assert texts_of(exported.seen.messages(LEDGER)) == [f"entry {number}" for number in range(1, 6)]


def test_open_transactions_are_asked_about_and_ended_ones_never(exported: Exported) -> None:
    assert set(texts_of(exported.seen.messages(ANSWER))) == {"deal 1", "deal 3", "deal 5"}
    committed = bodies(exported.found("deals"))
    assert committed == encoded(*(b"deal %d" % number for number in (0, 1, 3, 4, 5)))


def test_delayed_messages_come_once_recalled_or_delivered_ones_not_again(exported: Exported) -> None:
    found = exported.found("bills")
    assert Counter(texts_of(found)) == Counter(["delivered", "delivered too", *exported.due])
    for one in found:
        due_ms = exported.due.get(text_of(one), 0)
        assert one["storeTimestamp"] >= due_ms // 1_000 * 1_000 - 1_000, "RocketMQ rounds down to its second"


def test_we_take_the_store_back_and_owe_nobody_twice(exported: Exported) -> None:
    store, model = open_model(exported.root)
    try:
        assert all_messages(store).items() >= exported.messages.items()
        assert model.transactions.open_count == 0
        assert model.timers.pending_count == 1, "the one in a month, and no check point of RocketMQ's pop"
        assert len(list(model.timers.pending("bills"))) == 1
        assert receive(model, model.groups.require("billing"), "orders", 20) == {}
        assert receive(model, model.groups.require("ledger"), "entries", 20) == {}
    finally:
        model.export_to_rocketmq(now_ms())
        store.close(now_ms())


def test_golden_small_through_our_hands(tmp_path: Path) -> None:
    """Imported from RocketMQ and exported: each delayed message once, the open transaction once."""
    manifest = load_manifest("small")
    root = unpack("small", tmp_path)
    store = MessageStore.open(RealFileSystem(root), settings_of(manifest), now_ms())
    model = ConsumerState.open(store, RealFileSystem(root), CONSUMERS, now_ms())
    pending = model.timers.pending_count
    while model.timers.deliver_due(now_ms()):
        sync(store)
    delivered = pending - model.timers.pending_count
    model.export_to_rocketmq(now_ms())
    store.close(now_ms())

    answer, group = "answer:Alfa-tx:AlfaTrans:commit", "consume:Alfa-group:AlfaOrders"
    config = {**manifest["brokerConfig"], **{name: CONFIG[name] for name in CONFIG if "transaction" in name}}
    seen = run_probe(root, config, [answer, group, "sleep:10000", "dump:after"], tmp_path)

    found = seen.messages("dump:after")
    then = {one["commitLogOffset"]: one for one in manifest["messages"]}
    assert_same_messages([one for one in found if one["commitLogOffset"] in then], then)
    before = [one for one in manifest["messages"] if one["topic"] == "AlfaTimers"]
    timed = Counter(one["properties"]["UNIQ_KEY"] for one in found if one["topic"] == "AlfaTimers")
    assert pending == 4, "two of levels, and two timers"
    assert set(timed.values()) == {1}
    assert len(before) + delivered <= timed.total() <= len(before) + pending
    assert len([one for one in found if one["topic"] == "AlfaTrans"]) == 3, "two were committed before"
    retries = [one["properties"]["UNIQ_KEY"] for one in then.values() if one["topic"] == "%RETRY%Alfa-group"]
    given = Counter(one["properties"]["UNIQ_KEY"] for one in seen.messages(group))
    assert given == Counter(retries), "all but the retries was consumed before"
    assert given.total() == 2
