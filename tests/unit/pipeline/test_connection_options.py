"""TLS and transport of readers and writers, as the SDK gets them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from trovemq import ClientOptions, TlsOptions
from trovemq_spark.sinks.options import parse_sink_options
from trovemq_spark.sources.live_client import Cluster
from trovemq_spark.sources.options import parse_source_options

FILES = {"tlsCa": "ca", "tlsCert": "cert", "tlsKey": "key", "tlsServerName": "name"}


@pytest.mark.parametrize(
    ("given", "tls"),
    [
        ({}, None),
        ({"tls": "true"}, True),
        ({"tls": "false", **FILES}, False),
        ({"TLSCA": "ca"}, TlsOptions(ca="ca")),
        (FILES, TlsOptions(ca="ca", certificate="cert", key="key", server_name="name")),
    ],
)
def test_the_sdk_gets_them(given: dict[str, str], tls: Any) -> None:
    own = {"grpcTransport": "Trovemq", "credentialsFile": "keys", **given}
    options = parse_source_options({"nameServer": "h:1", "subscribe": "t", **own})
    cluster = pickle.loads(pickle.dumps(Cluster("h:1", 7, options.connection())))
    expected = ClientOptions(
        reconnect_timeout_ms=7, tls=tls, credentials_file="keys", grpc_transport="trovemq"
    )
    assert without_backoff(cluster.client_options()) == without_backoff(expected)
    writing = parse_sink_options({"nameServer": "h:1", **own}).of_client(ClientOptions())
    assert (writing.tls, writing.credentials_file) == (tls, "keys")


def test_tasks_call_as_the_user_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("access_key=spark\nsecret_key=canary-secret-9\n")
    given = {"nameServer": "h:1", "subscribe": "t", "credentialsFile": str(file)}
    cluster = Cluster("h:1", 7, parse_source_options(given).connection())
    credentials = cluster.client_options().credentials()
    assert credentials is not None
    assert credentials.access_key == "spark"
    assert b"canary" not in pickle.dumps(cluster)


def test_without_them_the_environment_decides() -> None:
    options = Cluster("h:1", 7).client_options()
    assert (options.tls, options.grpc_transport) == (None, None)


def without_backoff(options: ClientOptions) -> dict[str, Any]:
    """Two of them never have the same source of chance."""
    names = ("reconnect_timeout_ms", "tls", "credentials_file", "grpc_transport")
    return {name: getattr(options, name) for name in names}
