"""Acts: each asks first and shows its command line, then does just that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.console_cluster import Browser, FakeCluster, confirmed, console
from tests.support.fake_groups import dead_letter
from tests.unit.cli.conftest import FIRST_TIMESTAMP
from trovemq import TroveError, errors
from trovemq.models.group import GroupSettings

SERVER = "--server 127.0.0.1:9"


def cluster() -> FakeCluster:
    made = FakeCluster(topics={"orders": 2})
    made.groups.groups["broker-a", "billing"] = GroupSettings()
    made.groups.letters = [dead_letter("broker-a", offset, {"RETRY_TOPIC": "orders"}) for offset in (7, 8)]
    return made


def changes(browser: Browser) -> list[tuple[str, Any]]:
    """The calls that change something."""
    calls = [*browser.cluster.calls, *browser.cluster.groups.calls]
    return [
        (name, fields)
        for name, fields in calls
        if name in ("send", "resend") or (name == "reset" and not fields.get("preview"))
    ]


def asked_and_done(browser: Browser, act: str, fields: dict[str, str]) -> tuple[str, str]:
    """The page that asks, and the one after its own form was sent."""
    status, question = browser.post(f"/acts/{act}", {"token": browser.form_token(), **fields})
    assert status == 200, question
    assert changes(browser) == []
    status, outcome = browser.post(f"/acts/{act}", confirmed(question))
    assert status == 200, outcome
    return question, outcome


def test_a_test_message_is_sent_as_it_was_shown() -> None:
    body = '\n{"a": "<b>"}\r\nline\'s end & more'
    with console(cluster(), allow_changes=True) as browser:
        fields = {"topic": "orders", "body": body, "keys": "k1 k2", "tag": "paid"}
        question, outcome = asked_and_done(browser, "send", fields)
        ((_, sent),) = changes(browser)
    assert "--key k1 --key k2 --tag paid" in question
    assert sent["body"] == body.replace("\r\n", "\n").encode()
    assert (sent["keys"], sent["tag"]) == (["k1", "k2"], "paid")
    assert "Stored on disk: broker-a, queue 0, offset 0." in outcome


@pytest.mark.parametrize(
    ("to", "value", "words", "called"),
    [
        ("earliest", "", "--to-earliest", {"to_earliest": True}),
        ("latest", "ignored", "--to-latest", {"to_latest": True}),
        ("offset", "7", "--to-offset 7", {"offset": 7}),
        ("time", str(FIRST_TIMESTAMP), f"--to-time {FIRST_TIMESTAMP}", {"timestamp": FIRST_TIMESTAMP}),
    ],
)
def test_a_reset_is_previewed_and_then_made(to: str, value: str, words: str, called: dict[str, Any]) -> None:
    with console(cluster(), allow_changes=True) as browser:
        fields = {"group": "billing", "topic": "orders", "to": to, "value": value}
        question, outcome = asked_and_done(browser, "reset", fields)
        ((_, made),) = changes(browser)
    assert f"trovemq group reset billing orders {words} {SERVER}" in question
    assert "4 in flight are forgotten" in question
    assert made == {"group": "billing", "topic": "orders", **called}
    assert "/group?name=billing" in outcome


def test_a_time_that_was_relative_is_reset_to_as_it_was_previewed() -> None:
    with console(cluster(), allow_changes=True) as browser:
        fields = {"group": "billing", "topic": "orders", "to": "time", "value": "1h"}
        asked_and_done(browser, "reset", fields)
        previewed, made = [fields for name, fields in browser.cluster.groups.calls if name == "reset"]
    assert previewed["timestamp"] == made["timestamp"]


def test_chosen_dead_letters_are_sent_again() -> None:
    with console(cluster(), allow_changes=True) as browser:
        question, outcome = asked_and_done(browser, "resend", {"group": "billing", "letter": "broker-a 7"})
        ((_, made),) = changes(browser)
    assert f"trovemq dlq resend billing --offset 7 --broker broker-a --yes {SERVER}" in question
    assert made == {"group": "billing", "offsets": [7], "broker": "broker-a"}
    assert "1 sent, 0 had been sent before, 0 not sent" in outcome


def test_a_dead_letter_that_cannot_be_sent_says_so() -> None:
    with console(cluster(), allow_changes=True) as browser:
        _, outcome = asked_and_done(browser, "resend", {"group": "billing", "letter": "broker-a 99"})
    assert "OFFSET_OUT_OF_RANGE" in outcome
    assert "1 not sent" in outcome


def test_a_delayed_message_is_recalled() -> None:
    with console(cluster(), allow_changes=True) as browser:
        question, outcome = asked_and_done(browser, "recall", {"topic": "orders", "handle": "good"})
        wrong = {"topic": "orders", "handle": "bad", "confirmed": "yes", "token": browser.form_token()}
        status, refused = browser.post("/acts/recall", wrong)
    assert f"trovemq recall orders good {SERVER}" in question
    assert "orders-message is recalled" in outcome
    assert (status, "RECALL_HANDLE_ILLEGAL" in refused) == (400, True)


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("send", {}),
        ("reset", {"group": "billing", "topic": "orders", "to": "offset", "value": "x"}),
        ("reset", {"group": "billing", "topic": "orders", "to": "time", "value": "soon"}),
        ("reset", {"group": "billing", "topic": "orders", "to": "time", "value": ""}),
        ("resend", {"group": "billing"}),
        ("resend", {"group": "billing", "letter": "broker-a x"}),
        ("none", {}),
    ],
)
def test_a_form_that_is_not_filled_in_is_refused(act: str, fields: dict[str, str]) -> None:
    with console(cluster(), allow_changes=True) as browser:
        for more in ({}, {"confirmed": "yes"}):
            status, _ = browser.post(f"/acts/{act}", {"token": browser.form_token(), **fields, **more})
            assert status == 400
        assert changes(browser) == []


def test_a_form_that_is_too_large_or_none_is_refused() -> None:
    with console(cluster(), allow_changes=True) as browser:
        for content in (b"a" * (14 << 20), b"\xff\xfe", b"&a=1" * 2_000):
            reply = browser.http.post("/acts/send", content=content)
            assert reply.status_code == 400


def test_a_refused_change_says_why_and_leaves_the_console_running() -> None:
    made = cluster()

    async def refuse(*_: object, **__: object) -> Any:
        raise TroveError(errors.DISK_FULL, "broker-a: 97 % of its disk is used")

    made.send = refuse  # type: ignore[method-assign]
    with console(made, allow_changes=True) as browser:
        fields = {"token": browser.form_token(), "topic": "orders", "body": "x", "confirmed": "yes"}
        status, page = browser.post("/acts/send", fields)
        assert (status >= 400, "97 % of its disk" in page, "DISK_FULL" in page) == (True, True, True)
        assert "orders" in browser.get("/topics")
