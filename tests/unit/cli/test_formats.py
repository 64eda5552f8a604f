"""-o json|yaml|table|body."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trovemq.cli.app import wants_objects


def test_yaml_has_what_json_has(run: Any) -> None:
    for number in range(5):
        run("send", "orders", f"body ä {number}", "--key", "k", "--queue", "0")
    asked = run("-o", "json", "query", "orders", "k")
    assert len(asked.objects) == 5
    shown = run("query", "orders", "k", "--output", "yaml")
    assert yaml.safe_load(shown.out) == asked.objects
    assert shown.note == asked.note


def test_bodies_are_printed_byte_for_byte(run: Any) -> None:
    odd = bytes(range(256))
    run("send", "orders", "-", "--key", "k", stdin=odd)
    run("send", "orders", "second", "--key", "k")
    assert run("get", "orders", "0", "0", "-o", "body").out == odd
    assert run("pull", "orders", "--queue", "0", "-o", "body").out == odd + b"\nsecond\n"
    assert run("query", "orders", "k", "-o", "body").out == b"second\n" + odd + b"\n"
    assert run("tail", "orders", "-n", "1", "--no-follow", "-o", "body").out == b"second\n"


def test_a_verb_without_bodies_refuses_before_it_does_anything(run: Any) -> None:
    ran = run("topic", "delete", "orders", "--yes", "-o", "body")
    assert (ran.code, ran.out) == (2, b"")
    assert "has no bodies" in ran.err
    assert run("--json", "topic", "describe", "orders").code == 0


def test_json_and_another_format_are_wrong_usage(run: Any) -> None:
    for line in (("--json", "-o", "yaml", "cluster"), ("cluster", "--json", "-o", "table")):
        assert run(*line).code == 2


def test_the_format_after_the_verb_wins(run: Any) -> None:
    assert run("-o", "yaml", "topic", "list", "--json").objects[0]["topic"] == "orders"
    assert run("--json", "topic", "list", "-o", "table").out.startswith(b"topic ")


@pytest.mark.parametrize(
    ("line", "objects"),
    [
        (["--json"], True),
        (["get", "x", "-o", "json"], True),
        (["-oyaml", "get"], True),
        (["--output=yaml"], True),
        (["--output", "json"], True),
        (["-o", "table"], False),
        (["send", "orders", "--", "--json"], False),
        (["send", "orders", "json"], False),
    ],
)
def test_errors_are_json_where_the_answer_is_objects(line: list[str], objects: bool) -> None:
    assert wants_objects(line) is objects
