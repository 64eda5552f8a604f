"""Names of topics and groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.names import (
    GROUP_NAME_SIZE_MAX,
    SYSTEM_TOPICS,
    TOPIC_NAME_SIZE_MAX,
    check_group_name,
    check_topic_name,
    is_system_topic,
)

LEGAL = st.text("%|abcXYZ019_-", min_size=1, max_size=TOPIC_NAME_SIZE_MAX)


@given(LEGAL)
def test_legal_names_pass_unless_reserved(name: str) -> None:
    if not is_system_topic(name):
        check_topic_name(name)
    check_group_name(name)


@given(st.text(max_size=300))
def test_everything_else_is_refused_with_a_short_message(name: str) -> None:
    legal = 0 < len(name) <= 127 and all(c.isascii() and (c.isalnum() or c in "%|_-") for c in name)
    if legal and not is_system_topic(name):
        check_topic_name(name)
        return
    with pytest.raises(TroveError) as raised:
        check_topic_name(name)
    assert raised.value.spec is errors.TOPIC_ILLEGAL
    assert len(str(raised.value)) < 2500


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        "a/b",
        "a b",
        "a\n",
        "tab\t",
        "\x00",
        "café",
        "a.b",
        "x" * 128,
        "%RETRY%g",
        "%DLQ%g",
        "rmq_sys_x",
        *sorted(SYSTEM_TOPICS),
    ],
)
def test_illegal_and_reserved_topics(name: str) -> None:
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        check_topic_name(name)


def test_names_are_case_sensitive_and_only_prefixes_reserve() -> None:
    check_topic_name("RMQ_SYS_x")
    check_topic_name("tbw102")
    check_topic_name("x%RETRY%")
    check_topic_name("x" * TOPIC_NAME_SIZE_MAX)


@pytest.mark.parametrize("name", ["", "a@b", "a b", "g" * (GROUP_NAME_SIZE_MAX + 1), "ü"])
def test_illegal_groups(name: str) -> None:
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        check_group_name(name)


def test_a_retry_topic_is_a_system_topic_but_a_group_may_have_any_prefix() -> None:
    assert is_system_topic("%RETRY%orders")
    check_group_name("%RETRY%orders")
    check_group_name("g" * GROUP_NAME_SIZE_MAX)


@pytest.mark.parametrize(
    ("name", "character", "example"),
    [
        ("orders.created", "'.'", "orders-created"),
        ("a/b c", "'/'", "a-b-c"),
        ("caf\u00e9", r"'\xe9'", "caf-"),
    ],
)
def test_a_refusal_did_not_say_why(name: str, character: str, example: str) -> None:
    for check in (check_topic_name, check_group_name):
        with pytest.raises(TroveError) as raised:
            check(name)
        text = raised.value.message
        assert f"has the character {character}. Permitted are a to z, A to Z, 0 to 9, %, |, - and _" in text
        assert "RocketMQ's clients and brokers refuse all others" in text
        assert text.endswith(f"For example: {example}")
        check(example)
