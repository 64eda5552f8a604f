"""A setting that is secret is shown nowhere and taken from no command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.setting_report import format_config
from trovemq_daemon.settings import Loaded, load_settings

USER = '{"username": "rocketmq", "password": "canary-secret-5"}'


def load(tmp_path: Path, *assignments: str, conf: str = "", **environment: str) -> Loaded[BrokerSettings]:
    path = tmp_path / "broker.conf"
    path.write_text(conf, encoding="utf-8")
    return load_settings(
        BrokerSettings,
        environment_prefix="TROVEMQ_BROKER",
        environment=environment,
        config=path,
        assignments=(f"store={tmp_path}/store", *assignments),
    )


def test_it_is_taken_from_a_file_and_not_printed(tmp_path: Path) -> None:
    loaded = load(tmp_path, "authenticationEnabled=true", conf=f"initAuthenticationUser={USER}")
    assert loaded.settings.init_authentication_user == USER
    shown = format_config(loaded)
    assert "canary" not in shown
    assert "init_authentication_user is set, and secret" in shown


def test_it_is_taken_from_the_environment(tmp_path: Path) -> None:
    loaded = load(tmp_path, "authenticationEnabled=true", TROVEMQ_BROKER_INIT_AUTHENTICATION_USER=USER)
    assert loaded.settings.init_authentication_user == USER


@pytest.mark.parametrize("name", ["initAuthenticationUser", "init_authentication_user"])
def test_it_is_refused_on_a_command_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="not on a command line") as raised:
        load(tmp_path, "authenticationEnabled=true", f"{name}={USER}")
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("assignments", "problem"),
    [
        (("authorizationEnabled=true",), "authorization_enable needs authentication_enable"),
        (("authenticationEnabled=true", "sealing_key_file={}/store/key"), "lies in store"),
        (("authenticationEnabled=true", "admin_credentials_file={}/store/a"), "lies in store"),
        (
            ("authenticationEnabled=true", "backup_root={}/b", "sealing_key_file={}/b/k"),
            "lies in backup_root",
        ),
    ],
)
def test_what_would_not_be_safe_is_refused(
    tmp_path: Path, assignments: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(tmp_path, *(text.format(tmp_path) for text in assignments))


def test_who_asks_callers_may_listen_everywhere(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="insecure"):
        load(tmp_path, "listen=0.0.0.0:8081", "advertise=broker.example:8081")
    load(tmp_path, "listen=0.0.0.0:8081", "advertise=broker.example:8081", "authenticationEnabled=true")
