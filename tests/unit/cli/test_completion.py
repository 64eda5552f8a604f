"""Completion asks the server for names, and is silent where it does not answer."""

from __future__ import annotations

from typing import Any

import pytest

import trovemq
from tests.unit.cli.conftest import CommandLine, FakeClient
from trovemq.cli import app
from trovemq.models.group import GroupSettings


@pytest.fixture
def complete(run: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def completed(line: str) -> list[str]:
        words = f"trovemq {line}"
        with monkeypatch.context() as patch:
            patch.setenv("_TROVEMQ_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", words)
            patch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
            assert app.run([]) == 0
        return capsys.readouterr().out.split()

    return completed


def test_topics_groups_verbs_and_contexts(complete: Any, run: CommandLine, client: FakeClient) -> None:
    client.topics |= {"other": 1, "billing-topic": 1}
    client.groups.groups["broker-a", "billing"] = GroupSettings()
    assert complete("tail o") == ["orders", "other"]
    assert complete("--server 127.0.0.1:7 topic describe ot") == ["other"]
    assert run.servers[-1] == "127.0.0.1:7"
    assert complete("group describe b") == ["billing"]
    assert complete("consume orders --group b") == ["billing"]
    assert complete("cluster lo") == ["local"]
    assert complete("consu") == ["consume", "consume-directly"]
    run("context", "create", "prod", "127.0.0.1:1")
    assert complete("context use p") == ["prod"]
    assert complete("--context p") == ["prod"]
    assert complete("topic list --context p") == ["prod"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export --topic o", ["orders", "other"]),
        ("export --group b", ["billing"]),
        ("get ot", ["other"]),
        ("get id --topic ot", ["other"]),
        ("track ot", ["other"]),
        ("track id --topic ot", ["other"]),
        ("producer id --topic ot", ["other"]),
        ("stack-trace --group b", ["billing"]),
        ("consume-directly id --group b", ["billing"]),
        ("group lag b", ["billing"]),
        ("group reset billing ot", ["other"]),
        ("dlq list b", ["billing"]),
        ("errors TOPIC_E", ["TOPIC_EXISTS"]),
    ],
)
def test_every_topic_and_group_is_completed(
    complete: Any, client: FakeClient, line: str, expected: list[str]
) -> None:
    client.topics |= {"other": 1}
    client.groups.groups["broker-a", "billing"] = GroupSettings()
    assert complete(line) == expected


def test_a_server_that_does_not_answer_completes_nothing(
    complete: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def absent(server: str, *, options: object = None) -> None:
        raise OSError

    monkeypatch.setattr(trovemq, "connect", absent)
    assert complete("tail o") == []
