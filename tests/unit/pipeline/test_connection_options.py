"""TLS and transport of readers and writers, as the SDK gets them."""

from __future__ import annotations

import pickle
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
    options = parse_source_options(
        {"nameServer": "h:1", "subscribe": "t", "grpcTransport": "Trovemq", **given}
    )
    cluster = pickle.loads(pickle.dumps(Cluster("h:1", 7, options.connection())))
    expected = ClientOptions(reconnect_timeout_ms=7, tls=tls, grpc_transport="trovemq")
    assert without_backoff(cluster.client_options()) == without_backoff(expected)
    writing = parse_sink_options({"nameServer": "h:1", **given})
    assert writing.of_client(ClientOptions()).tls == tls


def test_without_them_the_environment_decides() -> None:
    options = Cluster("h:1", 7).client_options()
    assert (options.tls, options.grpc_transport) == (None, None)


def without_backoff(options: ClientOptions) -> dict[str, Any]:
    """Two of them never have the same source of chance."""
    return {name: getattr(options, name) for name in ("reconnect_timeout_ms", "tls", "grpc_transport")}
