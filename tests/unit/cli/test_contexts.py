"""Contexts: which server a call asks."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest


def test_the_server_of_the_context_in_use(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("context", "create", "dev", "127.0.0.1:1").code == 0
    assert run("context", "create", "prod", "trovemq://ns1:9876,ns2:9876").code == 0
    run("cluster")
    run("context", "use", "prod")
    run("cluster")
    run("--context", "dev", "cluster")
    run("cluster", "--context", "dev")
    run("--context", "dev", "cluster", "--server", "127.0.0.1:3")
    run("--server", "127.0.0.1:3", "cluster", "--context", "dev")
    monkeypatch.setenv("TROVEMQ_CONTEXT", "dev")
    run("cluster")
    monkeypatch.setenv("TROVEMQ_SERVER", "127.0.0.1:2")
    run("cluster")
    prod, dev = "trovemq://ns1:9876,ns2:9876", "127.0.0.1:1"
    assert run.servers == [dev, prod, dev, dev, "127.0.0.1:3", dev, dev, "127.0.0.1:2"]


def test_list_use_and_delete(run: Any, tmp_path: Path) -> None:
    assert run("--json", "context", "list").objects == []
    run("context", "create", "a", "127.0.0.1:1")
    run("context", "create", "b", "127.0.0.1:2", "--use")
    assert [(one["name"], one["current"]) for one in run("--json", "context", "list").objects] == [
        ("a", False),
        ("b", True),
    ]
    assert b"*  b     127.0.0.1:2" in run("context", "list").out
    assert run("context", "delete", "b").code == 0
    assert [one["current"] for one in run("--json", "context", "list").objects] == [False]
    assert stat.S_IMODE((tmp_path / "contexts.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "line",
    [
        ("context", "use", "none"),
        ("context", "delete", "none"),
        ("--context", "none", "cluster"),
        ("context", "create", "a b", "127.0.0.1:1"),
        ("context", "create", "a", "no address"),
        ("context", "create", "a", "trovemq://secret@host"),
    ],
)
def test_what_is_wrong_is_one_error(run: Any, line: tuple[str, ...]) -> None:
    ran = run("--json", *line)
    assert (ran.code, ran.out, ran.note["error"]) == (1, b"", "REQUEST_ILLEGAL")


def test_a_secret_is_kept_and_not_shown(run: Any) -> None:
    url = "trovemq://ann:hunter2@127.0.0.1:1"
    shown = [run("context", "create", "prod", url), run("context", "list"), run("--json", "context", "list")]
    assert all("hunter2" not in ran.out.decode() + ran.err for ran in shown)
    assert b"trovemq://ann:***@127.0.0.1:1" in shown[1].out
    run("cluster")
    assert run.servers == [url]


def test_a_damaged_file_is_an_error_that_names_it(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    for content in ("", "[]", '{"contexts": {"a": {}}}', '{"contexts": 3}'):
        path.write_text(content)
        ran = run("--json", "cluster")
        assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
        assert str(path) in ran.note["message"]
    path.unlink()
    path.mkdir()
    assert run("--json", "context", "list").note["error"] == "REQUEST_ILLEGAL"


def test_a_context_found_its_certificates_in_one_directory_only(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run(
        "context",
        "create",
        "prod",
        "trovemq://a:b@ns1,ns2?tls=true&tls_ca=certs/my%20ca.pem&call_timeout_ms=9",
    )
    (context,) = run("--json", "context", "list").objects
    folder = quote(str(tmp_path))
    expected = f"trovemq://a:***@ns1,ns2?tls=true&tls_ca={folder}/certs/my%20ca.pem&call_timeout_ms=9"
    assert context["server"] == expected
    run("context", "create", "prod", "ns1:9876")
    (context,) = run("--json", "context", "list").objects
    assert context["server"] == "ns1:9876"
