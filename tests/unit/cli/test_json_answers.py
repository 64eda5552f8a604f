"""With --json: objects alone on standard output, one object on standard error, the right exit code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq import TopicHold
from trovemq_proto.message_objects import body_of

GOLDEN = Path(__file__).parents[2] / "golden"
TIME_MAX = 9_223_372_036_854_775_807


def send_many(run: Any, count: int, *options: str) -> None:
    for i in range(count):
        assert run("send", "orders", f"body-{i}", "--queue", "0", "--tag", "paid", *options).code == 0


def test_send_prints_exactly_its_eight_fields(run: Any) -> None:
    ran = run(
        "--json",
        "send",
        "orders",
        "hello",
        "--key",
        "a",
        "--key",
        "b",
        "--message-id",
        "my-id",
        "--property",
        "x=1=2",
    )
    assert ran.code == 0
    assert ran.err == ""
    assert ran.objects == [
        {
            "topic": "orders",
            "queueId": 0,
            "queueOffset": 0,
            "commitLogOffset": 0,
            "offsetMsgId": "7F00000100001F910000000000000000",
            "messageId": "my-id",
            "durability": "disk",
            "copies": 1,
        }
    ]
    (name, call) = run.client.calls[0]
    assert (name, call["keys"], call["properties"], call["body"]) == (
        "send",
        ["a", "b"],
        {"x": "1=2"},
        b"hello",
    )


@pytest.mark.parametrize(
    ("status", "error"),
    [("FLUSH_SLAVE_TIMEOUT", "REPLICA_TIMEOUT"), ("FLUSH_DISK_TIMEOUT", "FLUSH_DISK_TIMEOUT")],
)
def test_a_send_without_its_copies_ended_as_if_it_had_them(run: Any, status: str, error: str) -> None:
    run.client.send_status = status
    ran = run("--json", "send", "orders", "hello")
    assert ran.code != 0
    assert ran.objects == []
    note = json.loads(ran.err)
    assert (note["error"], note["fields"]["message_id"]) == (error, f"UNIQUE{0:028}")


def test_a_standard_input_without_end_is_not_read_for_ever(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trovemq.cli.messages.BODY_READ_BYTES_MAX", 1_000)
    assert run("--json", "send", "orders", "-", stdin=bytes(1_000)).code == 0
    ran = run("--json", "send", "orders", "-", stdin=bytes(1_001))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "MESSAGE_SIZE_EXCEEDED")


def test_an_argument_that_is_not_a_utf8_is_an_error_like_any_other(run: Any, client: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        "\udcff".encode()

    client.query = refuse
    ran = run("--json", "query", "orders", "\udcff")
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "REQUEST_ILLEGAL")


@pytest.mark.parametrize("body", [b"", b"\x00\xff\n\r\x1b[31m", bytes(range(256)) * 64])
def test_a_body_from_standard_input_is_taken_byte_for_byte(run: Any, body: bytes) -> None:
    assert run("send", "orders", "-", "--json", stdin=body).code == 0
    assert run("send", "orders", "--json", stdin=body).code == 0
    got = run("--json", "pull", "orders", "--queue", "0", "--offset", "0").objects
    assert [body_of(message) for message in got] == [body, body]


def test_a_message_has_exactly_the_manifests_field_names(run: Any) -> None:
    with gzip.open(GOLDEN / "small.manifest.json.gz") as file:
        manifest = json.load(file)["messages"]
    send_many(run, 1, "--key", "k")
    (message,) = run("--json", "get", "orders", "0", "0").objects
    ordinary = next(m for m in manifest if "keys" in m and "tags" in m and "storedBody" not in m)
    assert set(message) == set(ordinary) - {"msgId", "uniqKey"} | {"messageId"}


@pytest.mark.parametrize(
    ("offset", "count", "expected"), [(0, 7, 7), (0, 100, 8), (5, 2, 2), (7, 9, 1), (8, 4, 0)]
)
def test_pull_pages_until_it_has_max_messages_or_the_end(
    run: Any, offset: int, count: int, expected: int
) -> None:
    send_many(run, 8)
    ran = run("pull", "orders", "--queue", "0", "--offset", str(offset), "--max", str(count), "--json")
    assert ran.code == 0
    assert [message["queueOffset"] for message in ran.objects] == list(range(offset, offset + expected))
    assert ran.err == ""


def test_a_tag_with_and_signs_found_nothing_without_a_word(run: Any) -> None:
    for text in ("paid && sent", "paid || sent", "paid | sent"):
        answer = run("pull", "orders", "--queue", "0", "--tag", text)
        assert answer.code == 2
        assert "is not a tag" in answer.err


def test_pull_filters_by_tag_and_still_finds_max(run: Any) -> None:
    for i in range(9):
        run("send", "orders", str(i), "--queue", "0", "--tag", "odd" if i % 2 else "even")
    ran = run("pull", "orders", "--queue", "0", "--tag", "odd", "--max", "3", "--json")
    assert [message["queueOffset"] for message in ran.objects] == [1, 3, 5]


def test_an_error_leaves_standard_output_empty_and_says_what_to_do(run: Any) -> None:
    send_many(run, 2)
    ran = run("--json", "pull", "orders", "--queue", "0", "--offset", "9")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.note["error"] == "OFFSET_OUT_OF_RANGE"
    assert ran.note["code"] == 112
    assert ran.note["fields"] == {"min_offset": "0", "max_offset": "2"}
    assert set(ran.note) == {"error", "code", "message", "whatToDo", "retriable", "fields"}


def test_an_error_after_some_pages_prints_none_of_them(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    send_many(run, 8)
    run.client.records["orders", 0][7] = b"\0" * 100
    ran = run("--json", "pull", "orders", "--queue", "0", "--offset", "0")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.note["error"]


def test_get_by_each_kind_of_identifier(run: Any) -> None:
    send_many(run, 3)
    by_place = run("--json", "get", "orders", "0", "1").objects
    by_offset_msg_id = run("--json", "get", by_place[0]["offsetMsgId"])
    by_unique_key = run("--json", "get", by_place[0]["messageId"])
    assert by_offset_msg_id.objects == by_unique_key.objects == by_place
    assert by_offset_msg_id.note == {"kind": "offset_msg_id"}
    assert by_unique_key.note == {"kind": "message_id"}
    absent = run("--json", "get", "nothing")
    assert (absent.code, absent.out, absent.note["error"]) == (1, b"", "MESSAGE_NOT_FOUND")


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "a", "b"),
        ("get", "orders", "x", "0"),
        ("get", "orders", "0", "-1"),
        ("get", "t", "0", "1", "2"),
    ],
)
def test_get_refuses_what_is_not_an_identifier(run: Any, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


def test_query_pages_by_cursor_and_says_that_it_is_complete(run: Any) -> None:
    send_many(run, 8, "--key", "k")
    ran = run("--json", "query", "orders", "k")
    assert [message["queueOffset"] for message in ran.objects] == list(range(7, -1, -1))
    assert ran.note == {
        "complete": True,
        "cursor": None,
        "indexLastUpdateTimestamp": 5,
        "indexLastUpdatePhyoffset": 6,
        "missing": [],
        "notes": [],
    }
    options = run.client.calls[-2][1]
    assert (options["begin"], options["end"]) == (0, TIME_MAX)


def test_query_stops_at_max_with_a_cursor_that_continues(run: Any) -> None:
    send_many(run, 8, "--key", "k")
    first = run("--json", "query", "orders", "k", "--max", "5")
    assert (len(first.objects), first.note["complete"]) == (5, False)
    rest = run("--json", "query", "orders", "k", "--cursor", first.note["cursor"])
    assert [message["queueOffset"] for message in first.objects + rest.objects] == list(range(7, -1, -1))
    assert rest.note["complete"] is True


@pytest.mark.parametrize(
    ("key_type", "key", "expected"),
    [("tag", "paid", 4), ("tag", "k", 0), ("message-id", "k", 0), ("key", "k", 4)],
)
def test_query_by_type(run: Any, key_type: str, key: str, expected: int) -> None:
    send_many(run, 4, "--key", "k")
    ran = run("--json", "query", "orders", key, "--type", key_type)
    assert (ran.code, len(ran.objects)) == (0, expected)


def test_a_query_that_missed_a_broker_is_an_incomplete_answer(run: Any) -> None:
    send_many(run, 1, "--key", "k")
    run.client.unreachable = ("broker-b",)
    ran = run("--json", "query", "orders", "k")
    assert (ran.code, len(ran.objects)) == (0, 1)
    assert (ran.note["complete"], ran.note["missing"]) == (False, ["broker-b"])


def test_offset_answers_one_object(run: Any) -> None:
    send_many(run, 4)
    ran = run("--json", "offset", "orders", "0", "--time", "2023-11-14T22:13:20.002Z")
    assert (ran.objects, ran.err) == ([{"offset": 2}], "")
    assert run("--json", "offset", "orders", "0", "--time", "0", "--upper").code == 0
    assert run.client.calls[-2][1] == {"timestamp": 0, "upper": True}


def test_an_ambiguous_queue_is_an_error_that_lists_the_brokers(run: Any) -> None:
    run.client.brokers = ("broker-a", "broker-b")
    for arguments in (
        ("pull", "orders", "--queue", "0"),
        ("get", "orders", "0", "0"),
        ("offset", "orders", "0", "--time", "0"),
    ):
        ran = run("--json", *arguments)
        assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "BROKER_AMBIGUOUS")
        assert "broker-a, broker-b" in ran.note["message"]
    assert run("--json", "send", "orders", "x", "--queue", "0", "--broker", "broker-a").code == 0


def test_topics_from_creation_to_deletion(run: Any, client: FakeClient) -> None:
    topic = {
        "topic": "new",
        "queueCount": 3,
        "messageType": "NORMAL",
        "system": False,
        "options": {},
        "broker": "broker-a",
    }
    assert run("--json", "topic", "create", "new", "--queues", "3").objects == [topic]
    assert run("--json", "topic", "create", "new").note["error"] == "TOPIC_EXISTS"
    assert run("--json", "topic", "alter", "new", "--queues", "4").objects == [topic | {"queueCount": 4}]
    assert topic | {"queueCount": 4} in run("--json", "topic", "list").objects
    (described,) = run("--json", "topic", "describe", "new").objects
    assert described["queues"][3] == {"queueId": 3, "minOffset": 0, "maxOffset": 0, "lastStoreTimestamp": 0}
    assert described["hold"] is None
    (described,) = run("--json", "topic", "describe", "new", "--sizes").objects
    assert described["queues"][3]["bytes"] == 0
    client.holds["new"] = TopicHold(12_345, "billing", 2, 7, 1_000)
    (described,) = run("--json", "topic", "describe", "new").objects
    assert described["hold"] == {
        "bytes": 12_345,
        "group": "billing",
        "queueId": 2,
        "queueOffset": 7,
        "until": 1_000,
    }
    assert run("--json", "topic", "delete", "new", "--yes").objects == [
        {"topic": "new", "physicalOffset": 0, "broker": "broker-a"}
    ]
    assert run("--json", "topic", "describe", "new").note["error"] == "TOPIC_NOT_FOUND"


def test_group_offsets(run: Any) -> None:
    place = {"group": "billing", "topic": "orders", "queueId": 1}
    assert run("--json", "group", "offset", "get", "billing", "orders", "1").objects == [
        place | {"offset": None}
    ]
    assert run("--json", "group", "offset", "commit", "billing", "orders", "1", "7").objects == [
        place | {"offset": 7}
    ]
    assert run("--json", "group", "offset", "get", "billing", "orders", "1").objects == [
        place | {"offset": 7}
    ]
    ran = run("--json", "group", "offset", "reset", "billing", "orders", "--to-time", "2025-01-01")
    assert [row["queueId"] for row in ran.objects] == [0, 1]
    assert run.client.calls[-2][1]["timestamp"] == 1_735_689_600_000
    assert run("group", "offset", "reset", "billing", "orders").code == 2
    assert run("group", "offset", "reset", "billing", "orders", "--to-earliest", "--to-latest").code == 2


def test_cluster_and_stats_are_one_object_a_broker(run: Any) -> None:
    (broker,) = run("--json", "cluster").objects
    assert (broker["broker"], broker["topics"], broker["flushMode"]) == ("broker-a", ["orders"], "sync")
    assert run("--json", "stats", "--seconds", "0").objects == [
        {"broker": "broker-a", "counters": {"puts": 7}}
    ]


def test_errors_explains_one_row_by_symbol_or_code_and_lists_all(run: Any) -> None:
    (row,) = run("--json", "errors", "disk_full").objects
    assert (row["symbol"], row["code"], row["retriable"]) == ("DISK_FULL", 302, True)
    assert run("--json", "errors", "302").objects == [row]
    assert run("--json", "errors", "E302").objects == [row]
    assert row in run("--json", "errors").objects
    unknown = run("--json", "errors", "DISK_FUL")
    assert (unknown.code, unknown.out) == (1, b"")
    assert "DISK_FULL" in unknown.note["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("query",),
        ("nonsense",),
        ("pull", "orders", "--queue", "-1"),
        ("pull", "orders", "--queue", "2147483648"),
        ("pull", "orders", "--queue", "0", "--offset", "9223372036854775808"),
        ("send", "orders", "x", "--queue", "2147483648"),
        ("get", "orders", "2147483648", "0"),
        ("get", "orders", "0", "9223372036854775808"),
        ("pull", "orders", "--queue", "0", "--max", "0"),
        ("query", "orders", "k", "--type", "colour"),
        ("query", "orders", "k", "--begin", "the day before"),
        ("query", "orders", "k", "--end", "9223372036854775808"),
        ("offset", "orders", "0"),
        ("send", "orders", "x", "--property", "no-equals"),
        ("send", "orders", "x", "--property", "a=1", "--property", "a=2"),
        ("topic", "create", "t", "--type", "LOUD"),
        ("topic", "alter", "orders"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Any, arguments: tuple[str, ...]) -> None:
    for command_line in (arguments, ("--json", *arguments)):
        ran = run(*command_line)
        assert (ran.code, ran.out) == (2, b"")
    assert ran.note["error"] == "REQUEST_ILLEGAL"


def test_the_server_is_an_option_or_a_variable_and_the_later_option_wins(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("cluster")
    monkeypatch.setenv("TROVEMQ_SERVER", "127.0.0.1:1")
    run("cluster")
    run("--server", "127.0.0.1:2", "cluster")
    run("--server", "127.0.0.1:2", "cluster", "--server", "127.0.0.1:3")
    assert run.servers == ["127.0.0.1:8081", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


def test_tail_prints_what_comes_and_stops_at_max(run: Any) -> None:
    send_many(run, 5)
    ran = run("--json", "tail", "orders", "--from-start", "--max", "4")
    assert ran.code == 0
    assert [message["queueOffset"] for message in ran.objects] == [0, 1, 2, 3]
    assert run("--json", "tail", "absent").note["error"] == "TOPIC_NOT_FOUND"


def test_an_unexpected_failure_is_still_one_json_object(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(server: str, *, options: object = None) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr("trovemq.connect", broken)
    ran = run("--json", "cluster")
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "UNKNOWN_ERROR")
    assert "surprise" in ran.note["message"]
