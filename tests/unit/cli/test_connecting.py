"""The options of transport and TLS: before and after the verb, over the environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trovemq import ClientOptions, TlsOptions


def options_of(run: Any, *arguments: str) -> ClientOptions | None:
    run.options.clear()
    ran = run(*arguments)
    assert ran.code == 0, ran.err
    (options,) = run.options
    assert options is None or isinstance(options, ClientOptions)
    return options


def test_without_them_the_sdk_decides(run: Any) -> None:
    options, default = options_of(run, "cluster"), ClientOptions()
    assert options == replace(default, call_timeout_ms=24_000, connect_timeout_ms=24_000), "of 30 s"


def test_one_silent_broker_does_not_use_up_the_timeout(run: Any) -> None:
    """A query with `--timeout 5` failed where it had the answers of all brokers but one."""
    options = options_of(run, "cluster", "--timeout", "5")
    assert options is not None
    assert (options.call_timeout_ms, options.connect_timeout_ms) == (4_000, 4_000)
    options = options_of(run, "--tls", "cluster", "--timeout", "1000")
    assert options is not None
    assert (options.tls, options.call_timeout_ms) == (True, ClientOptions().call_timeout_ms)
    options = options_of(run, "cluster", "--timeout", "0.001")
    assert options is not None
    assert options.call_timeout_ms == 1


def test_they_stand_before_or_after_the_verb_and_the_later_wins(run: Any) -> None:
    options = options_of(
        run, "--tls-ca", "a", "--tls", "cluster", "--tls-ca", "b", "--grpc-transport", "trovemq"
    )
    assert options is not None
    assert (options.tls, options.grpc_transport) == (TlsOptions(ca="b"), "trovemq")
    options = options_of(run, "--tls", "cluster", "--no-tls")
    assert options is not None
    assert options.tls is False


def test_what_is_not_given_comes_from_the_environment(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TROVEMQ_TLS_CA", "ca")
    monkeypatch.setenv("TROVEMQ_TLS_SERVER_NAME", "name")
    options = options_of(run, "cluster", "--tls-cert", "c", "--tls-key", "k")
    assert options is not None
    assert options.tls == TlsOptions(ca="ca", certificate="c", key="k", server_name="name")
    options = options_of(run, "cluster", "--grpc-transport", "grpcio")
    assert options is not None
    assert options.tls is None, "the SDK reads the environment itself"


def test_a_lag_is_borne_by_every_read_of_the_command(run: Any) -> None:
    options = options_of(run, "--replica", "cluster", "--max-lag-ms", "1500")
    assert options is not None
    assert (options.replica, options.max_lag_ms) == (True, 1_500)
    for wrong in ("soon", "-1", "1.5"):
        assert run("cluster", "--max-lag-ms", wrong).code == 2


def test_a_file_or_a_transport_that_does_not_work_is_an_error(run: Any) -> None:
    ran = run("--json", "cluster", "--grpc-transport", "http")
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_ILLEGAL")
    assert "grpc_transport is grpcio or trovemq" in ran.note["message"]


def test_the_program_s_own_help_shows_them_and_a_verb_s_does_not(run: Any) -> None:
    assert b"--tls-server-name" in run("--help").out
    assert b"--tls-server-name" not in run("cluster", "--help").out
