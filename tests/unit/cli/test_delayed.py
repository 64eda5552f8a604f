"""send with a delivery time or a message group, and queries that show waiting messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trovemq.models.group import DelayedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import decode_message, encode_record

DELIVERY = 1_800_000_000_123


def waiting(message_id: str, keys: str = "k", store_timestamp: int = 5) -> DelayedMessage:
    record = encode_record(
        "rmq_sys_wheel_timer",
        b"later",
        properties={"UNIQ_KEY": message_id, "KEYS": keys, "REAL_TOPIC": "orders"},
        store_timestamp=store_timestamp,
    )
    return DelayedMessage(decode_message(record), "orders", DELIVERY, "HANDLE", "broker-a")


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--message-group=g", "message_group", "g"),
        ("--deliver-at=2030-01-01", "deliver_at", datetime(2030, 1, 1, tzinfo=UTC)),
        ("--deliver-at=1893456000001", "deliver_at", datetime(2030, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)),
        ("--deliver-after=1.5s", "deliver_after", timedelta(milliseconds=1_500)),
        ("--deliver-after=2h", "deliver_after", timedelta(hours=2)),
    ],
)
def test_the_options_reach_the_client(run: Any, option: str, name: str, value: object) -> None:
    assert run("--json", "send", "orders", "body", option).code == 0
    ((_, call),) = [call for call in run.client.calls if call[0] == "send"]
    assert call[name] == value


def test_a_delayed_message_has_no_place_yet_but_a_recall_handle(run: Any) -> None:
    (answer,) = run("--json", "send", "orders", "body", "--deliver-after", "5m").objects
    assert (answer["recallHandle"], answer["queueOffset"], answer["offsetMsgId"]) == ("HANDLE", None, None)
    (answer,) = run("--json", "send", "orders", "body").objects
    assert "recallHandle" not in answer


@pytest.mark.parametrize(
    "options",
    [
        ("--deliver-after", "soon"),
        ("--deliver-at", "soon"),
        ("--deliver-at", str(2**63 - 1)),
        ("--deliver-after", "999999999999d"),
        ("--deliver-after", "1s", "--deliver-at", "2030-01-01"),
    ],
)
def test_a_wrong_delivery_time_is_wrong_usage(run: Any, options: tuple[str, ...]) -> None:
    ran = run("--json", "send", "orders", "body", *options)
    assert (ran.code, ran.out) == (2, b"")
    assert run.client.calls == []


def test_a_query_shows_what_waits_with_state_and_time(run: Any) -> None:
    run("send", "orders", "now", "--key", "k")
    run.client.groups.delayed = [waiting("U1")]
    delivered, pending = run("--json", "query", "orders", "k").objects
    assert "state" not in delivered
    assert (pending["topic"], pending["storedTopic"]) == ("orders", "rmq_sys_wheel_timer")
    assert (pending["state"], pending["deliveryTimestamp"]) == ("PENDING", DELIVERY)
    assert pending["recallHandle"] == "HANDLE"
    shown = run("query", "orders", "k").out.decode()
    assert "2027-01-15 08:00:00.123Z" in shown
    assert "HANDLE" in shown


def test_a_query_by_unique_key_or_time_takes_only_what_it_asks_for(run: Any) -> None:
    run.client.groups.delayed = [waiting("U1", keys="U2"), waiting("U2"), waiting("U2", store_timestamp=99)]
    found = run("--json", "query", "orders", "U2", "--type", "message-id", "--end", "50").objects
    assert [one["messageId"] for one in found] == ["U2"]


def test_tags_and_later_pages_do_not_ask_for_what_waits(run: Any) -> None:
    run("--json", "query", "orders", "k", "--type", "tag")
    run("--json", "query", "orders", "k", "--cursor", "0")
    assert run.client.groups.calls == []


def test_a_query_answers_where_what_waits_cannot_be_asked(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise TroveError(errors.BROKER_UNREACHABLE, "gone")

    run("send", "orders", "now", "--key", "k")
    monkeypatch.setattr(run.client.groups, "find_delayed", fail)
    ran = run("--json", "query", "orders", "k")
    assert (ran.code, len(ran.objects), ran.note["pendingError"]) == (0, 1, "BROKER_UNREACHABLE")
