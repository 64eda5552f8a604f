"""The state of consumers and producers survives a restart, clean or not: offsets, messages in flight, delayed
messages, half messages.

Each scenario has its own topics and is a generator: the steps before the restart, `yield`, and the checks
afterwards. They share one broker that is stopped and one that is killed, and wait at the same time:
most of the time here is the wait for messages that are invisible for 4 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import grpc
import pytest

from tests.support.rocketmq_client import RawClient, create_orderly_group, create_topics
from tests.support.stubs import ADMIN, stub_of
from trovemq.testing import BrokerProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import admin_pb2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("restart_consumers")]

TOPICS: Final = {
    "acknowledged": "NORMAL",
    "flying": "NORMAL",
    "later": "DELAY",
    "paid": "TRANSACTION",
    "steps": "FIFO",
}
INVISIBLE_S: Final = 4.0
POLL_S: Final = 1.0  # where nothing is to come
Scenario = Callable[[str], Iterator[None]]
Outcomes = dict[tuple[str, str], Future[None]]
SCENARIOS: Final[list[Scenario]] = []


def across_a_restart(scenario: Scenario) -> Callable[[Outcomes, str], None]:
    """Makes a test of a scenario: it fails as the scenario did."""
    SCENARIOS.append(scenario)

    def test(outcomes: Outcomes, end: str) -> None:
        outcomes[end, scenario.__name__].result()

    test.__doc__ = scenario.__doc__
    return pytest.mark.parametrize("end", ["stopped", "killed"])(test)


def start_broker() -> BrokerProcess:
    """Half messages are looked at every second, and none is given up; waits are short."""
    return BrokerProcess(
        transactionCheckInterval=1000,
        transactionTimeOut=1000,
        transactionCheckMax=1000,
        receive_poll_min_ms=0,
        invisible_min_ms=1000,
    )


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    found: Outcomes = {}
    with ThreadPoolExecutor(2 * len(SCENARIOS)) as pool, start_broker() as one, start_broker() as other:
        for end, broker in (("stopped", one), ("killed", other)):
            create_topics(broker.address, TOPICS)
            steps = [scenario(broker.address) for scenario in SCENARIOS]
            begun = [pool.submit(begin, one) for one in steps]
            wait(begun)
            events_written(broker)
            broker.restart(kill=end == "killed")
            for scenario, before, rest in zip(SCENARIOS, begun, steps, strict=True):
                found[end, scenario.__name__] = pool.submit(finish, before, rest)
        yield found


def begin(steps: Iterator[None]) -> None:
    """The steps of a scenario before the restart."""
    next(steps)


def finish(before: Future[None], steps: Iterator[None]) -> None:
    """The rest of it, if it came so far."""
    before.result()
    assert next(steps, "ended") == "ended"


def bodies(messages: list[v2.Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


def events_written(broker: BrokerProcess) -> None:
    """Events go into the log every 100 ms: a kill before that means that messages are delivered again."""
    with grpc.insecure_channel(broker.address) as channel:
        stub = stub_of(ADMIN, channel)
        end = time.monotonic() + 30
        while stub.GetStatistics(admin_pb2.GetStatisticsRequest()).counters["events_pending"]:
            assert time.monotonic() < end, "events stay in memory"
            time.sleep(0.02)


@across_a_restart
def test_what_was_acknowledged_does_not_come_again(address: str) -> Iterator[None]:
    with RawClient(address) as client:
        client.send("acknowledged", *(b"%02d" % i for i in range(20)))
        taken = client.receive_until("group", "acknowledged", 20)
        client.acknowledge("group", taken[:12])
        acknowledged = bodies(taken[:12])
    yield
    with RawClient(address) as client:
        client.send("acknowledged", b"new")
        again = client.receive_until("group", "acknowledged", 1, poll_s=5)
        assert b"new" in bodies(again)
        assert not set(bodies(again)) & set(acknowledged)


@across_a_restart
def test_what_was_in_flight_comes_back_when_its_time_is_over(address: str) -> Iterator[None]:
    with RawClient(address) as client:
        client.send("flying", b"one", b"two", tag="t", keys=["k"], user_properties={"colour": "blue"})
        taken = client.receive_until("group", "flying", 2, invisible_s=INVISIBLE_S)
        received_at = time.monotonic()
        assert [message.system_properties.delivery_attempt for message in taken] == [1, 1]
        ids = sorted(message.system_properties.message_id for message in taken)
    yield
    with RawClient(address) as client:
        again = client.receive_until("group", "flying", 2, within_s=60, invisible_s=60)
        assert time.monotonic() - received_at >= INVISIBLE_S - 0.5, "not before its time"
        assert bodies(again) == [b"one", b"two"]
        assert sorted(message.system_properties.message_id for message in again) == ids
        for message in again:
            assert message.topic.name == "flying"
            assert message.system_properties.delivery_attempt == 2
            assert message.system_properties.tag == "t"
            assert list(message.system_properties.keys) == ["k"]
            assert dict(message.user_properties) == {"colour": "blue"}
        done = client.acknowledge("group", again)
        assert done.status.code == v2.OK
        assert client.receive("group", "flying", poll_s=POLL_S) == []


@across_a_restart
def test_a_delayed_message_comes_once_and_not_early(address: str) -> Iterator[None]:
    with RawClient(address) as client:
        assert client.receive("group", "later", poll_s=POLL_S) == []
        due_ms = int(time.time() * 1000) + 4_000
        past_ms = int(time.time() * 1000) + 300
        client.send("later", b"soon", deliver_at_ms=past_ms)
        client.send("later", b"later", deliver_at_ms=due_ms)
        (soon,) = client.receive_until("group", "later", 1)
        assert soon.body == b"soon"
        client.acknowledge("group", [soon])
    yield
    with RawClient(address) as client:
        (later,) = client.receive_until("group", "later", 1)
        assert time.time() * 1000 >= due_ms
        assert later.body == b"later"
        assert later.system_properties.delivery_timestamp.ToMilliseconds() == due_ms
        client.acknowledge("group", [later])
        assert client.receive("group", "later", poll_s=POLL_S) == []


@across_a_restart
def test_a_half_message_can_be_committed_or_rolled_back_afterwards(address: str) -> Iterator[None]:
    with RawClient(address) as client:
        assert client.receive("group", "paid", poll_s=POLL_S) == []
        entries = [
            client.send("paid", body, message_type=v2.TRANSACTION).entries[0]
            for body in (b"yes", b"no", b"before")
        ]
        assert client.end_transaction("paid", entries[2], v2.COMMIT).status.code == v2.OK
        assert bodies(client.receive_until("group", "paid", 1)) == [b"before"]
    yield
    with RawClient(address) as client:
        assert client.end_transaction("paid", entries[0], v2.COMMIT).status.code == v2.OK
        assert client.end_transaction("paid", entries[1], v2.ROLLBACK).status.code == v2.OK
        assert bodies(client.receive_until("group", "paid", 1)) == [b"yes"]
        settled = client.end_transaction("paid", entries[2], v2.COMMIT)
        assert settled.status.code == v2.INVALID_TRANSACTION_ID
        assert client.receive("group", "paid", poll_s=POLL_S) == []


@across_a_restart
def test_order_within_a_message_group_survives(address: str) -> Iterator[None]:
    create_orderly_group(address, "ordered")
    with RawClient(address) as client:
        for number in range(6):
            client.send("steps", b"a%d" % number, message_group="a")
            client.send("steps", b"b%d" % number, message_group="b")
        first = client.receive_until("ordered", "steps", 4, invisible_s=INVISIBLE_S)
        kept = first[:2]
        client.acknowledge("ordered", kept)
    yield
    order = [message.body for message in kept]
    with RawClient(address) as client:
        end = time.monotonic() + 30
        while len(order) < 12 and time.monotonic() < end:
            taken = client.receive("ordered", "steps", count=4, poll_s=POLL_S)
            if taken:
                client.acknowledge("ordered", taken)
            order += [message.body for message in taken]
    for name in (b"a", b"b"):
        assert [body for body in order if body.startswith(name)] == [name + b"%d" % i for i in range(6)]
