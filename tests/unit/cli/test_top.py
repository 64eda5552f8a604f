"""top: rates between two readings, the order of rows, brokers that are away."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from tests.unit.cli.conftest import FakeClient
from trovemq.cli.figures import growth, humane_count, rate_text
from trovemq.cli.options import Format, SharedOptions
from trovemq.cli.output import Output
from trovemq.cli.session import Session
from trovemq.cli.top_asking import Readings, lacked_of_shared, lacked_topics
from trovemq.cli.top_rates import BrokerReading, By, sample
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    ConfigSummary,
    LostBroker,
    TopicRoute,
    TopicTraffic,
)
from trovemq.models.config import ConfigName, ConfigStatus
from trovemq.models.group import QueueLag
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def reading(name: str, at: float, into: int, out: int, lag: int = 0, committed: int = 0) -> BrokerReading:
    """A broker with one topic and one group, and as many messages as its name and these numbers say."""
    counters = {
        "messages_in": into,
        "bytes_in": 10 * into,
        "messages_out": out,
        "bytes_out": 10 * out,
    }
    traffic = TopicTraffic("orders", into, 10 * into, out, 10 * out)
    queue = QueueLag("orders", 0, 0, into, committed, committed, 1, lag, 1_500, False, name)
    return BrokerReading(name, "serving", "", at, counters, {"orders": traffic}, {"billing": [queue]})


def test_rates_are_of_the_time_between_each_brokers_own_answers() -> None:
    before = [reading("a", 10.0, 100, 50), reading("b", 11.0, 0, 0)]
    after = [reading("a", 12.0, 300, 60, lag=240, committed=60), reading("b", 15.0, 400, 40, 5, 40)]
    found = sample(before, after, 2.0, By.NAME)
    rates = {row.name: (row.rates.messages_in, row.rates.messages_out) for row in found.brokers}
    assert rates == {"a": (100.0, 5.0), "b": (100.0, 10.0)}
    (topic,) = found.topics
    assert (topic.brokers, topic.rates.messages_in, topic.rates.bytes_in) == (2, 200.0, 2_000.0)
    assert topic.rates.lag == 245
    (group,) = found.groups
    assert (group.lag, group.lag_ms, group.in_flight, group.consumed) == (245, 1_500, 2, 40.0)
    assert found.missing == []


def test_a_broker_that_was_restarted_has_no_rate_yet() -> None:
    found = sample([reading("a", 0.0, 500, 500)], [reading("a", 2.0, 20, 0)], 2.0, By.IN)
    assert (found.brokers[0].rates.messages_in, found.topics[0].rates.messages_in) == (None, None)


def test_one_broker_away_does_not_hide_the_others() -> None:
    gone = BrokerReading("b", "away", "BROKER_UNREACHABLE")
    found = sample(
        [reading("a", 0.0, 0, 0), reading("b", 0.0, 0, 0)], [reading("a", 1.0, 7, 3), gone], 1.0, By.IN
    )
    states = [(row.name, row.state, row.note, row.rates.messages_in) for row in found.brokers]
    assert states == [("a", "serving", "", 7.0), ("b", "away", "BROKER_UNREACHABLE", None)]
    assert (found.topics[0].rates.messages_in, found.missing) == (7.0, ["b"])


@pytest.mark.parametrize(("by", "order"), [("in", "bac"), ("out", "cba"), ("lag", "acb"), ("name", "abc")])
def test_the_order_of_brokers(by: str, order: str) -> None:
    before = [reading(name, 0.0, 0, 0) for name in "abc"]
    after = [reading("a", 1.0, 5, 1, lag=9), reading("b", 1.0, 9, 2, lag=1), reading("c", 1.0, 1, 3, lag=5)]
    assert "".join(row.name for row in sample(before, after, 1.0, By(by)).brokers) == order


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999_999, "999,999"),
        (1_250_000, "1.25 million"),
        (3_400_000_000, "3.40 billion"),
        (2_000_000_000_000, "2.00 trillion"),
    ],
)
def test_large_counts_in_words(count: int, text: str) -> None:
    assert humane_count(count) == text


def test_rates_as_people_read_them() -> None:
    rates = (None, 0.0, 0.04, 12.34, 372_000.4, 1_250_000.0)
    assert [rate_text(rate) for rate in rates] == ["-", "0", "0.0", "12.3", "372,000", "1.25 million"]
    assert (growth(None, 5, 1.0), growth(3, 5, 0.0), growth(3, 5, 2.0)) == (None, None, 1.0)


def route(name: str, topics: Sequence[str], *, shared: bool = False, draining: bool = False) -> BrokerRoute:
    config = ConfigSummary("id", "a", 1) if shared else None
    info = BrokerInfo("c", name, "127.0.0.1:1", draining=draining, drained=draining, config=config)
    return BrokerRoute(info, tuple(TopicRoute(topic, 1) for topic in topics))


def test_topics_that_a_broker_lacks() -> None:
    routes = [route("a", ["x", "y", "rmq_sys_z"]), route("b", ["x"]), route("c", [], draining=True)]
    assert lacked_topics(routes) == {"a": [], "b": ["y"], "c": []}
    shared = [route("a", ["x"], shared=True), route("b", [], shared=True)]
    assert lacked_topics(shared) == {"a": [], "b": []}


def status(broker: str, version: int, *failed: ConfigName) -> ConfigStatus:
    return ConfigStatus(broker=broker, state="current", cluster="id", version=version, failed=failed)


@pytest.mark.parametrize(
    ("version", "failed", "text"),
    [
        (7, [], ""),
        (7, [ConfigName("group", "g")], ""),
        (7, [ConfigName("topic", "x", "no space")], "lacks x"),
        (6, [], "lacks 1 change of the configuration"),
        (2, [ConfigName("topic", name) for name in "dacbe"], "lacks a, b, c and 2 more topics; lacks 5 ch"),
    ],
)
def test_a_broker_that_lacked_topics_of_a_shared_configuration_had_no_mark(
    version: int, failed: list[ConfigName], text: str
) -> None:
    one = status("b", version, *failed)
    found = lacked_of_shared(one, [status("a", 7), one])
    assert found.startswith(text)
    assert bool(found) == bool(text)


@fake_time
async def test_top_asks_brokers_that_share_a_configuration_for_their_state(
    client: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shared() -> ClusterState:
        return ClusterState((route("a", ["orders"], shared=True), route("b", [], shared=True)))

    async def status_of(broker: str) -> list[ConfigStatus]:
        return [status(broker, 3, ConfigName("topic", "bills"))]

    monkeypatch.setattr(client, "cluster", shared)
    monkeypatch.setattr(client.config, "status", status_of)
    output = Output(Format.JSON, stdout=io.BytesIO(), stderr=io.StringIO(), terminal=False)
    found = await Readings(Session(SharedOptions(), 30.0, output), client, 0.5).read()
    assert [(one.name, one.note) for one in found] == [("a", "lacks bills"), ("b", "BROKER_UNREACHABLE")]

    async def denied(broker: str) -> list[ConfigStatus]:
        raise TroveError(errors.ACCESS_DENIED, "for operators")

    monkeypatch.setattr(client.config, "status", denied)
    found = await Readings(Session(SharedOptions(), 30.0, output), client, 0.5).read()
    assert (found[0].name, found[0].note, found[0].lags) == ("a", "", {})
    output.close()


class Cluster:
    """Two brokers, one of which answers nothing, and one that nameservers have lost."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.readings = 0
        self.unreachable = False

    async def cluster(self) -> ClusterState:
        if self.unreachable:
            raise TroveError(errors.BROKER_UNREACHABLE, "the nameserver is gone")
        lost = LostBroker("c", "c", "127.0.0.1:3", 5_000, 1, 0)
        return ClusterState((route("a", ["orders"]), route("b", ["orders"])), 1, (lost,))

    async def statistics(self, broker: str, *, topics: bool) -> BrokerAnswers[BrokerStatistics]:
        assert topics
        if broker == "b":
            raise TroveError(errors.BROKER_UNREACHABLE, "no answer")
        self.readings += 1
        self.unreachable = True  # from the second reading on
        info = BrokerInfo("c", "a", "127.0.0.1:1")
        count = 1_000 * self.readings
        traffic = (TopicTraffic("orders", count, count, 0, 0), TopicTraffic("rmq_sys_x", 1, 1, 1, 1))
        return BrokerAnswers([BrokerStatistics(info, {"messages_in": count}, traffic)])


@pytest.fixture
def cluster(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(client)
    monkeypatch.setattr(client, "cluster", made.cluster)
    monkeypatch.setattr(client, "statistics", made.statistics)
    client.groups.groups.clear()
    return made


def test_one_look_as_an_object(run: Any, cluster: Cluster) -> None:
    ran = run("--json", "top", "--once", "--interval", "100ms")
    (found,) = ran.objects
    assert (ran.code, cluster.readings) == (0, 2)
    assert [(one["broker"], one["state"]) for one in found["brokers"]] == [
        ("a", "serving"),
        ("b", "away"),
        ("c", "lost"),
    ]
    assert found["brokers"][0]["messagesIn"] > 0
    assert found["brokers"][1]["note"] == "BROKER_UNREACHABLE"
    assert [one["topic"] for one in found["topics"]] == ["orders"]
    assert (found["complete"], found["missing"]) == (False, ["b", "c"])


def test_one_look_for_people(run: Any, cluster: Cluster) -> None:
    lines = run("top", "--once", "--interval", "100ms").out.decode().splitlines()
    assert lines[1].split()[:4] == ["broker", "state", "in", "out"]
    assert lines[3].split() == ["b", "away", "-", "-", "-", "-", "-", "BROKER_UNREACHABLE"]
    assert "Topics and groups are without b, c." in lines


def test_it_goes_on_until_it_is_interrupted(
    run: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("trovemq.cli.top.asyncio.sleep", wait)
    ran = run("--json", "top")
    assert (ran.code, len(ran.objects), ran.err) == (130, 3, "")


@fake_time
async def test_a_hung_broker_held_back_the_others_at_each_interval(
    client: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(broker: str, *, topics: bool) -> BrokerAnswers[BrokerStatistics]:
        if broker == "b":
            await asyncio.Event().wait()
        return await cluster.statistics(broker, topics=topics)

    monkeypatch.setattr(client, "statistics", hang)
    loop = asyncio.get_running_loop()
    output = Output(Format.JSON, stdout=io.BytesIO(), stderr=io.StringIO(), terminal=False)
    readings = Readings(Session(SharedOptions(), 30.0, output), client, 0.5)
    took = []
    for _ in range(3):
        begun = loop.time()
        states = {one.name: (one.state, one.note) for one in await readings.read()}
        assert states["a"] == ("serving", "")
        assert states["b"] == ("away", "REQUEST_TIMEOUT")
        took.append(loop.time() - begun)
    output.close()
    assert took == pytest.approx([5.0, 0.5, 0.5])


def test_wrong_order_or_interval_is_wrong_usage(run: Any) -> None:
    assert run("top", "--by", "size").code == 2
    assert run("top", "--interval", "5ms").code == 2
