"""track: two tables for people, one object a copy, event and status for programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trovemq import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

STORED_MS = 1_700_000_000_000
COPY = MessageCopy(
    broker="broker-a",
    message=1,
    role="message",
    topic="orders",
    queue_id=0,
    queue_offset=7,
    physical_offset=4096,
    size=200,
    offset_msg_id="AB" * 16,
    message_id="UNIQUE",
    keys="a b",
    tag="paid",
    born_timestamp=STORED_MS - 5,
    born_host="10.0.0.2:1",
    store_timestamp=STORED_MS,
    store_host="10.0.0.1:8081",
    reconsume_times=0,
    group="",
    producer_group="",
    message_group="",
    deliver_timestamp=0,
)
EVENT = TrackEvent(
    broker="broker-a",
    message=1,
    timestamp=STORED_MS + 1,
    kind="delivered",
    group="billing",
    client_id="client-1",
    attempt=1,
    until=STORED_MS + 30_000,
    count=1,
    topic="orders",
    queue_id=0,
    queue_offset=7,
    detail="",
)
VERDICT = ConsumptionStatus(
    broker="broker-a",
    message=1,
    group="billing",
    reason="in-flight",
    consumed=False,
    until=STORED_MS + 30_000,
    attempt=1,
    client_id="client-1",
    ahead=0,
    ahead_estimated=False,
    blocked_by=None,
    committed=7,
    next_offset=8,
    online=2,
    subscribed=1,
    filter="*",
    topic="orders",
    queue_id=0,
    queue_offset=7,
    detail="",
)
DONE = replace(VERDICT, group="archive", reason="acknowledged", consumed=True, attempt=2)


@pytest.fixture
def reported(client: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The SDK's answer (`answer`), and its requests (`asked`)."""
    state: dict[str, Any] = {
        "answer": MessageTrack((COPY,), (EVENT,), (VERDICT, DONE), True),
        "asked": [],
    }

    async def track(identifier: Any, topic: str | None, *, broker: str | None) -> MessageTrack:
        state["asked"].append((identifier, topic, broker))
        if isinstance(state["answer"], TroveError):
            raise state["answer"]
        answer = state["answer"]
        assert isinstance(answer, MessageTrack)
        return answer

    monkeypatch.setattr(client, "track", track, raising=False)
    return state


def test_json_has_an_object_for_each_copy_event_and_status(run: Any, reported: Any) -> None:
    ran = run("--json", "track", "UNIQUE", "--topic", "orders")
    assert [one["type"] for one in ran.objects] == ["copy", "event", "status", "status"]
    copy, event, status, _ = ran.objects
    assert (copy["role"], copy["queueOffset"], copy["commitLogOffset"], copy["offsetMsgId"]) == (
        "message",
        7,
        4096,
        "AB" * 16,
    )
    assert (copy["messageId"], copy["storeTimestamp"], copy["tags"]) == ("UNIQUE", STORED_MS, "paid")
    assert (event["kind"], event["clientId"], event["until"]) == ("delivered", "client-1", STORED_MS + 30_000)
    assert (status["reason"], status["blockedBy"], status["nextOffset"], status["consumed"]) == (
        "in-flight",
        None,
        8,
        False,
    )
    assert ran.note == {"complete": True, "missing": [], "notes": []}
    assert reported["asked"] == [("UNIQUE", "orders", None)]


def test_people_get_a_timeline_and_a_table_of_who_has_not_consumed_it(run: Any, reported: Any) -> None:
    ran = run("track", "UNIQUE")
    text = ran.out.decode()
    lines = text.splitlines()
    assert lines[0] == "UNIQUE on broker-a"
    (delivered,) = [line for line in lines if "delivered" in line]
    assert "2023-11-14 22:13:20.001Z" in delivered
    assert "orders/0@7" in delivered
    (open_line,) = [line for line in lines if "in-flight" in line]
    assert "1 of 2" in open_line
    assert text.index("not consumed by") < text.index("completed by") < text.index("acknowledged")


def test_a_place_instead_of_an_id(run: Any, reported: Any) -> None:
    assert run("track", "orders", "0", "7", "--broker", "broker-a").code == 0
    assert reported["asked"] == [(("orders", 0, 7), None, "broker-a")]


@pytest.mark.parametrize(
    "arguments",
    [("a", "b"), ("orders", "0", "x"), ("orders", "-1", "7"), ("orders", "0", "7", "--topic", "t")],
)
def test_wrong_usage(run: Any, reported: Any, arguments: tuple[str, ...]) -> None:
    ran = run("--json", "track", *arguments)
    assert (ran.code, ran.out) == (2, b"")


def test_a_message_that_is_not_there_is_an_error(run: Any, reported: Any) -> None:
    reported["answer"] = TroveError(errors.MESSAGE_NOT_FOUND, "no message UNIQUE")
    ran = run("--json", "track", "UNIQUE")
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "MESSAGE_NOT_FOUND")
    assert "trovemq query TOPIC UNIQUE" in ran.note["message"], "it may be a key"


def test_an_answer_that_is_not_whole_says_what_is_missing(run: Any, reported: Any) -> None:
    reported["answer"] = MessageTrack((COPY,), (), (), False, ("broker-b",), ("broker-b: no answer",))
    assert run("--json", "track", "UNIQUE").note == {
        "complete": False,
        "missing": ["broker-b"],
        "notes": ["broker-b: no answer"],
    }
    ran = run("track", "UNIQUE")
    assert "broker-b: no answer" in ran.err
    assert "No group reads its topic" in ran.out.decode()


def test_each_message_with_the_key_has_tables_of_its_own(run: Any, reported: Any) -> None:
    second = replace(COPY, message=2, message_id="", broker="broker-b")
    reported["answer"] = MessageTrack(
        (COPY, second),
        (EVENT, replace(EVENT, message=2, kind="renewed", count=3)),
        (VERDICT, replace(VERDICT, message=2, ahead=1_234, ahead_estimated=True, reason="not-reached")),
        True,
    )
    text = run("track", "UNIQUE").out.decode()
    first, rest = text.split(f"{'AB' * 16} on broker-b")
    assert "delivered" in first
    assert "renewed x3" in rest
    assert "≈1,234" in rest


def test_what_a_client_says_of_itself_cannot_steer_the_terminal(run: Any, reported: Any) -> None:
    event = replace(EVENT, client_id="\x1b[31mred", detail="\x07")
    status = replace(DONE, reason="filtered-out", filter="\x1b[2J")
    reported["answer"] = MessageTrack((COPY,), (event,), (status,), True)
    assert b"\x1b[31m" not in run("track", "UNIQUE").out
    assert b"\x1b[2J" not in run("track", "UNIQUE").out
