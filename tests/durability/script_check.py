"""The invariants of the files that a script left, however it ended: they are opened, and every promise of the
ledger is checked."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.durability.consumer_script import HOUR_MS, ConsumerScript
from tests.durability.engine_script import KEYS, PLAIN, QUEUES, STEPS, WORKERS, EngineScript, Ledger
from tests.durability.tree_check import check_transactions_whole, check_unique
from tests.support.engine import read_queue
from tests.support.settling import acknowledge
from trovemq_broker.groups.delivery.dead_letters import dead_letter_topic
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.transactions.records import GIVEN_UP_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import Message, decode_message
from trovemq_proto.records.layout import SYS_FLAG_TRANSACTION_COMMIT, SYS_FLAG_TRANSACTION_MASK
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ROUNDS_MAX = 40


def check_files(files: FileSystem, ledger: Ledger, now_ms: EpochMs, *, killed: bool) -> ConsumerScript:
    """Opens the files as the next process does. killed: all writes are there, synced or not.

    Returns the script that now has them open.
    """
    script = ConsumerScript(files, 0)
    script.now_ms = now_ms
    script.ledger.offsets = ledger.offsets
    try:
        script.open()
        check_store(script.store, ledger, killed=killed)
        there = check_transactions_whole(script, ledger, killed=killed)
        check_consumers(script, ledger, there)
        check_unique(script, ledger, killed=killed)
        check_store(script.store, ledger, killed=killed)
    except (TroveError, StorageError) as error:  # not one that the script may take for its own
        raise AssertionError(f"the files are refused: {error}") from error
    return script


def check_store(store: MessageStore, ledger: Ledger, *, killed: bool) -> None:
    """Messages, queues, look-ups, offsets and topics, but nothing that consumers have."""
    assert store.min_offset <= ledger.trimmed, "removed messages were carried first"
    messages = scan(store)
    check_messages(store, ledger, messages, killed=killed)
    check_queues(store, messages)
    check_look_ups(store, messages)
    assert store.offsets.get("audit", "orders", QueueId(0)) in ledger.offsets
    for topic, possible in ledger.topics.items():
        assert (store.topics.get(topic) is not None) in possible, topic


def scan(store: MessageStore) -> list[tuple[int, Message]]:
    """(physical offset, message) of everything alive, in log order."""
    return [
        (base + int(records.positions[index]), message)
        for base, records, alive in store.scan(store.min_offset, store.visible_offset)
        for index, message in enumerate(records.messages())
        if alive is None or alive[index]
    ]


def check_messages(
    store: MessageStore, ledger: Ledger, messages: list[tuple[int, Message]], *, killed: bool
) -> None:
    """Acknowledged messages are there, in their places; the later ones are a prefix of the sends after
    them."""
    found = [(at, m.topic, m.queue_id, m.queue_offset, m.body) for at, m in messages if m.topic in PLAIN]
    kept = [s for s in ledger.sent if s.physical_offset >= store.min_offset]
    sent = [(s.physical_offset, s.topic, s.queue_id, s.queue_offset, s.body) for s in kept]
    durable = sum(s.physical_offset >= store.min_offset for s in ledger.sent[: ledger.durable.sent])
    assert found[:durable] == sent[:durable], "acknowledged messages are there, in their places"
    if killed:
        assert found[: len(sent)] == sent, "a killed process has lost nothing that was written"
    common = min(len(found), len(sent))
    assert found[:common] == sent[:common], "the stored messages are the sent ones"
    beyond = [body for *_, body in found[common:]]
    bodies = [body for body in beyond if body not in ledger.deleted]
    assert bodies == ledger.doubt[: len(bodies)], "nothing comes from nowhere"
    temp = [message.body for _, message in messages if message.topic == "temp"]
    if ledger.topics.get("temp") == {False}:
        assert temp == [], "a deleted topic's messages never come back"


def check_queues(store: MessageStore, messages: list[tuple[int, Message]]) -> None:
    """Every queue has the log's records of it, without a hole."""
    in_log: dict[tuple[str, int], list[int]] = defaultdict(list)
    for at, message in messages:
        if message.sys_flag & SYS_FLAG_TRANSACTION_MASK in (0, SYS_FLAG_TRANSACTION_COMMIT):
            in_log[message.topic, message.queue_id].append(at)
    for topic in store.consume_queues.topics():
        for queue in store.consume_queues.queues(topic):
            units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
            assert units["physical_offset"].tolist() == in_log.pop((topic, queue.queue_id), [])
            offsets = [message.queue_offset for message in read_queue(store, topic, queue.queue_id)]
            assert offsets == list(range(queue.min_offset, queue.max_offset))
    assert not in_log, "every queue of the log is there"


def check_look_ups(store: MessageStore, messages: list[tuple[int, Message]]) -> None:
    """By key and by tag: exactly the records of the scan."""
    for topic in (topic for topic in PLAIN[:2] if topic in store.topics):
        of_topic = [(at, m.properties) for at, m in messages if m.topic == topic]
        for kind, key in [(KeyType.KEY, KEYS[0]), (KeyType.KEY, KEYS[2]), (KeyType.TAG, KEYS[1])]:
            pages = list(query_pages(store, KeyQuery(topic, key, kind), messages_max=10_000))
            found = [at for page in pages for at in page.physical_offsets]
            name = "TAGS" if kind is KeyType.TAG else "KEYS"
            expected = [at for at, properties in of_topic if key in properties[name].split(" ")]
            assert found == expected[::-1], (topic, kind, key)
            assert pages[-1].complete


# --- pending messages ------------------------------------------------------------------------------------
def check_consumers(script: EngineScript, ledger: Ledger, transactions: set[str]) -> None:
    """Hours later everything pending is delivered, and nothing that was settled for good."""
    script.tick(HOUR_MS)
    begin = {at for at, _ in scan(script.store)}
    given_up = settle_transactions(script, ledger)
    received: Counter[bytes] = Counter()
    for _ in range(ROUNDS_MAX):
        script.tick(HOUR_MS)
        delivered = script.model.timers.deliver_due(script.now_ms)
        script.sync()
        taken = receive_all(script, "tasks", WORKERS, received) + receive_all(
            script, "lines", STEPS, received
        )
        if not delivered and not taken:
            break
    else:
        raise AssertionError("everything is handed out at last")
    check_timers(script, ledger)
    check_transactions(script, ledger, given_up)
    for body in {body for name in transactions for body in ledger.tried[name].acknowledged}:
        assert received[body] == 0, "a message acknowledged by a transaction does not come back"
        ledger.status[body] = "acknowledged"
    check_deliveries(script, ledger, received, min(begin, default=0))


def receive_all(script: EngineScript, topic: str, group: SubscriptionGroup, received: Counter[bytes]) -> int:
    if topic not in script.store.topics:
        return 0
    request = ReceiveRequest(
        group=group, topic=topic, count_max=32, invisible_ms=60_000, now_ms=script.now_ms
    )
    delivered = script.model.delivery.receive(request)
    for one in delivered:
        received[decode_message(one.record).body] += 1
        acknowledge(script.model.delivery, group.name, topic, one.receipt_handle, script.now_ms)
    script.sync()
    return len(delivered)


def bodies_of(script: EngineScript, topic: str) -> Counter[bytes]:
    return Counter(m.body for queue in range(QUEUES) for m in read_queue(script.store, topic, QueueId(queue)))


def check_timers(script: EngineScript, ledger: Ledger) -> None:
    messages = [m for queue in range(QUEUES) for m in read_queue(script.store, "later", QueueId(queue))]
    for message in messages:
        assert message.store_timestamp >= ledger.due_ms[message.body], "no timer is early"
    there = Counter(message.body for message in messages)
    for body in ledger.due_ms:
        if ledger.on_disk.get(body) == "waits":
            assert there[body] == 1, "a delayed message is delivered once, whatever crashed"


def settle_transactions(script: EngineScript, ledger: Ledger) -> Counter[bytes]:
    """Commits the transactions that are certainly open; returns those that were given up."""
    for body, status in ledger.on_disk.items():
        if status == ledger.status.get(body) == "open" and body not in ledger.due_ms:
            script.model.transactions.end(body.decode(), "deals", True, script.now_ms)
    script.sync()
    return bodies_of(script, GIVEN_UP_TOPIC)


def check_transactions(script: EngineScript, ledger: Ledger, given_up: Counter[bytes]) -> None:
    there = bodies_of(script, "deals")
    assert all(count == 1 for count in there.values()), "a transaction is committed once"
    for body, status in ledger.on_disk.items():
        if status == "committed" or status == ledger.status.get(body) == "open":
            assert there[body] == 1, "a committed message is there"
        if status == "rolled":
            assert there[body] == 0, "a rolled-back message never is"


def check_deliveries(script: EngineScript, ledger: Ledger, received: Counter[bytes], begin: int) -> None:
    dead = bodies_of(script, dead_letter_topic("workers")) + bodies_of(script, dead_letter_topic("steps"))
    for number, sent in enumerate(ledger.sent):
        if sent.topic not in ("tasks", "lines"):
            continue
        status = ledger.on_disk.get(sent.body)
        if status == "acknowledged":
            assert received[sent.body] == 0, "a message acknowledged for good does not come back"
        elif status == "dead":
            assert dead[sent.body] >= 1, "a dead letter is there"
            assert received[sent.body] == 0, "and is received no more"
        elif (
            sent.body not in ledger.status
            and number < ledger.durable.sent
            and (sent.physical_offset >= begin or sent.body in ledger.in_flight)
        ):
            assert received[sent.body] + dead[sent.body] >= 1, f"a pending message is delivered: {sent}"
