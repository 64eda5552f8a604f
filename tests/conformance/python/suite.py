"""The use of RocketMQ 5's official Python client, against one broker or several.

A receive asks one broker, chosen by chance, and waits there for 5 s also while another one has messages. So
with several brokers (BROKERS) the time to receive in is longer, and several receives show that there are no
more messages. The same messages must arrive.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from harness import ENDPOINTS, RUN, case, closing, eventually, expect, main, refused
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

NORMAL, FIFO, DELAY = "TROVE_PY_NORMAL", "TROVE_PY_FIFO", "TROVE_PY_DELAY"
TRANSACTION, MIXED = "TROVE_PY_TRANSACTION", "TROVE_PY_MIXED"
GROUP = "TROVE_PY_"
BODY_SIZE_MAX = 4 << 20
TLS = os.environ.get("SSL") == "true"
STARTS_MAX = 5
BROKERS = int(os.environ.get("BROKERS", "1"))
PATIENCE = 1 if BROKERS == 1 else 2 * BROKERS  # the time to receive in is this many times as long
RECEIVES = 1 if BROKERS == 1 else 4 * BROKERS  # side by side, of which one asks the right broker


class _MissedRoutes(logging.Handler):
    """The threads in which a client has missed its route.

    The client asks for the route and then adds the callback that opens its telemetry stream. Where the answer
    is there first, the callback runs in the caller's thread, which has no event loop. The client logs that,
    stays without settings, and never asks again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if "no current event loop" in record.getMessage():
            self.threads.add(threading.get_ident())


_missed_routes = _MissedRoutes()
logging.getLogger("rocketmq-python-client").addHandler(_missed_routes)


def _started(make: Callable[[], Any]) -> Any:
    """A client that has its settings. One that has missed its route is replaced, no other."""
    for _ in range(STARTS_MAX):
        _missed_routes.threads.discard(threading.get_ident())
        client = make()
        try:
            client.startup()
        except Exception:
            if threading.get_ident() not in _missed_routes.threads:
                raise
            continue
        if threading.get_ident() not in _missed_routes.threads:
            return closing(client)
        client.shutdown()
    raise AssertionError(f"{STARTS_MAX} clients have missed their routes")


def _configuration() -> Any:
    credentials = Credentials(os.environ.get("ACCESS_KEY", ""), os.environ.get("SECRET_KEY", ""))
    return ClientConfiguration(ENDPOINTS, credentials, request_timeout=5)


def _producer(*topics: str, checker: Any = None) -> Any:
    return _started(lambda: Producer(_configuration(), topics=list(topics), checker=checker, tls_enable=TLS))


def _consumer(group: str, topic: str, expression: Any = "*") -> Any:
    """A simple consumer that has its settings, and a position in every queue."""
    chosen = expression if isinstance(expression, FilterExpression) else FilterExpression(expression)
    consumer = _started(
        lambda: SimpleConsumer(
            _configuration(), GROUP + group, {topic: chosen}, await_duration=5, tls_enable=TLS
        )
    )
    settings = getattr(consumer, "_init_settings_event", None)
    # This client starts also where its first look-up of the route timed out, and looks again after 30 s.
    if settings is not None and not settings.wait(60):
        raise AssertionError("the server sent no settings")
    for message in _receive_everywhere(consumer, 15):
        consumer.ack(message)
    return consumer


def _receive_everywhere(consumer: Any, invisible_s: int) -> list[Any]:
    """The messages of receives side by side."""
    futures = [consumer.receive_async(32, invisible_s) for _ in range(RECEIVES)]
    return [message for future in futures for message in future.result(timeout=30)]


def _message(
    topic: str,
    body: bytes,
    tag: str = "",
    *,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    message_group: str = "",
    deliver_at: int = 0,
) -> Any:
    message = Message()
    message.topic = topic
    message.body = body
    if tag:
        message.tag = tag
    for key in keys:
        message.keys = key
    for name, value in (properties or {}).items():
        message.add_property(name, value)
    if message_group:
        message.message_group = message_group
    if deliver_at:
        message.delivery_timestamp = deliver_at
    return message


def _take(
    consumer: Any, count: int, within_s: float, *, invisible_s: int = 20, ack: bool = True
) -> list[Any]:
    """Up to `count` messages."""
    taken: list[Any] = []
    end = time.monotonic() + within_s * PATIENCE
    while len(taken) < count and time.monotonic() < end:
        for message in consumer.receive(16, invisible_s):
            if ack:
                consumer.ack(message)
            taken.append(message)
    return taken


def _first(consumer: Any, within_s: float) -> tuple[Any, float]:
    """The first message, and when it came; by receives side by side, so that one waits at its broker."""

    def receive(_: int) -> tuple[Any, float] | None:
        taken = _take(consumer, 1, within_s / PATIENCE)
        return (taken[0], time.time()) if taken else None

    pool = ThreadPoolExecutor(RECEIVES)
    for done in as_completed([pool.submit(receive, number) for number in range(RECEIVES)]):
        if (found := done.result()) is not None:
            return found
    raise AssertionError(f"no message within {within_s:.0f} s")


def _bodies(messages: Sequence[Any]) -> list[bytes]:
    return sorted(message.body for message in messages)


class _Listener(MessageListener):
    def __init__(self, succeeds: Callable[[Any], bool]) -> None:
        self._succeeds = succeeds

    def consume(self, message: Any) -> Any:
        return ConsumeResult.SUCCESS if self._succeeds(message) else ConsumeResult.FAILURE


def _push(group: str, topic: str, tag: str, succeeds: Callable[[Any], bool]) -> None:
    subscription = {topic: FilterExpression(tag)}
    _started(
        lambda: PushConsumer(
            _configuration(), GROUP + group, _Listener(succeeds), subscription, tls_enable=TLS
        )
    )
    time.sleep(2)  # its first poll gives the group a position


# --- producing and receiving ------------------------------------------------------------------------
@case
def what_is_sent_is_received_once_and_gone_when_acknowledged() -> None:
    tag = f"plain{RUN}"
    consumer = _consumer("plain", NORMAL, tag)
    producer = _producer(NORMAL)
    receipts = {producer.send(_message(NORMAL, b"%d" % i, tag)).message_id: b"%d" % i for i in range(20)}
    taken = _take(consumer, 20, 20)
    expect({message.message_id: message.body for message in taken}, receipts, "messages")
    expect({message.delivery_attempt for message in taken}, {1}, "attempts")
    expect([message.corrupted for message in taken], [False] * 20, "corrupted")
    expect(len(_receive_everywhere(consumer, 15)), 0, "messages left")


@case
def keys_tag_and_properties_come_back_as_they_were() -> None:
    tag = f"carried{RUN}"
    consumer = _consumer("carried", NORMAL, tag)
    properties = {"country": "Österreich", "日付": "十一月", "json": '{"a":[1,2]}', "blank inside": "x y"}
    sent = _message(NORMAL, "Grüße, 世界 🌍".encode(), tag, keys=["k1" + RUN, "k2"], properties=properties)
    receipt = _producer(NORMAL).send(sent)
    (message,) = _take(consumer, 1, 15)
    expect(message.message_id, receipt.message_id, "message id")
    expect(message.body.decode(), "Grüße, 世界 🌍", "body")
    expect((message.topic, message.tag, set(message.keys)), (NORMAL, tag, {"k1" + RUN, "k2"}), "fields")
    expect(dict(message.properties), properties, "properties")
    expect(abs(message.born_timestamp / 1000 - time.time()) < 60, True, "born within the last minute")
    expect(bool(message.born_host), True, "has a born host")


@case
def sends_in_flight_together_all_arrive() -> None:
    tag = f"together{RUN}"
    consumer = _consumer("together", NORMAL, tag)
    producer = _producer(NORMAL)
    futures = [producer.send_async(_message(NORMAL, b"%03d" % i, tag)) for i in range(100)]
    expect(len({future.result(timeout=20).message_id for future in futures}), 100, "message ids")
    expect(_bodies(_take(consumer, 100, 30)), [b"%03d" % i for i in range(100)], "bodies")


@case
def bodies_up_to_four_mebibytes_are_taken_and_larger_ones_refused() -> None:
    tag = f"large{RUN}"
    consumer = _consumer("large", NORMAL, tag)
    producer = _producer(NORMAL)
    body = bytes(range(256)) * (BODY_SIZE_MAX // 256)
    producer.send(_message(NORMAL, body, tag))
    (message,) = _take(consumer, 1, 20)
    expect(message.body == body, True, "the body is the same")
    refused(lambda: producer.send(_message(NORMAL, body + b"x", tag)), "a larger body")


# --- refusals ---------------------------------------------------------------------------------------
@case
def topics_that_are_unknown_or_illegal_are_refused() -> None:
    producer = _producer(NORMAL)
    refused(lambda: producer.send(_message(f"TROVE_NONE_{RUN}", b"x")), "an unknown topic")
    refused(lambda: producer.send(_message("not a topic", b"x")), "an illegal topic")


@case
def a_message_of_another_kind_than_its_topic_is_refused() -> None:
    producer = _producer(NORMAL, FIFO)
    refused(lambda: producer.send(_message(FIFO, b"no message group")), "NORMAL in a FIFO topic")
    refused(lambda: producer.send(_message(NORMAL, b"x", message_group="g")), "FIFO in a NORMAL topic")


@case
def a_mixed_topic_takes_every_kind() -> None:
    tag = f"mixed{RUN}"
    consumer = _consumer("mixed", MIXED, tag)
    producer = _producer(MIXED)
    producer.send(_message(MIXED, b"normal", tag))
    producer.send(_message(MIXED, b"ordered", tag, message_group="g"))
    producer.send(_message(MIXED, b"delayed", tag, deliver_at=int(time.time()) + 3))
    expect(_bodies(_take(consumer, 3, 25)), [b"delayed", b"normal", b"ordered"], "bodies")


# --- filters ----------------------------------------------------------------------------------------
@case
def a_tag_expression_chooses() -> None:
    one, two, other = (f"{name}{RUN}" for name in ("one", "two", "other"))
    consumer = _consumer("tags", NORMAL, f"{one} || {two}")
    producer = _producer(NORMAL)
    for number in range(15):
        producer.send(_message(NORMAL, b"%02d" % number, (one, two, other)[number % 3]))
    expect(_bodies(_take(consumer, 10, 15)), [b"%02d" % i for i in range(15) if i % 3 < 2], "bodies")


@case
def an_sql_condition_chooses() -> None:
    condition = (
        f"run = '{RUN}' AND (weight BETWEEN 10 AND 20 OR size IS NULL) "
        "AND colour NOT IN ('red', 'green') AND TAGS <> 'skipped'"
    )
    consumer = _consumer("sql", NORMAL, FilterExpression(condition, FilterType.SQL))
    producer = _producer(NORMAL)
    rows = [
        (b"weight fits", "kept", {"weight": "15", "size": "1", "colour": "blue"}),
        (b"no size", "kept", {"weight": "99", "colour": "blue"}),
        (b"too heavy", "kept", {"weight": "20.5", "size": "1", "colour": "blue"}),
        (b"red", "kept", {"weight": "15", "size": "1", "colour": "red"}),
        (b"no colour", "kept", {"weight": "15", "size": "1"}),
        (b"tag", "skipped", {"weight": "15", "size": "1", "colour": "blue"}),
    ]
    for body, tag, properties in rows:
        producer.send(_message(NORMAL, body, tag, properties={"run": RUN, **properties}))
    expect(_bodies(_take(consumer, 3, 10)), [b"no size", b"weight fits"], "bodies")


# --- redelivery -------------------------------------------------------------------------------------
@case
def a_message_that_is_not_acknowledged_comes_again() -> None:
    tag = f"again{RUN}"
    consumer = _consumer("again", NORMAL, tag)
    receipt = _producer(NORMAL).send(_message(NORMAL, b"again", tag))
    (first,) = _take(consumer, 1, 15, invisible_s=10, ack=False)
    taken_at = time.monotonic()
    (second,) = _take(consumer, 1, 30)
    expect((first.message_id, second.message_id), (receipt.message_id,) * 2, "message ids")
    expect((first.delivery_attempt, second.delivery_attempt), (1, 2), "attempts")
    expect(time.monotonic() - taken_at > 8, True, "not before its time was over")


@case
def the_invisible_duration_can_be_changed() -> None:
    tag = f"changed{RUN}"
    consumer = _consumer("changed", NORMAL, tag)
    _producer(NORMAL).send(_message(NORMAL, b"changed", tag))
    (message,) = _take(consumer, 1, 15, invisible_s=120, ack=False)
    handle = message.receipt_handle
    consumer.change_invisible_duration(message, 2)
    expect(message.receipt_handle not in ("", handle), True, "a new handle")
    (again,) = _take(consumer, 1, 15)
    expect((again.body, again.delivery_attempt), (b"changed", 2), "redelivered")


# --- order ------------------------------------------------------------------------------------------
@case
def messages_of_one_group_arrive_in_order() -> None:
    tag = f"ordered{RUN}"
    consumer = _consumer("ordered", FIFO, tag)
    producer = _producer(FIFO)
    for number in range(40):
        producer.send(_message(FIFO, b"%d" % number, tag, message_group=f"{number % 4}{RUN}"))
    taken = _take(consumer, 40, 40)
    for group in range(4):
        numbers = [int(message.body) for message in taken if message.message_group == f"{group}{RUN}"]
        expect(numbers, list(range(group, 40, 4)), f"order of group {group}")


@case
def a_failed_message_holds_its_own_group_back_and_no_other() -> None:
    tag = f"failing{RUN}"
    consumer = _consumer("ordered_failing", FIFO, tag)
    producer = _producer(FIFO)
    for number in range(6):
        producer.send(_message(FIFO, b"bad%d" % number, tag, message_group=f"bad{RUN}"))
        producer.send(_message(FIFO, b"good%d" % number, tag, message_group=f"good{RUN}"))
    order: list[bytes] = []
    failed = False
    end = time.monotonic() + 45 * PATIENCE
    while len(order) < 12 and time.monotonic() < end:
        for message in consumer.receive(4, 10):
            if message.body.startswith(b"bad") and not failed:
                failed = True
                continue  # neither it nor the others of its receive are acknowledged
            if message.body.startswith(b"bad") and failed and not _is_next(order, message.body):
                continue
            consumer.ack(message)
            order.append(message.body)
    expect([body for body in order if body.startswith(b"bad")], [b"bad%d" % i for i in range(6)], "bad")
    expect([body for body in order if body.startswith(b"good")], [b"good%d" % i for i in range(6)], "good")


def _is_next(order: list[bytes], body: bytes) -> bool:
    return body == b"bad%d" % sum(done.startswith(b"bad") for done in order)


# --- time -------------------------------------------------------------------------------------------
@case
def a_delayed_message_comes_at_its_time() -> None:
    tag = f"delayed{RUN}"
    consumer = _consumer("delayed", DELAY, tag)
    due = int(time.time()) + 6
    _producer(DELAY).send(_message(DELAY, b"delayed", tag, deliver_at=due))
    message, came_at = _first(consumer, 25)
    late_s = came_at - due
    expect(message.body, b"delayed", "body")
    expect(0 <= late_s < 3, True, f"{late_s:.2f} s after its time: on time")


@case
def a_recalled_message_never_comes() -> None:
    tag = f"recalled{RUN}"
    consumer = _consumer("recalled", DELAY, tag)
    producer = _producer(DELAY)
    due = int(time.time()) + 6
    receipt = producer.send(_message(DELAY, b"recalled", tag, deliver_at=due))
    producer.send(_message(DELAY, b"kept", tag, deliver_at=due))
    expect(producer.recall_message(DELAY, receipt.recall_handle), receipt.message_id, "recalled")
    expect(_bodies(_take(consumer, 2, 14)), [b"kept"], "bodies")


# --- transactions -----------------------------------------------------------------------------------
class _Checker(TransactionChecker):
    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def check(self, message: Any) -> Any:
        self.asked.append(message.body)
        decision = TransactionResolution
        return decision.ROLLBACK if message.body == b"asked, no" else decision.COMMIT


@case
def transactions_are_seen_after_their_commit_only() -> None:
    tag = f"transaction{RUN}"
    consumer = _consumer("transaction", TRANSACTION, tag)
    checker = _Checker()
    producer = _producer(TRANSACTION, checker=checker)
    committed = producer.begin_transaction()
    producer.send(_message(TRANSACTION, b"committed", tag), committed)
    rolled_back = producer.begin_transaction()
    producer.send(_message(TRANSACTION, b"rolled back", tag), rolled_back)
    expect(_bodies(_receive_everywhere(consumer, 20)), [], "seen before the commit")
    committed.commit()
    rolled_back.rollback()
    for body in (b"asked, yes", b"asked, no"):
        producer.send(_message(TRANSACTION, body, tag), producer.begin_transaction())
    expect(_bodies(_take(consumer, 2, 60)), [b"asked, yes", b"committed"], "seen")
    eventually(lambda: b"asked, no" in checker.asked, 40, "asked about the last one")
    expect(_bodies(_receive_everywhere(consumer, 20)), [], "seen after all")
    expect({b"committed", b"rolled back"} & set(checker.asked), set(), "asked about settled ones")


# --- push consumers ---------------------------------------------------------------------------------
@case
def a_push_consumer_gets_every_message_once() -> None:
    tag = f"pushed{RUN}"
    seen: list[bytes] = []
    _push("pushed", NORMAL, tag, lambda message: seen.append(message.body) is None)
    producer = _producer(NORMAL)
    for future in [producer.send_async(_message(NORMAL, b"%03d" % i, tag)) for i in range(200)]:
        future.result(timeout=20)
    eventually(lambda: len(set(seen)) == 200, 30, "200 messages")
    expect(sorted(seen), [b"%03d" % i for i in range(200)], "each once")


@case
def what_a_push_consumer_fails_at_is_tried_again_later() -> None:
    tag = f"retried{RUN}"
    attempts: list[int] = []

    def third_time_lucky(message: Any) -> bool:
        attempts.append(message.delivery_attempt)
        return len(attempts) >= 3

    _push("retrying", NORMAL, tag, third_time_lucky)
    _producer(NORMAL).send(_message(NORMAL, b"retried", tag))
    eventually(lambda: len(attempts) >= 3, 40, "three attempts")
    time.sleep(3)
    expect(attempts, [1, 2, 3], "attempts")


@case
def what_fails_for_good_is_found_in_the_dead_letter_topic() -> None:
    tag = f"dead{RUN}"
    attempts: list[int] = []

    def never(message: Any) -> bool:
        attempts.append(message.delivery_attempt)
        return False

    _push("dying", NORMAL, tag, never)
    _producer(NORMAL).send(_message(NORMAL, b"dead", tag, keys=[f"dead{RUN}"]))
    eventually(lambda: len(attempts) >= 2, 30, "two attempts")
    topic = f"%DLQ%{GROUP}dying"
    found: list[Any] = []

    def in_dead_letters() -> bool:
        try:
            reader = _started(
                lambda: SimpleConsumer(
                    _configuration(),
                    f"{GROUP}reader{RUN}",
                    {topic: FilterExpression(tag)},
                    await_duration=5,
                    tls_enable=TLS,
                )
            )
        except Exception:  # the topic is made by the first dead letter
            return False
        end = time.monotonic() + 15 * PATIENCE
        while not found and time.monotonic() < end:
            try:
                found.extend(reader.receive(16, 20))
            except Exception:  # the same
                time.sleep(0.5)
        return bool(found)

    eventually(in_dead_letters, 40, "the dead letter")
    expect((found[0].body, found[0].tag, list(found[0].keys)), (b"dead", tag, [f"dead{RUN}"]), "dead letter")
    expect(attempts, [1, 2], "attempts")


@case
def a_push_consumer_of_an_orderly_group_keeps_the_order() -> None:
    tag = f"pushedordered{RUN}"
    seen: list[tuple[str, int]] = []
    lock = threading.Lock()
    failed: set[str] = set()

    def fails_once(message: Any) -> bool:
        with lock:
            if message.body == b"6" and message.message_group not in failed:
                failed.add(message.message_group)
                return False
            seen.append((message.message_group, int(message.body)))
            return True

    _push("pushed_ordered", FIFO, tag, fails_once)
    producer = _producer(FIFO)
    for number in range(30):
        producer.send(_message(FIFO, b"%d" % number, tag, message_group=f"{number % 3}{RUN}"))
    eventually(lambda: len(seen) >= 30, 45, "30 messages")
    for group in range(3):
        numbers = [number for name, number in seen if name == f"{group}{RUN}"]
        expect(numbers, list(range(group, 30, 3)), f"order of group {group}")


if __name__ == "__main__":
    main()
