"""consume: a message that is printed is acknowledged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient, FakeSubscription
from trovemq.received import ReceivedMessage


def received(offset: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"body %d" % offset,
        message_id=f"id-{offset}",
        keys=("k1", "k2"),
        tags="paid",
        properties={"a": "b"},
        message_group=None,
        queue_id=0,
        queue_offset=offset,
        attempt=1 + offset,
        born_timestamp=1,
        store_timestamp=2,
        broker="broker-a",
    )


@pytest.fixture(autouse=True)
def subscription(client: FakeClient) -> FakeSubscription:
    client.subscription = FakeSubscription([received(offset) for offset in range(3)])
    return client.subscription


def test_each_message_is_printed_and_acknowledged(run: Any, client: FakeClient, subscription: Any) -> None:
    ran = run("--json", "consume", "orders", "--group", "billing", "-n", "2", "--tag", "paid")
    assert [(one["queueOffset"], one["keys"], one["attempt"]) for one in ran.objects] == [
        (0, "k1 k2", 1),
        (1, "k1 k2", 2),
    ]
    assert subscription.settled == [("acknowledged", 0), ("acknowledged", 1), ("left", 0)]
    ((_, asked),) = [call for call in client.calls if call[0] == "subscribe"]
    assert (asked["group"], asked["tags"], asked["prefetch"]) == ("billing", ["paid"], 2)


def test_a_new_group_begins_where_start_says(run: Any, client: FakeClient) -> None:
    line = ("consume", "orders", "--group", "billing", "--wait", "1ms")
    for start in ("earliest", "latest", "2026-11-23 10:00"):
        assert run(*line, "--start", start).code == 0
    assert run(*line).code == 0
    asked = [call["start"] for name, call in client.calls if name == "subscribe"]
    assert asked == ["earliest", "latest", datetime(2026, 11, 23, 10, tzinfo=UTC), None]
    assert run(*line, "--start", "first").code == 2


def test_without_acknowledgement_all_are_returned_at_the_end(run: Any, subscription: Any) -> None:
    ran = run("consume", "orders", "--group", "billing", "--no-ack", "--wait", "1ms", "-o", "body")
    assert ran.out == b"body 0\nbody 1\nbody 2\n"
    assert subscription.settled == [("returned", 0), ("returned", 1), ("returned", 2), ("left", 0)]


def test_a_person_sees_one_line_a_message(run: Any) -> None:
    lines = run("consume", "orders", "--group", "billing", "--wait", "1ms").out.decode().splitlines()
    assert lines[0].endswith("orders/0@0 [paid] body 0")
    assert lines[2].endswith("orders/0@2 [paid] (attempt 3) body 2")


def test_a_message_that_could_not_be_printed_is_not_acknowledged(
    run: Any, subscription: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("trovemq.cli.output.Output.flush", broken)
    monkeypatch.setattr("trovemq.cli.output.Output.discard", lambda _: None)
    assert run("consume", "orders", "--group", "billing").code == 0
    assert subscription.settled == [("failed", 0), ("left", 0)]


def test_a_group_must_be_named(run: Any) -> None:
    assert run("consume", "orders").code == 2
