"""export: a file that apply finds nothing to do with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import FakeClient
from trovemq.models.group import GroupSettings

EXPONENTIAL = GroupSettings(
    exponential=True, backoff_initial_ms=1_000, backoff_max_ms=60_000, backoff_multiplier=2.0
)


@pytest.fixture(autouse=True)
def something(client: FakeClient) -> None:
    client.topics["ordered"] = 4
    client.message_types["ordered"] = "FIFO"
    client.topic_options["orders"] = {"deduplicate": "1h"}
    client.groups.groups["broker-a", "billing"] = GroupSettings(
        orderly=True, retry_max=3, backoff_ms=(1000, 5000)
    )
    client.groups.groups["broker-a", "slow"] = EXPONENTIAL


@pytest.mark.parametrize("style", [(), ("--json",)])
def test_apply_changes_nothing_of_what_was_exported(run: Any, tmp_path: Path, style: tuple[str, ...]) -> None:
    file = tmp_path / "cluster"
    file.write_bytes(run("export", *style).out)
    ran = run("--json", "apply", str(file))
    assert {one["change"] for one in ran.objects} == {"unchanged"}
    assert {one["name"] for one in ran.objects} == {"orders", "ordered", "billing", "slow"}


def test_an_empty_broker_becomes_alike(run: Any, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_bytes(run("export").out)
    before = dict(client.groups.groups)
    client.topics.clear()
    client.groups.groups.clear()
    assert {one["change"] for one in run("--json", "apply", str(file)).objects} == {"created"}
    assert client.topics == {"orders": 2, "ordered": 4}
    assert client.groups.groups == before


@pytest.mark.parametrize("style", [(), ("--json",)])
def test_a_file_without_a_broker_that_is_away_looked_complete(
    run: Any, client: FakeClient, style: tuple[str, ...]
) -> None:
    client.away = ("broker-b",)
    ran = run(*style, "export")
    assert (ran.code, ran.out) == (1, b"")
    assert "no answer from broker-b" in (ran.note["message"] if style else ran.err)


def test_only_what_is_named(run: Any) -> None:
    assert yaml.safe_load(run("export", "--topic", "orders").out) == {
        "topics": [{"name": "orders", "type": "NORMAL", "queues": 2, "options": {"deduplicate": "1h"}}],
        "groups": [],
    }
    (whole,) = run("--json", "export", "--group", "billing").objects
    assert whole["groups"] == [
        {"name": "billing", "orderly": True, "maxRetries": 3, "backoffMillis": [1000, 5000]}
    ]
    assert run("--json", "export", "--topic", "absent").note["error"] == "TOPIC_NOT_FOUND"
    assert run("--json", "export", "--group", "absent").note["error"] == "GROUP_NOT_FOUND"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("topics: [", "the file is not YAML: line"),
        ("a: &x [1]\ntopics: *x", "line 2, column 9: apply does not read aliases"),
        ("topics:\n- name: a\n  queues: many", "queues must be a number"),
        ("just text", "not an object"),
        ("!!python/object:os.system {}", "the file is not YAML"),
        (json.dumps({"groups": [{"name": "g", "backoffInitialMillis": 5}]}), "give backoffMillis, or all of"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(run: Any, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(content)
    ran = run("--json", "apply", str(file))
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert message in ran.note["message"]
