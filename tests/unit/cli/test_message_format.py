"""-f FORMAT, as kcat has it, and the body in JSON objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer

from trovemq.cli.message_format import parse_message_format
from trovemq_proto.message_objects import body_fields, body_of

MESSAGE = {
    "topic": "orders",
    "queueId": 3,
    "queueOffset": 17,
    "keys": "k1 k2",
    "storeTimestamp": 1_700_000_000_000,
    "tags": "paid",
    "properties": {"TAGS": "paid", "KEYS": "k1 k2", "__CRC32#": "1", "size": "9", "colour": "red"},
    "body": "12 äpfel",
}


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%t %p %o %k\n", b"orders 3 17 k1 k2\n"),
        ("%s", "12 äpfel".encode()),
        ("%S %K", b"9 5"),
        ("%T", b"1700000000000"),
        ("%g", b"paid"),
        ("%h", b"colour=red,size=9"),
        (r"100 %% \t\r\n\0\\\x41é", b"100 % \t\r\n\0\\A" + "é".encode()),
        ("", b""),
    ],
)
def test_each_part(text: str, printed: bytes) -> None:
    assert parse_message_format(text).render(MESSAGE) == printed


def test_a_message_without_keys_and_properties() -> None:
    assert parse_message_format("[%k] %K [%h]").render({"keys": None, "properties": {}}) == b"[] 0 []"


@pytest.mark.parametrize("text", ["%x", "%", "50%", r"\q", "\\", r"\x4"])
def test_an_unknown_part_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not known"):
        parse_message_format(text)


@pytest.mark.parametrize("body", [b"", b"text", "ä\n\0".encode(), b"\xff\xfe", bytes(range(256))])
def test_a_body_is_read_as_it_was_written(body: bytes) -> None:
    fields = json.loads(json.dumps(body_fields(body)))
    assert body_of(fields) == body
    assert list(fields) == (["body"] if body.decode(errors="replace").encode() == body else ["bodyBase64"])


def test_an_object_without_a_body() -> None:
    assert body_of({"topic": "orders"}) is None


def test_every_verb_with_messages_prints_them_in_the_form(run: Any) -> None:
    run("send", "orders", "one", "--key", "k", "--queue", "0")
    run("send", "orders", "-", "--key", "k", "--queue", "0", stdin=b"\xff\xfe")
    form = r"%t/%p@%o %k=%s;"
    both = b"orders/0@0 k=one;orders/0@1 k=\xff\xfe;"
    assert run("pull", "orders", "--queue", "0", "-f", form).out == both
    assert run("tail", "orders", "--from-start", "--no-follow", "-f", form).out == both
    assert run("get", "orders", "0", "0", "-f", form).out == b"orders/0@0 k=one;"
    assert run("query", "orders", "k", "-f", form).out == b"orders/0@1 k=\xff\xfe;orders/0@0 k=one;"
    assert run("query", "orders", "k", "--message-format", "%o").out == b"10"


def test_the_form_goes_with_no_other_format(run: Any) -> None:
    for other in (("--json",), ("-o", "body"), ("-o", "table")):
        assert run(*other, "get", "orders", "0", "0", "-f", "%s").code == 2
    assert run("get", "orders", "0", "0", "-f", "%y").code == 2
    assert run("topic", "list", "-f", "%t").code == 2


def test_json_shows_a_readable_body_and_names_base64(run: Any) -> None:
    run("send", "orders", '{"apples": 12}', "--queue", "0")
    run("send", "orders", "-", "--queue", "0", stdin=b"\xff")
    text, binary = run("--json", "pull", "orders", "--queue", "0").objects
    assert (text["body"], "bodyBase64" in text) == ('{"apples": 12}', False)
    assert (binary["bodyBase64"], "body" in binary) == ("/w==", False)
