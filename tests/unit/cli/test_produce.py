"""produce: lines, JSON, CSV and printed messages; how far it is, and where it continues."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.conftest import FakeClient
from trovemq.cli.produce_input import Fields, InputFormat, format_of, read_messages


def stored(client: FakeClient) -> list[Any]:
    return sorted(client._all(), key=lambda message: message.physical_offset)


def test_each_line_of_standard_input_is_a_message(run: Any, client: FakeClient) -> None:
    ran = run("--json", "produce", "orders", "--tag", "t", stdin=b"one\ntwo\r\n\nthree")
    assert ran.objects == [{"topic": "orders", "messages": 3, "skipped": 0}]
    assert [(m.body, m.tags) for m in stored(client)] == [(b"one", "t"), (b"two", "t"), (b"three", "t")]


def test_json_lines_have_keys_tag_and_id_in_their_fields(
    run: Any, client: FakeClient, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(
        '{"id": 7, "customer": "c1", "kind": "paid"}\n{"id": 8, "customer": "c2", "kind": "new"}\n'
    )
    line = (
        "--key-field",
        "id",
        "--key-field",
        "customer",
        "--tag-field",
        "kind",
        "--message-id-field",
        "customer",
    )
    assert run("produce", "orders", str(file), *line).code == 0
    found = stored(client)
    assert [json.loads(m.body)["id"] for m in found] == [7, 8]
    assert [(m.keys, m.tags, m.message_id) for m in found] == [
        (("7", "c1"), "paid", "c1"),
        (("8", "c2"), "new", "c2"),
    ]


def test_rows_of_csv_become_objects(run: Any, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text('\ufeffid,text\n1,"two\nlines"\n2,"a ""quoted"" ä"\n', encoding="utf-8")
    assert run("produce", "orders", str(file), "--key-field", "id").code == 0
    found = stored(client)
    assert [json.loads(m.body) for m in found] == [
        {"id": "1", "text": "two\nlines"},
        {"id": "2", "text": 'a "quoted" ä'},
    ]
    assert [m.keys for m in found] == [("1",), ("2",)]


def test_message_groups_are_a_field_s_or_one_for_all(run: Any, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("id,customer\n1,ann\n2,bob\n3,ann\n")
    assert run("produce", "orders", str(file), "--group-field", "customer").code == 0
    assert run("produce", "orders", "--message-group", "all", "--tag", "t", stdin=b"a\nb").code == 0
    found = [
        (json.loads(m.body)["id"] if m.body[:1] == b"{" else m.body, m.properties["__SHARDINGKEY"])
        for m in stored(client)
    ]
    assert found == [("1", "ann"), ("2", "bob"), ("3", "ann"), (b"a", "all"), (b"b", "all")]
    assert [m.tags for m in stored(client)][3:] == ["t", "t"]
    printed = run("--json", "pull", "orders", "--queue", "0", "--offset", "0", "--max", "3").out
    client.records.clear()
    assert run("produce", "orders", "--format", "messages", stdin=printed).code == 0
    assert [m.properties["__SHARDINGKEY"] for m in stored(client)] == ["ann", "bob", "ann"]


def test_what_pull_prints_can_be_sent_again(run: Any, client: FakeClient) -> None:
    run(
        "send",
        "orders",
        "-",
        "--key",
        "k1",
        "--key",
        "k2",
        "--tag",
        "t",
        "--property",
        "a=b",
        stdin=bytes(range(256)),
    )
    printed = run("--json", "pull", "orders", "--queue", "0").out
    assert run("produce", "orders", "--format", "messages", stdin=printed).code == 0
    first, second = stored(client)
    assert (second.body, second.keys, second.tags) == (first.body, first.keys, first.tags)
    assert second.user_properties == first.user_properties == {"a": "b"}
    assert second.message_id != first.message_id


def test_a_failure_says_how_many_are_stored_and_the_next_call_continues(
    run: Any, client: FakeClient, tmp_path: Path
) -> None:
    file, state = tmp_path / "lines.txt", tmp_path / "state"
    file.write_text("".join(f"{number}\n" for number in range(2500)))
    client.refused_body = b"2499"  # of the last chunk: no later one is stored
    line = ("--json", "produce", "orders", str(file), "--resume", str(state))
    ran = run(*line)
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "MESSAGE_SIZE_EXCEEDED")
    done = len(stored(client))
    assert f"({done:,} messages are stored; the same command continues after that)" in ran.note["message"]
    client.refused_body = b"none"
    assert run(*line).objects == [{"topic": "orders", "messages": 2500 - done, "skipped": done}]
    assert [m.body for m in stored(client)] == [str(number).encode() for number in range(2500)]
    assert len({m.message_id for m in stored(client)}) == 2500
    assert run(*line).objects == [{"topic": "orders", "messages": 0, "skipped": 2500}]


def test_what_was_in_flight_when_it_was_killed_has_the_same_unique_keys(
    run: Any, client: FakeClient, tmp_path: Path
) -> None:
    file, state = tmp_path / "lines.txt", tmp_path / "state"
    file.write_text("one\ntwo\n")
    assert run("produce", "orders", str(file), "--resume", str(state)).code == 0
    kept = json.loads(state.read_text())
    state.write_text(json.dumps(kept | {"messages": 1}))
    assert run("produce", "orders", str(file), "--resume", str(state)).code == 0
    _, second, again = stored(client)
    assert (second.body, second.message_id) == (again.body, again.message_id)


def test_a_position_of_something_else_is_refused(run: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert run("produce", "orders", "--resume", str(state), stdin=b"x").code == 0
    refused = run("--json", "produce", "orders", str(tmp_path / "other"), "--resume", str(state))
    assert (refused.code, refused.note["error"]) == (1, "REQUEST_ILLEGAL")
    state.write_text("{}")
    assert (
        "is not a file of `produce --resume`"
        in run("--json", "produce", "orders", "--resume", str(state)).note["message"]
    )


@pytest.mark.parametrize(
    ("format_", "content", "message"),
    [
        ("json", b"{}\n{", "line 2 is not JSON"),
        ("json", b"\xff", "line 1 is not JSON in UTF-8"),
        ("csv", b"a,b\n1\n", "line 2 has not the 2 columns"),
        ("csv", b"a,b\n1,2,3\n", "line 2 has not the 2 columns"),
        ("csv", b"a\n\xff\n", "line 2 is not UTF-8"),
        ("csv", b'a\n"x', "is not CSV"),
        ("csv", b"a,b,a\n1,2,3\n", "line 1 has two columns 'a'"),
        ("json", b'[{"a": 1},\n{"a": 2}]', "line 1 is not JSON: Expecting value at column 11 (each line is"),
        ("messages", b"{}", "it has no body"),
        ("messages", b'{"bodyBase64": "%"}', "not base64"),
        ("messages", b'{"body": "", "properties": {"a": 1}}', "properties that are not texts"),
        ("messages", b'{"body": "", "keys": 1}', "keys or tags"),
    ],
)
def test_input_that_is_not_what_it_should_be_names_its_line(
    run: Any, format_: str, content: bytes, message: str
) -> None:
    ran = run("--json", "produce", "orders", "--format", format_, stdin=content)
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "REQUEST_ILLEGAL")
    assert message in ran.note["message"]


@pytest.mark.parametrize(
    ("format_", "content"),
    [("csv", b"a,b\n1,2\n3\n4,5\n"), ("json", b'{"a":1}\n{\n{}\n'), ("messages", b'{"body": ""}\n{}\n')],
)
def test_messages_before_a_wrong_line_were_not_stored(
    run: Any, client: FakeClient, tmp_path: Path, format_: str, content: bytes
) -> None:
    """They are, and counted: the next call begins with the line that is wrong."""
    file, state = tmp_path / "input", tmp_path / "state"
    file.write_bytes(content)
    line = ("--json", "produce", "orders", str(file), "--format", format_, "--resume", str(state))
    for _ in range(2):
        ran = run(*line)
        assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
        assert ran.note["message"].endswith("(1 message is stored; the same command continues after that)")
        assert len(stored(client)) == 1


def test_a_position_that_cannot_be_kept_is_found_before_anything_is_sent(
    run: Any, client: FakeClient, tmp_path: Path
) -> None:
    ran = run("--json", "produce", "orders", "--resume", str(tmp_path / "no" / "state"), stdin=b"one\n")
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert "No such file or directory" in ran.note["message"]
    assert stored(client) == []


def test_a_byte_order_mark_is_no_part_of_a_message(run: Any, client: FakeClient) -> None:
    content = b'\xef\xbb\xbf{"id":3}\n{"id":4}\n'
    assert run("produce", "orders", "--format", "json", "--key-field", "id", stdin=content).code == 0
    assert [(m.body, m.keys) for m in stored(client)] == [(b'{"id":3}', ("3",)), (b'{"id":4}', ("4",))]


@pytest.mark.parametrize(
    ("line", "content", "message"),
    [
        (("--key-field", "id"), b'{"id": [1]}', "neither text nor a whole number"),
        (("--key-field", "id"), b'{"di": 1}', "has no field 'id'; it has di"),
        (("--key-field", "id"), b"3", "not a JSON object"),
    ],
)
def test_a_field_that_is_not_there(run: Any, line: tuple[str, ...], content: bytes, message: str) -> None:
    ran = run("--json", "produce", "orders", "--format", "json", *line, stdin=content)
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert message in ran.note["message"]


def test_wrong_usage(run: Any) -> None:
    assert run("produce", "orders", "--key-field", "id", stdin=b"").code == 2
    assert run("produce", "orders", "--format", "json", "--tag", "t", "--tag-field", "f", stdin=b"").code == 2
    missing = run("--json", "produce", "orders", "/no/such/file")
    assert (missing.code, missing.note["error"]) == (1, "REQUEST_ILLEGAL")


def test_the_format_is_known_by_the_name_of_the_file() -> None:
    names = ("a.csv", "a.JSONL", "a.ndjson", "a.json", "a.txt", "-")
    assert [format_of(name).value for name in names] == ["csv", "json", "json", "json", "lines", "lines"]


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line and line.rstrip(b"\r") == line)))
def test_lines_come_out_as_they_went_in(lines: list[bytes]) -> None:
    found = read_messages(io.BytesIO(b"\n".join(lines)), InputFormat.LINES, Fields())
    assert [message.body for message in found] == [line for line in lines if line]
