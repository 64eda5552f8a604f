"""support-bundle: what is in it, what is not, and what it says about parts that could not be had."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import FakeClient
from trovemq.cli import bundle_parts, config
from trovemq.cli.bundle_parts import redacted
from trovemq.cli.session import Session
from trovemq.testing import free_port
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

SECRET = "canary-secret"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that runs."""

    async def list_(session: Session) -> None:
        session.output.item({"setting": "name", "value": "broker-a"})

    async def conditions(session: Session) -> None:
        session.output.item({"broker": "broker-a", "interpreter": "CPython 3.12.4"})

    monkeypatch.setattr(config, "list_", list_)
    monkeypatch.setattr(bundle_parts, "conditions", conditions)


def members(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def nothing_listens() -> str:
    return f"127.0.0.1:{free_port()}"


def test_an_answer_of_the_server_is_the_verbs_own(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    (answer,) = run("--json", "support-bundle", str(path), "--http", nothing_listens()).objects
    found = members(path)
    assert [json.loads(line)["topic"] for line in found["topics.jsonl"].splitlines()] == ["orders"]
    assert [json.loads(line)["broker"] for line in found["cluster.jsonl"].splitlines()] == ["broker-a"]
    assert json.loads(found["settings.jsonl"])["setting"] == "name"
    assert json.loads(found["conditions.jsonl"])["interpreter"] == "CPython 3.12.4"
    assert json.loads(found["versions.json"])["interpreter"].startswith("CPython")
    assert json.loads(found["versions.json"])["distributions"]["trovemq"]
    assert json.loads(found["bundle.json"])["parts"] == answer["parts"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_part_that_is_not_reached_is_named_and_the_others_are_there(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    missing = str(tmp_path / "no.log")
    ran = run("--json", "support-bundle", str(path), "--http", nothing_listens(), "--log", missing)
    assert ran.code == 0
    (answer,) = ran.objects
    assert set(answer["errors"]) == {"http-1/readyz", "http-1/healthz", "http-1/metrics", "log-1.txt"}
    assert "No such file" in answer["errors"]["log-1.txt"]
    assert "topics.jsonl" in members(path)


def test_a_server_that_is_not_reached_is_not_asked_again(
    run: Any, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def cluster() -> None:
        nonlocal asked
        asked += 1
        raise TroveError(errors.BROKER_UNREACHABLE, "nobody is there")

    monkeypatch.setattr(client, "cluster", cluster)
    monkeypatch.setattr(client, "list_topics", lambda **_: pytest.fail("asked again"))
    path = tmp_path / "bundle.zip"
    ran = run("support-bundle", str(path), "--http", nothing_listens())
    assert (ran.code, asked) == (0, 1)
    problems = json.loads(members(path)["bundle.json"])["errors"]
    assert "nobody is there" in problems["cluster.jsonl"]
    assert problems["topics.jsonl"] == "not asked: BROKER_UNREACHABLE"


def test_a_part_that_breaks_is_named_too(
    run: Any, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(**_: object) -> None:
        raise KeyError("an answer of another version")

    monkeypatch.setattr(client, "statistics", broken)
    path = tmp_path / "bundle.zip"
    assert run("support-bundle", str(path), "--http", nothing_listens()).code == 0
    found = members(path)
    assert json.loads(found["bundle.json"])["errors"]["statistics.jsonl"].startswith("KeyError")
    assert "topics.jsonl" in found


def test_an_existing_file_is_not_replaced(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_text("mine")
    ran = run("support-bundle", str(path))
    assert ran.code == 2
    assert "File exists" in ran.err
    assert path.read_text() == "mine"


def test_a_bundle_that_is_given_up_leaves_no_file(
    run: Any, client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused() -> None:
        raise TroveError(errors.REQUEST_ILLEGAL, "no address")

    monkeypatch.setattr(client, "cluster", refused)
    path = tmp_path / "bundle.zip"
    assert run("support-bundle", str(path), "--http", nothing_listens()).code == 1
    assert not path.exists()


def test_the_end_of_a_long_log_begins_with_a_whole_line(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_parts, "LOG_BYTES_MAX", 1_000)
    log, path = tmp_path / "broker.log", tmp_path / "bundle.zip"
    log.write_text("first\n" + "a line of the log\n" * 100)
    run("support-bundle", str(path), "--http", nothing_listens(), "--log", str(log))
    found = members(path)["log-1.txt"]
    assert 1_000 - 18 <= len(found) <= 1_000
    assert set(found.splitlines()) == {"a line of the log"}


@pytest.mark.slow
def test_settings_are_shown_without_secrets(run: Any, tmp_path: Path) -> None:
    config, path = tmp_path / "broker.toml", tmp_path / "bundle.zip"
    user = json.dumps({"username": "root", "password": SECRET})
    config.write_text(
        f"name = 'broker-x'\nauthentication_enable = true\ninit_authentication_user = '''{user}'''\n"
    )
    run("support-bundle", str(path), "--http", nothing_listens(), "--config", str(config))
    found = members(path)
    assert 'name = "broker-x"' in found["settings-1.toml"]
    assert "init_authentication_user is set, and secret" in found["settings-1.toml"]
    assert SECRET not in "".join(found.values())


@pytest.mark.parametrize(
    "text",
    [
        f"secret_key={SECRET} and more",
        f'{{"password": "{SECRET}"}}',
        f"client_secret: '{SECRET}'",
        f"connecting to trovemq://alice:{SECRET}@ns1:9876",
        f"Authorization: {SECRET}",
        f"TROVEMQ_SECRET_KEY = {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f'password = "with \\" in it {SECRET}"',
        f'password = """\n{SECRET}"""',
        f"password = '''{SECRET}'''",
    ],
)
def test_a_secret_that_a_log_would_have_is_left_out(text: str) -> None:
    assert SECRET not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "nameserver_credentials_file = '/etc/trovemq/keys'",
        'trovemq_access_refusals_total{error="AUTHENTICATION_FAILED"} 3.0',
        "http://127.0.0.1:8080/readyz and a@b",
    ],
)
def test_the_rest_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_json_stays_json() -> None:
    shown = redacted(json.dumps({"name": "a", "token": SECRET, "count": 3}))
    assert json.loads(shown) == {"name": "a", "token": "***", "count": 3}
