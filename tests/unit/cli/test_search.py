"""search: conditions, pages, explain; one JSON object a message for programs, a table for people."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq import SearchAnswer, SearchPart, Where
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import Message, decode_message

PARTS = (SearchPart("broker-a", "term: key = a*, 2 values", 0, 4096, 256, at_least=True),)


@pytest.fixture
def asked(client: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The SDK's requests; it answers two messages, one a page."""
    for body in ("first", "second"):
        assert run("send", "orders", body, "--key", "a1").code == 0
    queue = client.records["orders", 0]
    found: list[Message] = [decode_message(record) for record in reversed(queue)]
    calls: list[dict[str, Any]] = []

    async def search(topic: str, where: Where, **options: Any) -> SearchAnswer:
        calls.append({"topic": topic, "where": where, **options})
        if topic != "orders":
            raise TroveError(errors.TOPIC_NOT_FOUND, f"no topic {topic}")
        if options.get("explain_only"):
            return SearchAnswer((), False, None, PARTS, lag_bytes=9)
        first = int(options["cursor"] or 0)
        return SearchAnswer(
            tuple(found[first : first + 1]),
            first == 1,
            "1" if first == 0 else None,
            PARTS,
            entries=5,
            scanned_bytes=7,
            lag_bytes=9,
            unreachable=client.unreachable,
            notes=("broker-a: skipped at 7: the record is damaged",),
        )

    monkeypatch.setattr(client, "search", search, raising=False)
    return calls


def test_every_condition_reaches_the_client(run: Any, asked: Any) -> None:
    options = [
        "--key",
        "a",
        "--key",
        "b",
        "--key-prefix",
        "c",
        "--message-id",
        "d",
        "--message-id-prefix",
        "e",
        "--tag",
        "f",
    ]
    ran = run("--json", "search", "orders", *options, "--property", "g=h=i", "--any", "--begin", "5")
    assert ran.code == 0
    assert asked[0]["where"] == Where.any_of(
        Where.key("a"),
        Where.key("b"),
        Where.key_prefix("c"),
        Where.message_id("d"),
        Where.message_id_prefix("e"),
        Where.tag("f"),
        Where.property("g", "h=i"),
    )
    assert (asked[0]["begin"], asked[0]["newest_first"], asked[0]["max"]) == (5, True, 64)


def test_pages_are_one_answer_and_standard_error_says_how_complete_it_is(run: Any, asked: Any) -> None:
    ran = run("--json", "search", "orders", "--key-prefix", "a", "--oldest-first")
    assert [one["keys"] for one in ran.objects] == ["a1", "a1"]
    assert [call["cursor"] for call in asked] == [None, "1"]
    assert not asked[0]["newest_first"]
    assert ran.note == {
        "complete": True,
        "cursor": None,
        "entries": 10,
        "scannedBytes": 14,
        "lagBytes": 9,
        "missing": [],
        "notes": ["broker-a: skipped at 7: the record is damaged"],
    }


def test_people_see_a_table_and_how_to_continue(run: Any, asked: Any) -> None:
    ran = run("search", "orders", "--key-prefix", "a", "--max", "1")
    assert len(asked) == 1
    assert b"second" in ran.out
    assert "add --cursor 1" in ran.err
    assert "the record is damaged" in ran.err


def test_a_broker_that_did_not_answer_is_named_and_nobody_is_asked_on(
    run: Any, asked: Any, client: Any
) -> None:
    client.unreachable = ("broker-b",)
    assert "not complete: broker broker-b did not answer" in run("search", "orders").err
    assert len(asked) == 1
    assert run("--json", "search", "orders", "--cursor", "1").note["complete"] is False


def test_explain_shows_what_would_serve_it(run: Any, asked: Any) -> None:
    ran = run("--json", "search", "orders", "--key-prefix", "a", "--explain")
    assert ran.objects == [
        {
            "broker": "broker-a",
            "index": "term: key = a*, 2 values",
            "begin": 0,
            "end": 4096,
            "entries": 256,
            "atLeast": True,
        }
    ]
    assert ran.note == {"lagBytes": 9}
    assert b"at least 256" in run("search", "orders", "--key-prefix", "a", "--explain").out
    assert all(call["explain_only"] for call in asked)


def test_what_cannot_be_asked_is_wrong_usage_and_what_is_refused_an_error(run: Any, asked: Any) -> None:
    assert run("search", "orders", "--property", "color").code == 2
    assert run("search", "orders", "--property", "=red").code == 2
    assert not asked
    ran = run("--json", "search", "nowhere", "--key", "a")
    assert (ran.code, ran.note["error"]) == (1, "TOPIC_NOT_FOUND")
