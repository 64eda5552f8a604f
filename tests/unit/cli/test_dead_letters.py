"""dlq list, show, resend; consume-directly, stack-trace, recall."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_groups import dead_letter
from trovemq.models.group import DirectConsumption
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

ORIGIN = {"DLQ_ORIGIN_TOPIC": "orders", "KEYS": "a b"}


@pytest.fixture
def letters(client: Any) -> Any:
    client.groups.letters = [dead_letter("broker-a", offset, ORIGIN) for offset in range(250)]
    return client.groups


def resent(groups: Any) -> list[list[int]]:
    return [call["offsets"] for name, call in groups.calls if name == "resend"]


def test_list_shows_the_message_and_where_it_came_from(run: Any, letters: Any) -> None:
    ran = run("--json", "dlq", "list", "billing", "--max", "2", "--offset", "7")
    first, second = ran.objects
    assert (first["offset"], first["originTopic"], first["messageId"], second["offset"]) == (
        7,
        "orders",
        "U7",
        8,
    )
    assert (first["topic"], first["reconsumeTimes"]) == ("%DLQ%billing", 16)
    assert (first["resentAs"], second["resentAs"]) == (None, "CD" * 16)
    assert ran.note == {"complete": False}
    assert "--offset 9" in run("dlq", "list", "billing", "--max", "2", "--offset", "7").err


def test_retry_max_15_was_shown_as_16_redeliveries(run: Any, letters: Any) -> None:
    shown = run("dlq", "list", "billing", "--max", "1").out.decode().splitlines()
    assert " 15 " in shown[1], "16 deliveries are 15 redeliveries"


REASONS = (
    {"DLQ_ORIGIN_REASON": "exception", "DLQ_ORIGIN_ERROR": "shop.Declined", "DLQ_ORIGIN_TEXT": "no card"},
    {"DLQ_ORIGIN_REASON": "explicit", "DLQ_ORIGIN_TEXT": "no such street", "DLQ_ORIGIN_TIMES": "1,2"},
    {"DLQ_ORIGIN_REASON": "exception", "DLQ_ORIGIN_ERROR": "ValueError"},
)


@pytest.fixture
def reasoned(client: Any) -> Any:
    client.groups.letters = [
        dead_letter("broker-a", offset, {**ORIGIN, **reason}) for offset, reason in enumerate(REASONS)
    ]
    return client.groups


@pytest.mark.parametrize(
    ("reason", "offsets"),
    [
        ("exception", [0, 2]),
        ("Declined", [0]),
        ("no such street", [1]),
        ("expired", []),
    ],
)
def test_letters_are_chosen_by_their_reason(run: Any, reasoned: Any, reason: str, offsets: list[int]) -> None:
    listed = run("--json", "dlq", "list", "billing", "--reason", reason)
    assert [one["offset"] for one in listed.objects] == offsets
    run("dlq", "resend", "billing", "--reason", reason, "--yes")
    assert resent(reasoned) == ([offsets] if offsets else [])
    if not offsets:
        shown = run("dlq", "list", "billing", "--reason", reason)
        assert f"no dead letters of reason {reason}" in shown.err


def test_a_list_counts_its_reasons(run: Any, reasoned: Any) -> None:
    ran = run("dlq", "list", "billing")
    assert "exception Declined" in ran.out.decode()
    assert "1 exception Declined, 1 explicit, 1 exception ValueError" in ran.err
    _, explicit, _ = run("--json", "dlq", "list", "billing").objects
    said = [explicit[name] for name in ("reason", "reasonText", "error")]
    assert said == ["explicit", "no such street", None]
    assert explicit["deliveredTimestamps"] == [1, 2]


def test_resend_wants_exactly_one_choice(run: Any, reasoned: Any) -> None:
    assert run("dlq", "resend", "billing", "--all", "--reason", "expired").code == 2


def test_a_letter_without_an_origin_says_so(run: Any, client: Any) -> None:
    client.groups.letters = [
        dead_letter("broker-a", 0, {}),
        dead_letter("broker-a", 1, {"RETRY_TOPIC": "classic"}),
    ]
    ran = run("--json", "dlq", "list", "billing")
    assert [one["originTopic"] for one in ran.objects] == [None, "classic"]
    assert ran.err == ""


def test_a_group_had_no_dead_letters_while_their_broker_was_away(run: Any, client: Any) -> None:
    client.groups.letters_missing = "broker-b"
    ran = run("dlq", "list", "billing")
    assert "not all brokers answered, broker-b is missing" in ran.err
    assert "no dead letters" not in ran.err


def test_a_group_without_dead_letters_is_an_empty_answer(run: Any) -> None:
    ran = run("dlq", "list", "billing")
    assert (ran.code, ran.out) == (0, b"")
    assert "no dead letters" in ran.err


def test_resend_sends_those_chosen_and_shows_each_result(run: Any, letters: Any) -> None:
    ran = run(
        "--json", "dlq", "resend", "billing", "--yes", "--offset", "3", "--offset", "999", "--offset", "3"
    )
    assert ran.code == 0
    assert ran.objects == [
        {
            "offset": 3,
            "topic": "orders",
            "offsetMsgId": "AB" * 16,
            "error": None,
            "errorMessage": None,
            "again": False,
            "broker": "broker-a",
        },
        {
            "offset": 999,
            "topic": None,
            "offsetMsgId": None,
            "error": "OFFSET_OUT_OF_RANGE",
            "errorMessage": "offset 999",
            "again": False,
            "broker": "broker-a",
        },
    ]
    assert ran.note == {"resent": 1, "before": 0, "failed": 1}
    assert resent(letters) == [[3, 999]]


def test_resend_all_takes_what_is_there_in_bounded_calls(run: Any, letters: Any) -> None:
    ran = run("--json", "dlq", "resend", "billing", "--yes", "--all")
    assert [len(offsets) for offsets in resent(letters)] == [100, 100, 50]
    assert len(ran.objects) == 250


def test_resend_all_of_two_brokers_asks_each_for_its_own(run: Any, client: Any) -> None:
    client.groups.brokers = ("broker-a", "broker-b")
    client.groups.letters = [dead_letter("broker-b", 0, ORIGIN), dead_letter("broker-a", 1, ORIGIN)]
    run("--json", "dlq", "resend", "billing", "--yes", "--all")
    asked = [(call["broker"], call["offsets"]) for name, call in client.groups.calls if name == "resend"]
    assert asked == [("broker-b", [0]), ("broker-a", [1])]


def test_a_rate_is_kept(run: Any, letters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("trovemq.cli.dead_letters.asyncio.sleep", sleep)
    run("dlq", "resend", "billing", "--yes", "--rate", "20", *(f"--offset={n}" for n in range(6)))
    assert resent(letters) == [[0, 1], [2, 3], [4, 5]]
    assert [round(seconds, 1) for seconds in waited] == [0.0, 0.1, 0.2]


def test_a_call_that_fails_says_what_was_sent_until_then(
    run: Any, letters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = letters.resend_dead_letters

    async def fail_at_last(group: str, offsets: list[int], broker: str | None = None) -> Any:
        if 101 in offsets:
            raise TroveError(errors.DISK_FULL, "no space")
        return await send(group, offsets, broker=broker)

    monkeypatch.setattr(letters, "resend_dead_letters", fail_at_last)
    ran = run("--json", "dlq", "resend", "billing", "--yes", "--all")
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "DISK_FULL")
    assert ran.note["resent"] == list(range(100))


@pytest.mark.parametrize("arguments", [(), ("--all", "--offset", "1"), ("--all", "--rate", "0")])
def test_wrong_usage_of_resend_sends_nothing(run: Any, letters: Any, arguments: tuple[str, ...]) -> None:
    ran = run("--json", "dlq", "resend", "billing", "--yes", *arguments)
    assert (ran.code, ran.out) == (2, b"")
    assert letters.calls == []


def test_show_is_the_whole_letter(run: Any, client: Any) -> None:
    client.topics["%DLQ%billing"] = 1
    letter = dead_letter("broker-a", 0, ORIGIN)
    client.records["%DLQ%billing", 0] = [letter.message.record]
    (shown,) = run("--json", "dlq", "show", "billing", "0").objects
    assert (shown["originTopic"], shown["body"]) == ("orders", "bad")
    assert "came from" in run("dlq", "show", "billing", "0").out.decode()
    ran = run("--json", "dlq", "show", "billing", "1")
    assert (ran.code, ran.note["error"]) == (1, "MESSAGE_NOT_FOUND")


# --- commands -----------------------------------------------------------------------------------------
DIRECTLY = ("consume-directly", "--client", "c@1", "--group", "billing", "0A" * 17)


def test_the_clients_result_is_shown(run: Any, client: Any) -> None:
    client.groups.answer = DirectConsumption("FAILED_TO_CONSUME_MESSAGE", "boom\x1b", "broker-a")
    ran = run("--json", *DIRECTLY, "--topic", "orders", "--wait", "2.5")
    assert ran.objects == [
        {
            "clientId": "c@1",
            "group": "billing",
            "message": "0A" * 17,
            "result": "FAILED_TO_CONSUME_MESSAGE",
            "text": "boom\x1b",
            "broker": "broker-a",
        }
    ]
    ((_, call),) = client.groups.calls
    assert (call["topic"], call["timeout_ms"]) == ("orders", 2_500)
    assert b"\x1b" not in run(*DIRECTLY).out


@pytest.mark.parametrize(
    "spec", [errors.CONSUMER_NOT_ONLINE, errors.CONSUME_MSG_TIMEOUT, errors.NOT_IMPLEMENTED]
)
def test_no_result_is_an_error_that_says_why(run: Any, client: Any, spec: errors.ErrorSpec) -> None:
    client.groups.answer = TroveError(spec, "no answer")
    ran = run("--json", *DIRECTLY)
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", spec.symbol)


def test_consume_directly_needs_a_client_and_a_group(run: Any) -> None:
    assert run("--json", "consume-directly", "0A" * 17, "--group", "g").code == 2
    assert run("--json", "consume-directly", "0A" * 17, "--client", "c").code == 2
    assert run("--json", *DIRECTLY, "--wait", "61").code == 2


def test_a_stack_trace_is_printed_without_what_steers_a_terminal(run: Any) -> None:
    ran = run("stack-trace", "--client", "c@1", "--group", "billing")
    assert ran.out.decode().splitlines() == ["main:", "  work\\x1b[31m", ""]
    (shown,) = run("--json", "stack-trace", "--client", "c@1", "--group", "billing").objects
    assert shown["stackTrace"] == "main:\n  work\x1b[31m\n"


def test_recall_says_which_message_it_took_back(run: Any) -> None:
    assert run("--json", "recall", "orders", "good").objects == [
        {"topic": "orders", "messageId": "orders-message"}
    ]
    ran = run("--json", "recall", "orders", "bad")
    assert (ran.code, ran.note["error"]) == (1, "RECALL_HANDLE_ILLEGAL")
