"""Changes of topics, groups, users and rules: the page that asks, its command line, its call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.console_cluster import Browser, FakeCluster, confirmed, console, rule, user, values_named
from trovemq import TroveError, UserDescription, errors
from trovemq.models.group import GroupSettings
from trovemq_console.pages.acts import ACTS
from trovemq_console.sessions import Sessions

READS = {"describe_topic", "search", "statistics"}


def cluster() -> FakeCluster:
    made = FakeCluster(topics={"orders": 2})
    made.groups.groups["broker-a", "billing"] = GroupSettings()
    rotated = UserDescription("bob", "Super", False, 1, (2, 1), "broker-a")
    made.users.rows, made.rules.rows = [user("alice"), rotated], [rule("alice")]
    return made


def changes(browser: Browser) -> list[tuple[str, Any]]:
    made = browser.cluster
    calls = [*made.calls, *made.groups.calls, *made.users.calls, *made.rules.calls]
    return [call for call in calls if call[0] not in READS]


CASES: dict[str, tuple[dict[str, str], str, tuple[str, dict[str, Any]]]] = {
    "create-topic": (
        {"topic": "bills", "queues": "4", "type": "FIFO", "indexed_properties": "a, b"},
        "topic create bills --queues 4 --type FIFO --indexed-property a --indexed-property b",
        (
            "create_topic",
            {
                "queue_count": 4,
                "message_type": "FIFO",
                "options": {"indexed_properties": "a,b"},
            },
        ),
    ),
    "alter-topic": (
        {"topic": "orders", "queues": "16", "retention": "until_acknowledged", "retention_age_max": "7d"},
        "topic alter orders --queues 16 --retention until_acknowledged --retention-age-max 7d",
        (
            "alter_topic",
            {
                "name": "orders",
                "queue_count": 16,
                "message_type": None,
                "options": {"retention": "until_acknowledged", "retention_age_max": "7d"},
            },
        ),
    ),
    "create-group": (
        {"group": "shipping", "order": "message group", "retry_max": "3", "backoff": "1s, 1m"},
        "group create shipping --orderly --retry-max 3 --backoff 1s --backoff 1m",
        (
            "create",
            {
                "group": "shipping",
                "settings": GroupSettings(orderly=True, retry_max=3, backoff_ms=(1_000, 60_000)),
                "broker": None,
            },
        ),
    ),
    "create-user": (
        {"user": "carol", "super": "yes"},
        "user create carol --super",
        ("create", {"subject": "carol", "is_super": True}),
    ),
    "rotate-secret": ({"user": "alice"}, "user rotate alice", ("rotate", {"subject": "alice"})),
    "drop-secret": ({"user": "bob"}, "user rotate bob --drop-old", ("drop_old_secret", {"subject": "bob"})),
    "enable-user": ({"user": "bob"}, "user enable bob", ("enable", {"subject": "bob", "enabled": True})),
    "disable-user": (
        {"user": "alice"},
        "user disable alice",
        ("enable", {"subject": "alice", "enabled": False}),
    ),
    "delete-user": ({"user": "alice"}, "user delete alice --yes", ("delete", {"subject": "alice"})),
    "add-rule": (
        {
            "user": "alice",
            "decision": "deny",
            "actions": "Pub, Sub",
            "resource": "Topic:a*",
            "sources": "10.0.0.0/8",
        },
        "acl deny alice Pub,Sub &#39;Topic:a*&#39; --from 10.0.0.0/8",
        (
            "deny",
            {"subject": "alice", "actions": "Pub,Sub", "resource": "Topic:a*", "sources": ["10.0.0.0/8"]},
        ),
    ),
    "delete-rule": (
        {"number": "1", "broker": "broker-a"},
        "acl delete 1 --broker broker-a",
        ("delete", {"subject": 1, "broker": "broker-a"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_shown_with_its_command_and_then_made(name: str) -> None:
    fields, command, call = CASES[name]
    with console(cluster(), allow_changes=True) as browser:
        status, question = browser.post(f"/acts/{name}", {"token": browser.form_token(), **fields})
        assert (status, changes(browser)) == (200, [])
        assert f"trovemq {command} --server 127.0.0.1:9" in question
        status, outcome = browser.post(f"/acts/{name}", confirmed(question))
        assert (status, "notice good" in outcome) == (200, True)
        assert changes(browser) == [call]


def test_a_group_is_changed_in_the_fields_that_are_filled_in() -> None:
    made = cluster()
    made.groups.groups["broker-a", "billing"] = GroupSettings(orderly=True, backoff_ms=(5_000,))
    with console(made, allow_changes=True) as browser:
        fields = {"token": browser.form_token(), "group": "billing", "retry_max": "3"}
        _, question = browser.post("/acts/alter-group", fields)
        browser.post("/acts/alter-group", confirmed(question))
    assert "at most 16" in question
    assert "at most 3" in question
    assert "5s" not in question  # it stays
    settings = made.groups.groups["broker-a", "billing"]
    assert settings == GroupSettings(orderly=True, retry_max=3, backoff_ms=(5_000,))


def test_a_deletion_is_shown_before_it_is_made() -> None:
    made = cluster()
    with console(made, allow_changes=True) as browser:
        for act, fields, shown in (
            ("delete-topic", {"topic": "orders"}, "Groups that read it: billing."),
            ("delete-group", {"group": "billing"}, "Its dead letters stay."),
        ):
            token = console_token(browser)
            _, question = browser.post(f"/acts/{act}", {"token": token, **fields})
            assert shown in question
            assert "button destructive" in question
            assert "--yes" in question
            assert browser.post(f"/acts/{act}", confirmed(question))[0] == 200
        assert (made.topics, made.groups.groups) == ({}, {})


def console_token(browser: Browser) -> str:
    return values_named(browser.get("/access"), "token")[0]


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("create-topic", {"topic": ""}),
        ("create-topic", {"topic": "x", "queues": "many"}),
        ("create-topic", {"topic": "x", "type": "NONE"}),
        ("alter-topic", {"topic": "orders"}),
        ("alter-group", {"group": "billing"}),
        ("create-group", {"group": "x", "backoff": "soon"}),
        ("create-group", {"group": "x", "backoff": "1s", "exponential": "1s,2h,2"}),
        ("create-group", {"group": "x", "order": "any"}),
        ("add-rule", {"user": "alice", "decision": "maybe", "actions": "Pub", "resource": "*"}),
        ("add-rule", {"user": "alice", "decision": "deny", "actions": "", "resource": "*"}),
        ("delete-rule", {"number": "one", "broker": "broker-a"}),
    ],
)
def test_a_change_that_is_not_filled_in_says_which_field_is_wrong(act: str, fields: dict[str, str]) -> None:
    with console(cluster(), allow_changes=True) as browser:
        status, page = browser.post(f"/acts/{act}", {"token": browser.form_token(), **fields})
        assert (status, "REQUEST_ILLEGAL" in page, changes(browser)) == (400, True, [])


def test_a_list_shows_a_change_at_once() -> None:
    with console(cluster(), allow_changes=True) as browser:
        fields = {"token": browser.form_token(), "topic": "bills", "confirmed": "yes"}
        assert "bills" not in browser.get("/topics")
        browser.post("/acts/create-topic", fields)
        assert "bills" in browser.get("/topics")


def test_a_change_that_the_broker_refuses_says_why_and_the_console_goes_on() -> None:
    made = cluster()

    async def refuse(*_: object, **__: object) -> Any:
        raise TroveError(errors.TOPIC_OPTION_ILLEGAL, "broker-a: deduplicate=2y is longer than 30d")

    made.alter_topic = refuse  # type: ignore[method-assign]
    for brokers in (("broker-a",), ("broker-a", "broker-b")):
        made.brokers = brokers
        with console(made, allow_changes=True) as browser:
            token = browser.form_token()
            fields = {"token": token, "topic": "orders", "deduplicate": "2y", "confirmed": "yes"}
            status, page = browser.post("/acts/alter-topic", fields)
            assert (status, "deduplicate=2y is longer than 30d" in page) == (400, True)
            assert ("look at each of them" in page) == (len(brokers) > 1)
            assert "orders" in browser.get("/topics")


def test_a_secret_is_shown_once_and_not_over_plain_http() -> None:
    made = cluster()
    with console(made, allow_changes=True) as browser:
        fields = {"token": browser.form_token(), "user": "carol", "confirmed": "yes"}
        assert "made-secret" in browser.post("/acts/create-user", fields)[1]
        assert "made-secret" not in browser.get("/access")
    named: dict[str, Any] = {"host": "10.0.0.1", "host_names": ("127.0.0.1",)}
    with console(made, allow_changes=True, **named) as browser:
        for act in ("create-user", "rotate-secret"):
            status, page = browser.post(f"/acts/{act}", {**fields, "token": browser.form_token()})
            assert (status, "--tls-certificate" in page) == (403, True)
    assert len(made.users.calls) == 1


def test_a_read_only_console_offers_no_change_and_makes_none() -> None:
    made = cluster()
    with console(made) as browser:
        for path in ("/topics", "/topic?name=orders", "/groups", "/group?name=billing", "/access"):
            assert "/acts/" not in browser.get(path), path
        for name in ACTS:
            fields = CASES.get(name, ({}, "", None))[0]
            assert browser.post(f"/acts/{name}", {**fields, "confirmed": "yes"})[0] == 403
        assert changes(browser) == []


def test_a_form_with_its_token_changed_something_in_a_read_only_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sessions, "is_form_token", lambda *_: True)
    with console(cluster()) as browser:
        for name in ACTS:
            fields = CASES.get(name, ({}, "", None))[0]
            assert browser.post(f"/acts/{name}", {**fields, "confirmed": "yes"})[0] == 403, name
        assert changes(browser) == []


def test_every_change_is_offered_by_a_page() -> None:
    with console(cluster(), allow_changes=True) as browser:
        pages = ("/topics", "/topic?name=orders", "/groups", "/group?name=billing", "/access")
        shown = "".join(browser.get(path) for path in pages)
    elsewhere = {"resend", "recall"}  # where there are dead letters, and delayed messages
    assert [name for name in ACTS if f'action="/acts/{name}"' not in shown and name not in elsewhere] == []


def test_a_topic_form_without_queues_shows_no_default() -> None:
    """The question has the text that was typed, and the cluster names its fault."""
    with console(cluster(), allow_changes=True) as browser:
        fields = {"token": browser.form_token(), "topic": "bills", "queues": "0"}
        _, page = browser.post("/acts/create-topic", fields)
        assert "topic create bills --queues 0" in page
        assert '<bdi>queues</bdi></td><td class="wrap"><bdi>0</bdi>' in page
        fields = {"token": browser.form_token(), "topic": "bills", "queues": "-5"}
        assert "queues=-5 is no whole number from 0 on" in browser.post("/acts/create-topic", fields)[1]
