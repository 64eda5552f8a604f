"""apply FILE: how it reads files, its changes, and the changes that it never makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq.cli.apply import check_new_names
from trovemq.cli.apply_file import Wanted, WantedGroup, WantedTopic, parse_file
from trovemq.models.group import GroupSettings
from trovemq_proto import errors as trove_errors
from trovemq_proto.errors import TroveError
from trovemq_store.topics.names import check_topic_name, check_user_group_name

SAMPLE = {
    "topics": [
        {"name": "ORDERS_NORMAL", "type": "NORMAL", "queues": 4},
        {"name": "ORDERS_FIFO", "type": "FIFO", "queues": 4},
    ],
    "groups": [
        {"name": "g_basic", "orderly": False, "maxRetries": 16},
        {"name": "g_fifo", "orderly": True, "maxRetries": 3, "backoffMillis": [1000, 1000]},
        {"name": "g_bare"},
    ],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "topics.json"
    path.write_text(json.dumps(SAMPLE))
    return path


def changes(ran: Any) -> dict[str, str]:
    return {one["name"]: one["change"] for one in ran.objects}


ALL_NAMES = ("ORDERS_NORMAL", "ORDERS_FIFO", "g_basic", "g_fifo", "g_bare")


def test_everything_is_made_and_then_nothing_is_left_to_do(run: Any, file: Path) -> None:
    ran = run("--json", "apply", str(file))
    assert (ran.code, ran.err) == (0, "")
    assert changes(ran) == dict.fromkeys(ALL_NAMES, "created")
    assert run.client.topics == {"orders": 2, "ORDERS_NORMAL": 4, "ORDERS_FIFO": 4}
    assert run.client.message_types["ORDERS_FIFO"] == "FIFO"
    groups = {name: settings for (_, name), settings in run.client.groups.groups.items()}
    assert groups["g_fifo"] == GroupSettings(True, 3, (1000, 1000))
    assert groups["g_bare"] == groups["g_basic"]
    assert changes(run("--json", "apply", str(file))) == dict.fromkeys(ALL_NAMES, "unchanged")


def test_the_file_may_be_standard_input(run: Any, file: Path) -> None:
    ran = run("--json", "apply", "-", stdin=file.read_bytes())
    assert changes(ran) == dict.fromkeys(ALL_NAMES, "created")


def test_a_name_that_yaml_takes_for_a_number_is_shown(run: Any) -> None:
    ran = run("--json", "apply", "-", stdin=b"topics:\n- name: 007\n")
    assert ran.note["message"] == "topics[0] has no name: 7 is no text, write it in quotes"


def test_a_dry_run_prints_the_same_and_changes_nothing(run: Any, file: Path) -> None:
    ran = run("--json", "apply", str(file), "--dry-run")
    assert changes(ran) == dict.fromkeys(ALL_NAMES, "created")
    assert all(one["dryRun"] for one in ran.objects)
    assert run.client.topics == {"orders": 2}
    assert run.client.groups.groups == {}
    assert "nothing was changed; it would be: 5 created" in run("apply", str(file), "--dry-run").err


def test_what_differs_is_altered_and_said(run: Any, file: Path) -> None:
    run.client.topics["ORDERS_NORMAL"] = 2
    run.client.topics["ORDERS_FIFO"] = 4
    run.client.groups.groups["broker-a", "g_fifo"] = GroupSettings(False, 16)
    ran = run("--json", "apply", str(file))
    details = {one["name"]: one["details"] for one in ran.objects if one["change"] == "altered"}
    assert details["ORDERS_NORMAL"] == ["queues 2 -> 4"]
    assert details["ORDERS_FIFO"] == ["type NORMAL -> FIFO"]
    assert details["g_fifo"][:2] == ["unordered -> orderly", "maxRetries 16 -> 3"]
    assert details["g_fifo"][2].endswith("-> 1s 1s")
    assert run.client.topics["ORDERS_NORMAL"] == 4


def test_settings_that_the_file_does_not_name_go_back_to_their_defaults(run: Any, file: Path) -> None:
    run.client.groups.groups["broker-a", "g_bare"] = GroupSettings(True, 2, (7,))
    assert changes(run("--json", "apply", str(file)))["g_bare"] == "altered"
    settings = run.client.groups.groups["broker-a", "g_bare"]
    assert (settings.orderly, settings.retry_max) == (False, 16)


def test_queues_are_never_taken_away_and_nothing_is_deleted(run: Any, file: Path) -> None:
    run.client.topics["ORDERS_NORMAL"] = 9
    run.client.groups.groups["broker-a", "other"] = GroupSettings()
    ran = run("--json", "apply", str(file))
    (kept,) = [one for one in ran.objects if one["name"] == "ORDERS_NORMAL"]
    assert (kept["change"], kept["details"]) == ("unchanged", ["keeps its 9 queues (the file has 4)"])
    assert run.client.topics["ORDERS_NORMAL"] == 9
    assert "orders" in run.client.topics
    assert ("broker-a", "other") in run.client.groups.groups


def test_a_failure_on_the_way_says_what_was_done(
    run: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object, **__: object) -> None:
        raise TroveError(trove_errors.DISK_FULL, "no space")

    monkeypatch.setattr(run.client.groups, "create", full)
    ran = run("--json", "apply", str(file))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "DISK_FULL")
    assert ran.note["done"] == ["topic ORDERS_NORMAL created", "topic ORDERS_FIFO created"]
    assert ran.note["message"] == "group g_basic on broker-a: no space (2 changes were made)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "line 1, column 2"),
        (b"\xff", "the file must be YAML or JSON in UTF-8"),
        (b"[" * 100_000, "the file must be YAML or JSON"),
        (b"[]", "not an object"),
        (b'{"topic": []}', "unknown member 'topic'"),
        (b'{"topics": {}}', "topics is not a list"),
        (b'{"topics": [3]}', "topics[0] is not an object"),
        (b'{"topics": [{}]}', "topics[0] has no name"),
        (b'{"topics": [{"name": ""}]}', "topics[0] has no name"),
        (b'{"topics": [{"name": "a"}, {"name": "a"}]}', "topics[1] (a) is there twice"),
        (b'{"topics": [{"name": "a", "queue": 1}]}', "unknown member 'queue'"),
        (b'{"topics": [{"name": "a", "type": "LOUD"}]}', "type 'LOUD' is none of NORMAL"),
        (b'{"topics": [{"name": "a", "type": []}]}', "type [] is none of"),
        (b'{"topics": [{"name": "a", "queues": 0}]}', "queues must be a number"),
        (b'{"topics": [{"name": "a", "queues": true}]}', "queues must be a number"),
        (b'{"groups": [{"name": "a", "orderly": 1}]}', "orderly must be"),
        (b'{"groups": [{"name": "a", "maxRetries": -1}]}', "maxRetries must be a number"),
        (b'{"groups": [{"name": "a", "backoffMillis": [1.5]}]}', "must be a list of milliseconds"),
        (b'{"groups": [{"name": "a", "backoffMillis": 5}]}', "must be a list of milliseconds"),
        (b'{"topics": [{"name": "a", "queues": 1, "queues": 2}]}', "'queues' is there twice in one object"),
        (b'{"topics": [], "topics": []}', "'topics' is there twice in one object"),
        (b"topics: []\ntopics: []", "line 1, column 1: a member is there twice"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_asked(
    run: Any, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    ran = run("--json", "apply", str(path))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "REQUEST_ILLEGAL")
    assert message in ran.note["message"]
    assert run.servers == []


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("topics", "t two", "topic 't two': a name has 1 to 127 letters"),
        ("topics", "t" * 128, "a name has 1 to 127 letters"),
        ("topics", "%RETRY%g", "topic %RETRY%g is reserved"),
        ("groups", "g two", "group 'g two': a name has 1 to 120 letters"),
        ("groups", "g" * 121, "a name has 1 to 120 letters"),
    ],
)
def test_an_illegal_name_was_found_after_the_topics_before_it_were_made(
    run: Any, tmp_path: Path, kind: str, name: str, message: str
) -> None:
    path = tmp_path / "wrong.json"
    wanted: dict[str, list[dict[str, str]]] = {"topics": [{"name": "made-first"}], "groups": []}
    wanted[kind].append({"name": name})
    path.write_text(json.dumps(wanted))
    ran = run("--json", "apply", str(path))
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "REQUEST_ILLEGAL")
    assert message in ran.note["message"]
    assert "made-first" not in run.client.topics


@given(st.text("aZ0_-%| .+", max_size=130))
def test_a_name_that_apply_takes_is_one_that_the_broker_takes(name: str) -> None:
    try:
        check_new_names(Wanted((WantedTopic(name, None, None),), (WantedGroup(name[:120]),)), (), ())
    except TroveError:
        return
    check_topic_name(name)
    check_user_group_name(name[:120])


def test_a_file_that_is_not_there_is_one_clear_error(run: Any, tmp_path: Path) -> None:
    ran = run("--json", "apply", str(tmp_path / "nothing.json"))
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert "No such file" in ran.note["message"]


def test_a_group_without_members_has_the_defaults() -> None:
    wanted = parse_file(json.dumps(SAMPLE).encode())
    assert wanted.groups[2] == WantedGroup("g_bare", orderly=False, retry_max=16, backoff_ms=())
