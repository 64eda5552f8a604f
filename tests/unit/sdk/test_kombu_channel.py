"""The kombu transport on a client in memory: queues, exchanges, shared queues, ends, errors."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import kombu
import pytest

import trovemq.celery
import trovemq.sync
from tests.support.kombu_messages import FakeClient, received
from trovemq._kombu.transport import STOP_STEP
from trovemq.celery import BrokerAwayError, Transport
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

WAIT_SECONDS = 60


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    made = FakeClient()
    monkeypatch.setattr(trovemq.sync, "connect", lambda url, **_: made)
    yield made
    Transport.bindings.clear()


@pytest.fixture
def connect(client: FakeClient) -> Iterator[Callable[..., kombu.Connection]]:
    opened: list[kombu.Connection] = []

    def open_one(**options: Any) -> kombu.Connection:
        opened.append(kombu.Connection("trovemq://127.0.0.1:8081", transport_options=options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


Connect = Callable[..., kombu.Connection]


def publish(connection: kombu.Connection, body: Any = "x", **arguments: Any) -> None:
    with connection.channel() as channel:
        kombu.Producer(channel).publish(body, **arguments)


def consume(connection: kombu.Connection, queue: kombu.Queue, count: int = 1, ack: bool = True) -> list[Any]:
    """The messages, which are acknowledged; the consumer is closed."""
    got: list[Any] = []

    def take(_: Any, message: Any) -> None:
        got.append(message)
        if ack:
            message.ack()

    with kombu.Consumer(connection, [queue], callbacks=[take], accept=["json", "pickle", "text/plain"]):
        while len(got) < count:
            connection.drain_events(timeout=WAIT_SECONDS)
    return got


def test_a_connection_used_after_a_fork_connected_again_at_each_use(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    publish(connection, routing_key="mail")
    monkeypatch.setattr("os.getpid", lambda: -1)
    transport = connection.transport
    assert not transport.verify_connection(connection)
    transport.establish_connection()
    assert transport.verify_connection(connection)


def test_a_queue_is_a_mixed_topic_by_priority_and_one_group(client: FakeClient, connect: Connect) -> None:
    connection = connect(group="shop", topic_prefix="p-")
    queue = kombu.Queue("mail.high")
    publish(connection, {"n": 1}, routing_key="mail.high", declare=[queue], priority=7)
    (got,) = consume(connection, queue)
    assert got.payload == {"n": 1}
    assert client.created == [("p-mail%2Ehigh", "MIXED", {"order": "priority"})]
    assert client.subscribed == [("p-mail%2Ehigh", "shop", {"prefetch": 1, "start": "earliest"})]
    ((topic, body, arguments),) = client.sent
    assert (topic, arguments["priority"]) == ("p-mail%2Ehigh", 7)
    assert json.loads(json.loads(body)["body"]) == {"n": 1}, "text is readable in the record"


def test_bytes_arrive_as_they_were(client: FakeClient, connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("binary")
    publish(connection, {"n": b"\x00\xff"}, routing_key="binary", declare=[queue], serializer="pickle")
    (got,) = consume(connection, queue)
    assert got.payload == {"n": b"\x00\xff"}


def test_a_task_with_a_time_is_sent_with_it(client: FakeClient, connect: Connect) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    publish(connect(), routing_key="q", headers={"eta": later.isoformat()}, declare=[kombu.Queue("q")])
    assert client.sent[0][2]["deliver_at"] == later


def test_exchanges_lead_to_the_bound_queues(client: FakeClient, connect: Connect) -> None:
    connection = connect()
    direct, topic = kombu.Exchange("d", "direct"), kombu.Exchange("t", "topic")
    queues = [
        kombu.Queue("one", direct, routing_key="a"),
        kombu.Queue("two", topic, routing_key="x.*"),
        kombu.Queue("three", topic, routing_key="#"),
    ]
    publish(connection, exchange=direct, routing_key="a", declare=queues)
    publish(connection, exchange=topic, routing_key="x.y")
    assert sorted(name for name, _, _ in client.sent) == ["one", "three", "two"]


def test_what_no_queue_gets_is_said_once(
    client: FakeClient, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect()
    with connection.channel() as channel, caplog.at_level(logging.WARNING):
        producer = kombu.Producer(channel, kombu.Exchange("d", "direct"))
        producer.publish("x", routing_key="lost")
        producer.publish("x", routing_key="lost")
    assert client.sent == []
    assert caplog.text.count("are dropped: this process has declared no queue for them") == 1


def test_a_fanout_reaches_kept_and_shared_queues(client: FakeClient, connect: Connect) -> None:
    connection, fanout = connect(), kombu.Exchange("f", "fanout")
    kept = kombu.Queue("kept", fanout)
    shared = [kombu.Queue(f"bcast.{uuid4()}", fanout, auto_delete=True) for _ in range(2)]
    publish(connection, "all", exchange=fanout, declare=[kept, *shared])
    assert sorted(name for name, _, _ in client.sent) == ["celery-control", "kept"]
    for queue in (kept, *shared):
        assert consume(connection, queue)[0].payload == "all"
    assert [topic for topic, _, _ in client.created] == ["kept", "celery-control"]


def test_a_reply_is_read_by_the_process_that_declared_its_queue(client: FakeClient, connect: Connect) -> None:
    connection, exchange = connect(), kombu.Exchange("reply.celery.pidbox", "direct", durable=False)
    mine = kombu.Queue(f"{uuid4()}.reply.celery.pidbox", exchange, routing_key="mine", auto_delete=True)
    mine(connection.default_channel).declare()
    for key in ("other", "mine"):
        publish(connection, key, exchange=exchange, routing_key=key)
    assert [one.payload for one in consume(connection, mine)] == ["mine"]
    assert {name for name, _, _ in client.sent} == {"celery-control"}
    (topic, _, options) = client.subscribed[0]
    assert (topic, options) == ("celery-control", {"broadcast": True, "start": "latest"})


def test_a_reply_was_lost_before_it_was_consumed(client: FakeClient, connect: Connect) -> None:
    """Celery declares the queue of its results by the connection that sends, and consumes by another one."""
    sending, other = connect(), connect()
    mine = kombu.Queue(str(uuid4()), auto_delete=True)
    publish(sending, "early", routing_key=mine.name, declare=[mine])
    assert [one.payload for one in consume(other, mine)] == ["early"]
    assert [topic for topic, _, _ in client.subscribed] == ["celery-control"], "one reader for both"
    mine(sending.default_channel).declare()
    publish(sending, "late", routing_key=mine.name)
    other.close()
    assert [one.payload for one in consume(sending, mine)] == ["late"]


def test_a_shared_queue_ends_with_its_connections(client: FakeClient, connect: Connect) -> None:
    one, other = connect(), connect()
    mine, another = (kombu.Queue(str(uuid4()), auto_delete=True) for _ in range(2))
    mine(one.default_channel).declare()
    another(other.default_channel).declare()
    one.close()
    shared = other.transport.shared
    assert (shared.has(mine.name), shared.has(another.name)) == (False, True)
    assert not client.subscriptions[0].closed
    other.close()
    assert client.subscriptions[0].closed


def test_a_failed_reader_was_kept_for_later_connections(client: FakeClient, connect: Connect) -> None:
    one, mine = connect(), kombu.Queue(str(uuid4()), auto_delete=True)
    mine(one.default_channel).declare()
    first = one.transport.shared
    client.subscriptions[0].fail(TroveError(errors.BROKER_UNREACHABLE, "gone"))
    with pytest.raises(BrokerAwayError), kombu.Consumer(one, [mine]):
        one.drain_events(timeout=WAIT_SECONDS)
    one.close()
    mine(one.default_channel).declare()
    assert one.transport.shared is not first
    assert len(client.subscriptions) == 2


def test_a_kept_queue_with_the_name_of_a_reply_queue_is_refused(connect: Connect) -> None:
    with pytest.raises(TroveError, match="give it another name") as raised:
        kombu.Queue(f"tenant-{uuid4()}")(connect().default_channel).declare()
    assert raised.value.spec is errors.TOPIC_ILLEGAL


def test_a_topic_of_another_type_is_refused(client: FakeClient, connect: Connect) -> None:
    client.message_type = "NORMAL"
    with pytest.raises(TroveError, match="trovemq topic alter q --type MIXED"):
        kombu.Queue("q")(connect().default_channel).declare()


def test_a_record_of_another_program_is_a_dead_letter(
    client: FakeClient, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection, queue, strange = connect(), kombu.Queue("q"), received(b"12 apples", topic="q")
    queue(connection.default_channel).declare()
    client.put(strange)
    publish(connection, "fine", routing_key="q")
    assert consume(connection, queue)[0].payload == "fine"
    (settled,) = strange.settled
    assert settled.startswith("dead: "), "the dead letter has the reason"
    assert "is a dead letter now" in caplog.text


def test_the_prefetch_stops_the_delivery(client: FakeClient, connect: Connect) -> None:
    connection, queue, got = connect(), kombu.Queue("q"), []
    for n in range(3):
        publish(connection, n, routing_key="q", declare=[queue])
    with kombu.Consumer(
        connection, [queue], prefetch_count=2, callbacks=[lambda _, message: got.append(message)]
    ):
        connection.drain_events(timeout=WAIT_SECONDS)
        connection.drain_events(timeout=WAIT_SECONDS)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0)
        got[0].ack()
        connection.drain_events(timeout=WAIT_SECONDS)
    assert [message.payload for message in got] == [0, 1, 2]


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
def test_a_worker_that_stops_waited_for_messages(
    client: FakeClient, connect: Connect, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """Celery reads the flag, which its handler of SIGTERM sets, after `drain_events` alone, and calls that
    once more then."""
    connection = connect()
    waits: list[float] = []

    def stopped_meanwhile(seconds: float) -> bool:
        assert not waits, "it waits again"
        waits.append(seconds)
        monkeypatch.setattr(f"celery.worker.state.{flag}", 0)
        return False

    monkeypatch.setattr(connection.transport.arrived, "wait", stopped_meanwhile)
    with kombu.Consumer(connection, [kombu.Queue("q")]):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=WAIT_SECONDS)
    assert waits == [STOP_STEP]


def test_a_cancelled_consumer_settles_its_messages(client: FakeClient, connect: Connect) -> None:
    connection, queue = connect(), kombu.Queue("q")
    publish(connection, 1, routing_key="q", declare=[queue])
    (got,) = consume(connection, queue, ack=False)
    (subscription,) = client.subscriptions
    assert subscription.ended
    assert not subscription.closed
    got.ack()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    assert subscription.closed


def test_a_closed_connection_closes_its_subscriptions_and_client(
    client: FakeClient, connect: Connect
) -> None:
    connection, queue = connect(), kombu.Queue("q")
    publish(connection, 1, routing_key="q", declare=[queue])
    consume(connection, queue, ack=False)
    connection.close()
    assert client.closed
    assert all(one.closed for one in client.subscriptions)


@pytest.mark.parametrize(
    ("spec", "kind"), [(errors.BROKER_UNREACHABLE, BrokerAwayError), (errors.ACCESS_DENIED, TroveError)]
)
def test_only_a_broker_that_is_away_is_a_connection_error(
    client: FakeClient, connect: Connect, spec: Any, kind: type[Exception]
) -> None:
    connection = connect()
    publish(connection, routing_key="q", declare=[kombu.Queue("q")])
    client.failure = TroveError(spec, "for a reason")
    with pytest.raises(kind) as raised:
        publish(connection, routing_key="q")
    assert str(raised.value).endswith(f": for a reason. {spec.what_to_do}"), "kombu prints the text alone"
    assert issubclass(kind, connection.connection_errors) == (kind is BrokerAwayError)


def test_a_missing_topic_that_is_not_created_is_named_with_its_command(
    client: FakeClient, connect: Connect
) -> None:
    connection, queue = connect(create_topics=False), kombu.Queue("q")
    client.failure = TroveError(errors.TOPIC_NOT_FOUND)
    needed = "create_topics is False: trovemq topic create q --type MIXED --order priority$"
    with pytest.raises(TroveError, match=needed):
        publish(connection, routing_key="q")
    with pytest.raises(TroveError, match=needed), kombu.Consumer(connection, [queue]):
        pass
    with pytest.raises(TroveError, match=r"create_topics is False: trovemq topic create celery-control$"):
        kombu.Queue(str(uuid4()), auto_delete=True)(connection.default_channel).declare()


def test_an_error_that_stays_is_not_tried_again(
    client: FakeClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu took an illegal URL for a broker that is away: a worker tried it for ever."""
    tried: list[str] = []

    def refuse(url: str, **_: Any) -> None:
        tried.append(url)
        raise TroveError(errors.REQUEST_ILLEGAL, "a URL has no option 'colour'")

    monkeypatch.setattr(trovemq.sync, "connect", refuse)
    with pytest.raises(TroveError, match=r"no option 'colour'\. Correct the value"):
        connect().ensure_connection(max_retries=3, interval_start=0)
    assert len(tried) == 1
    assert connect().recoverable_connection_errors == connect().connection_errors


def test_an_option_of_another_type_is_refused(client: FakeClient, connect: Connect) -> None:
    with pytest.raises(TroveError, match="read_ahead='4' is to be of type int"):
        connect(read_ahead="4").connect()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("read_ahed", "did you mean read_ahead?"),
        ("polling_intervall", "did you mean polling_interval"),
        ("visibility_timeout", "it has group, topic_prefix,"),
        ("body_encoding", "it has group, topic_prefix,"),
    ],
)
def test_a_misspelt_option_is_not_ignored(client: FakeClient, connect: Connect, name: str, hint: str) -> None:
    with pytest.raises(TroveError, match=re.escape(f"the transport has no option {name!r}: {hint}")):
        connect(**{name: 4}).connect()


def test_an_option_of_kombu_is_allowed(client: FakeClient, connect: Connect) -> None:
    """kombu adds a producer's retry policy to the options, and makes the transport again from them."""
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 1, "errback": None}
    connection = connect(polling_interval=0.2)
    publish(connection, routing_key="q", declare=[kombu.Queue("q")], retry=True, retry_policy=policy)
    connection.clone().ensure_connection(max_retries=1)
    assert len(client.sent) == 1


def test_the_secret_is_masked_and_the_url_may_name_several_servers() -> None:
    connection = kombu.Connection("trovemq://ann:secret@ns1:9876,ns2:9876?tls=true")
    assert connection.as_uri() == "trovemq://ann:**@ns1:9876,ns2:9876?tls=true"
    assert "secret" in connection.as_uri(include_password=True)
