"""Files of secrets that others may read were accepted without a warning."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import trovemq
from trovemq._net.certificates import HOSTS_DEFAULT, make_authority, make_server
from trovemq.cli import context_file
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.private_files import read_credentials, read_private
from trovemq_daemon.settings import load_settings
from trovemq_daemon.tls import read_identity
from trovemq_nameserver.users import KnownUsers, read_users
from trovemq_proto.file_modes import mode_for_others
from trovemq_proto.tls import TlsOptions, read_tls

CREDENTIALS = "access_key=a\nsecret_key=canary-secret-6\n"
USERS = "[[broker]]\nname='b'\naccess_key='b'\nsecret_key='canary-secret-6'\n"
CONTEXTS = '{"contexts": {"prod": {"server": "trovemq://a:canary-secret-6@b"}}}'


def made(path: Path, text: str, mode: int) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    now = datetime.now(UTC)
    authority = make_authority("test", 1, now)
    pair = make_server(authority.certificate, authority.key, HOSTS_DEFAULT, 1, now)
    for name, content, mode in (("server.pem", pair.certificate, 0o644), ("server.key", pair.key, 0o600)):
        made(tmp_path / name, content.decode(), mode)
    return tmp_path / "server.pem"


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_only_its_owner_may_read_a_private_file(tmp_path: Path, mode: int, is_open: bool) -> None:
    path = made(tmp_path / "credentials", CREDENTIALS, mode)
    assert mode_for_others(path) == (f"{mode:04o}" if is_open else None)


def test_a_group_may_read_what_root_has_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path / "mounted", CREDENTIALS, 0o640)
    real = path.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    owned_by_root = os.stat_result((real.st_mode, *real[1:4], 0, *real[5:]))
    monkeypatch.setattr(os, "stat", lambda _path: owned_by_root)
    assert mode_for_others(path) is None


def test_a_file_that_is_not_there_has_no_mode(tmp_path: Path) -> None:
    assert mode_for_others(tmp_path / "nowhere") is None
    assert mode_for_others(tmp_path) is None, "a directory"


def test_a_clients_credentials_were_taken_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path / "credentials", CREDENTIALS, 0o644)
    for _ in range(3):
        trovemq.ClientOptions(credentials_file=str(path)).credentials()
    (text,) = caplog.messages
    assert f"{path} holds a secret and has mode 0644" in text
    assert f"chmod 600 {path}" in text
    assert "canary" not in text
    path.chmod(0o600)
    trovemq.ClientOptions(credentials_file=str(path)).credentials()
    assert len(caplog.messages) == 1


def test_a_clients_key_and_contexts_were_taken_without_a_warning(
    tmp_path: Path, certificate: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = certificate.with_suffix(".key")
    key.chmod(0o640)
    read_tls(TlsOptions(certificate=certificate, key=key))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    contexts = made(tmp_path / "contexts.json", CONTEXTS, 0o644)
    monkeypatch.setenv("TROVEMQ_CONFIG", str(contexts))
    context_file.load_contexts()
    for path, text in zip((key, contexts), caplog.messages, strict=True):
        assert f"{path} holds a secret" in text
    made(contexts, CONTEXTS.replace("a:canary-secret-6@", ""), 0o666)
    context_file.load_contexts()
    assert len(caplog.messages) == 2, "a file without secrets may be public"


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "sealing key, first credentials": ("", read_private),
    "credentials at nameservers": (CREDENTIALS, lambda path: read_credentials(path, "x")),
    "users of a nameserver": (USERS, lambda path: read_users(path, b"k" * 32, KnownUsers())),
}


@pytest.mark.parametrize("name", READERS)
def test_a_readable_file_of_a_daemon_is_warned_about(tmp_path: Path, name: str) -> None:
    content, read = READERS[name]
    path = made(tmp_path / "file", content, 0o600)
    with capture_logs() as lines:
        read(path)
        assert lines == []
        path.chmod(0o604)
        read(path)
        read(path)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("secrets.readable_by_others", "warning")
    assert (line["path"], line["mode"]) == (str(path), "0604")


def test_a_readable_key_of_a_daemon_is_warned_about(certificate: Path) -> None:
    key = certificate.with_suffix(".key")
    with capture_logs() as lines:
        read_identity(certificate, key)
        key.chmod(0o644)
        read_identity(certificate, key)
    assert [line["path"] for line in lines] == [str(key)]


def test_a_settings_file_counts_only_if_it_has_a_secret(tmp_path: Path) -> None:
    user = 'initAuthenticationUser={"username": "admin", "password": "canary-secret-6"}\n'
    for text, has_secret in ((user, True), ("", False)):
        path = made(tmp_path / "broker.conf", f"authenticationEnabled=true\n{text}", 0o644)
        loaded = load_settings(BrokerSettings, environment_prefix="X", environment={}, config=path)
        assert loaded.secret_file == (path if has_secret else None)
