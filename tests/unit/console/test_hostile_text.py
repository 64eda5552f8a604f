"""No text that others wrote becomes markup: the page has the same elements, whatever stands in a message."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest

from tests.support.console_cluster import Browser, FakeCluster, console, elements, rule, structure, user
from trovemq.models.config import ConfigMember, ConfigName, ConfigStatus
from trovemq.models.group import DelayedMessage, GroupMember, GroupSettings
from trovemq.models.replica import ReplicaGroup, ReplicaNode
from trovemq.models.track import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent
from trovemq_console.guard import CONTENT_POLICY

HARMLESS = "harmless"
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "</textarea><script>alert(1)</script>",
    "</title></head><body onload=alert(1)>",
    "</pre></bdi><iframe srcdoc='<script>alert(1)</script>'>",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    "--><script>alert(1)</script><!--",
    "{{7*7}}{% raw %}",
    "&lt;script&gt;&#x3c;",
    "<base href=//evil><meta http-equiv=refresh content=0>",
    "<\u202escript>",
    "%3Cscript%3E",
)


def cluster_with(text: str) -> FakeCluster:
    """The text wherever a client, or a broker that lies, can put it."""
    cluster = FakeCluster(topics={text: 1}, message_types={text: "NORMAL"})
    cluster.topic_options[text] = {"retention": text}
    receipt = asyncio.run(
        cluster.send(text, text.encode(), keys=[text.replace(" ", "_")], tag=text, properties={text: text})
    )
    (message,) = cluster._all()
    members = GroupMember(text, text, text, text, text, 5, 1, text, {text: text})
    cluster.groups.online = {text: members}
    cluster.groups.groups["broker-a", text] = GroupSettings()
    cluster.groups.delayed = [DelayedMessage(message, text, 5, text, text)]
    cluster.groups.unordered_topics = (text,)
    cluster.users.rows, cluster.rules.rows = [user(text)], [rule(text)]
    names = (ConfigName(text, text, text),)
    copy: dict[str, Any] = {
        "cluster": text,
        "owner": text,
        "version": 1,
        "members": (ConfigMember(text, 1, True),),
    }
    cluster.config.statuses = [
        ConfigStatus(broker=text, state="owner", problem=text, unlisted=names, differing=names, **copy),
        ConfigStatus(broker="b", state="current", dropped=names, **copy),
    ]
    cluster.config.missing = (text,)
    replica = ReplicaNode(node=text, role="follower", address=text, is_voter=True, problem=text)
    cluster.replicas.known = [
        ReplicaGroup(
            group=text,
            leader=text,
            epoch=1,
            in_sync=(text,),
            in_sync_min=1,
            ack="leader",
            nodes=(replica, replica),
        )
    ]
    place: dict[str, Any] = {"topic": text, "queue_id": 0, "queue_offset": 0}
    cluster.tracks[receipt.offset_msg_id] = MessageTrack(
        copies=tuple(copy_of(text, receipt.offset_msg_id) for _ in range(2)),
        events=(TrackEvent(text, 1, 5, "produced", text, text, 1, 5, 2, detail=text, **place),),
        statuses=(
            ConsumptionStatus(
                text, 1, text, text, False, 5, 1, text, 1, True, None, 1, 1, 1, 1, text, detail=text, **place
            ),
        ),
        complete=False,
        unreachable=(text,),
        notes=(text,),
    )
    return cluster


def copy_of(text: str, offset_msg_id: str) -> MessageCopy:
    return MessageCopy(
        text,
        1,
        text,
        text,
        0,
        0,
        0,
        1,
        offset_msg_id,
        text,
        text,
        text,
        5,
        text,
        5,
        text,
        0,
        text,
        text,
        text,
        0,
    )


Visit = Callable[[Browser, str], str]


def page(path: str, **named: str) -> Visit:
    """Visits a page; parameters named `TEXT` are the text."""
    return lambda browser, text: (
        browser.http.get(
            path, params={name: text if value == "TEXT" else value for name, value in named.items()}
        ).text
    )


def message_page(browser: Browser, _text: str) -> str:
    (message,) = browser.cluster._all()
    return browser.get("/message", id=message.offset_msg_id, view="text")


def confirmation(browser: Browser, text: str) -> str:
    """Of a test message; and its result."""
    fields = {
        "token": browser.form_token(),
        "topic": text,
        "body": text,
        "keys": text.replace(" ", "_"),
        "tag": text,
    }
    asked = browser.post("/acts/send", fields)
    assert asked[0] == 200
    return asked[1] + browser.post("/acts/send", {**fields, "confirmed": "yes"})[1]


VISITS: dict[str, Visit] = {
    "overview": page("/"),
    "topics": page("/topics", filter=""),
    "topic": page("/topic", name="TEXT"),
    "new messages": page("/topic/new", name="TEXT"),
    "wrong time": page("/topic", name="TEXT", at="TEXT"),
    "groups": page("/groups"),
    "group": page("/group", name="TEXT"),
    "no such group": page("/group", name="TEXT-none"),
    "delayed": page("/delayed", topic="TEXT", key="TEXT"),
    "storage": page("/storage"),
    "replicas": page("/replicas"),
    "configuration": page("/configuration"),
    "access": page("/access"),
    "found": lambda browser, text: browser.get("/search", q=text[0] + "*", topic=text),
    "not found": lambda browser, text: (
        browser.http.get("/search", params={"q": f"{text} no", "topic": text}).text
    ),
    "message": message_page,
    "act": confirmation,
}


@pytest.fixture(scope="module")
def harmless() -> dict[str, Any]:
    with console(cluster_with(HARMLESS), allow_changes=True) as browser:
        return {name: structure(visit(browser, HARMLESS)) for name, visit in VISITS.items()}


@pytest.mark.parametrize("text", HOSTILE)
def test_the_markup_does_not_depend_on_what_is_shown(text: str, harmless: dict[str, Any]) -> None:
    with console(cluster_with(text), allow_changes=True) as browser:
        for name, visit in VISITS.items():
            shown = visit(browser, text)
            assert structure(shown) == harmless[name], name
            for _, attributes in elements(shown):
                for attribute in ("href", "src", "action"):
                    target = attributes.get(attribute)
                    assert target is None or target.startswith(("/", "#")), name


def test_nothing_in_the_pages_needs_an_inline_script_or_style() -> None:
    for template in (files("trovemq_console") / "templates").iterdir():
        text = template.read_text(encoding="utf-8")
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|\|\s*safe\b|autoescape", text), (
            template.name
        )
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text)), template.name


def test_every_answer_carries_the_policy() -> None:
    assert "unsafe" not in CONTENT_POLICY
    with console() as browser:
        for path in ("/", "/nosuch", "/message?id=none", "/static/console.css", "/healthz"):
            headers = browser.http.get(path).headers
            assert headers["content-security-policy"] == CONTENT_POLICY, path
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"


def test_a_body_is_saved_and_never_shown_by_the_browser() -> None:
    with console(cluster_with("<script>")) as browser:
        (message,) = browser.cluster._all()
        reply = browser.http.get("/message/body", params={"id": message.offset_msg_id})
    assert reply.content == b"<script>"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in reply.headers["content-security-policy"]
