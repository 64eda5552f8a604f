"""group create … reset: the calls to the client, and the output of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from trovemq.cli.group_answers import backoff_text, duration_text
from trovemq.models.group import BACKOFF_MS_DEFAULT, GroupMember, GroupSettings, QueueLag

SIXTEEN_STEPS = list(BACKOFF_MS_DEFAULT)


def settings_of(run: Any, group: str = "billing") -> GroupSettings:
    settings = run.client.groups.groups["broker-a", group]
    assert isinstance(settings, GroupSettings)
    return settings


def test_a_group_is_made_with_the_defaults_and_its_object_says_them(run: Any) -> None:
    ran = run("--json", "group", "create", "billing")
    assert (ran.code, ran.err) == (0, "")
    assert ran.objects == [
        {
            "group": "billing",
            "orderly": False,
            "maxRetries": 16,
            "backoffMillis": SIXTEEN_STEPS,
            "members": 0,
            "topics": ["orders"],
            "created": True,
            "unorderedTopics": [],
            "broker": "broker-a",
        }
    ]
    assert settings_of(run) == GroupSettings()


def test_with_exist_ok_what_is_there_is_no_error(run: Any) -> None:
    for words in (("group", "create", "billing"), ("topic", "create", "orders")):
        assert run(*words, "--exist-ok").code == 0
        assert run(*words, "--exist-ok").code == 0
        assert run(*words).code == 1


def test_the_options_become_the_settings(run: Any) -> None:
    steps = ["--backoff", "500ms", "--backoff", "2", "--backoff", "1.5m"]
    assert run("group", "create", "billing", "--orderly", "--retry-max", "3", *steps).code == 0
    assert settings_of(run) == GroupSettings(True, 3, (500, 2_000, 90_000))


def test_an_exponential_back_off_takes_the_place_of_steps(run: Any) -> None:
    run("group", "create", "billing", "--backoff", "1s")
    ran = run("--json", "group", "alter", "billing", "--exponential", "1s,2h,1.5")
    assert ran.objects[0]["backoffInitialMillis"] == 1_000
    assert "backoffMillis" not in ran.objects[0]
    assert settings_of(run) == GroupSettings(False, 16, (), True, 1_000, 7_200_000, 1.5)


def test_alter_leaves_what_is_not_given_as_it_is_on_each_broker(run: Any) -> None:
    run.client.groups.brokers = ("broker-a", "broker-b")
    run("group", "create", "billing", "--retry-max", "3", "--broker", "broker-a")
    run("group", "create", "billing", "--retry-max", "5", "--broker", "broker-b")
    assert run("group", "alter", "billing", "--orderly").code == 0
    kept = {broker: settings.retry_max for (broker, _), settings in run.client.groups.groups.items()}
    assert kept == {"broker-a": 3, "broker-b": 5}
    assert all(settings.orderly for settings in run.client.groups.groups.values())


@pytest.mark.parametrize(
    ("option", "called"),
    [
        ("--to-earliest", "to_earliest"),
        ("--to-min", "to_earliest"),  # its former name
        ("--to-latest", "to_latest"),
        ("--to-max", "to_latest"),
    ],
)
def test_a_reset_has_the_words_of_start_and_takes_the_former_ones(run: Any, option: str, called: str) -> None:
    run("group", "create", "billing")
    assert run("group", "reset", "billing", "orders", option).code == 0
    ((_, made),) = [call for call in run.client.groups.calls if call[0] == "reset"]
    assert {name for name in ("to_earliest", "to_latest") if made[name]} == {called}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "g", "--backoff", "1s", "--exponential", "1s,2s,2"), "not both"),
        (("create", "g", "--exponential", "1s,2s"), "FROM,TO,BY"),
        (("create", "g", "--exponential", "1s,2s,often"), "FROM,TO,BY"),
        (("create", "g", "--backoff", "soon"), "is not a time"),
        (("create", "g", "--backoff", "0.0001s"), "whole number of milliseconds"),
        (("create", "g", "--retry-max", "-1"), "not in the range 0<=x<=10000"),
        (("alter", "g"), "nothing to alter"),
        (("reset", "g", "orders"), "exactly one"),
        (("reset", "g", "orders", "--to-earliest", "--to-latest"), "exactly one"),
    ],
)
def test_wrong_usage_is_one_object_and_exit_code_2(
    run: Any, arguments: tuple[str, ...], message: str
) -> None:
    ran = run("--json", "group", *arguments)
    assert (ran.code, ran.out) == (2, b"")
    assert message in ran.note["message"]
    assert run.client.groups.calls == []


def test_an_unknown_group_is_an_error_with_nothing_on_standard_output(run: Any) -> None:
    for verb in (("describe",), ("delete", "--yes"), ("members",), ("lag",)):
        ran = run("--json", "group", *verb, "nobody")
        assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "GROUP_NOT_FOUND")


def test_describe_shows_the_back_off_in_words(run: Any) -> None:
    run("group", "create", "billing")
    shown = run("group", "describe", "billing").out.decode()
    assert "1s 5s 10s 30s 1m" in shown
    assert shown.rstrip().splitlines()[0].startswith("group")


def test_describe_warns_of_an_order_that_is_not_kept(run: Any) -> None:
    run("group", "create", "billing")
    run.client.groups.unordered_topics = ("steps",)
    ran = run("group", "describe", "billing")
    assert "steps (FIFO) is not kept by this group: trovemq group alter billing --orderly" in ran.err
    assert run("--json", "group", "describe", "billing").objects[0]["unorderedTopics"] == ["steps"]


def test_delete_says_where(run: Any) -> None:
    run("group", "create", "billing")
    assert run("--json", "group", "delete", "billing", "--yes").objects == [
        {"group": "billing", "broker": "broker-a"}
    ]
    assert run.client.groups.groups == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "delete", "orders"),
        ("group", "delete", "billing"),
        ("dlq", "resend", "billing", "--offset", "0"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_no_on_a_pipe_deleted_all_the_same(
    run: Any, arguments: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    run("group", "create", "billing")
    ran = run(*flags, *arguments, stdin=b"n\n")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert run.client.topics == {"orders": 2}
    assert ("broker-a", "billing") in run.client.groups.groups
    assert not [name for name, _ in run.client.calls if name.startswith(("delete", "resend"))]


def test_one_message_is_not_a_plural(run: Any) -> None:
    run("group", "create", "billing")
    run.client.groups.lags = [QueueLag("orders", 0, 0, 5, 4, 4, 0, 1, 1_000, False, "broker-a")]
    assert "lag: 1 message, 1.0 s" in run("group", "lag", "billing").err


def test_a_members_words_cannot_steer_the_terminal(run: Any) -> None:
    run("group", "create", "billing")
    run.client.groups.online["c"] = GroupMember(
        "c\x1b[31m",
        "PUSH_CONSUMER",
        "JAVA",
        "5.1",
        "10.0.0.9:1",
        1_700_000_000_000,
        4,
        "broker-a",
        {"orders": "*"},
    )
    shown = run("group", "members", "billing").out
    assert b"\x1b" not in shown
    (member,) = run("--json", "group", "members", "billing").objects
    assert (member["clientId"], member["inFlight"], member["subscriptions"]) == (
        "c\x1b[31m",
        4,
        {"orders": "*"},
    )


def test_lag_in_messages_and_in_seconds_queue_by_queue(run: Any) -> None:
    run("group", "create", "billing")
    run.client.groups.lags = [
        QueueLag("orders", 0, 0, 90, 50, 60, 10, 40, 61_500, False, "broker-a"),
        QueueLag("orders", 1, 0, 5_000, None, 0, 0, 2_500, 900, True, "broker-a"),
        QueueLag("%RETRY%billing_orders", 0, 0, 2, 1, 1, 0, 1, 5, False, "broker-a"),
    ]
    shown = run("group", "lag", "billing")
    assert "61.5" in shown.out.decode()
    assert "≈2,500" in shown.out.decode()
    assert "lag: 2,541 messages, 61.5 s" in shown.err
    first, second = run("--json", "group", "lag", "billing", "--topic", "orders").objects
    assert first == {
        "topic": "orders",
        "queueId": 0,
        "minOffset": 0,
        "maxOffset": 90,
        "committed": 50,
        "nextOffset": 60,
        "inFlight": 10,
        "lag": 40,
        "lagMillis": 61_500,
        "estimated": False,
        "broker": "broker-a",
    }
    assert (second["committed"], second["estimated"]) == (None, True)


def test_a_preview_is_asked_for_and_says_that_nothing_was_changed(run: Any) -> None:
    ran = run("group", "reset", "billing", "orders", "--to-time", "2025-01-01", "--preview")
    assert (ran.code, "nothing was changed" in ran.err) == (0, True)
    ((_, call),) = run.client.groups.calls
    assert (call["timestamp"], call["preview"], call["queue_id"]) == (1_735_689_600_000, True, None)
    ran = run("--json", "group", "reset", "billing", "orders", "--to-offset", "7", "--queue", "1")
    assert [(one["offsetBefore"], one["offset"], one["inFlight"], one["preview"]) for one in ran.objects] == [
        (3, 7, 2, False),
        (None, 7, 2, False),
    ]
    assert run.client.groups.calls[-1][1]["queue_id"] == 1


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0ms"), (999, "999ms"), (1_000, "1s"), (90_000, "90s"), (7_200_000, "2h")]
)
def test_a_duration_is_written_in_the_largest_exact_unit(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_an_exponential_back_off_in_words() -> None:
    settings = GroupSettings(False, 16, (), True, 1_000, 7_200_000, 2.0)
    assert backoff_text(settings) == "1s x 2 … 2h"


def test_many_steps_are_cut_in_a_table_only() -> None:
    settings = GroupSettings(backoff_ms=BACKOFF_MS_DEFAULT)
    assert backoff_text(settings, steps_max=4) == "1s 5s 10s … 2h"
    assert len(backoff_text(settings).split()) == len(BACKOFF_MS_DEFAULT)
