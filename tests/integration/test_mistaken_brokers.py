"""Brokers that are started wrongly: a name, a store, a cluster, a clock. Each says so, and what to do."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from trovemq import sync
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow

END_S_MAX = 120
CLOCK_AHEAD = Path(__file__).resolve().parents[1] / "support/clock_ahead.py"


class AheadBroker(BrokerProcess):
    """Its clock is off by the variable AHEAD_MS."""

    def command(self) -> list[str]:
        _, _, _, _, *arguments = super().command()
        return [sys.executable, str(CLOCK_AHEAD), *arguments]


@pytest.fixture
def nameserver() -> Iterator[NameserverProcess]:
    with NameserverProcess() as process:
        yield process


def ended(broker: BrokerProcess) -> str:
    """The log of a broker that does not start."""
    try:
        broker.start(wait=False)
        assert broker.wait(END_S_MAX) != 0
        return broker.log()
    finally:
        broker.close()


def until_said(broker: BrokerProcess, text: str) -> None:
    until(broker, lambda: text in broker.log())


def until_no_warning(broker: BrokerProcess, name: str) -> None:
    until(broker, lambda: name not in readyz(broker)["warnings"])


def until(broker: BrokerProcess, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S_MAX
    while not condition():
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.02)


def readyz(broker: BrokerProcess) -> dict[str, Any]:
    connection = http.client.HTTPConnection(broker.http_address, timeout=10)
    connection.request("GET", "/readyz")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def test_a_store_that_is_open_is_named_with_what_to_do(tmp_path: Path) -> None:
    with BrokerProcess(store=tmp_path / "store"):
        log = ended(BrokerProcess(store=tmp_path / "store"))
    assert "STORE_LOCKED" in log
    assert str(tmp_path / "store") in log
    assert "choose another --store" in log


@pytest.mark.parametrize("other", [{"name": "b2"}, {"cluster": "c2"}], ids=["name", "cluster"])
def test_another_brokers_store_was_served_under_a_wrong_name(other: dict[str, str], tmp_path: Path) -> None:
    own: dict[str, Any] = {"name": "b1", "cluster": "c1", "store": tmp_path / "store"}
    with BrokerProcess(**own) as broker:
        broker.client.admin.create_topic("orders", queue_count=1)
        broker.client.send("orders", b"x")
    log = ended(BrokerProcess(**{**own, **other}))
    assert "STORE_OTHER_BROKER" in log
    assert "is that of broker b1 of cluster c1" in log
    assert "--set renamed_from=c1/b1" in log
    with BrokerProcess(**own) as broker:
        assert [one.topic for one in broker.client.admin.list_topics()] == ["orders"], "nothing was changed"
    with BrokerProcess(**{**own, **other}, renamed_from="c1/b1") as broker:
        assert [one.topic for one in broker.client.admin.list_topics()] == ["orders"]
    assert "STORE_OTHER_BROKER" in ended(BrokerProcess(**own)), "the old name is gone"


def test_a_second_broker_of_a_name_says_what_to_do(nameserver: NameserverProcess) -> None:
    with BrokerProcess(name="b1", nameservers=[nameserver]) as first:
        second = BrokerProcess(name="b1", nameservers=[nameserver])
        try:
            second.start(wait=False)
            until_said(second, "name_taken")
            for text in (second.log(), str(readyz(second)["reasons"])):
                assert first.address in text
                assert "Give each broker its own --name" in text
        finally:
            second.close()


def test_two_given_brokers_of_one_name_hid_one_another(caplog: pytest.LogCaptureFixture) -> None:
    with BrokerProcess(name="b1") as first, BrokerProcess(name="b1") as second:
        with sync.connect(f"{first.address},{second.address}") as client:
            deadline = time.monotonic() + END_S_MAX
            while "are two brokers of the name b1" not in caplog.text:
                assert time.monotonic() < deadline, caplog.text
                time.sleep(0.02)
            assert "Give each broker its own --name" in caplog.text
            client.admin.create_topic("orders", queue_count=1)
            client.send("orders", b"x")
        having = [broker.client.admin.list_topics() for broker in (first, second)]
        assert sorted(map(len, having)) == [0, 1], "one of them is used, the same all the time"


def test_a_broker_whose_clock_is_off_said_nothing(nameserver: NameserverProcess) -> None:
    variables = {"AHEAD_MS": str(3_600_000)}
    with AheadBroker(name="b1", nameservers=[nameserver], environment=variables) as broker:
        until_said(broker, "clock.differs")
        warning = readyz(broker)["warnings"]["clock_difference"]
        assert "s fast against that of nameserver" in warning
        assert "3,600.0" in warning or "3,599.9" in warning, warning
        assert "run a time service" in warning
        code, out, _ = run_here(nameserver.address, "doctor")
        assert code == 1
        assert any(json.loads(line).get("check") == "clocks" for line in out.splitlines())


def test_a_right_clock_is_no_warning(nameserver: NameserverProcess) -> None:
    with BrokerProcess(name="b1", nameservers=[nameserver]) as broker:
        assert "clock_difference" not in readyz(broker)["warnings"]


def test_a_broker_beyond_a_limit_said_that_the_nameserver_was_unreachable() -> None:
    with (
        NameserverProcess(topics_per_broker_max=1) as limited,
        BrokerProcess(name="b1", nameservers=[limited]) as broker,
    ):
        broker.client.admin.create_topic("orders", queue_count=1)
        broker.client.admin.create_topic("bills", queue_count=1)
        until_said(broker, "nameserver.topics_left_out")
        assert "nameserver.unreachable" not in broker.log()
        assert "topics_per_broker_max = 1" in readyz(broker)["warnings"]["topics_left_out"]
        broker.client.admin.delete_topic("bills")
        until_no_warning(broker, "topics_left_out")


def test_names_with_other_settings_elsewhere_say_what_to_do(
    nameserver: NameserverProcess, tmp_path: Path
) -> None:
    with (
        BrokerProcess(name="b1", nameservers=[nameserver]) as first,
        BrokerProcess(name="b2", nameservers=[nameserver]) as second,
    ):
        admin = first.client.admin
        admin.create_topic("orders", queue_count=1)
        admin.groups.create("billing")
        ledger = str(tmp_path / "ledger")
        produce = ("verify", "produce", "orders", "--ledger", ledger, "--rate", "50", "--seconds", "0.5")
        assert run_here(nameserver.address, *produce)[0] == 0, "it made the topic on b2, and failed"
        assert {one.topic for one in second.client.admin.list_topics()} == set()
        for words, symbol in (
            (("topic", "create", "orders", "--queues", "2"), "TOPIC_SETTINGS_DIFFER"),
            (("group", "create", "billing", "--orderly"), "GROUP_SETTINGS_DIFFER"),
        ):
            code, _, err = run_here(nameserver.address, *words)
            error = json.loads(err.splitlines()[-1])
            assert (code, error["error"]) == (1, symbol)
            assert "b1" in error["message"]
            assert error.get("what_to_do") or error.get("whatToDo") or error.get("advice"), error
