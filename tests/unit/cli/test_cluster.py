"""`trovemq cluster`, which lists brokers, and `trovemq cluster local` before it starts a daemon."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import CommandLine, FakeClient


def test_options_of_the_bare_verb_stand_before_or_after_it(run: CommandLine) -> None:
    expected = run("--json", "cluster")
    assert expected.code == 0
    assert expected.objects
    assert run("cluster", "--json").out == expected.out
    assert run("cluster", "-o", "json").out == expected.out
    assert run("cluster", "--server", "127.0.0.1:7").code == 0
    assert run.servers[-1] == "127.0.0.1:7"


def test_topics_of_users_are_counted_and_all_of_them_are_listed(run: CommandLine, client: FakeClient) -> None:
    client.topics |= {"orders": 2, "rmq_sys_x": 1, "%RETRY%g": 1, "RMQ_SYS_TRANS_HALF_TOPIC": 1}
    title, *rows = run("cluster").out.decode().splitlines()
    at = title.split().index("topics")
    assert {row.split()[at] for row in rows} == {"1"}
    (listed, *_) = run("--json", "cluster").objects
    assert listed["topics"] == sorted(client.topics)


def test_a_word_after_the_bare_verb_is_wrong_usage(run: CommandLine) -> None:
    ran = run("cluster", "loca")
    assert (ran.code, ran.out) == (2, b"")
    assert "No such command 'loca'" in ran.err


def test_options_of_the_bare_verb_hold_for_a_verb_of_its_group(run: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for line in (
        ("cluster", "--json", "local"),
        ("cluster", "local", "--json"),
        ("--json", "cluster", "local"),
    ):
        ran = run(*line, "--dir", str(tmp_path / "file"))
        assert (ran.code, ran.out) == (1, b"")
        assert json.loads(ran.err)["error"] == "CLUSTER_DIRECTORY_ILLEGAL"


def test_a_cluster_without_the_daemons_says_what_to_install(
    run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    ran = run("cluster", "local", "--dir", str(tmp_path / "c"))
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err == "trovemq cluster local needs the daemons: pip install 'trovemq[server]'\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("count", ["0", "257", "two"])
def test_a_number_of_brokers_that_is_wrong_usage(run: CommandLine, count: str) -> None:
    assert run("cluster", "local", "--dir", "c", "--brokers", count).code == 2


@pytest.mark.parametrize("name", ["name", "listen", "store", "brokerName", "http_tls"])
def test_a_setting_that_the_command_itself_gives_was_ignored(
    run: CommandLine, tmp_path: Path, name: str
) -> None:
    ran = run("cluster", "local", "--dir", str(tmp_path / "c"), "--set", f"{name}=x")
    assert (ran.code, ran.out) == (2, b"")
    assert f"--set {name}: the command itself sets it" in ran.err
    assert not (tmp_path / "c").exists()


def test_a_nameserver_without_brokers_was_an_empty_table(run: CommandLine, client: FakeClient) -> None:
    client.brokers = ()
    ran = run("cluster")
    assert ran.code == 0
    assert "no broker is registered there" in ran.err
    client.brokers = ("broker-a",)
    assert "no broker is registered" not in run("cluster").err
