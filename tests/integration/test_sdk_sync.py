"""The synchronous client against a real broker: every kind of call, threads, forks, the process's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from trovemq import GroupSettings, Handlers, TroveError, errors, serializers, sync
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

QUICK_RETRIES = GroupSettings(retry_max=2, backoff_ms=(10,))


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[sync.Client]:
    with sync.connect(broker.address) as connected:
        yield connected


def test_what_is_sent_is_found_received_and_dead_lettered(client: sync.Client) -> None:
    client.admin.create_topic("orders", queue_count=1, exist_ok=True)
    client.admin.groups.create("billing", QUICK_RETRIES, exist_ok=True)
    client.send("orders", b"1", keys=["one"])
    with client.producer("orders") as producer:
        producer.send_batch([b"2", b"3"])
        assert producer.send_nowait(b"4").result(30).queue_offset == 3
        assert producer.send(b"5").queue_offset == 4
        assert (producer.topic, producer.in_flight_bytes, producer.one_way_dropped) == ("orders", 0, 0)
    assert [message.body for message in client.query("orders", "one").messages] == [b"1"]
    assert [message.body for message in client.pull("orders")] == [b"1", b"2", b"3", b"4", b"5"]
    with client.subscribe("orders", "billing", start="earliest", prefetch=5) as messages:
        with next(messages).process() as message:
            assert (message.body, message.topic, message.attempt) == (b"1", "orders", 1)
        assert message.settled
        second = next(messages)
        second.nack(delay=0)
        next(messages).ack()
        next(messages).dead_letter("no such street")
        with pytest.raises(ValueError, match="no"), next(messages).process() as fifth:
            raise ValueError("no")
        again = sorted((next(messages) for _ in range(2)), key=lambda one: one.queue_offset)
        assert [(one.queue_offset, one.attempt) for one in again] == [(1, 2), (fifth.queue_offset, 2)]
        for one in again:
            one.ack()
    (letter,) = client.admin.groups.dead_letters("billing")
    assert (letter.message.body, letter.reason.kind, letter.reason.text) == (
        b"4",
        "explicit",
        "no such street",
    )


def test_both_transactions_commit_and_roll_back(client: sync.Client) -> None:
    client.admin.create_topic("halves", queue_count=1, message_type="TRANSACTION")
    client.admin.create_topic("whole", queue_count=1)
    with client.producer("halves") as producer:
        with producer.transaction() as transaction:
            transaction.send(b"kept")
        with suppress(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(b"dropped")
            1 / 0  # noqa: B018
    with client.subscribe("halves", "readers", start="earliest") as messages:
        message = next(messages)
        with client.transaction() as atomic:
            atomic.send("whole", message.body + b" again")
            atomic.ack(message)
    assert atomic.receipt is not None
    assert atomic.receipt.acknowledged_count == 1
    assert client.get_at("whole", 0, 0).body == b"kept again"


def test_a_handler_runs_in_threads_and_gets_a_failed_message_again(client: sync.Client) -> None:
    client.admin.create_topic("work", queue_count=1)
    client.admin.groups.create("shop", QUICK_RETRIES)
    client.producer("work").send_batch([b"%d" % i for i in range(8)])
    together, seen, failed = threading.Barrier(4), [], threading.Event()
    subscription = client.subscribe("work", "shop", start="earliest")

    def close_when_consumed() -> None:
        deadline = time.monotonic() + 30
        while any(lag.lag for lag in client.admin.groups.lag("shop")) and time.monotonic() < deadline:
            pass
        subscription.close()

    def handle(message: sync.ReceivedMessage) -> None:
        if message.body == b"7" and not failed.is_set():
            failed.set()
            raise ValueError("try again")
        if int(message.body) < 4:
            together.wait(30)  # four of them run at a time, or the barrier breaks
        seen.append(message.body)
        if len(seen) == 8:
            threading.Thread(target=close_when_consumed).start()

    with subscription:
        subscription.consume(handle, 4)
    assert sorted(seen) == [b"%d" % i for i in range(8)]
    assert all(lag.lag == 0 for lag in client.admin.groups.lag("shop"))


def test_handlers_run_in_threads_until_a_signal(client: sync.Client) -> None:
    client.admin.create_topic("tasks", queue_count=1)
    client.producer("tasks").send_batch([b"1", b"[]", b"3"])
    handlers, done = Handlers(), []

    @handlers.handle("tasks", "workers", body=serializers.Msgspec(int), start="earliest")
    def work(number: int, message: sync.ReceivedMessage) -> None:
        message.extend(30)
        done.append(number)
        if number == 3:
            while signal.getsignal(signal.SIGTERM) == before:
                pass  # the main thread does not wait yet
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with client.run(handlers) as running:
        assert signal.getsignal(signal.SIGTERM) == before, "a block takes no signals"
        running.wait()
    assert signal.getsignal(signal.SIGTERM) == before
    assert sorted(done) == [1, 3]
    assert [letter.message.body for letter in client.admin.groups.dead_letters("workers")] == [b"[]"]
    with client.subscribe("tasks", "batches", start="earliest") as messages:
        batch = next(messages.batches(3, wait=30))
        assert [message.body for message in batch] == [b"1", b"[]", b"3"]
        with batch.process():
            pass
        assert all(message.settled for message in batch)


def test_threads_share_a_client(client: sync.Client) -> None:
    client.admin.create_topic("shared")
    with ThreadPoolExecutor(8) as threads:
        receipts = list(threads.map(lambda i: client.send("shared", b"%d" % i), range(100)))
    assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == 100


def test_errors_are_those_of_the_asyncio_client(client: sync.Client) -> None:
    with pytest.raises(TroveError) as refused:
        client.send("nowhere", b"")
    assert refused.value.spec is errors.TOPIC_NOT_FOUND
    with sync.connect(client.admin.cluster().brokers[0].broker.address) as short:
        pass
    with pytest.raises(TroveError) as closed:
        short.get("1")
    assert closed.value.spec is errors.CLIENT_CLOSED


def test_a_group_begins_where_start_says_and_continues_at_its_offset(client: sync.Client) -> None:
    client.admin.create_topic("history", queue_count=1)
    client.producer("history").send_oneway(b"old")
    while not client.queue_offsets("history")[0].max_offset:
        pass
    time_between = client.send("history", b"new").store_timestamp
    client.admin.groups.start("late", "history", "latest")
    assert client.admin.get_offset("late", "history", 0) == 2
    for start in ("earliest", "latest"):  # the second one comes too late: the group has read the queue
        with client.subscribe("history", "early", start=start) as messages:
            message = next(messages)
            message.ack()
        assert message.body == (b"old" if start == "earliest" else b"new")
    at = datetime.fromtimestamp(time_between / 1000, tz=UTC)
    (entry,) = client.admin.groups.start("timed", "history", at)
    assert client.get_at("history", 0, entry.offset).store_timestamp >= time_between


def test_a_client_that_was_inherited_by_a_fork_says_so_and_a_new_one_works(
    client: sync.Client, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TROVEMQ_GRPC_TRANSPORT", raising=False)
    client.admin.create_topic("forked", queue_count=1)
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            client.send("forked", b"by the parent's client")
        except TroveError as error:
            os.write(write, f"{error.spec.symbol}: {error.message}".encode())
        with sync.connect(broker.address) as own:
            own.send("forked", b"by its own")
        os._exit(7)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert text.startswith("CLIENT_CLOSED")
    assert "connect again after a fork" in text
    client.send("forked", b"by the parent's client, in the parent")
    assert [message.body[:10] for message in client.pull("forked")] == [b"by its own", b"by the par"]


FORGETFUL = """
import sys
from trovemq import sync
client = sync.connect(sys.argv[1])
client.admin.create_topic("left", queue_count=1, exist_ok=True)
client.producer("left").send_nowait(b"sent at the end")
client.send("left", b"sent")
messages = client.subscribe("left", "leavers")
messages.__enter__()
print("done")
"""


def test_a_process_that_closes_nothing_ends_quickly_and_cleanly(
    client: sync.Client, broker: BrokerProcess
) -> None:
    begin = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", FORGETFUL, broker.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    assert time.monotonic() - begin < 20
    assert client.admin.groups.members("leavers") == []
